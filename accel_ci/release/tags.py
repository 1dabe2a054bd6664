"""The release tags of the backend's repository, and of the stack's components: semantic versions, with or without a `v`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from accel_ci.config.release_settings import Index, Release
from accel_ci.config.settings import Project, Settings
from accel_ci.config.stack_settings import Component
from accel_ci.errors import ConfigError, MissingRefError
from accel_ci.model import Revision
from accel_ci.source.git import local_path, run_git
from accel_ci.source.refs import local_sha, remote_sha

_PREFIX = "refs/tags/"
_SEMANTIC = re.compile(r"v?((?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]{1,40})?)")
"""https://semver.org, without build metadata: PEP 440 has local versions for that, which no public index takes."""


@dataclass(frozen=True)
class ReleaseTag:
    """A tag with a semantic version. `text` is the version as the tag has it, and `sha` its commit, None without one.

    It is one of the backend's repository, or of that of a `component` of the stack.
    """

    name: str
    text: str
    version: Version
    sha: str | None
    component: str | None = None

    @property
    def shown(self) -> str:
        """The tag as a person writes it: `v1.2.3`, or `runtime=v1.2.3` of a component."""
        return self.name if self.component is None else f"{self.component}={self.name}"

    @property
    def of_image(self) -> str:
        """The tag of the image that it releases: `1.2.3`, or `runtime-1.2.3` of a component."""
        return self.text if self.component is None else f"{self.component}-{self.text}"

    @property
    def is_final(self) -> bool:
        """True if the version is no pre-release."""
        return not self.version.is_prerelease


def read_tag(name: str) -> tuple[str, Version] | None:
    """Return the version of a tag, as text and as PEP 440 has it; None for a tag that is no semantic version.

    Nor is one that means something else there: `1.0.0-1` comes before `1.0.0`, but PEP 440 makes a post-release of it.
    """
    match = _SEMANTIC.fullmatch(name.removeprefix(_PREFIX))
    if match is None:
        return None
    try:
        version = Version(match[1])
    except InvalidVersion:  # such as 1.0.0-nightly.x
        return None
    return None if version.is_postrelease else (match[1], version)


def has_public_version(settings: Settings, revision: Revision) -> bool:
    """Return whether the wheels of a revision have versions without the state of their sources.

    That is so, with `release.public_versions`, for those that were started by hand from a release tag.
    """
    wanted = settings.release is not None and settings.release.public_versions and revision.trigger == "manual"
    source = revision.backend
    is_tag = source.ref.startswith(_PREFIX) and read_tag(source.ref) is not None
    return wanted and is_tag and source.sha is not None and not source.dirty


def tag_of(project: Project, revision: Revision, name: str | None = None) -> ReleaseTag | None:
    """Return the release tag of a revision: the one that is named, else the ref that it was resolved from.

    That is a tag of the backend, or of the one component that the revision was asked to have at a tag; a component's tag is
    named as `runtime=v1.2.3`. Its commit is asked of the repository anew. None if the ref is no release tag. Raises
    `ConfigError` for a component that releases nothing, and `SourceError` if the repository does not answer.
    """
    if name is not None:
        component, _, ref = name.rpartition("=")
        return _tag(project, ref, _releasing(project, component) if component else None)
    if revision.backend.ref.startswith(_PREFIX) or read_tag(revision.backend.ref) is not None:
        return _tag(project, revision.backend.ref, None)
    asked = [(each, revision.stack[each.name].ref) for each in _components(project) if each.name in revision.stack]
    # A component that is always at a tag is no reason to release each build.
    asked = [(each, ref) for each, ref in asked if each.release and ref != each.ref and read_tag(ref) is not None]
    if len(asked) != 1 or revision.trigger != "manual":
        return None
    [(component_at_tag, ref)] = asked
    return _tag(project, ref, component_at_tag)


def index_for(settings: Release, tag: ReleaseTag | None) -> Index | None:
    """Return the index that a build goes to: with a tag of the backend the one of releases, without one the test index."""
    if tag is None:
        return settings.test_index
    return settings.index if tag.component is None else None


def releasing_components(project: Project) -> tuple[Component, ...]:
    """Return the components of the stack whose tags release an image."""
    return tuple(each for each in _components(project) if each.release)


def release_tags(project: Project, component: Component, timeout_s: float) -> dict[str, str]:
    """Return the release tags of a component's repository with their commits. Raises `SourceError`."""
    address = str(local_path(component.repository, project.root) or component.repository)
    found: dict[str, str] = {}
    for line in run_git(["ls-remote", "--tags", "--", address], timeout_s=timeout_s).splitlines():
        sha, _, name = line.partition("\t")
        tag = name.removesuffix("^{}").removeprefix(_PREFIX)  # `^{}` is the commit of an annotated tag, and comes after it
        if read_tag(tag) is not None:
            found[tag] = sha
    return found


def new_and_moved(known: Mapping[str, str] | None, found: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the tags that are not known yet, the lowest version first, and those that were at another commit.

    At the first look, without `known`, none is new.
    """
    if known is None:
        return [], []
    new = [(read[1], name) for name in found if name not in known and (read := read_tag(name)) is not None]
    return [name for _, name in sorted(new)], sorted(name for name in found if known.get(name, found[name]) != found[name])


def _tag(project: Project, ref: str, component: Component | None) -> ReleaseTag | None:
    """Read a release tag, and ask the repository of the backend, or of the component, for its commit."""
    read = read_tag(ref)
    if read is None:
        return None
    text, version = read
    full, limit = f"{_PREFIX}{ref.removeprefix(_PREFIX)}", project.settings.limits.git_seconds
    repository = component.repository if component is not None else project.settings.backend.repository
    folder = local_path(repository, project.root)
    try:
        if folder is not None:
            sha: str | None = local_sha(folder, repository, full, timeout_s=limit)
        else:
            sha = remote_sha(repository, full, timeout_s=limit)
    except MissingRefError:
        sha = None
    return ReleaseTag(ref.removeprefix(_PREFIX), text, version, sha, component.name if component is not None else None)


def _components(project: Project) -> tuple[Component, ...]:
    return project.settings.stack.components if project.settings.stack is not None else ()


def _releasing(project: Project, name: str) -> Component:
    known = {each.name: each for each in releasing_components(project)}
    if name not in known:
        raise ConfigError(f"the stack has no component {name!r} with `release: true`; known: {', '.join(known) or 'none'}")
    return known[name]
