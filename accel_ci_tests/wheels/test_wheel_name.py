"""Names of wheel files, and the Pythons that their tags admit."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.tags import Tag

from accel_ci.wheels.wheel_name import admitted, check_name


@pytest.mark.parametrize(
    "name",
    [
        "toy-1.0-py3-none-any.whl",
        "toy_backend-1.0+rocm6.4-1a-cp310.cp311-cp310.cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "toy-1!2.0.post1.dev3-cp38-abi3-linux_x86_64.whl",
    ],
)
def test_right_names_pass(name: str) -> None:
    result, parsed = check_name(Path(name))
    assert (result.passed, result.warnings, parsed is None) == (True, (), False)


@pytest.mark.parametrize(
    "name",
    [
        "toy-1.0+arch75+torch27-py3-none-any.whl", "toy-1.0-py3-none-any-S80.whl", "toy-1.0%2Brocm6.4-py3-none-any.whl",
        "toy-1.0-py3-none.whl", "toy-py3-none-any.whl", "toy.whl", ".whl", "toy-1.0-py3-none-any.WHL", "toy-1.0.tar.gz",
        "toy-1.0-py3-none-any.whl.zip", "toy__x-1.0-py3-none-any.whl", "toy-one-py3-none-any.whl",
        "toy-1.0-build-py3-none-any.whl", "toy-1.0-1-2-py3-none-any.whl", "to y-1.0-py3-none-any.whl",
        "toy-1.0-py3-none-any (1).whl", "toy-1.0--none-any.whl", "-1.0-py3-none-any.whl", "toy-1.0-py3-none-any\x1b.whl",
    ],
)  # fmt: skip
def test_names_that_are_none_are_a_fault_that_quotes_them(name: str) -> None:
    result, parsed = check_name(Path("dist") / name)
    assert (result.name, result.passed, parsed) == ("file_name", False, None)
    assert name.replace("\x1b", "\\x1b") in result.summary


@pytest.mark.parametrize("name", ["Toy-1.0-py3-none-any.whl", "toy-1.0.RC1-py3-none-any.whl", "toy-1.0-xy3-none-any.whl"])
def test_names_that_are_not_normalised_are_warnings(name: str) -> None:
    result, parsed = check_name(Path(name))
    assert (result.passed, len(result.warnings), parsed is None) == (True, 1, False)


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        (Tag("cp311", "cp311", "any"), ["CPython 3.11"]),
        (Tag("cp311", "none", "any"), ["CPython 3.11"]),
        (Tag("cp313", "cp313t", "any"), ["CPython 3.13t"]),
        (Tag("cp310", "cp311", "any"), []),
        (Tag("cp31", "cp311", "any"), []),
        (Tag("pp310", "pypy310_pp73", "any"), ["PyPy 3.10"]),
        (Tag("py38", "none", "any"), ["CPython 3.8", "CPython 3.9", "CPython 3.10"]),
        (Tag("cp39", "abi3", "any"), ["CPython 3.9", "CPython 3.10"]),
        (Tag("py3", "none", "any"), ["CPython 3.0", "CPython 3.1"]),
        (Tag("graalpy311", "graalpy242_311_native", "any"), []),
    ],
)
def test_the_pythons_that_a_tag_admits(tag: Tag, shown: list[str]) -> None:
    found = [str(python) for python in admitted(tag)]
    assert found[: len(shown)] == shown
    assert bool(found) == bool(shown)
