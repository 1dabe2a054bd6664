"""Read the uncommitted state of a working tree without changing anything in its repository."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from accel_ci.source.git import run_git

_ADD_AT_LEAST_S = 120.0


def scratch_environment(top: Path, scratch: Path, objects: Path, timeout_s: float) -> dict[str, str]:
    """An environment in which git writes its index to `scratch` and new objects to the folder `objects`."""

    def git_path(name: str) -> Path:
        return (top / run_git(["rev-parse", "--git-path", name], folder=top, timeout_s=timeout_s)).absolute()

    if git_path("index").is_file():  # its file times save git from reading every file
        shutil.copy2(git_path("index"), scratch / "index")
    return {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_path("objects")),
    }


def write_working_tree(top: Path, commit: str, below: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """Write the tree of a commit in which the working files replace the folder `below`; return the tree's id."""
    limit_s = max(timeout_s, _ADD_AT_LEAST_S)
    for arguments in (["read-tree", "--reset", commit], ["add", "--all", "--", below]):
        run_git(arguments, folder=top, environment=environment, timeout_s=limit_s)
    return run_git(["write-tree"], folder=top, environment=environment, timeout_s=timeout_s)
