"""The changes of a pull request or between two builds: the files and lines that differ between two commits.

Everything in a pull request is a stranger's: names may have any characters, and what is too large is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from accel_ci.config.settings import Project
from accel_ci.errors import SourceError
from accel_ci.model import Source
from accel_ci.source.checkout import repository_with
from accel_ci.source.git import local_path, run_git
from accel_ci.source.refs import anchor, local_sha, remote_sha, resolved_sha

MOST_FILES = 3000
"""A pull request that changes more files is too large to choose tests by."""

MOST_COMMITS = 1000
"""So many commits between two builds are told apart, the newest ones."""

_MOST_LINES = 500_000  # of all changed files
_MOST_CHARACTERS = 1000  # of a line
_WHOLE_FILE = 10**6  # lines around a change
_REGULAR = frozenset({"100644", "100755", "000000"})  # git's modes; the last one is of a file that is not there
_EXACTLY = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, at most 1,000 characters of it; a `changed` one was added or removed."""

    text: str
    changed: bool


@dataclass(frozen=True)
class ChangedFile:
    """A file that was added, changed or removed; a file with a new name is one removed and one added.

    `path` is relative to the folder of the backend's sources; that of a file beside it begins with `../`. A `special` file
    is a link or a submodule, or was one. `lines` are those of a text, before and after the change, in the order of the file.
    """

    path: str
    kind: Literal["text", "binary", "special"]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Changes:
    """The files that differ from the commit `base`, by name."""

    base: str
    files: tuple[ChangedFile, ...]

    @property
    def digest(self) -> str:
        """A digest of the changed lines: that of a pull request's only commit on its target, if nothing else changed it."""
        parts = [(file.path, file.kind, [line.text for line in file.lines if line.changed]) for file in self.files]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Commit:
    """A commit on a branch, and its parents: with several, it merged the others into the first."""

    sha: str
    parents: tuple[str, ...]


def changes_of(project: Project, backend: Source, target: str | None = None) -> Changes:
    """Compare a state of the backend with its merge base with a ref of the target, by default the configured `backend.ref`.

    Raises `SourceError` where the commits have no common history here, or the changes are too large.
    """
    settings, limit_s = project.settings.backend, project.settings.limits.git_seconds
    if backend.dirty:
        raise SourceError("the sources have uncommitted changes, which no pull request has")
    sha, ref = resolved_sha(backend), target or settings.ref
    local = local_path(settings.repository, project.root)
    if local is None:
        onto = remote_sha(settings.repository, ref, timeout_s=limit_s)
    else:
        onto = local_sha(anchor(local, settings.subdirectory, limit_s)[0], settings.repository, ref, timeout_s=limit_s)
    for state in (replace(backend, ref=ref, sha=onto), backend):
        folder, below = repository_with(
            state, settings.repository, project.root, project.home / "sources", timeout_s=limit_s
        )
    base = run_git(["merge-base", onto, sha], folder=folder, timeout_s=limit_s)
    return _compare(folder, below, base, sha, limit_s)


def changes_between(project: Project, before: Source, after: Source) -> Changes:
    """Compare two states of the backend, such as those of two builds. Raises `SourceError` as `changes_of` does."""
    limit_s = project.settings.limits.git_seconds
    folder, below = _repository(project, before, after)
    return _compare(folder, below, resolved_sha(before), resolved_sha(after), limit_s)


def changes_of_commit(project: Project, backend: Source, commit: Commit) -> Changes:
    """Compare a commit in the history of a state with its first parent. Raises `SourceError` as `changes_of` does."""
    folder, below = _repository(project, backend)
    return _compare(folder, below, commit.parents[0], commit.sha, project.settings.limits.git_seconds)


