"""Names and objects that would have another commit built under the label of the one that is meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.source.checkout import checkout
from accel_ci.source.git import run_git
from accel_ci.source.refs import resolve_source
from accel_ci_tests.fixtures.checkout import commit, git

NAMES = (
    "refs/heads/{}", "refs/heads/evil/refs/heads/{}", "refs/heads/refs/heads/{}", "refs/heads/heads/{}",
    "refs/heads/evil/{}", "refs/tags/refs/heads/{}", "refs/tags/heads/{}", "refs/pull/1/{}", "refs/heads/origin/{}",
)  # fmt: skip


@pytest.fixture
def commits(repository: Path) -> tuple[str, str]:
    """The commit of `main`, and the stranger's, to which all names point that resemble `main`."""
    meant = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "-b", "stranger")
    evil = commit(repository, {"backend/evil.py": ""})
    git(repository, "checkout", "--quiet", "main")
    for name in NAMES[1:]:
        git(repository, "update-ref", name.format("main"), evil)
    return meant, evil


@pytest.mark.parametrize("ref", ["main", "refs/heads/main"])
def test_names_that_resemble_a_branch_are_not_taken(repository: Path, commits: tuple[str, str], ref: str) -> None:
    for place in (repository.as_uri(), "."):
        assert resolve_source(place, ref, ".", repository, timeout_s=30).sha == commits[0]
    git(repository, "checkout", "--quiet", "--detach")
    git(repository, "update-ref", "-d", "refs/heads/main")
    for place in (repository.as_uri(), "."):
        with pytest.raises(SourceError, match="has no ref"):
            resolve_source(place, ref, ".", repository, timeout_s=30)


def test_a_branch_named_like_a_commit_is_not_that_commit(repository: Path, commits: tuple[str, str]) -> None:
    meant, evil = commits
    git(repository, "update-ref", f"refs/heads/{meant}", evil)
    git(repository, "update-ref", f"refs/tags/{meant}", evil)
    for place in (repository.as_uri(), "."):
        state = resolve_source(place, meant, "backend", repository, timeout_s=30)
        assert state.sha == meant
        sources = checkout(state, place, repository, repository.parent / "sources", timeout_s=30)
        assert not (sources / "evil.py").exists()


def test_a_replaced_commit_is_the_original(repository: Path, commits: tuple[str, str]) -> None:
    meant, evil = commits
    git(repository, "replace", meant, evil)
    for place in (repository.as_uri(), "."):
        state = resolve_source(place, "refs/heads/main", "backend", repository, timeout_s=30)
        sources = checkout(state, place, repository, repository.parent / f"sources-{len(place)}", timeout_s=30)
        assert not (sources / "evil.py").exists()
        assert state.tree in (None, run_git(["rev-parse", f"{meant}:backend"], folder=repository, timeout_s=30))


def test_a_tag_named_like_a_ref_of_the_mirror_hinders_nothing(repository: Path, commits: tuple[str, str]) -> None:
    meant, evil = commits
    git(repository, "update-ref", f"refs/tags/refs/accel-ci/{evil}", meant)
    address, sources = repository.as_uri(), repository.parent / "sources"
    for name in ("main", "stranger"):  # the first has the tag fetched into the mirror
        state = resolve_source(address, f"refs/heads/{name}", "backend", repository, timeout_s=30)
        folder = checkout(state, address, repository, sources, timeout_s=30)
        assert (folder / "evil.py").exists() is (name == "stranger")


def test_damaged_objects_are_refused_when_they_are_fetched(repository: Path, tmp_path: Path) -> None:
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    blob = git(repository, "rev-parse", "HEAD:README.md")
    listing = subprocess.run(["git", "cat-file", "tree", tree], cwd=repository, check=True, capture_output=True).stdout
    evil = listing + b"100644 .git\0" + bytes.fromhex(blob)  # it would be written into the repository itself
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        cwd=repository, input=evil, check=True, capture_output=True,
    )  # fmt: skip
    sha = git(repository, "commit-tree", "-m", "evil", made.stdout.decode().strip())
    git(repository, "update-ref", "refs/heads/evil", sha)
    address = repository.as_uri()
    state = resolve_source(address, "refs/heads/evil", "backend", repository, timeout_s=30)
    with pytest.raises(SourceError, match="git fetch failed"):
        checkout(state, address, repository, tmp_path / "sources", timeout_s=30)


def test_git_without_a_message_is_told(repository: Path) -> None:
    with pytest.raises(SourceError, match="git show-ref failed: it ended with 1 and no message"):
        run_git(["show-ref", "--verify", "--quiet", "refs/heads/none"], folder=repository, timeout_s=30)
