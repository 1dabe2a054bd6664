from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.source.patches import apply_series, read_series
from accel_ci_tests.fixtures.checkout import commit, git

BEFORE = "".join(f"line {number}\n" for number in range(1, 31))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of plain files below a folder that is itself a git repository."""
    git(tmp_path, "init", "--quiet")
    path = tmp_path / "tree"
    (path / "src").mkdir(parents=True)
    (path / "src" / "a.txt").write_text(BEFORE)
    return path


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Two patches, the second of which needs the first."""
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    commit(work, {"src/a.txt": BEFORE})
    folder = tmp_path / "patches"
    folder.mkdir()
    first = BEFORE.replace("line 3\n", "line three\n").replace("line 25\n", "line twenty-five\n")
    second = first.replace("line three\n", "LINE THREE\n")
    for name, text in (("0001-words.patch", first), ("0002-loud.patch", second)):
        (work / "src" / "a.txt").write_text(text)
        (folder / name).write_text(git(work, "diff") + "\n")
        commit(work, {"src/a.txt": text})
    return folder


def test_a_series_is_applied_in_order(tree: Path, patches: Path) -> None:
    series = apply_series(read_series(patches), tree)
    assert (series.names, series.already) == (("0001-words.patch", "0002-loud.patch"), ())
    lines = (tree / "src" / "a.txt").read_text().splitlines()
    assert (lines[2], lines[24]) == ("LINE THREE", "line twenty-five")


def test_applied_patches_are_skipped(tree: Path, patches: Path) -> None:
    (patches / "series").write_text("# only the first\n0001-words.patch\n\n")
    apply_series(read_series(patches), tree)
    before = (tree / "src" / "a.txt").read_text()
    assert apply_series(read_series(patches), tree).already == ("0001-words.patch",)
    assert (tree / "src" / "a.txt").read_text() == before


def test_a_patch_that_does_not_apply_is_named_with_its_file_and_hunk(tree: Path, patches: Path) -> None:
    (tree / "src" / "a.txt").write_text(BEFORE.replace("line 24\n", "line xxiv\n"))
    with pytest.raises(SourceError) as caught:
        apply_series(read_series(patches), tree)
    said = str(caught.value)
    assert said.startswith("0001-words.patch does not apply to src/a.txt: hunk 2, @@ -22,7 +22,7 @@")
    assert "rebase 0001-words.patch" in said


def test_a_file_that_is_missing_is_named(tree: Path, patches: Path) -> None:
    (tree / "src" / "a.txt").unlink()
    with pytest.raises(SourceError, match=r"^0001-words\.patch does not apply: src/a\.txt: No such file"):
        apply_series(read_series(patches), tree)


def test_a_file_that_is_not_a_patch_is_named(tree: Path, tmp_path: Path) -> None:
    patch = tmp_path / "broken.patch"
    patch.write_text("this is no patch\n")
    with pytest.raises(SourceError, match=r"^broken\.patch does not apply: "):
        apply_series((patch,), tree)


def test_a_patch_cannot_reach_outside_of_the_tree(tree: Path, tmp_path: Path) -> None:
    patch = tmp_path / "escape.patch"
    patch.write_text("--- /dev/null\n+++ b/../escaped.txt\n@@ -0,0 +1 @@\n+out\n")
    with pytest.raises(SourceError, match=r"^escape\.patch does not apply: "):
        apply_series((patch,), tree)
    assert not (tmp_path / "escaped.txt").exists()


def test_a_series_names_files_of_its_folder(patches: Path, tmp_path: Path) -> None:
    (patches / "series").write_text("0003-gone.patch\n")
    with pytest.raises(SourceError, match=r"lists 0003-gone\.patch, which is not in its folder"):
        read_series(patches)
    (tmp_path / "outside.patch").write_text("")
    (patches / "series").write_text("../outside.patch\n")
    with pytest.raises(SourceError, match=r"lists outside\.patch"):
        read_series(patches)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SourceError, match="has no patches"):
        read_series(empty)
