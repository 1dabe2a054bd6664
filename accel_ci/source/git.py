"""Read git repositories: resolve a ref or a working tree to an exact state, and check its files out.

All reading of repositories belongs here. What a state means for a build (revision keys, triggers) is in `revision.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from urllib.parse import urlsplit

from filelock import FileLock

from accel_ci.errors import SourceChangedError, SourceError
from accel_ci.model import Source
from accel_ci.process.run import run_apart
from accel_ci.storage.archive import TarError, unpack

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def run_git(
    arguments: Sequence[str], *, timeout_s: float, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run one git command and return what it prints. Raises `SourceError` with the last line of git's message."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith("GIT_SSL")}
    clean |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "LC_ALL": "C"}
    try:
        own = {**clean, **(environment or {})}
        done = run_apart(["git", *arguments], timeout_s=timeout_s, environment=own, folder=folder)
    except FileNotFoundError:
        raise SourceError("git is not installed; install it and try again") from None
    except TimeoutExpired:
        raise SourceError(f"git {arguments[0]} did not answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        message = without_credentials((done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1])
        raise SourceError(f"git {arguments[0]} failed: {message}")
    return done.stdout.strip("\n")


def without_credentials(text: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return re.sub(r"(\w+://)[^/\s]+@", r"\1", text)


def local_path(repository: str, root: Path) -> Path | None:
    """The folder that `repository` names, relative to `root`; None if it is a URL."""
    if urlsplit(repository).scheme or re.match(r"[^/]+@[^/]+:", repository):
        return None
    return (root / repository).resolve()


def remote_sha(repository: str, ref: str, *, timeout_s: float) -> str:
    """The commit that `ref` points to in a remote repository (`git ls-remote`). Raises `SourceError`."""
    for line in run_git(["ls-remote", "--exit-code", "--", repository, ref], timeout_s=timeout_s).splitlines():
        sha, _, name = line.partition("\t")
        if _SHA.fullmatch(sha) and (name in (ref, f"refs/heads/{ref}", f"refs/tags/{ref}") or name.endswith(f"/{ref}")):
            return sha
    raise SourceError(f"{without_credentials(repository)} has no ref {ref!r}")


def resolve_source(repository: str, ref: str, subdirectory: str, root: Path, *, timeout_s: float) -> Source:
    """Resolve `ref` to an exact state: of a local folder with its uncommitted changes, else of the remote.

    For a local folder and the ref `HEAD` the working tree counts, including untracked files that git does not ignore.
    The commit is then the last one that touched `subdirectory`, so that work elsewhere does not create a new state.
    """
    folder = local_path(repository, root)
    if folder is None:
        sha = ref if _SHA.fullmatch(ref) else remote_sha(repository, ref, timeout_s=timeout_s)
        return Source(without_credentials(repository), ref, sha, subdirectory)
    if not folder.is_dir():
        raise SourceError(f"{repository}: there is no such folder (relative to {root})")
    top, below, bare = _anchor(folder, subdirectory, timeout_s)
    log = ["log", "-1", "--format=%H", "--end-of-options", ref, "--", below]
    sha = run_git(log, folder=top, timeout_s=timeout_s)
    if not sha:
        raise SourceError(f"{repository}: no commit of {ref} has {subdirectory!r}; commit the backend's sources first")
    committed = tree = _tree(top, sha, below, timeout_s)
    if ref == "HEAD" and not bare:
        with tempfile.TemporaryDirectory(prefix="accel-ci-git-") as scratch:
            tree = _write_working_tree(top, below, _scratch_environment(top, Path(scratch), timeout_s), timeout_s)
    return Source(without_credentials(repository), ref, sha, subdirectory, tree, dirty=tree != committed)


def resolved_sha(source: Source) -> str:
    """The commit of a state. Raises `SourceError` if it could not be resolved."""
    if source.sha is None:
        raise SourceError(f"{source.repository}: the commit of {source.ref} is not known ({source.note})")
    return source.sha


def checkout(
    source: Source, repository: str, root: Path, sources: Path, *, timeout_s: float, submodules: bool = False
) -> Path:
    """Check `source.subdirectory` out into a folder below `sources`, once per state and by one process at a time.

    `repository` is the configured address, which may hold credentials that `source` does not. Raises `SourceError` if a
    working tree was not checked out when its state was resolved and has changed since.
    """
    sha = resolved_sha(source)
    identity = "\n".join((source.repository, source.subdirectory, source.tree or sha, *(["submodules"] * submodules)))
    destination = sources / f"{source.label}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    sources.mkdir(parents=True, exist_ok=True)
    with FileLock(sources / f".{destination.name}.lock"):  # large repositories are fetched only once
        if not destination.is_dir():
            make = _check_out_with_submodules if submodules else _check_out
            with tempfile.TemporaryDirectory(prefix=".checkout-", dir=sources) as scratch:
                make(source, sha, repository, root, Path(scratch), timeout_s).rename(destination)
        os.utime(destination)  # `prune` leaves what was used in the last day
    return destination


def _check_out_with_submodules(
    source: Source, sha: str, repository: str, root: Path, scratch: Path, timeout_s: float
) -> Path:
    """Check out a commit with its submodules, without history. Uncommitted changes cannot be checked out this way."""
    if source.dirty:
        raise SourceError(f"{repository} has uncommitted changes, and submodules need a commit; commit the changes first")
    folder = local_path(repository, root)
    address, below = repository, source.subdirectory
    if folder is not None:
        top, below, _ = _anchor(folder, source.subdirectory, timeout_s)
        address = str(top)
    clone = scratch / "clone"
    run_git(["init", "--quiet", str(clone)], timeout_s=timeout_s)
    run_git(["remote", "add", "origin", address], folder=clone, timeout_s=timeout_s)
    run_git(["fetch", "--quiet", "--depth", "1", "origin", sha], folder=clone, timeout_s=3600)
    run_git(["checkout", "--quiet", "--detach", sha], folder=clone, timeout_s=600)
    run_git(["submodule", "update", "--init", "--recursive", "--depth", "1", "--quiet"], folder=clone, timeout_s=3600)
    for metadata in clone.rglob(".git"):
        (shutil.rmtree if metadata.is_dir() else Path.unlink)(metadata)
    files = (clone / below).resolve()
    if not files.is_dir() or not files.is_relative_to(clone.resolve()):
        raise SourceError(f"commit {sha[:12]} has no folder {below!r}")
    return files


def _check_out(source: Source, sha: str, repository: str, root: Path, scratch: Path, timeout_s: float) -> Path:
    folder, environment = local_path(repository, root), dict[str, str]()
    if folder is None:
        folder = scratch / "repository"
        run_git(["init", "--quiet", "--bare", str(folder)], timeout_s=timeout_s)
        run_git(["fetch", "--quiet", "--depth", "1", "--", repository, sha], folder=folder, timeout_s=3600)
        tree = _tree(folder, sha, source.subdirectory, timeout_s)
    else:
        folder, below, _ = _anchor(folder, source.subdirectory, timeout_s)
        tree = source.tree or _tree(folder, sha, below, timeout_s)
        if source.dirty:
            environment = _scratch_environment(folder, scratch, timeout_s)
            if _write_working_tree(folder, below, environment, timeout_s) != tree:
                problem = "the working tree has changed since this revision; start a new run"
                raise SourceChangedError(f"{repository}: {problem}")
    archive, files = scratch / "source.tar", scratch / "files"
    pack = ["archive", "--format=tar", f"--output={archive}", tree]
    run_git(pack, folder=folder, environment=environment, timeout_s=600)
    try:
        with archive.open("rb") as file:
            unpack(file, files)
    except TarError as error:  # for example a link that points outside the sources
        raise SourceError(f"{source.repository} at {source.label} cannot be checked out: {error}") from None
    return files


def _anchor(folder: Path, subdirectory: str, timeout_s: float) -> tuple[Path, str, bool]:
    """The root of the repository that holds `folder`, the path of `subdirectory` from there, and whether it is bare."""
    if run_git(["rev-parse", "--is-bare-repository"], folder=folder, timeout_s=timeout_s) == "true":
        return folder, subdirectory, True
    show = ["rev-parse", "--show-toplevel", "--show-prefix"]
    top, _, prefix = run_git(show, folder=folder, timeout_s=timeout_s).partition("\n")
    return Path(top), os.path.normpath(os.path.join(prefix, subdirectory)), False  # noqa: PTH118


def _tree(folder: Path, commit: str, subdirectory: str, timeout_s: float) -> str:
    path = "" if subdirectory == "." else subdirectory.rstrip("/")
    try:
        return run_git(["rev-parse", "--verify", f"{commit}:{path}"], folder=folder, timeout_s=timeout_s)
    except SourceError:
        raise SourceError(f"commit {commit[:12]} has no folder {subdirectory!r}") from None


def _scratch_environment(folder: Path, scratch: Path, timeout_s: float) -> dict[str, str]:
    """An environment in which git writes its index and objects to `scratch` and leaves the repository unchanged."""

    def git_path(name: str) -> Path:
        return folder / run_git(["rev-parse", "--git-path", name], folder=folder, timeout_s=timeout_s)

    objects = scratch / "objects"
    objects.mkdir()
    if git_path("index").is_file():  # its file times save git from reading every file
        shutil.copy2(git_path("index"), scratch / "index")
    return {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_path("objects")),
    }


def _write_working_tree(top: Path, below: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """Write the working files in the folder `below` as a git tree and return its id."""
    run_git(["add", "--all", "--", below], folder=top, environment=environment, timeout_s=max(timeout_s, 120))
    arguments = ["write-tree", *([] if below == "." else [f"--prefix={below}/"])]
    return run_git(arguments, folder=top, environment=environment, timeout_s=timeout_s)
