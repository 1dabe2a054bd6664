"""Check out commits: the whole repository as `git checkout` of the commit gives it, with submodules and Git LFS files.

Each address has a mirror in the data folder, so that a commit is fetched once and the next one in part. A checkout has a
small `.git` for those who ask git for a version: all commits and tags, but the files of this commit alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from accel_ci.errors import SourceChangedError, SourceError
from accel_ci.model import Source
from accel_ci.redaction import without_credentials
from accel_ci.source.git import TRANSPORTS, local_path, run_git
from accel_ci.source.refs import anchor, resolved_sha, tree_of
from accel_ci.source.working_tree import scratch_environment, write_working_tree
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.sealed_folder import changes, in_short, seal

_LOG = logging.getLogger(__name__)

MIRRORS = ".mirrors"
MARK = "accel-ci-checkout"
"""The file in the `.git` of a checkout that tells it from other repositories; it has the path of the sources."""

_SEAL = f".git/{MARK}-seal"
_OF_BAZEL = re.compile(r"(^|/)MODULE\.bazel(\.lock)? was added$|(^|/)MODULE\.bazel\.lock was changed$")
"""Bazel writes these files itself into the workspace that it builds."""

_FETCH_S = 3600.0
_CHECKOUT_S = 1800.0
_EXACTLY = {"core.autocrlf": "false", "core.symlinks": "true", "core.fileMode": "true", "core.longpaths": "true"}
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
_NAMES_AT_ONCE = 200


@dataclass(frozen=True)
class Contents:
    """The parts of a checkout beyond the files of the commit: its history with tags, submodules, and Git LFS files."""

    history: bool = True
    submodules: bool = True
    lfs: bool = True


@dataclass(frozen=True)
class _Origin:
    """A repository: its address for git, its folder if it is on this machine, and the path of the sources in it."""

    address: str
    folder: Path | None
    below: str

    @property
    def is_on_this_machine(self) -> bool:
        return self.folder is not None or self.address.startswith("file:")


def checkout(
    source: Source, repository: str, root: Path, sources: Path, *, timeout_s: float, contents: Contents = Contents()
) -> Path:
    """Check a state out into a folder below `sources`, once and by one process at a time; return its subdirectory.

    `repository` is the configured address, which may hold credentials that `source` does not. A checkout in which something
    has changed since, also a file that git ignores, is made anew; the changed one is kept beside it. Raises `SourceError` if
    files of the commit cannot be had, and if a working tree was not checked out when its state was resolved and has changed.
    """
    sha = resolved_sha(source)
    tree = str(source.tree) if source.dirty else ""
    identity = "\n".join((source.repository, source.subdirectory, sha, tree, repr(contents)))
    destination = sources / f"{source.label}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    sources.mkdir(parents=True, exist_ok=True)
    with FileLock(sources / f".{destination.name}.lock"):  # large repositories are fetched only once
        if destination.is_dir() and (changed := changes_of_checkout(destination)):
            kept = destination.with_name(f"{destination.name}.changed")
            _LOG.warning("%s is checked out anew: %s; see the changed files in %s", source.label, in_short(changed), kept)
            shutil.rmtree(kept, ignore_errors=True)
            destination.rename(kept)
        if not destination.is_dir():
            with scratch_folder("checkout", sources) as scratch:
                origin = _origin(source, repository, root, timeout_s)
                made = _Checkout(source, sha, origin, Path(scratch), timeout_s, contents).make(sources / MIRRORS)
                made.rename(destination)
        os.utime(destination)  # `prune` leaves what was used in the last day
    return destination / (destination / ".git" / MARK).read_text("utf-8")


def repository_with(source: Source, repository: str, root: Path, sources: Path, *, timeout_s: float) -> tuple[Path, str]:
    """Return a repository on this machine with the commit of a state and its history, and the path of the sources in it.

    It is the folder that `repository` names, or the mirror of its address below `sources`. Raises `SourceError`.
    """
    origin = _origin(source, repository, root, timeout_s)
    if origin.folder is not None:
        return origin.folder, origin.below
    mirrors = sources / MIRRORS
    return _Checkout(source, resolved_sha(source), origin, mirrors, timeout_s, Contents())._mirror(mirrors), origin.below


def changes_of_checkout(folder: Path) -> list[str]:
    """Return what has changed in the checkout that a folder is in since it was made, one line for each path."""
    return [line for line in changes(checkout_root(folder), _SEAL) if not _OF_BAZEL.search(line)]


def seal_checkout(folder: Path) -> None:
    """Take a checkout as it is now for unchanged."""
    seal(folder, _SEAL)


def is_checkout(folder: Path) -> bool:
    """Return whether the folder is the root of a checkout."""
    return (folder / ".git" / MARK).is_file()


def checkout_root(folder: Path) -> Path:
    """The root of the checkout that a folder is in; the folder itself if it is in none."""
    return next((each for each in (folder, *folder.parents) if is_checkout(each)), folder)


def _origin(source: Source, repository: str, root: Path, timeout_s: float) -> _Origin:
    folder = local_path(repository, root)
    if folder is None:
        return _Origin(repository, None, os.path.normpath(source.subdirectory))
    top, below, _ = anchor(folder, source.subdirectory, timeout_s)
    return _Origin(str(top), top, below)


@dataclass(frozen=True)
class _Checkout:
    """One checkout that is being made in the folder `scratch`."""

    source: Source
    sha: str
    origin: _Origin
    scratch: Path
    timeout_s: float
    contents: Contents

    def make(self, mirrors: Path) -> Path:
        """Make the whole checkout; return its folder."""
        files = self.scratch / "files"
        self._fetch_from(self._mirror(mirrors), files)
        if self.source.dirty and self.origin.folder is not None:
            self._take_uncommitted(self.origin.folder, files)
        if self.contents.submodules:
            self._add_submodules(files)
        below = files / self.origin.below
        if not below.is_dir():
            tree_of(files, self.sha, self.origin.below, self.timeout_s)  # which explains it
        self._refuse_links_that_lead_out(files)
        if self.contents.lfs:
            self._fetch_lfs_files(files)
        address = without_credentials(self.origin.address)
        run_git(["config", "remote.origin.url", address], folder=files, timeout_s=self.timeout_s)
        (files / ".git" / MARK).write_text(self.origin.below, "utf-8")
        seal(files, _SEAL)
        return files

    def _git(self, files: Path, *arguments: str, timeout_s: float) -> str:
        """Run git in the checkout with the real address of its origin, and with Git LFS if it is wanted and installed."""
        address = self.origin.folder.as_uri() if self.origin.folder is not None else self.origin.address
        lfs = self.contents.lfs and shutil.which("git-lfs") is not None
        config = {**_EXACTLY, "remote.origin.url": address, **_filter_settings(lfs=lfs)}
        # A repository elsewhere may not name repositories of this machine as its submodules.
        transports = TRANSPORTS if self.origin.is_on_this_machine else [name for name in TRANSPORTS if name != "file"]
        return run_git(arguments, folder=files, timeout_s=timeout_s, config=config, transports=transports)

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"{self.source.repository} at {self.source.label} cannot be checked out: {problem}")

    def _mirror(self, mirrors: Path) -> Path:
        """Have the commit, and with history all tags, in the mirror of the address; return its folder."""
        kind = "" if self.contents.history else "-shallow"
        address = without_credentials(self.origin.address)
        mirror = mirrors / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}{kind}.git"
        mirrors.mkdir(parents=True, exist_ok=True)
        kept, limit_s = f"refs/accel-ci/{self.sha}", self.timeout_s
        with FileLock(mirror.with_suffix(".lock")):
            for left in (*mirror.glob("*.lock"), *mirror.glob("refs/**/*.lock")):  # by a git that was killed
                left.unlink(missing_ok=True)
            if not (mirror / "HEAD").is_file():
                run_git(["init", "--quiet", "--bare", "--template=", str(mirror)], timeout_s=limit_s)
                for name in ("allowFilter", "allowAnySHA1InWant"):
                    run_git(["config", f"uploadpack.{name}", "true"], folder=mirror, timeout_s=limit_s)
            with suppress(SourceError):  # by exact names: a tag of the same name would do for others
                run_git(["show-ref", "--verify", "--quiet", kept], folder=mirror, timeout_s=limit_s)
                run_git(["cat-file", "-e", f"{self.sha}^{{commit}}"], folder=mirror, timeout_s=limit_s)
                return mirror
            fetch = ["fetch", "--quiet", "--force", "--no-write-fetch-head", "--update-shallow", "--no-auto-gc"]
            wanted = [f"+{self.sha}:{kept}"]
            if self.contents.history:
                fetch, wanted = [*fetch, "--no-tags", "--prune"], [*wanted, "+refs/tags/*:refs/tags/*"]
            else:
                fetch = [*fetch, "--no-tags", "--depth", "1"]
            run_git([*fetch, "--", self.origin.address, *wanted], folder=mirror, timeout_s=_FETCH_S)
            if (found := run_git(["cat-file", "-t", self.sha], folder=mirror, timeout_s=limit_s)) != "commit":
                raise self._error(f"{self.sha} is a {found}, not a commit; name its commit, or the tag by its name")
        return mirror

    def _fetch_from(self, mirror: Path, files: Path) -> None:
        """Make a repository with the history of the commit and the tags, and check the commit out."""
        own = {"remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*"}
        fetch = ["fetch", "--quiet", "--no-write-fetch-head", "--update-shallow", "--no-tags"]
        names = [f"+refs/accel-ci/{self.sha}:refs/remotes/origin/checked-out"]
        if self.contents.history and not (mirror / "shallow").is_file():  # files of other commits stay in the mirror
            own |= {
                "core.repositoryformatversion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
                "remote.origin.partialclonefilter": "tree:0",
            }  # fmt: skip
            fetch = [*fetch, "--filter=tree:0"]
        names += ["+refs/tags/*:refs/tags/*"] if self.contents.history else []
        run_git(["init", "--quiet", "--template=", str(files)], timeout_s=self.timeout_s)
        for name, value in own.items():
            run_git(["config", name, value], folder=files, timeout_s=self.timeout_s)
        here = {**_EXACTLY, "remote.origin.url": mirror.absolute().as_uri()}
        run_git([*fetch, "origin", *names], folder=files, timeout_s=_CHECKOUT_S, config=here)
        # Files that Git LFS keeps stay pointers at first: this step asks the mirror, which does not have them.
        plain = {**here, **_filter_settings(lfs=False)}
        run_git(["checkout", "--quiet", "--detach", self.sha], folder=files, timeout_s=_CHECKOUT_S, config=plain)

    def _take_uncommitted(self, top: Path, files: Path) -> None:
        """Take over the uncommitted files of the working tree. Raises `SourceChangedError` if it has changed meanwhile."""
        below = self.origin.below
        environment = scratch_environment(top, self.scratch, files / ".git" / "objects", self.timeout_s)
        whole = write_working_tree(top, self.sha, below, environment, self.timeout_s)
        if tree_of(top, whole, below, self.timeout_s, environment) != self.source.tree:
            problem = "the working tree has changed since this revision; start a new run"
            raise SourceChangedError(f"{self.source.repository}: {problem}")
        self._git(files, "read-tree", "--reset", "-u", whole, timeout_s=_CHECKOUT_S)

    def _add_submodules(self, files: Path) -> None:
        """Check out all submodules, without their history. Git's settings for them are not kept."""
        if not (files / ".gitmodules").is_file():
            return
        settings = files / ".git" / "config"
        before = settings.read_bytes()
        update = ("submodule", "update", "--init", "--recursive", "--depth", "1", "--quiet")
        try:
            self._git(files, *update, timeout_s=_FETCH_S)
        except SourceError as error:
            advice = "make its submodules readable, or set backend.submodules to false"
            raise self._error(f"{error}; {advice}") from None
        settings.write_bytes(before)
        shutil.rmtree(files / ".git" / "modules", ignore_errors=True)
        for metadata in _walk(files):
            if metadata.name == ".git":
                metadata.unlink()

    def _fetch_lfs_files(self, files: Path) -> None:
        """Replace pointers by the files that Git LFS keeps. Raises `SourceError` with their names if they cannot be had."""
        if not (pointers := _lfs_pointers(files, self.timeout_s)):
            return
        problem = "git-lfs is not installed; install it"
        if shutil.which("git-lfs") is not None:
            for name in pointers:
                (files / name).unlink()
            try:
                self._git(files, "checkout-index", "--all", "--force", timeout_s=_FETCH_S)
            except SourceError as error:
                problem = str(error)
            else:
                return
        shown = ", ".join(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in pointers[:5])
        more = f" and {len(pointers) - 5} more" if len(pointers) > 5 else ""
        advice = "or set backend.lfs to false to test without these files"
        raise self._error(f"Git LFS keeps {shown}{more}, and {problem}, {advice}")

    def _refuse_links_that_lead_out(self, files: Path) -> None:
        root = os.path.realpath(files)
        for path in _walk(files):
            if path.is_symlink() and os.path.commonpath((root, os.path.realpath(path))) != root:
                name = os.fsencode(path.relative_to(files)).decode("utf-8", "replace")
                raise self._error(f"the link {name} leads out of the sources, to {str(path.readlink())!r}")


