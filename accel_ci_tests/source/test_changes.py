"""The changes of a pull request, read by git from repositories with whatever in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import SourceError
from accel_ci.model import Source
from accel_ci.source import changes as module
from accel_ci.source.changes import ChangedFile, changes_of
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    """A project whose backend is a folder; main is the target of pull requests."""
    return make_project(backend={**minimal_config()["backend"], "ref": "refs/heads/main"})  # type: ignore[dict-item]


def proposed(repository: Path, files: dict[str, str], *removed: str) -> Source:
    """Commit a pull request on a branch of its own, with a commit on main after the two parted; return its state."""
    git(repository, "checkout", "--quiet", "-b", "proposal")
    if removed:
        git(repository, "rm", "--quiet", *removed)
    sha = commit(repository, files)
    git(repository, "checkout", "--quiet", "main")
    commit(repository, {"backend/later.py": "of main\n"})
    return Source("repository", "refs/pull/7/head", sha, "backend")


def changed(files: tuple[ChangedFile, ...]) -> dict[str, tuple[str, list[str]]]:
    """Return the kind and the changed lines of each file."""
    return {file.path: (file.kind, [line.text for line in file.lines if line.changed]) for file in files}


@pytest.mark.parametrize("is_remote", [True, False])
def test_files_have_the_lines_that_the_pull_request_changes(
    repository: Path, make_project: Callable[..., Project], is_remote: bool
) -> None:
    address = {"repository": repository.as_uri()} if is_remote else {}
    backend = {**minimal_config()["backend"], "ref": "refs/heads/main", **address}  # type: ignore[dict-item]
    project = make_project(backend=backend)
    base = commit(
        repository, {"backend/a.py": "one\ntwo\nthree\n", "backend/old.py": "old\n" * 9, "backend/gone.py": "-- x\n"}
    )
    files = {"backend/a.py": "one\n2\nthree\n", "backend/new.py": "old\n" * 9, "README.md": "hello\n\n++ y\n"}
    found = changes_of(project, proposed(repository, files, "backend/old.py", "backend/gone.py"))
    assert found.base == base
    assert changed(found.files) == {
        "../README.md": ("text", ["", "++ y"]),
        "a.py": ("text", ["two", "2"]),
        "gone.py": ("text", ["-- x"]),
        "new.py": ("text", ["old"] * 9),
        "old.py": ("text", ["old"] * 9),
    }
    [a] = [file for file in found.files if file.path == "a.py"]
    assert [line.text for line in a.lines if not line.changed] == ["one", "three"]


def test_odd_files_do_not_pass_for_others(repository: Path, project: Project) -> None:
    commit(repository, {"backend/was.py": "x\n", "backend/tool.sh": "x\n"})
    odd = ["a b.py", 'quote".py', "line\nbreak.py", "tab\t.py", "-p", "é.py", os.fsdecode(b"\xff.py"), "diff --git a b"]
    text = "@@ -1 +1 @@\ndiff --git a/x b/x\nBinary files a and b differ\n--- a\n"
    git(repository, "checkout", "--quiet", "-b", "proposal")
    (repository / "backend" / "was.py").unlink()
    (repository / "backend" / "was.py").symlink_to("tool.sh")
    (repository / "backend" / "link").symlink_to("/etc")
    (repository / "backend" / "sub").mkdir()
    (repository / "backend" / "blob.bin").write_bytes(bytes(range(256)))
    (repository / "backend" / "latin.cpp").write_bytes(b"caf\xe9\r\n")
    (repository / "backend" / "tool.sh").chmod(0o755)
    git(repository, "add", "--all")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},backend/sub")
    (repository / ".gitmodules").write_text('[submodule "sub"]\npath = backend/sub\nurl = ./x\nignore = all\n')
    sha = commit(repository, {f"backend/{name}": text for name in odd})
    git(repository, "checkout", "--quiet", "--force", "main")
    found = changed(changes_of(project, Source("repository", "r", sha, "backend")).files)
    lines = text.split("\n")[:-1]
    assert {name: found.pop(name) for name in odd} == dict.fromkeys(odd, ("text", lines))
    assert found.pop("../.gitmodules")[0] == "text"
    assert found == {
        "was.py": ("special", []),
        "link": ("special", []),
        "sub": ("special", []),
        "blob.bin": ("binary", []),
        "latin.cpp": ("text", ["caf\udce9\r"]),
        "tool.sh": ("text", []),
    }


def test_what_is_too_large_is_refused(repository: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "branch", "first")
    many = commit(repository, {"backend/data.json": "1\n" * 500_000})
    source = proposed(repository, {"backend/data.json": "0123456789abcdef\n" * 600_000, "backend/a.py": ""})
    with pytest.raises(SourceError, match="larger than 8 MiB"):
        changes_of(project, source)
    with pytest.raises(SourceError, match="more than 500,000 lines"):
        changes_of(project, replace(source, sha=many), "refs/heads/first")
    monkeypatch.setattr(module, "MOST_FILES", 1)
    with pytest.raises(SourceError, match="changes 2 files, and tests can be chosen by up to 1"):
        changes_of(project, source)


def test_a_long_line_is_cut_short(repository: Path, project: Project) -> None:
    [file] = changes_of(project, proposed(repository, {"backend/a.py": "x" * 5000})).files
    assert [len(line.text) for line in file.lines if line.changed] == [1000]


def test_sources_without_a_common_history_are_an_error(repository: Path, project: Project) -> None:
    source = proposed(repository, {"backend/a.py": "1"})
    git(repository, "checkout", "--quiet", "--orphan", "alone")
    sha = commit(repository, {"backend/a.py": ""})
    git(repository, "checkout", "--quiet", "main")
    with pytest.raises(SourceError, match="merge-base failed"):
        changes_of(project, replace(source, sha=sha))
    with pytest.raises(SourceError, match="nowhere"):
        changes_of(project, source, "refs/heads/nowhere")
    with pytest.raises(SourceError, match="uncommitted changes"):
        changes_of(project, replace(source, dirty=True))
