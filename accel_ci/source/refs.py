"""Resolve refs to commits, and repositories to exact states. A ref is taken by its full name alone.

A short name stands for a branch or a tag of exactly this name. If it could be several things, it is refused with their
names: what a name means never depends on what somebody else pushes. What is recorded is a commit, never a tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from accel_ci.errors import MissingRefError, SourceError
from accel_ci.model import Source
from accel_ci.redaction import without_credentials
from accel_ci.source.git import local_path, run_git
from accel_ci.source.working_tree import scratch_environment, write_working_tree
from accel_ci.storage.scratch_folder import scratch_folder

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_SHA = re.compile(r"[0-9a-f]{4,39}")
_ANCESTOR = re.compile(r"(?P<base>.+?)(?P<steps>(?:[~^]\d*)+)")


def remote_sha(repository: str, ref: str, *, timeout_s: float) -> str:
    """The commit that `ref` points to in a remote repository (`git ls-remote`). Raises `SourceError`."""
    if _SHA.fullmatch(ref):
        return ref
    names, address = _full_names(ref, ("heads", "tags")), without_credentials(repository)
    # A pattern of ls-remote also matches the ends of longer names, such as `backup/main` for `main`.
    patterns = [name + peeled for name in names for peeled in ("", "^{}")]
    listed = run_git(["ls-remote", "--", repository, "HEAD", *patterns], timeout_s=timeout_s).splitlines()
    found = {name: sha for sha, _, name in (line.partition("\t") for line in listed)}
    commits = {name: found.get(f"{name}^{{}}", found[name]) for name in names if name in found}
    if not found:
        problem = "not even HEAD: it is empty, or the address is that of a web page or of something else than a repository"
        raise MissingRefError(f"{address} has no ref {ref!r}, and {problem}; correct the address")
    if not commits and _SHORT_SHA.fullmatch(ref):
        raise MissingRefError(f"{address} has no branch or tag {ref!r}; give all 40 digits of a commit")
    return _only(address, ref, names, commits)


def local_sha(folder: Path, repository: str, ref: str, *, timeout_s: float) -> str:
    """The commit that `ref` points to in a repository on this machine, as `remote_sha`, also with `~` and `^` after it.

    Branches of remotes (`origin/main`) and unique beginnings of commit ids are names, too. Raises `SourceError`.
    """

    def ask(*arguments: str) -> str:
        return run_git(arguments, folder=folder, timeout_s=timeout_s)

    def commit(revision: str) -> str | None:
        try:
            return ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except SourceError:
            return None

    if match := _ANCESTOR.fullmatch(ref):
        base = local_sha(folder, repository, match["base"], timeout_s=timeout_s)
        if (sha := commit(base + match["steps"])) is None:
            raise MissingRefError(f"{repository} has no commit {ref!r}")
        return sha
    names = _full_names(ref, ("heads", "tags", "remotes"))
    if ref == "HEAD" or _SHA.fullmatch(ref):
        there = {ref}
    else:
        there = set(ask("for-each-ref", "--format=%(refname)", *names).splitlines()) & set(names)
    commits = {name: sha for name in names if name in there and (sha := commit(name)) is not None}
    if there and not commits:
        raise MissingRefError(f"{repository}: {ref!r} is no commit; name a branch, a tag or a commit")
    if _SHORT_SHA.fullmatch(ref):
        objects = ask("rev-parse", f"--disambiguate={ref}").splitlines()
        commits |= {f"commit {each}": sha for each in objects if (sha := commit(each)) is not None}
    return _only(repository, ref, names, commits)


def _full_names(ref: str, kinds: tuple[str, ...]) -> list[str]:
    """The full names that a ref may stand for."""
    if ref == "HEAD" or ref.startswith("refs/") or _SHA.fullmatch(ref):
        return [ref]
    return [f"refs/{kind}/{ref}" for kind in kinds] + ([f"refs/{ref}"] if "/" in ref else [])


def _only(repository: str, ref: str, names: list[str], commits: Mapping[str, str]) -> str:
    """The commit of the only candidate. Raises `SourceError` if there are none or several."""
    if not commits:
        looked = f" (looked for {' and '.join(names)})" if names != [ref] else ""
        raise MissingRefError(f"{repository} has no ref {ref!r}{looked}; correct the ref, or push it first")
    if len(commits) > 1:
        shown = ", ".join(name if name.endswith(sha) else f"{name} ({sha[:12]})" for name, sha in commits.items())
        raise SourceError(f"{ref!r} is ambiguous in {repository}: {shown}; give the full name of the one that you mean")
    return next(iter(commits.values()))


def resolve_source(repository: str, ref: str, subdirectory: str, root: Path, *, timeout_s: float) -> Source:
    """Resolve `ref` to an exact state: of a local folder with its uncommitted changes, else of the remote.

    For a local folder and the ref `HEAD`, uncommitted changes below `subdirectory` count, including untracked files that
    git does not ignore. Raises `SourceError`.
    """
    folder = local_path(repository, root)
    if folder is None:
        sha = remote_sha(repository, ref, timeout_s=timeout_s)
        return Source(without_credentials(repository), ref, sha, subdirectory)
    if not folder.is_dir():
        raise SourceError(f"{repository}: there is no such folder (relative to {root})")
    top, below, bare = anchor(folder, subdirectory, timeout_s)
    sha = local_sha(top, repository, ref, timeout_s=timeout_s)
    committed = tree = tree_of(top, sha, below, timeout_s)
    if ref == "HEAD" and not bare:
        with scratch_folder("git") as scratch:
            objects = Path(scratch) / "objects"
            objects.mkdir()
            environment = scratch_environment(top, Path(scratch), objects, timeout_s)
            whole = write_working_tree(top, sha, below, environment, timeout_s)
            tree = tree_of(top, whole, below, timeout_s, environment)
    return Source(without_credentials(repository), ref, sha, subdirectory, tree, dirty=tree != committed)


def resolved_sha(source: Source) -> str:
    """The commit of a state. Raises `SourceError` if it could not be resolved."""
    if source.sha is None:
        raise SourceError(f"{source.repository}: the commit of {source.ref} is not known ({source.note})")
    return source.sha


def anchor(folder: Path, subdirectory: str, timeout_s: float) -> tuple[Path, str, bool]:
    """The root of the repository that holds `folder`, the path of `subdirectory` from there, and whether it is bare."""
    if run_git(["rev-parse", "--is-bare-repository"], folder=folder, timeout_s=timeout_s) == "true":
        return folder, os.path.normpath(subdirectory), True
    show = ["rev-parse", "--show-toplevel", "--show-prefix"]
    top, _, prefix = run_git(show, folder=folder, timeout_s=timeout_s).partition("\n")
    return Path(top), os.path.normpath(os.path.join(prefix, subdirectory)), False  # noqa: PTH118


def tree_of(
    folder: Path, commit: str, subdirectory: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> str:
    """The id of the git tree of a folder in a commit. Raises `SourceError` if there is no such folder."""
    path = "" if subdirectory == "." else subdirectory.rstrip("/")
    try:
        return run_git(
            ["rev-parse", "--verify", f"{commit}:{path}"], folder=folder, timeout_s=timeout_s, environment=environment
        )
    except SourceError:
        advice = "correct backend.subdirectory, or commit the folder"
        raise SourceError(f"commit {commit[:12]} has no folder {subdirectory!r}; {advice}") from None
