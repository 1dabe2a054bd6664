"""PyTorch's own tests: the folders of its repository that suites of the source `upstream` need, at one commit.

The repository is large, so a tree is fetched without history and without the files of other folders, once for each commit.
Which commit fits a build, and how it differs from the PyTorch that is installed, is decided here, too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from accel_ci.config.settings import Upstream, Variant
from accel_ci.errors import SourceError
from accel_ci.model import Revision, RuntimeImage
from accel_ci.redaction import without_credentials
from accel_ci.source.checkout import MARK, changes_of_checkout, seal_checkout
from accel_ci.source.git import local_path, run_git
from accel_ci.storage.scratch_folder import scratch_folder

_FETCH_S = 3600.0
_VERSION = "version.txt"
COMMIT = ".accel-ci-commit"
"""The file at the top of a tree that has the commit."""


@dataclass(frozen=True)
class UpstreamTree:
    """A folder with upstream's tests at a commit. `skew` says how they differ from the PyTorch under test, if they do."""

    folder: Path
    sha: str
    skew: str | None


def commit_of_tests(upstream: Upstream, variant: Variant, image: RuntimeImage, revision: Revision) -> str:
    """Return the commit whose tests fit a build: that of its PyTorch, unless the configuration names one.

    A wheel of PyTorch's main may be older than the revision; only where it does not say its commit, the revision's is taken.
    Raises `SourceError` when the commit is not known.
    """
    of_main = revision.upstream.sha if variant.torch_source == "main" else None
    sha = upstream.tests_sha or image.torch_sha or of_main
    if sha is None:
        raise SourceError(
            f"torch {image.torch_version} does not say which commit it was built from (torch.version.git_version), so "
            "nobody knows which of PyTorch's tests fit it; set upstream.tests_sha"
        )
    return sha


def behind_revision(variant: Variant, image: RuntimeImage, revision: Revision) -> str | None:
    """Say that a PyTorch main is of another commit than the revision's upstream; None if it is of that one or not known."""
    wanted, built_from = revision.upstream.sha, image.torch_sha
    if variant.torch_source == "pinned" or None in (wanted, built_from) or wanted == built_from:
        return None
    return (
        f"torch {image.torch_version} was built from {str(built_from)[:12]}, not from the revision's upstream "
        f"{str(wanted)[:12]}: the commit of the wheel counts, for the tests and for causes"
    )


def upstream_tree(upstream: Upstream, sha: str, image: RuntimeImage, root: Path, sources: Path) -> UpstreamTree:
    """Return upstream's tests at a commit, in a folder below `sources`; `root` is the folder of relative addresses.

    They are fetched once. Raises `SourceError` when they cannot be had.
    """
    identity = hashlib.sha256("\n".join([sha, *sorted(upstream.folders)]).encode()).hexdigest()[:8]
    folder = sources / f"upstream-{sha[:12]}-{identity}"
    sources.mkdir(parents=True, exist_ok=True)
    with FileLock(sources / f".{folder.name}.lock"):
        if folder.is_dir() and changes_of_checkout(folder):
            shutil.rmtree(folder)
        if not folder.is_dir():
            with scratch_folder("upstream", sources) as scratch:
                _fetch(upstream, sha, root, scratch / "files")
                (scratch / "files").rename(folder)
        os.utime(folder)  # `prune` leaves what was used in the last day
    return UpstreamTree(folder, sha, _skew(folder, sha, image))


def _fetch(upstream: Upstream, sha: str, root: Path, files: Path) -> None:
    """Fetch the folders of a commit into the new folder `files`, which is sealed. Raises `SourceError`."""
    given = upstream.mirror or upstream.repository
    local = local_path(given, root)
    address = given if local is None else local.as_uri()
    shown = without_credentials(given)
    if local is not None and not local.is_dir():
        raise SourceError(f"upstream.mirror {shown} is no folder (relative to {root}); correct it")

    def git(*arguments: str) -> None:
        run_git(arguments, folder=files, timeout_s=_FETCH_S, config={"remote.origin.url": address})

    files.mkdir()
    git("init", "--quiet", "--template=")
    for name, value in (
        ("core.repositoryformatversion", "1"), ("extensions.partialClone", "origin"), ("remote.origin.promisor", "true"),
        ("remote.origin.partialclonefilter", "blob:none"),
    ):  # fmt: skip
        git("config", name, value)
    git("sparse-checkout", "set", "--cone", "--", *upstream.folders)
    try:
        git("fetch", "--quiet", "--depth", "1", "--no-tags", "--filter=blob:none", "origin", sha)
        git("checkout", "--quiet", "--detach", sha)
    except SourceError as error:
        advice = "check the address, or set upstream.mirror to a repository or a folder on this machine that has the commit"
        raise SourceError(f"PyTorch's tests at {sha} cannot be had from {shown}: {error}; {advice}") from None
    _require(files, upstream.folders, f"{shown} at {sha[:12]}")
    (files / COMMIT).write_text(sha, "ascii")
    shutil.rmtree(files / ".git")
    (files / ".git").mkdir()
    (files / ".git" / MARK).write_text(".", "utf-8")
    seal_checkout(files)


def _require(files: Path, folders: Sequence[str], where: str) -> None:
    for name in folders:
        if not (files / name).is_dir():
            raise SourceError(f"{where} has no folder {name!r}; correct upstream.folders")


def _skew(folder: Path, sha: str, image: RuntimeImage) -> str | None:
    """Describe the difference between the tests and the PyTorch under test; None if they are of one commit."""
    if sha == image.torch_sha:
        return None
    file = folder / _VERSION
    version = file.read_text("utf-8", "replace").strip()[:80] if file.is_file() else "an unknown version"
    built_from = f"at {image.torch_sha[:12]}" if image.torch_sha else "of an unknown commit"
    return (
        f"the tests are of PyTorch {version} at {sha[:12]}, but torch {image.torch_version} {built_from} is tested: "
        "tests may fail, or files may not be collected, for this difference alone"
    )
