"""The dist-info folder: METADATA, WHEEL, entry points and the data folder, each fault by the file that has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.model import CheckResult
from accel_ci.wheels.archive import read_archive
from accel_ci.wheels.dist_info import check_dist_info, check_metadata, check_wheel_file
from accel_ci.wheels.wheel_name import parse_name

from .wheel_files import METADATA, PURE, wheel_fields, write_wheel

INFO = "toy-1.0.dist-info"


def folder(wheel: Path, name: str | None = None) -> CheckResult:
    _, contents = read_archive(wheel, Wheels())
    assert contents is not None
    return check_dist_info(contents, parse_name(name or wheel.name))[0]


def wheel_file(tmp_path: Path, text: str | bytes | None, tag: str = PURE) -> CheckResult:
    content = text.encode() if isinstance(text, str) else text
    wheel = write_wheel(tmp_path, tag, files={f"{INFO}/WHEEL": content})
    _, contents = read_archive(wheel, Wheels())
    assert contents is not None
    return check_wheel_file(contents, INFO, parse_name(wheel.name))


def metadata(
    tmp_path: Path, text: str | bytes | None, tag: str = PURE, below: Mapping[str, bytes] | None = None
) -> CheckResult:
    content = text.encode() if isinstance(text, str) else text
    files = {f"{INFO}/{name}": each for name, each in (below or {}).items()}
    wheel = write_wheel(tmp_path, tag, files={f"{INFO}/METADATA": content, **files})
    _, contents = read_archive(wheel, Wheels())
    assert contents is not None
    return check_metadata(contents, INFO, parse_name(wheel.name))


def with_field(field: str) -> str:
    return METADATA.replace("Summary:", f"{field}\nSummary:")


@pytest.mark.parametrize(
    "name", ["toy-1.0-py3-none-any.whl", "Toy-1.0.0-py3-none-any.whl", "toy-1.0-1build-py2.py3-none-any.whl"]
)
def test_the_folder_fits_names_that_mean_the_same(tmp_path: Path, name: str) -> None:
    assert folder(write_wheel(tmp_path), name).passed


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"other-2.0.dist-info/METADATA": b""}, "there are 2 dist-info folders, and must be one: other-2.0.dist-info, toy"),
        ({f"{INFO}/METADATA": None}, f"{INFO}/METADATA: is missing"),
        ({f"{INFO}/WHEEL": None}, f"{INFO}/WHEEL: is missing"),
        ({f"{INFO}/RECORD": None}, f"{INFO}/RECORD: is missing"),
        ({"toy-2.0.data/scripts/toy": b""}, "toy-2.0.data: is not named toy-1.0.data"),
        ({"toy-1.0.data/toy": b""}, "toy-1.0.data/toy: is not in one of the folders purelib, platlib"),
        ({"toy-1.0.data/bin/toy": b""}, "toy-1.0.data/bin/toy: is not in one of the folders"),
        (
            {"toy-1.0.data/purelib/toy/__init__.py": b""},
            "toy-1.0.data/purelib/toy/__init__.py: is installed in the same place as toy/__init__.py",
        ),
    ],
)
def test_a_faulty_folder_is_named(tmp_path: Path, files: dict[str, bytes | None], message: str) -> None:
    result = folder(write_wheel(tmp_path, files=files))
    assert not result.passed
    assert message in "\n".join(result.findings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toy-1.1-py3-none-any.whl", f"{INFO}: the file name has toy 1.1"),
        ("toy_2-1.0-py3-none-any.whl", f"{INFO}: the file name has toy-2 1.0"),
        ("toy-1.0+cpu-py3-none-any.whl", f"{INFO}: the file name has toy 1.0+cpu"),
    ],
)
def test_a_folder_of_another_name_or_version_is_named(tmp_path: Path, name: str, message: str) -> None:
    assert folder(write_wheel(tmp_path), name).findings == (message,)


def test_a_wheel_without_a_proper_folder_is_refused(tmp_path: Path) -> None:
    none = dict.fromkeys((f"{INFO}/METADATA", f"{INFO}/WHEEL", f"{INFO}/RECORD"))
    assert folder(write_wheel(tmp_path, files=none)).summary == "there are no dist-info folders, and must be one"
    odd = {"toy.dist-info/METADATA": b"", "toy.dist-info/WHEEL": b"", "toy.dist-info/RECORD": b""}
    assert (
        "toy.dist-info: is not named NAME-VERSION.dist-info" in folder(write_wheel(tmp_path, files={**none, **odd})).findings
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[console_scripts]\ntoy = toy:main\n[torch.backends]\ntoy=toy._autoload\n[x]\na.b = toy:A.b [extra]\n", None),
        ("# empty\n", None),
        ("toy = toy:main\n", "File contains no section headers"),
        ("[console_scripts]\ntoy\n", "Source contains parsing errors"),
        ("[console_scripts]\ntoy = toy:main\ntoy = toy:other\n", "option 'toy'"),
        ("[a]\nx = toy\n[a]\ny = toy\n", "section 'a' already exists"),
        ("[console_scripts]\ntoy = toy.main()\n", "toy = toy.main() in [console_scripts] is no object reference"),
        ("[torch.backends]\ntoy = toy:\n", "is no object reference"),
        ("[torch.backends]\ntoy = my-toy:main\n", "is no object reference"),
        ("[torch.backends]\ntoy =\n", "is no object reference"),
        ("[console_scripts]\ntoy = toy\n", "names no function"),
        ("[console_scripts]\n../toy = toy:main\n", "cannot be the name of a script"),
    ],
)
def test_the_syntax_of_entry_points(tmp_path: Path, text: str, message: str | None) -> None:
    result = folder(write_wheel(tmp_path, files={f"{INFO}/entry_points.txt": text.encode()}))
    assert result.passed == (message is None)
    if message:
        assert result.summary.startswith(f"{INFO}/entry_points.txt: ")
        assert message in result.summary


def test_entry_points_in_another_encoding_are_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, files={f"{INFO}/entry_points.txt": "[a]\nb = größe\n".encode("latin-1")})
    assert folder(wheel).findings == (f"{INFO}/entry_points.txt: is not UTF-8",)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (wheel_fields(), PURE),
        (wheel_fields().replace("\n", "\r\n"), PURE),
        (wheel_fields().lower().replace("true", "TRUE"), PURE),
        (wheel_fields().replace("Tag: py3-none-any", "Tag: py2-none-any\nTag: py3-none-any"), "py2.py3-none-any"),
        (wheel_fields() + "Build: 2a\n", "2a-py3-none-any"),
        (wheel_fields() + "X-Other: field\n\n", PURE),
    ],
)
def test_a_right_wheel_file_passes(tmp_path: Path, text: str, tag: str) -> None:
    result = wheel_file(tmp_path, text, tag)
    assert (result.passed, result.warnings) == (True, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing"),
        (b"Wheel-Version: 1.0\nGenerator: gr\xf6\xdfe\n", "is not UTF-8"),
        ("", "has no field Wheel-Version"),
        (wheel_fields().replace("Wheel-Version: 1.0\n", ""), "has no field Wheel-Version"),
        (wheel_fields() + "Wheel-Version: 1.0\n", "has 2 fields Wheel-Version"),
        (wheel_fields().replace("1.0", "2.0"), "has the Wheel-Version 2.0; installers read 1.0"),
        (wheel_fields().replace("1.0", "one"), "one is no Wheel-Version"),
        (wheel_fields().replace("Root-Is-Purelib: true\n", ""), "has no field Root-Is-Purelib"),
        (wheel_fields().replace("true", "yes"), "Root-Is-Purelib is yes, neither true nor false"),
        (wheel_fields().replace("Tag: py3-none-any\n", ""), "has no Tag"),
        (wheel_fields().replace("py3-none-any", ""), "an empty text is no tag"),
        (wheel_fields().replace("py3-none-any", "-manylinux2014_x86_64"), "-manylinux2014_x86_64 is no tag"),
        (wheel_fields("cp311-cp311-linux_x86_64"), "has no Tag py3-none-any, which the file name has"),
        (wheel_fields() + "Tag: py2-none-any\n", "has the Tag py2-none-any, which the file name has not"),
        (wheel_fields().replace("py3", "py2.py3"), "the tag py2.py3-none-any is not expanded"),
        (wheel_fields().replace("Tag: ", "Tag:\n  "), "line 5 is not a field and its value"),
        (wheel_fields() + "Build: 1\n", "its Build is 1, but none in the file name"),
    ],
)
def test_a_wrong_wheel_file_is_named(tmp_path: Path, text: str | bytes | None, message: str) -> None:
    result = wheel_file(tmp_path, text)
    assert not result.passed
    assert any(finding.startswith(f"{INFO}/WHEEL: ") and message in finding for finding in result.findings)


def test_the_build_number_is_that_of_the_file_name(tmp_path: Path) -> None:
    assert "its Build is none, but 2a in the file name" in wheel_file(tmp_path, wheel_fields(), "2a-py3-none-any").summary


def test_a_newer_minor_wheel_version_is_a_warning(tmp_path: Path) -> None:
    result = wheel_file(tmp_path, wheel_fields().replace("1.0", "1.9"))
    assert (result.passed, len(result.warnings)) == (True, 1)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (METADATA, PURE),
        (with_field("Requires-Python: >=3.10,<4"), "cp311-cp311-linux_x86_64"),
        (with_field("Requires-Python: >=3.12"), "cp310-abi3-linux_x86_64"),
        (with_field("Requires-Python: >=3.11.4"), "cp311-cp311-linux_x86_64"),
        (with_field("Requires-Dist: torch>=2.5; python_version >= '3.10'\nProvides-Extra: dev"), PURE),
        (METADATA.replace("Name: toy", "Name: TOY").replace("Version: 1.0\n", "Version: 1.0.0\n"), PURE),
    ],
)
def test_right_metadata_passes(tmp_path: Path, text: str, tag: str) -> None:
    result = metadata(tmp_path, text, tag)
    assert (result.passed, result.warnings) == (True, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing"),
        ("", "is not a valid metadata version"),
        (METADATA.replace("Metadata-Version: 2.1\n", ""), "is not a valid metadata version"),
        (METADATA.replace("2.1", "3.0"), "'3.0' is not a valid metadata version"),
        (METADATA.replace("Name: toy\n", ""), "'name' is a required field"),
        (METADATA.replace("Name: toy", "Name: toy backend!"), "is invalid for 'name'"),
        (METADATA.replace("Name: toy", "Name: other"), "its Name is other, but toy in the file name"),
        (METADATA.replace("Version: 1.0\n", ""), "'version' is a required field"),
        (METADATA.replace("Version: 1.0\n", "Version: 1.0-final?\n"), "is invalid for 'version'"),
        (METADATA.replace("Version: 1.0\n", "Version: 1.0+cpu\n"), "its Version is 1.0+cpu, but 1.0 in the file name"),
        (with_field("Version: 1.0"), "'version' has invalid data"),
        (with_field("Requires-Python: 3.11 or newer"), "is invalid for 'requires-python'"),
        (with_field("Requires-Python: <3"), "no Python of the tags py3-none-any meets its Requires-Python <3"),
        (with_field("Requires-Dist: torch>=2.5.x"), "is invalid for 'requires-dist'"),
        (with_field("Requires-Dist: torch; python_version = 3"), "is invalid for 'requires-dist'"),
        (with_field("Requires-Dist: torch @ file:///build/torch.whl"), "requires a file of the machine that built it"),
        (METADATA.replace("text/plain", "text/html"), "'description-content-type' must be one of"),
        (b"\xff\xfe" + METADATA.encode("utf-16-le"), "is not a valid metadata version"),
        (METADATA.encode() + b"Summary: gr\xf6\xdfe\n", "'description' has invalid data"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, text: str | bytes | None, message: str) -> None:
    result = metadata(tmp_path, text)
    assert not result.passed
    assert any(finding.startswith(f"{INFO}/METADATA: ") and message in finding for finding in result.findings)


def test_a_tag_for_a_python_that_the_metadata_exclude_is_refused(tmp_path: Path) -> None:
    result = metadata(tmp_path, with_field("Requires-Python: >=3.12"), "cp311-cp311-linux_x86_64")
    assert "no Python of the tags cp311-cp311-linux_x86_64 meets its Requires-Python >=3.12" in result.summary


@pytest.mark.parametrize(
    "text",
    [
        with_field("License-File: LICENSE"),  # setuptools wrote it before metadata 2.4
        with_field("X-Internal: yes"),
        METADATA.replace("2.1", "2.99"),
        with_field("Requires-Dist: torch @ https://example.org/torch-2.5-py3-none-any.whl"),
    ],
)
def test_what_installers_accept_is_a_warning(tmp_path: Path, text: str) -> None:
    result = metadata(tmp_path, text)
    assert (result.passed, len(result.warnings)) == (True, 1)


def test_license_files_of_new_metadata_must_be_there(tmp_path: Path) -> None:
    text = with_field("License-File: LICENSE").replace("2.1", "2.4")
    assert metadata(tmp_path, text).findings == (
        f"{INFO}/licenses/LICENSE: is missing, but a License-File of {INFO}/METADATA",
    )
    assert metadata(tmp_path, text, below={"licenses/LICENSE": b"free"}).passed
