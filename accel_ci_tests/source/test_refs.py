from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.errors import MissingRefError, SourceError
from accel_ci.source.refs import remote_sha, resolve_source
from accel_ci_tests.fixtures.checkout import commit, git


@pytest.fixture
def older_and_newer(repository: Path) -> tuple[str, str]:
    """Two commits: the older one has branches whose names end like `main`, the newer one is `main`."""
    older = git(repository, "rev-parse", "HEAD")
    for name in ("backup/main", "evil/refs/heads/main", "a/HEAD"):
        git(repository, "branch", name)
    return older, commit(repository, {"backend/later.py": ""})


def both(repository: Path, ref: str) -> list[str]:
    """Resolve a ref in a remote and in a local folder; return the two commits."""
    return [str(resolve_source(place, ref, ".", repository, timeout_s=30).sha) for place in (repository.as_uri(), ".")]


@pytest.mark.parametrize("ref", ["main", "refs/heads/main", "heads/main", "HEAD"])
def test_a_branch_whose_name_ends_the_same_is_another_one(
    repository: Path, older_and_newer: tuple[str, str], ref: str
) -> None:
    assert both(repository, ref) == [older_and_newer[1]] * 2


def test_a_branch_with_a_slash_is_named_in_full(repository: Path, older_and_newer: tuple[str, str]) -> None:
    older = older_and_newer[0]
    assert both(repository, "backup/main") == both(repository, "evil/refs/heads/main") == [older, older]


def test_a_tag_is_recorded_as_its_commit(repository: Path) -> None:
    sha = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "-a", "-m", "a release", "v1")
    git(repository, "tag", "-a", "-m", "a tag of a tag", "again", "v1")
    git(repository, "tag", "light")
    for ref in ("v1", "refs/tags/v1", "again", "light"):
        assert both(repository, ref) == [sha, sha], ref


def test_a_name_that_could_be_two_things_is_refused_with_both(repository: Path, older_and_newer: tuple[str, str]) -> None:
    git(repository, "tag", "main", older_and_newer[0])
    for place in (repository.as_uri(), "."):
        with pytest.raises(SourceError, match=r"'main' is ambiguous .*refs/heads/main \(\w+\), refs/tags/main \(\w+\)"):
            resolve_source(place, "main", ".", repository, timeout_s=30)
    assert both(repository, "refs/heads/main") == [older_and_newer[1]] * 2


@pytest.mark.parametrize(
    "ref", ["refs/pull/7/head", "ma*", "ain", "eads/main", "no-such", "refs/heads/main/x", "main^{tree}"]
)
def test_a_ref_that_is_not_there_is_an_error(repository: Path, ref: str) -> None:
    for place in (repository.as_uri(), "."):
        with pytest.raises(MissingRefError, match="has no ref"):
            resolve_source(place, ref, ".", repository, timeout_s=30)


def test_ancestors_are_named_in_local_folders(repository: Path, older_and_newer: tuple[str, str]) -> None:
    assert resolve_source(".", "HEAD~1", ".", repository, timeout_s=30).sha == older_and_newer[0]
    with pytest.raises(MissingRefError, match="no commit 'main~2'"):
        resolve_source(".", "main~2", ".", repository, timeout_s=30)


def test_the_beginning_of_a_commit_id_must_be_unique(repository: Path, older_and_newer: tuple[str, str]) -> None:
    newer = older_and_newer[1]
    assert resolve_source(".", newer[:12], ".", repository, timeout_s=30).sha == newer
    with pytest.raises(MissingRefError, match="give all 40 digits"):
        resolve_source(repository.as_uri(), newer[:12], ".", repository, timeout_s=30)
    git(repository, "branch", newer[:12], older_and_newer[0])
    with pytest.raises(SourceError, match=rf"ambiguous .*refs/heads/{newer[:12]} .*commit {newer}"):
        resolve_source(".", newer[:12], ".", repository, timeout_s=30)


def test_a_tag_of_something_else_than_a_commit_is_refused(repository: Path) -> None:
    git(repository, "tag", "readme", "HEAD:README.md")
    with pytest.raises(SourceError, match="'readme' is no commit"):
        resolve_source(".", "readme", ".", repository, timeout_s=30)


def test_a_repository_without_commits_is_told_apart(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(SourceError, match="not even HEAD"):
        remote_sha((tmp_path / "empty").as_uri(), "main", timeout_s=30)
    with pytest.raises(SourceError):
        resolve_source("empty", "HEAD", ".", tmp_path, timeout_s=30)