def _walk(files: Path) -> Iterator[Path]:
    """Every file and link of a checkout, without the repository itself."""
    for folder, folders, names in os.walk(files):
        if Path(folder) == files:
            folders.remove(".git")
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in (*names, *links))


def _filter_settings(*, lfs: bool) -> dict[str, str]:
    """Settings that turn the filter of Git LFS on, whatever the user's are, or off."""
    commands = {"clean": "git-lfs clean -- %f", "smudge": "git-lfs smudge -- %f", "process": "git-lfs filter-process"}
    return {
        **{f"filter.lfs.{name}": command if lfs else "" for name, command in commands.items()},
        "filter.lfs.required": str(lfs).lower(),
    }


def _lfs_pointers(files: Path, timeout_s: float) -> list[str]:
    """The files that still are pointers, by their content and by the filter that `.gitattributes` gives them."""
    small = (path for path in _walk(files) if not path.is_symlink() and path.stat().st_size <= _POINTER_BYTES)
    names = [str(path.relative_to(files)) for path in small if path.read_bytes().startswith(_POINTER)]
    pointers = []
    for start in range(0, len(names), _NAMES_AT_ONCE):
        ask = ["check-attr", "-z", "filter", "--", *names[start : start + _NAMES_AT_ONCE]]
        fields = run_git(ask, folder=files, timeout_s=max(timeout_s, _CHECKOUT_S)).split("\0")
        pointers += [name for name, value in zip(fields[::3], fields[2::3], strict=False) if value == "lfs"]
    return pointers
