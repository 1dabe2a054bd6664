"""Make the sources that Bazel builds: the backend's and upstream's at the revision's SHAs, with the backend's patches.

A tree without patches is the checkout itself. A patched one is a copy, made once for the same sources and patches.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.settings import Project, Rbe
from accel_ci.errors import SourceError
from accel_ci.model import Revision, SourceBuild
from accel_ci.source.patches import AppliedSeries, apply_series, read_series
from accel_ci.source.revision import checkout_backend, checkout_upstream
from accel_ci.storage.scratch_folder import scratch_folder

_SERIES = TypeAdapter(AppliedSeries)


def make_source_tree(project: Project, rbe: Rbe, revision: Revision) -> SourceBuild:
    """Check out the sources that contain the workspace and apply the patches to them.

    Raises `SourceError`; if a patch does not apply, it names the hunk and the file.
    """
    started = time.monotonic()
    first, *below = Path(rbe.workspace).parts
    backend = sources = checkout_backend(project, revision.backend, submodules=rbe.submodules)
    if first == "upstream":
        sources = checkout_upstream(project, revision.upstream, submodules=rbe.submodules)
    tree, series, reused = sources, AppliedSeries((), ()), True
    if rbe.patches is not None:
        patches = read_series(backend / rbe.patches)
        tree, series, reused = _patched(sources, patches, project.home / "rbe" / "sources")
    workspace = tree.joinpath(*below)
    if not any((workspace / name).is_file() for name in ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel")):
        problem = f"{'/'.join((first, *below))} of {revision.key} has neither MODULE.bazel nor WORKSPACE"
        raise SourceError(f"rbe.workspace: {problem}; name the folder of the Bazel workspace")
    label, sha = revision.backend.label, revision.upstream.sha if first == "upstream" else None
    work_s = round(time.monotonic() - started, 3)
    return SourceBuild(str(workspace), tree.name, label, sha, series.names, series.already, reused, work_s)


def _patched(sources: Path, patches: tuple[Path, ...], folder: Path) -> tuple[Path, AppliedSeries, bool]:
    """Return a copy of the sources with the patches, and whether it is from an earlier build."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(f"{patch.name}\n".encode() + patch.read_bytes())
    tree = folder / f"{sources.name}-{digest.hexdigest()[:12]}"
    record = folder / f"{tree.name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{tree.name}.lock"):
        if tree.is_dir() and record.is_file():
            os.utime(record)  # `prune` leaves what was used in the last day
            return tree, _SERIES.validate_json(record.read_bytes()), True
        shutil.rmtree(tree, ignore_errors=True)
        with scratch_folder("patch", folder) as scratch:
            copy = Path(scratch) / "sources"
            shutil.copytree(sources, copy, symlinks=True)
            series = apply_series(patches, copy)
            record.write_bytes(_SERIES.dump_json(series))
            copy.rename(tree)
    return tree, series, False
