"""PyTorch's tests at a commit: only the folders that are needed, fetched once, with clear words for what cannot be had."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.config.settings import Upstream, Variant
from accel_ci.errors import SourceError
from accel_ci.model import Revision, RuntimeImage, Source
from accel_ci.source.upstream_tree import UpstreamTree, behind_revision, commit_of_tests, upstream_tree
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.stages import IMAGE

FILES = {
    "version.txt": "2.13.0a0\n",
    "pytest.ini": "[pytest]\n",
    "test/test_a.py": "def test_a(): pass\n",
    "test/nn/test_b.py": "def test_b(): pass\n",
    "tools/stats.py": "",
    "torch/__init__.py": "raise RuntimeError('the sources of torch hide the wheel')\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "pytorch"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def files_of(tree: UpstreamTree) -> set[str]:
    found = {path.relative_to(tree.folder).as_posix() for path in tree.folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(".")}


def fetch(repository: Path, sha: str, image: RuntimeImage = IMAGE, upstream: Upstream | None = None) -> UpstreamTree:
    return upstream_tree(
        upstream or Upstream(repository="pytorch"), sha, image, repository.parent, repository.parent / "sources"
    )


def test_only_the_folders_and_the_files_at_the_top_are_fetched(repository: Path) -> None:
    sha = commit(repository, FILES)
    commit(repository, {"test/test_a.py": "a later one"})
    tree = fetch(repository, sha)
    assert files_of(tree) == FILES.keys() - {"torch/__init__.py"}
    assert (tree.folder / "test/test_a.py").read_text() == FILES["test/test_a.py"]


def test_it_is_fetched_once_and_needs_no_repository_then(repository: Path) -> None:
    sha = commit(repository, FILES)
    first = fetch(repository, sha)
    shutil.rmtree(repository)
    assert fetch(repository, sha) == first


def test_a_tree_that_somebody_has_changed_is_fetched_again(repository: Path) -> None:
    sha = commit(repository, FILES)
    (fetch(repository, sha).folder / "test/test_a.py").write_text("def test_a(): assert True\n")
    assert (fetch(repository, sha).folder / "test/test_a.py").read_text() == FILES["test/test_a.py"]


def test_a_mirror_takes_the_place_of_the_repository(repository: Path) -> None:
    sha = commit(repository, FILES)
    git(repository.parent, "clone", "--quiet", "--mirror", str(repository), "mirror.git")
    upstream = Upstream(repository="https://localhost:1/pytorch.git", mirror="mirror.git", folders=("test",))
    assert "tools/stats.py" not in files_of(fetch(repository, sha, upstream=upstream))


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ({"repository": "pytorch"}, "upstream.mirror"),
        ({"repository": "https://localhost:1/pytorch.git"}, "check the address and the network"),
        ({"mirror": "nowhere"}, "is no folder"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(repository: Path, upstream: dict[str, str], words: str) -> None:
    commit(repository, FILES)
    with pytest.raises(SourceError, match=words) as raised:
        fetch(repository, "1" * 40, upstream=Upstream(**upstream))  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert not list((repository.parent / "sources").glob("upstream-*")), "nothing is left of it"


def test_a_folder_that_the_commit_has_not_is_named(repository: Path) -> None:
    sha = commit(repository, FILES)
    with pytest.raises(SourceError, match=r"has no folder 'tset'; correct upstream\.folders"):
        fetch(repository, sha, upstream=Upstream(repository="pytorch", folders=("tset",)))


def test_tests_of_another_commit_than_the_image_are_told(repository: Path) -> None:
    sha = commit(repository, FILES)
    assert fetch(repository, sha, replace(IMAGE, torch_sha=sha)).skew is None
    skew = fetch(repository, sha, replace(IMAGE, torch_sha="f" * 40, torch_version="2.14.0")).skew
    assert skew is not None
    assert f"2.13.0a0 at {sha[:12]}" in skew
    assert "torch 2.14.0 at ffffffffffff" in skew


def test_the_commit_is_that_of_the_pytorch_under_test() -> None:
    pinned = Variant(name="a", python="3.11", torch="torch==2.13.0", runtime="emu")
    main = pinned.model_copy(update={"torch_source": "main"})
    image = replace(IMAGE, torch_sha="a" * 40)
    now, backend = datetime.now(timezone.utc), Source("backend", "main", "d" * 40)
    revision = Revision("nightly-20261127", "nightly", now, backend, Source("pytorch", "main", "b" * 40))
    assert commit_of_tests(Upstream(), pinned, image, revision) == "a" * 40
    assert commit_of_tests(Upstream(), main, image, revision) == "a" * 40, "a nightly wheel may lag behind"
    assert commit_of_tests(Upstream(), main, replace(IMAGE, torch_sha=None), revision) == "b" * 40
    assert commit_of_tests(Upstream(tests_sha="c" * 40), main, image, revision) == "c" * 40
    told = behind_revision(main, image, revision)
    assert told is not None
    assert "built from aaaaaaaaaaaa, not from the revision's upstream bbbbbbbbbbbb" in told
    assert behind_revision(main, replace(IMAGE, torch_sha="b" * 40), revision) is None
    assert behind_revision(main, replace(IMAGE, torch_sha=None), revision) is None
    assert behind_revision(pinned, image, revision) is None
    with pytest.raises(SourceError, match=r"set upstream\.tests_sha"):
        commit_of_tests(Upstream(), pinned, replace(IMAGE, torch_sha=None), revision)
