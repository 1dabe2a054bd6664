"""Reading git repositories: the state of a ref or of a working tree, and its files in a folder of their own.

Here belongs everything that calls `git`. What a state means for a build (revision keys, triggers) is in `revision.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from filelock import FileLock

from accel_ci.errors import SourceChangedError, SourceError
from accel_ci.model import Source
from accel_ci.storage.archive import TarError, unpack

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def run_git(
    arguments: Sequence[str], *, timeout_s: float, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The standard output of one git command. Raises `SourceError` with git's own last line when it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith("GIT_SSL")}
    clean |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=clean | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise SourceError("git is not installed; install it and try again") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"git {arguments[0]} gave no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        said = without_credentials((done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1])
        raise SourceError(f"git {arguments[0]} failed: {said}")
    return done.stdout


def without_credentials(text: str) -> str:
    """The text with user names and passwords taken out of the URLs in it."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", text)


def local_path(repository: str, root: Path) -> Path | None:
    """The folder that `repository` names, relative to `root`; None when it is a URL."""
    if urlsplit(repository).scheme or re.match(r"[^/]+@[^/]+:", repository):
        return None
    return (root / repository).resolve()


def remote_sha(repository: str, ref: str, *, timeout_s: float) -> str:
    """The commit that `ref` has in a remote repository (`git ls-remote`). Raises `SourceError`."""
    for line in run_git(["ls-remote", "--exit-code", "--", repository, ref], timeout_s=timeout_s).splitlines():
        sha, _, name = line.partition("\t")
        if _SHA.fullmatch(sha) and (name in (ref, f"refs/heads/{ref}", f"refs/tags/{ref}") or name.endswith(f"/{ref}")):
            return sha
    raise SourceError(f"{without_credentials(repository)} has no ref {ref!r}")


def resolve_source(repository: str, ref: str, subdirectory: str, root: Path, *, timeout_s: float) -> Source:
    """The exact state that `ref` names now: of a local folder with its uncommitted changes, else of the remote.

    For a local folder and the ref `HEAD` the working tree counts, untracked files that git does not ignore included;
    the commit is then the last one that touched `subdirectory`, so that work elsewhere does not make a new state.
    """
    folder = local_path(repository, root)
    if folder is None:
        sha = ref if _SHA.fullmatch(ref) else remote_sha(repository, ref, timeout_s=timeout_s)
        return Source(_display(repository), ref, sha, subdirectory)
    if not folder.is_dir():
        raise SourceError(f"{repository}: there is no such folder (read from {root})")
    top, below, bare = _anchor(folder, subdirectory, timeout_s)
    log = ["log", "-1", "--format=%H", "--end-of-options", ref, "--", below]
    sha = run_git(log, folder=top, timeout_s=timeout_s).strip()
    if not sha:
        raise SourceError(f"{repository}: no commit of {ref} has {subdirectory!r}; commit the backend's sources first")
    committed = tree = _tree(top, sha, below, timeout_s)
    if ref == "HEAD" and not bare:
        with tempfile.TemporaryDirectory(prefix="accel-ci-git-") as scratch:
            tree = _write_working_tree(top, below, _scratch_environment(top, Path(scratch), timeout_s), timeout_s)
    return Source(_display(repository), ref, sha, subdirectory, tree, dirty=tree != committed)


def resolved_sha(source: Source) -> str:
    """The commit of a state. Raises `SourceError` when it could not be resolved."""
    if source.sha is None:
        raise SourceError(f"{source.repository}: the commit of {source.ref} is not known ({source.note})")
    return source.sha


def checkout(
    source: Source, repository: str, root: Path, sources: Path, *, timeout_s: float, submodules: bool = False
) -> Path:
    """The files of `source.subdirectory` in a folder below `sources`, made once per state, by one process at a time.

    `repository` is the configured address (which may hold credentials that `source` does not). Raises `SourceError` when
    a working tree has changed since its state was resolved and was not checked out then.
    """
    sha = resolved_sha(source)
    identity = "\n".join((source.repository, source.subdirectory, source.tree or sha, *(["submodules"] * submodules)))
    destination = sources / f"{source.label}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if destination.is_dir():
        return destination
    sources.mkdir(parents=True, exist_ok=True)
    with FileLock(sources / f".{destination.name}.lock"):  # what is large is fetched once
        if not destination.is_dir():
            make = _check_out_with_submodules if submodules else _check_out
            make(source, sha, repository, root, destination, timeout_s)
    return destination


