"""Tags against content: modules for other Pythons, systems and architectures, and where compiled files lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.model import CheckResult
from accel_ci.wheels.archive import read_archive
from accel_ci.wheels.content import check_content
from accel_ci.wheels.wheel_name import parse_name

from .wheel_files import METADATA, PURE, elf, wheel_fields, write_wheel

LINUX = "manylinux_2_28_x86_64"
CP311 = f"cp311-cp311-{LINUX}"
GNU = "x86_64-linux-gnu.so"
AARCH64, AMD_GPU = 183, 224


def content(wheel: Path, rules: Wheels | None = None) -> CheckResult:
    _, contents = read_archive(wheel, rules or Wheels())
    assert contents is not None
    return check_content(contents, "toy-1.0.dist-info", parse_name(wheel.name), rules or Wheels())


def with_modules(folder: Path, tag: str, names: Iterable[str], requires: str | None = None) -> CheckResult:
    files = {f"toy/{name}": elf() if name.endswith(".so") else b"MZ" for name in names}
    fields = METADATA.replace("Summary:", f"Requires-Python: {requires}\nSummary:") if requires else METADATA
    info = {"toy-1.0.dist-info/METADATA": fields.encode()}
    return content(write_wheel(folder, tag, files={**info, **files}))


@pytest.mark.parametrize(
    ("tag", "names", "requires"),
    [
        (PURE, [], None),
        (CP311, [f"_c.cpython-311-{GNU}"], None),
        (CP311, ["_c.so"], None),
        (CP311, ["_c.abi3.so"], None),
        (f"cp38-abi3-{LINUX}", ["_c.abi3.so"], None),
        (f"cp38-abi3-{LINUX}", ["_c.so"], None),
        (f"cp313-cp313t-{LINUX}", [f"_c.cpython-313t-{GNU}"], None),
        (f"cp311-none-{LINUX}", [f"_c.cpython-311-{GNU}"], None),
        (f"cp310.cp311-cp310.cp311-{LINUX}", [f"_c.cpython-310-{GNU}", f"_c.cpython-311-{GNU}"], None),
        (f"py3-none-{LINUX}", [f"_c.cpython-310-{GNU}", f"_c.cpython-311-{GNU}"], ">=3.10,<3.12"),
        (f"py3-none-{LINUX}", ["libtoy.so"], None),
        (f"pp310-pypy310_pp73-{LINUX}", [f"_c.pypy310-pp73-{GNU}"], None),
        ("cp311-cp311-win_amd64", ["_c.cp311-win_amd64.pyd"], None),
        ("cp311-cp311-win_amd64", ["_c.pyd"], None),
        ("cp311-cp311-macosx_11_0_arm64", ["_c.cpython-311-darwin.so"], None),
        ("cp311-cp311-musllinux_1_2_x86_64", ["_c.cpython-311-x86_64-linux-musl.so"], None),
        ("cp311-cp311-manylinux2014_x86_64", [f"_c.cpython-311-{GNU}"], None),
    ],
)
def test_modules_that_fit_their_tag_pass(tmp_path: Path, tag: str, names: list[str], requires: str | None) -> None:
    if tag.endswith(("arm64", "win_amd64")):  # not ELF
        wheel = write_wheel(tmp_path, tag, files={f"toy/{name}": b"\xcf\xfa\xed\xfe" for name in names})
        assert content(wheel).findings == ()
        return
    result = with_modules(tmp_path, tag, names, requires)
    assert (result.findings, result.warnings) == ((), ())


@pytest.mark.parametrize(
    ("tag", "names", "requires", "message"),
    [
        (f"cp312-cp312-{LINUX}", [f"_c.cpython-311-{GNU}"], None, "CPython 3.12 cannot import it"),
        (f"cp38-abi3-{LINUX}", [f"_c.cpython-311-{GNU}"], None, "CPython 3.10 cannot import it"),
        (f"cp311-abi3-{LINUX}", [f"_c.cpython-311-{GNU}"], None, "CPython 3.12 cannot import it"),
        (
            f"py3-none-{LINUX}",
            [f"_c.cpython-311-{GNU}"],
            None,
            "the tag py3-none-manylinux_2_28_x86_64 admits CPython 3.1",
        ),
        (f"py3-none-{LINUX}", [f"_c.cpython-311-{GNU}"], ">=3.11,<3.13", "CPython 3.12 cannot import it"),
        (f"py311-none-{LINUX}", [f"_c.cpython-311-{GNU}"], None, "CPython 3.12 cannot import it"),
        (f"cp310.cp311-cp310.cp311-{LINUX}", [f"_c.cpython-311-{GNU}"], None, "CPython 3.10 cannot import it"),
        (f"cp313-cp313t-{LINUX}", [f"_c.cpython-313-{GNU}"], None, "CPython 3.13t cannot import it"),
        (f"cp313-cp313-{LINUX}", [f"_c.cpython-313t-{GNU}"], None, "CPython 3.13 cannot import it"),
        (f"cp313-cp313t-{LINUX}", ["_c.abi3.so"], None, "CPython 3.13t cannot import it"),
        (CP311, [f"_c.pypy311-pp73-{GNU}"], None, "CPython 3.11 cannot import it"),
        (CP311, [f"_c.cpython-36m-{GNU}"], None, "CPython 3.11 cannot import it"),
        (f"pp310-pypy310_pp73-{LINUX}", [f"_c.cpython-310-{GNU}"], None, "PyPy 3.10 cannot import it"),
        (CP311, ["_c.cpython-311-aarch64-linux-gnu.so"], None, "is named for aarch64, but the tag is for x86_64"),
        (CP311, ["_c.cpython-311-x86_64-linux-musl.so"], None, "is a module for musl, but the tag is for manylinux"),
        (CP311, ["_c.cpython-311-darwin.so"], None, "is a module for macosx, but the tag is for linux"),
        (CP311, ["_c.cp311-win_amd64.pyd"], None, "is a module for win, but the tag is for linux"),
        (
            "cp311-cp311-macosx_11_0_arm64",
            [f"_c.cpython-311-{GNU}"],
            None,
            "for linux, but the tag is for macosx",
        ),
    ],
)
def test_modules_for_another_python_or_system_are_named(
    tmp_path: Path, tag: str, names: list[str], requires: str | None, message: str
) -> None:
    result = with_modules(tmp_path, tag, names, requires)
    assert not result.passed
    assert any(finding.startswith(f"toy/{names[0]}: ") and message in finding for finding in result.findings)


def test_a_module_that_no_admitted_python_imports_is_a_warning_beside_one_that_fits(tmp_path: Path) -> None:
    result = with_modules(tmp_path, CP311, [f"_c.cpython-311-{GNU}", f"_c.cpython-310-{GNU}"])
    assert (result.passed, len(result.warnings)) == (True, 1)
    assert result.warnings[0].startswith(f"toy/_c.cpython-310-{GNU}: no Python")


def test_an_extension_module_without_a_suffix_needs_an_abi_in_the_tag(tmp_path: Path) -> None:
    module = {"toy/_c.so": elf(text=b"\0PyInit__c\0")}
    stable = {"toy/_c.abi3.so": elf()}
    for files in (module, stable):
        assert "is an extension module" in content(write_wheel(tmp_path, f"py3-none-{LINUX}", files=files)).summary
        assert content(write_wheel(tmp_path, CP311, files=files)).passed


def test_code_of_another_architecture_is_refused_unless_allowed(tmp_path: Path) -> None:
    files = {"toy/libtoy.so.1": elf(AARCH64), "toy/bin/tool": elf(AARCH64, kind=2), "toy/libown.so": elf()}
    wheel = write_wheel(tmp_path, CP311, files=files)
    found = content(wheel).findings
    assert [finding.partition(":")[0] for finding in found] == ["toy/bin/tool", "toy/libtoy.so.1"]
    assert "is compiled for Linux on aarch64, but the tag is for x86_64" in found[0]
    assert content(wheel, Wheels(foreign_code=("toy/bin/*", "toy/libtoy.*"))).passed


def test_code_for_cards_and_object_files_are_no_code_of_another_architecture(tmp_path: Path) -> None:
    files = {"toy/kernel.hsaco": elf(AMD_GPU), "toy/kernel.so": elf(AMD_GPU), "toy/a.o": elf(AARCH64, kind=1)}
    assert content(write_wheel(tmp_path, CP311, files={**files, "toy/libown.so": elf()})).findings == ()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("toy/_c.so", "toy/_c.so: is compiled, but toy-1.0.dist-info/WHEEL has Root-Is-Purelib: true"),
        ("toy/tool", "toy/tool: is compiled, but"),
        ("toy-1.0.data/purelib/toy/_c.so", "is compiled, but in the folder for pure Python"),
    ],
)
def test_compiled_files_in_the_place_for_pure_python_are_refused(tmp_path: Path, path: str, message: str) -> None:
    pure = {"toy-1.0.dist-info/WHEEL": wheel_fields(CP311).replace("false", "true").encode()}
    assert message in content(write_wheel(tmp_path, CP311, files={**pure, path: elf()})).summary
    assert content(write_wheel(tmp_path, CP311, files={**pure, "toy-1.0.data/platlib/toy/_c.so": elf()})).passed


def test_a_tag_for_a_platform_without_compiled_files_is_a_warning(tmp_path: Path) -> None:
    result = content(write_wheel(tmp_path, CP311))
    assert (result.passed, result.summary) == (True, f"the tag is for {LINUX}, but nothing in the wheel is compiled")
    purelib = {"toy-1.0.dist-info/WHEEL": wheel_fields().replace("true", "false").encode()}
    assert len(content(write_wheel(tmp_path, files=purelib)).warnings) == 1


def test_a_file_in_the_package_of_pytorch_is_refused(tmp_path: Path) -> None:
    assert content(write_wheel(tmp_path, files={"torch/extra.py": b""})).summary.startswith("torch/extra.py: ")
