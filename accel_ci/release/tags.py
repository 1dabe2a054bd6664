"""The release tags of the backend's repository: semantic versions, with or without a `v` before them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from accel_ci.config.settings import Project
from accel_ci.errors import MissingRefError
from accel_ci.model import Revision
from accel_ci.source.git import local_path
from accel_ci.source.refs import local_sha, remote_sha

_PREFIX = "refs/tags/"
_SEMANTIC = re.compile(r"v?((?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]{1,40})?)")
"""https://semver.org, without build metadata: PEP 440 has local versions for that, which no public index takes."""


@dataclass(frozen=True)
class ReleaseTag:
    """A tag with a semantic version. `text` is the version as the tag has it, and `sha` its commit, None without one."""

    name: str
    text: str
    version: Version
    sha: str | None

    @property
    def is_final(self) -> bool:
        """True if the version is no pre-release."""
        return not self.version.is_prerelease


def read_tag(name: str) -> tuple[str, Version] | None:
    """Return the version of a tag, as text and as PEP 440 has it; None for a tag that is no semantic version."""
    match = _SEMANTIC.fullmatch(name.removeprefix(_PREFIX))
    if match is None:
        return None
    try:
        return match[1], Version(match[1])
    except InvalidVersion:  # such as 1.0.0-nightly.x
        return None


def tag_of(project: Project, revision: Revision, name: str | None = None) -> ReleaseTag | None:
    """Return the release tag of a revision: the one that is named, else the ref that it was resolved from.

    Its commit is asked of the repository anew. None if the ref is no release tag. Raises `SourceError` if the repository
    does not answer.
    """
    ref = name or revision.backend.ref
    if name is None and not ref.startswith(_PREFIX) and read_tag(ref) is None:
        return None
    read = read_tag(ref)
    if read is None:
        return None
    text, version = read
    full, limit = f"{_PREFIX}{ref.removeprefix(_PREFIX)}", project.settings.limits.git_seconds
    folder = local_path(project.settings.backend.repository, project.root)
    try:
        if folder is not None:
            sha: str | None = local_sha(folder, project.settings.backend.repository, full, timeout_s=limit)
        else:
            sha = remote_sha(project.settings.backend.repository, full, timeout_s=limit)
    except MissingRefError:
        sha = None
    return ReleaseTag(ref.removeprefix(_PREFIX), text, version, sha)