def _check_out_with_submodules(
    source: Source, sha: str, repository: str, root: Path, destination: Path, timeout_s: float
) -> None:
    """The files of a commit with those of its submodules, shallow; what is not committed cannot be had this way."""
    if source.dirty:
        raise SourceError(f"{repository}: has uncommitted changes, which are not checked out with submodules; commit them")
    folder = local_path(repository, root)
    address, below = repository, source.subdirectory
    if folder is not None:
        top, below, _ = _anchor(folder, source.subdirectory, timeout_s)
        address = str(top)
    with tempfile.TemporaryDirectory(prefix=".checkout-", dir=destination.parent) as scratch_name:
        clone = Path(scratch_name) / "clone"
        run_git(["init", "--quiet", str(clone)], timeout_s=timeout_s)
        run_git(["remote", "add", "origin", address], folder=clone, timeout_s=timeout_s)
        run_git(["fetch", "--quiet", "--depth", "1", "origin", sha], folder=clone, timeout_s=3600)
        run_git(["checkout", "--quiet", "--detach", sha], folder=clone, timeout_s=600)
        update = ["submodule", "update", "--init", "--recursive", "--depth", "1", "--quiet"]
        run_git(update, folder=clone, timeout_s=3600)
        for kept in clone.rglob(".git"):
            (shutil.rmtree if kept.is_dir() else Path.unlink)(kept)
        files = (clone / below).resolve()
        if not files.is_dir() or not files.is_relative_to(clone.resolve()):
            raise SourceError(f"commit {sha[:12]} has no folder {below!r}")
        files.rename(destination)


def _check_out(source: Source, sha: str, repository: str, root: Path, destination: Path, timeout_s: float) -> None:
    folder, sources = local_path(repository, root), destination.parent
    with tempfile.TemporaryDirectory(prefix=".checkout-", dir=sources) as scratch_name:
        scratch = Path(scratch_name)
        environment: dict[str, str] = {}
        if folder is None:
            folder = scratch / "repository"
            run_git(["init", "--quiet", "--bare", str(folder)], timeout_s=timeout_s)
            run_git(["fetch", "--quiet", "--depth", "1", "--", repository, sha], folder=folder, timeout_s=3600)
            tree = _tree(folder, sha, source.subdirectory, timeout_s)
        elif source.dirty:
            folder, below, _ = _anchor(folder, source.subdirectory, timeout_s)
            environment = _scratch_environment(folder, scratch, timeout_s)
            tree = _write_working_tree(folder, below, environment, timeout_s)
            if tree != source.tree:
                raise SourceChangedError(f"{repository}: the working tree has changed since this revision; start a new run")
        else:
            folder, below, _ = _anchor(folder, source.subdirectory, timeout_s)
            tree = source.tree or _tree(folder, sha, below, timeout_s)
        archive = scratch / "source.tar"
        run_git(
            ["archive", "--format=tar", f"--output={archive}", tree], folder=folder, environment=environment, timeout_s=600
        )
        files = scratch / "files"
        try:
            with archive.open("rb") as file:
                unpack(file, files)
        except TarError as error:  # a link that leads out of the sources
            raise SourceError(f"{source.repository} at {source.label} cannot be checked out: {error}") from None
        files.rename(destination)


def _display(repository: str) -> str:
    parts = urlsplit(repository)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.scheme else repository


def _anchor(folder: Path, subdirectory: str, timeout_s: float) -> tuple[Path, str, bool]:
    """The top of the repository that `folder` lies in, `subdirectory` from there, and whether it is bare."""
    if run_git(["rev-parse", "--is-bare-repository"], folder=folder, timeout_s=timeout_s).strip() == "true":
        return folder, subdirectory, True
    top, prefix = run_git(["rev-parse", "--show-toplevel", "--show-prefix"], folder=folder, timeout_s=timeout_s).split("\n")[
        :2
    ]
    return Path(top), os.path.normpath(os.path.join(prefix, subdirectory)), False  # noqa: PTH118


def _tree(folder: Path, commit: str, subdirectory: str, timeout_s: float) -> str:
    path = "" if subdirectory == "." else subdirectory.rstrip("/")
    try:
        return run_git(["rev-parse", "--verify", f"{commit}:{path}"], folder=folder, timeout_s=timeout_s).strip()
    except SourceError:
        raise SourceError(f"commit {commit[:12]} has no folder {subdirectory!r}") from None


def _scratch_environment(folder: Path, scratch: Path, timeout_s: float) -> dict[str, str]:
    """Let git write its index and objects beside the repository, which stays as it is."""

    def git_path(name: str) -> Path:
        return folder / run_git(["rev-parse", "--git-path", name], folder=folder, timeout_s=timeout_s).strip()

    objects = scratch / "objects"
    objects.mkdir()
    if git_path("index").is_file():  # its file times spare git the reading of every file
        shutil.copy2(git_path("index"), scratch / "index")
    return {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_path("objects")),
    }


def _write_working_tree(top: Path, below: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """The git tree of the working files in the folder `below` the top."""
    run_git(["add", "--all", "--", below], folder=top, environment=environment, timeout_s=max(timeout_s, 120))
    arguments = ["write-tree", *([] if below == "." else [f"--prefix={below}/"])]
    return run_git(arguments, folder=top, environment=environment, timeout_s=timeout_s).strip()