def commits_between(project: Project, before: Source, after: Source) -> tuple[Commit, ...]:
    """Return the commits of the branch from one state to another one, the newest first, without those that it merged.

    They are at most `MOST_COMMITS`. Raises `SourceError`.
    """
    folder, _ = _repository(project, before, after)
    spans = f"{resolved_sha(before)}..{resolved_sha(after)}"
    asked = ["rev-list", "--first-parent", "--parents", f"--max-count={MOST_COMMITS}", spans, "--"]
    lines = run_git(asked, folder=folder, timeout_s=project.settings.limits.git_seconds).splitlines()
    return tuple(Commit(sha, tuple(parents)) for sha, *parents in map(str.split, lines))


def _repository(project: Project, *states: Source) -> tuple[Path, str]:
    """A repository on this machine with all of these states, and the path of the sources in it."""
    settings, limit_s = project.settings.backend, project.settings.limits.git_seconds
    found: list[tuple[Path, str]] = []
    for state in states:
        if state.dirty:
            raise SourceError("the sources have uncommitted changes, which nothing can be compared with")
        found.append(repository_with(state, settings.repository, project.root, project.home / "sources", timeout_s=limit_s))
    return found[-1]


def _compare(folder: Path, below: str, base: str, sha: str, limit_s: float) -> Changes:
    """Compare two commits of a repository; `below` is the path of the sources in it."""
    raw = run_git(["diff-tree", *_EXACTLY, "--raw", "-z", base, sha], folder=folder, timeout_s=limit_s)
    entries = list(_entries(raw))
    if len(entries) > MOST_FILES:
        raise SourceError(f"it changes {len(entries):,} files, and tests can be chosen by up to {MOST_FILES:,}")
    patch = ["diff-tree", *_EXACTLY, "--diff-filter=AMD", "-p", f"-U{_WHOLE_FILE}", base, sha]
    sections = _sections(run_git(patch, folder=folder, timeout_s=limit_s))
    compared = [entry for entry in entries if entry.status in "AMD"]
    if len(sections) != len(compared):
        raise SourceError(f"git names {len(compared):,} changed files, and shows {len(sections):,}")
    shown = dict(zip((entry.path for entry in compared), sections, strict=True))
    files = (_file(entry, shown.get(entry.path, ""), below) for entry in entries)
    return Changes(base, tuple(sorted(files, key=lambda file: file.path)))


@dataclass(frozen=True)
class _Entry:
    path: str
    status: str
    modes: frozenset[str]


def _entries(raw: str) -> Iterator[_Entry]:
    """The entries of `git diff-tree --raw -z`."""
    fields = raw.rstrip("\0").split("\0") if raw else []
    for about, path in zip(fields[::2], fields[1::2], strict=False):
        parts = about.removeprefix(":").split(" ")
        if not about.startswith(":") or len(parts) != 5:
            raise SourceError("the list of its changed files is too large")
        yield _Entry(path, parts[4][:1], frozenset(parts[:2]))


def _sections(patch: str) -> Sequence[str]:
    """The parts of a patch, one a file. In no other line than their first one does it begin with `diff`."""
    if patch and not patch.startswith("diff --git "):
        raise SourceError("the files that it changes are larger than 8 MiB")
    if patch.count("\n") > _MOST_LINES:
        raise SourceError(f"the files that it changes have more than {_MOST_LINES:,} lines")
    return f"\n{patch}".split("\ndiff --git ")[1:]


def _file(entry: _Entry, section: str, below: str) -> ChangedFile:
    path = os.path.relpath(entry.path, below)
    if not entry.modes <= _REGULAR:
        return ChangedFile(path, "special")
    head, _, content = section.partition("\n@@ ")
    if any(line.startswith("Binary files ") for line in head.split("\n")):
        return ChangedFile(path, "binary")
    lines = content.split("\n")[1:]
    marked = (Line(line[1 : _MOST_CHARACTERS + 1], line[:1] in ("+", "-")) for line in lines if line[:1] not in ("@", "\\"))
    return ChangedFile(path, "text", tuple(marked))
