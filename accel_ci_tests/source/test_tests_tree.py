"""The folder that tests run in has no package of the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.source.checkout import MARK, changes_of_checkout
from accel_ci.source.tests_tree import tests_tree

FILES = ("toy/__init__.py", "toy/tests/test_a.py", "toy/tests/data/x", "single.py", "tests/test_b.py", "README.md")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "checkouts" / "gabc"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_packages_and_modules_of_the_wheel_are_hidden(sources: Path) -> None:
    tree = tests_tree(sources, {"toy", "single"}, ["tests"])
    assert tree != sources
    assert files_below(tree) == {"tests/test_b.py", "README.md"}
    assert files_below(sources) == set(FILES)
    assert tests_tree(sources, {"toy", "single"}, ["tests"]) == tree, "it is made once"


def test_a_copy_of_a_checkout_that_tests_have_changed_is_made_anew(sources: Path) -> None:
    (sources / ".git").mkdir()
    (sources / ".git" / MARK).write_text(".")
    tree = tests_tree(sources, {"toy"}, ["tests"])
    assert changes_of_checkout(tree) == []
    (tree / "tests" / "test_b.py").write_text("changed")
    assert tests_tree(sources, {"toy"}, ["tests"]) == tree
    assert (tree / "tests" / "test_b.py").read_text() == "tests/test_b.py"


def test_tests_inside_of_the_package_stay(sources: Path) -> None:
    assert files_below(tests_tree(sources, {"toy"}, ["toy/tests"])) == set(FILES) - {"toy/__init__.py"}


def test_sources_without_the_package_are_taken_as_they_are(sources: Path) -> None:
    assert tests_tree(sources, {"elsewhere"}, ["tests"]) == sources
    assert tests_tree(sources, {"toy"}, ["toy"]) == sources, "the package is what is tested"


def test_folders_and_files_are_added_beside_the_tests(sources: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pytorch-1"
    (folder / "test").mkdir(parents=True)
    (folder / "test" / "test_c.py").write_text("")
    tree = tests_tree(sources, set(), ["tests"], {"upstream": folder}, {"own/base.py": b"1"})
    assert files_below(tree) == {*FILES, "upstream/test/test_c.py", "own/base.py"}
    assert files_below(sources) == set(FILES)
    other = tests_tree(sources, set(), ["tests"], {"upstream": folder}, {"own/base.py": b"2"})
    assert other != tree
    assert (other / "own" / "base.py").read_bytes() == b"2"


def test_folders_of_the_backend_are_not_overwritten(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'tests', which is where PyTorch's tests go"):
        tests_tree(sources, set(), ["tests"], {}, {"tests/base.py": b""})
