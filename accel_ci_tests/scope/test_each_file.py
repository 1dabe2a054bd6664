"""Tests of files that are collected one by one: merged in order, and known again as long as nothing has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.model import SuiteSession
from accel_ci.scope.each_file import CollectionCache, Keys, files_below, merged
from accel_ci.source.upstream_tree import COMMIT

SESSION = SuiteSession(("upstream/test",), ("-q",))


def test_documents_are_merged_with_the_facts_of_their_tests() -> None:
    first = {
        "tests": ["a::x", "a::y"], "errors": [], "groups": {"a::x": "g"}, "deselected": {"-k": 2},
        "facts": {"op": {"values": ["add"], "of": [0, -1]}},
    }  # fmt: skip
    second = {
        "tests": ["b::x"], "errors": [{"path": "c", "message": "no"}], "skipped": {"d": "why"}, "deselected": {"-k": 1},
        "facts": {"op": {"values": ["mul"], "of": [0]}, "module": {"values": ["Linear"], "of": [0]}},
    }  # fmt: skip
    assert merged([first, second, {"tests": ["e::x"], "errors": []}]) == {
        "tests": ["a::x", "a::y", "b::x", "e::x"],
        "errors": [{"path": "c", "message": "no"}],
        "groups": {"a::x": "g"},
        "skipped": {"d": "why"},
        "ignored": {},
        "deselected": {"-k": 3},
        "facts": {
            "op": {"values": ["add", "mul"], "of": [0, -1, 1, -1]},
            "module": {"values": ["Linear"], "of": [-1, -1, 0, -1]},
        },
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("upstream/test/test_a.py", "upstream/test/nn/test_b.py", "upstream/test/nn/other.py", "base.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "upstream" / COMMIT).write_text("1" * 40)
    (tmp_path / "runner").write_text("")
    return tmp_path


def test_a_folder_stands_for_its_files_of_tests_and_each_counts_once(root: Path) -> None:
    found = files_below(root, ["upstream/test/nn", "upstream/test", "upstream/test/nn/other.py"])
    assert found == ["upstream/test/nn/test_b.py", "upstream/test/test_a.py", "upstream/test/nn/other.py"]


def keys(root: Path, content: str = "i", session: SuiteSession = SESSION) -> Keys:
    cache = CollectionCache(root / "cache", content)
    return cache.find(root, root / "upstream", session, root / "runner", ["upstream/test/test_a.py"])


def test_a_document_is_known_until_something_has_changed(root: Path) -> None:
    document = {"tests": ["upstream/test/test_a.py::test_a"], "errors": []}
    in_base = SuiteSession((), ("-q",), environment={"ACCEL_CI_TEST_BASE": str(root / "base.py")})
    for session in (SESSION, in_base):
        keys(root, session=session).keep({"upstream/test/test_a.py": document})
        assert keys(root, session=session).known() == {"upstream/test/test_a.py": document}
    assert not keys(root, content="j").known()
    assert not keys(root, session=SuiteSession((), ("-k", "a"))).known()
    assert not keys(root, session=SuiteSession((), ("-q",), environment={"A": "1"})).known()
    for path, session in (("base.py", in_base), (f"upstream/{COMMIT}", SESSION), ("upstream/test/test_a.py", SESSION)):
        (root / path).write_text("2" * 40)
        assert not keys(root, session=session).known(), path


def test_what_could_not_be_collected_is_tried_again(root: Path) -> None:
    keys(root).keep({"upstream/test/test_a.py": {"tests": [], "errors": [{"path": "a", "message": "no device"}]}})
    assert not keys(root).known()


def test_a_damaged_document_is_not_known(root: Path) -> None:
    [place] = keys(root).places.values()
    place.parent.mkdir()
    place.write_text("{")
    assert not keys(root).known()
