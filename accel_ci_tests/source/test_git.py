from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.redaction import without_credentials
from accel_ci.source.checkout import checkout
from accel_ci.source.git import run_git
from accel_ci.source.refs import remote_sha, resolve_source
from accel_ci_tests.fixtures.checkout import commit, git


def test_the_commit_is_that_of_the_ref(repository: Path, tmp_path: Path) -> None:
    """Also where it touches only files beside the folder: tests may read them."""
    sha = commit(repository, {"README.md": "elsewhere\n"})
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    assert (state.sha, state.dirty, state.label) == (sha, False, f"g{sha[:12]}")
    assert state.tree == git(repository, "rev-parse", "HEAD:backend")


@pytest.mark.parametrize("staged", [False, True])
def test_uncommitted_changes_make_a_new_state(repository: Path, tmp_path: Path, staged: bool) -> None:
    (repository / "backend" / "new.py").write_text("x = 1\n")
    (repository / "backend" / "ignored.log").write_text("noise\n")
    (repository / ".gitignore").write_text("*.log\n")
    (repository / "backend" / "pyproject.toml").unlink()
    if staged:
        git(repository, "add", "backend")
    before = git(repository, "status", "--porcelain")
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    assert state.dirty
    assert state.label == f"g{(state.sha or '')[:12]}.d{(state.tree or '')[:12]}"
    files = checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)
    assert [path.name for path in files.iterdir()] == ["new.py"]
    assert git(repository, "status", "--porcelain") == before


def test_a_working_tree_that_changed_meanwhile_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "backend" / "new.py").write_text("x = 1\n")
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    (repository / "backend" / "new.py").write_text("x = 2\n")
    with pytest.raises(SourceError, match="working tree has changed"):
        checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)


def test_a_subdirectory_of_a_subdirectory_repository(repository: Path, tmp_path: Path) -> None:
    """A folder inside a work tree may be named as the repository."""
    commit(repository, {"backend/python/a.py": "a = 1\n"})
    (repository / "backend" / "python" / "b.py").write_text("b = 1\n")
    state = resolve_source("repository/backend", "HEAD", "python", tmp_path, timeout_s=30)
    files = checkout(state, "repository/backend", tmp_path, tmp_path / "sources", timeout_s=30)
    assert sorted(path.name for path in files.iterdir()) == ["a.py", "b.py"]


def test_a_remote_is_resolved_and_fetched_at_the_commit(repository: Path, tmp_path: Path) -> None:
    url = repository.as_uri()
    sha = git(repository, "rev-parse", "HEAD")
    state = resolve_source(url, "refs/heads/main", "backend", tmp_path, timeout_s=30)
    assert (state.sha, state.tree, state.dirty) == (sha, None, False)
    commit(repository, {"backend/later.py": ""})
    files = checkout(state, url, tmp_path, tmp_path / "sources", timeout_s=30)
    assert [path.name for path in files.iterdir()] == ["pyproject.toml"]
    assert checkout(state, url, tmp_path, tmp_path / "sources", timeout_s=30) == files


def test_a_branch_may_be_named_without_its_prefix(repository: Path) -> None:
    assert remote_sha(repository.as_uri(), "main", timeout_s=30) == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("repository_name", "ref", "subdirectory", "message"),
    [
        ("nowhere", "HEAD", ".", "no such folder"),
        ("repository", "HEAD", "nothing", "commit [0-9a-f]{12} has no folder 'nothing'"),
        ("repository", "no-such-branch", "backend", "no-such-branch"),
        ("file:///nowhere/at/all", "main", ".", "git ls-remote failed"),
        ("ext::sh -c true", "main", ".", "not allowed|no such folder|failed"),
    ],
)
def test_errors_name_what_cannot_be_read(
    repository: Path, tmp_path: Path, repository_name: str, ref: str, subdirectory: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        resolve_source(repository_name, ref, subdirectory, tmp_path, timeout_s=30)


def test_a_ref_is_never_an_option(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        resolve_source("repository", "--output=stolen", "backend", tmp_path, timeout_s=30)
    assert not (repository / "stolen").exists()


def test_git_variables_of_a_caller_do_not_leak_in(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30).sha


def test_credentials_do_not_show() -> None:
    assert without_credentials("https://user:token@host/x and ssh://me@h") == "https://host/x and ssh://me@h"
    assert without_credentials("https://user:p@ss@host/x@y") == "https://host/x@y"
    with pytest.raises(SourceError) as caught:
        run_git(["ls-remote", "--", "https://user:secret@127.0.0.1:1/x"], timeout_s=30)
    assert "secret" not in str(caught.value)


def test_a_link_that_points_outside_the_sources_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "backend" / "link").symlink_to("/etc/passwd")
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    with pytest.raises(SourceError, match=r"cannot be checked out: .*link"):
        checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)
    assert [path.name for path in (tmp_path / "sources").iterdir() if path.suffix != ".lock"] == [".mirrors"]


def test_a_bare_repository_has_no_working_tree(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare")
    state = resolve_source("bare", "HEAD", "backend", tmp_path, timeout_s=30)
    assert (state.sha, state.dirty) == (git(repository, "rev-parse", "HEAD"), False)
    files = checkout(state, "bare", tmp_path, tmp_path / "sources", timeout_s=30)
    assert [path.name for path in files.iterdir()] == ["pyproject.toml"]
