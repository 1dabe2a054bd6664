"""Resolve revisions: their keys, and the source states behind them.

A revision never changes. If a key is requested again after the sources have moved on, a numbered key is made
(`nightly-20261127.2`), so that results of different sources are never mixed under one name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from accel_ci.config.settings import Project, Settings
from accel_ci.config.stack_settings import Component
from accel_ci.errors import ConfigError, DamagedError, MissingRefError, SourceChangedError, SourceError
from accel_ci.model import CONFIRM, Revision, Source, Trigger
from accel_ci.pipelines import INTEGRATION
from accel_ci.redaction import without_credentials
from accel_ci.source.checkout import Contents, checkout
from accel_ci.source.git import local_path, run_git
from accel_ci.source.refs import anchor, resolve_source, resolved_sha

_LOG = logging.getLogger(__name__)

_TRIES = 5
_HEXADECIMAL = re.compile(r"[0-9a-f]{4,64}")


def revision_key(
    trigger: Trigger, now: datetime, upstream: Source, backend: Source, pull_request: int | None, slug: str | None
) -> str:
    """The key of a revision: `nightly-20261127`, `main-<sha12>`, `pr-<number>-<sha12>`, `manual-<slug>` and so on."""
    if trigger == "nightly":
        return f"nightly-{now:%Y%m%d}"
    if trigger == "sweep":
        return f"sweep-{now:%Y%m%d}"
    if trigger == "intraday":
        return f"intraday-{now:%Y%m%dT%H}"
    if trigger == "main":
        return f"main-{(upstream.sha or backend.sha or 'unknown')[:12]}"
    if trigger == "pr":
        if pull_request is None:
            raise ConfigError("a revision of a pull request needs the pull request's number")
        changed = upstream if is_pull_request(upstream) and not is_pull_request(backend) else backend
        return f"pr-{pull_request}-{(changed.sha or 'unknown')[:12]}"
    return manual_key(slug or now.strftime("%Y%m%dt%H%M%S"))


def manual_key(name: str) -> str:
    """The key of a person's revision, `manual-<name>`, with a `-` for each character that a key has not."""
    return f"manual-{_in_key(name)}"


def _in_key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]


@dataclass(frozen=True)
class ComponentChange:
    """A change request of a component of the stack: its number, the ref that it is, and its newest commit."""

    component: str
    number: int
    ref: str
    sha: str

    @property
    def key(self) -> str:
        """The key of its revision: `pr-<component>-<number>-<sha12>`."""
        return f"pr-{_in_key(self.component)}-{self.number}-{self.sha[:12]}"


def components_at_changes(settings: Settings, revision: Revision) -> tuple[str, ...]:
    """Return the components of the stack that a revision has at a change request (`stack.components[].changes`)."""
    components = settings.stack.components if settings.stack is not None else ()
    return tuple(
        each.name
        for each in components
        if each.changes is not None
        and each.name in revision.stack
        and each.changes.number_of(revision.stack[each.name].ref) is not None
    )


def tests_the_backends_change(settings: Settings, revision: Revision) -> bool:
    """Return whether a revision tests a pull request of the backend alone, so that its change tells what to test."""
    of_others = tests_upstreams_change(revision) or components_at_changes(settings, revision)
    return revision.trigger == "pr" and not of_others


def is_pull_request(source: Source) -> bool:
    """Return whether a source is a pull request of its repository."""
    return source.ref.startswith("refs/pull/")


def tests_upstreams_change(revision: Revision) -> bool:
    """Return whether a revision tests a pull request of upstream, with the backend as it is."""
    return revision.trigger == "pr" and is_pull_request(revision.upstream) and not is_pull_request(revision.backend)


def is_trusted(settings: Settings, revision: Revision) -> bool:
    """Return whether all code of a revision is what the configuration names, or on a branch or tag of its repository.

    Pull requests are not, whoever has them built, and commits without a name may be anybody's. What trusted builds reuse is
    never made of them.
    """
    stack = {component.name: component.ref for component in settings.stack.components} if settings.stack is not None else {}
    parts = [(revision.backend, settings.backend.ref), (revision.upstream, settings.upstream.ref)]
    parts += [(source, stack.get(name, "HEAD")) for name, source in revision.stack.items()]
    return revision.tested_as != "pr" and all(is_trusted_ref(source.ref, configured) for source, configured in parts)


def is_trusted_ref(ref: str, configured: str) -> bool:
    """Return whether a ref is the configured one, or can only be a branch or a tag."""
    name = re.split(r"[~^]", ref, maxsplit=1)[0]
    is_short_name = "/" not in name and _HEXADECIMAL.fullmatch(name) is None
    return ref == configured or is_short_name or name.startswith(("refs/heads/", "refs/tags/"))


def confirming_revision(confirmed: Revision, number: int = 1, now: datetime | None = None) -> Revision:
    """Return the revision that runs failures of another one again, on the same sources, for the `number`-th time."""
    return replace(
        confirmed, key=confirm_key(confirmed.key, number), trigger=CONFIRM, created_at=now or datetime.now(timezone.utc),
        suites=(), confirms=confirmed.key,
    )  # fmt: skip


def confirm_key(key: str, number: int = 1) -> str:
    """The key of the revision that runs failures of another one again: `confirm-<key>`, then `confirm-2-<key>` and so on."""
    return f"{CONFIRM}-{key}" if number == 1 else f"{CONFIRM}-{number}-{key}"


def confirmed_key(key: str) -> str | None:
    """The key of the revision whose failures one of that key runs again; None for a key of another trigger."""
    match = re.fullmatch(rf"{CONFIRM}-(?:\d+-)?(.+)", key)
    return match[1] if match else None


def resolve_revision(
    project: Project,
    trigger: Trigger,
    known: Callable[[str], Revision | None],
    *,
    now: datetime | None = None,
    upstream_sha: str | None = None,
    backend_ref: str | None = None,
    backend_sha: str | None = None,
    pull_request: int | None = None,
    slug: str | None = None,
    upstream_ref: str | None = None,
    suites: Sequence[str] = (),
    components: Mapping[str, str] | None = None,
    change: ComponentChange | None = None,
    target: str | None = None,
) -> Revision:
    """Resolve the SHAs that a trigger stands for now, and give them a key.

    `known` looks up a key; a known revision with the same source states and suites is returned unchanged. With
    `upstream_sha`, upstream is not asked again. With `backend_sha`, the backend's ref must still be there. `components` are
    refs of the stack's components, by their names, in place of the configured ones. With `change`, a component is at that
    change request, which must still have that commit, and all else as configured. `target` is that of the revision.

    Raises `ConfigError` for a component that there is not, and `SourceError` if a state that a variant needs cannot be
    resolved. An upstream that no variant is built from may be unreachable; it is then recorded with the reason.
    """
    if trigger == CONFIRM:
        raise ConfigError("name the build whose failures are to run again")
    if trigger == "sweep" and not project.settings.has_sweep:
        raise ConfigError("no suite has a scope.enabled_file: all tests in scope are enabled, and there is nothing to sweep")
    now = now or datetime.now(timezone.utc)
    if change is not None:
        components, backend_ref = {change.component: change.ref}, project.settings.backend.ref
    backend = _resolve_and_keep_backend(project, trigger, backend_ref, pull_request)
    if backend_sha not in (None, backend.sha):
        raise SourceChangedError(
            f"{backend.ref} is not at {backend_sha} any more; what is there now has not been decided on"
        )
    upstream = _resolve_upstream(project, trigger, upstream_sha, upstream_ref)
    stack = resolve_stack(project, components or {})
    if change is None:
        base = revision_key(trigger, now, upstream, backend, pull_request, slug)
    elif (sha := stack[change.component].sha) == change.sha:
        base = change.key
    else:
        raise SourceChangedError(f"{change.ref} of {change.component} is not at {change.sha} any more, but at {sha}")
    wanted = Revision(base, trigger, now, backend, upstream, tuple(suites), stack=stack, target=target)
    number = 1
    while True:
        try:
            existing = known(wanted.key)
        except DamagedError as error:  # nobody knows what has been built under this key
            _LOG.warning("another key is taken: %s", error)
        else:
            if existing is None or existing.identity == wanted.identity:
                break
        number += 1
        wanted = replace(wanted, key=f"{base}.{number}")
    return existing or wanted


def _resolve_and_keep_backend(
    project: Project, trigger: Trigger, backend_ref: str | None, pull_request: int | None
) -> Source:
    """Resolve the backend's state. A working tree is copied at once, because it may change before its files are needed."""
    return _resolve_and_keep(
        lambda: resolve_backend(project, trigger, backend_ref, pull_request), lambda found: checkout_backend(project, found)
    )


def _resolve_and_keep(resolve: Callable[[], Source], check_out: Callable[[Source], Path]) -> Source:
    for _ in range(_TRIES):
        found = resolve()
        if not found.dirty:
            return found
        with suppress(SourceChangedError):  # a file was saved in between
            check_out(found)
            return found
    raise SourceError(f"{found.repository} keeps changing; start again when no files are being written")


def component_refs(words: Sequence[str]) -> dict[str, str]:
    """Read refs of the stack's components as a person writes them: `runtime=refs/heads/topic`. Raises `ConfigError`."""
    found: dict[str, str] = {}
    for word in words:
        name, _, ref = word.partition("=")
        if not name or not ref or ref.startswith("-") or name in found:
            raise ConfigError(f"{word!r} is no ref of a component: write NAME=REF, such as runtime=main, once for each name")
        found[name] = ref
    return found


def resolve_stack(project: Project, refs: Mapping[str, str]) -> dict[str, Source]:
    """Resolve the states of the stack's components, at their `refs` where these name one, else at the configured ones.

    Raises `ConfigError` for a name that no component has, and `SourceError`.
    """
    stack = project.settings.stack
    components = stack.components if stack is not None else ()
    known = [component.name for component in components]
    if unknown := [name for name in refs if name not in known]:
        raise ConfigError(f"the stack has no component {unknown[0]!r}; known: {', '.join(known) or 'none'}")
    limit_s = project.settings.limits.git_seconds
    found = {}
    for one in components:
        ask = partial(resolve_source, one.repository, refs.get(one.name, one.ref), ".", project.root, timeout_s=limit_s)
        try:
            found[one.name] = _resolve_and_keep(ask, partial(checkout_component, project, one))
        except SourceError as error:
            raise type(error)(f"the component {one.name} of the stack: {error}") from None
    return found


def resolve_backend(
    project: Project, trigger: Trigger, backend_ref: str | None = None, pull_request: int | None = None
) -> Source:
    """Resolve the backend's state for a trigger. Raises `SourceError`."""
    settings, limit_s = project.settings.backend, project.settings.limits.git_seconds
    ref = backend_ref or (f"refs/pull/{pull_request}/head" if trigger == "pr" else settings.ref)
    try:
        return resolve_source(settings.repository, ref, settings.subdirectory, project.root, timeout_s=limit_s)
    except MissingRefError as error:
        if trigger != "pr" or backend_ref is not None:
            raise
        advice = "check the number, or name the ref that holds the pull request with --backend-ref"
        raise MissingRefError(f"pull request {pull_request} cannot be found: {error}; {advice}") from None


def _resolve_upstream(project: Project, trigger: Trigger, sha: str | None, ref: str | None) -> Source:
    settings, upstream = project.settings, project.settings.upstream
    upstream = upstream.model_copy(update={"ref": ref}) if ref else upstream
    address = without_credentials(upstream.repository)
    if sha is not None:
        return Source(address, upstream.ref, sha)
    try:
        state = resolve_source(upstream.repository, upstream.ref, ".", project.root, timeout_s=settings.limits.git_seconds)
        return replace(state, tree=None, dirty=False)
    except SourceError as error:
        names = INTEGRATION.job_for(trigger).variants(settings)
        if built_from := [name for name in names if settings.variant(name).torch_source == "main"]:
            raise SourceError(
                f"cannot resolve {upstream.ref} of upstream {address}, which {', '.join(built_from)} "
                f"is built from: {error}. Check the network, or set upstream.repository in the configuration"
            ) from None
        return Source(address, upstream.ref, None, note=str(error))


def checkout_backend(project: Project, backend: Source, *, submodules: bool | None = None, lfs: bool | None = None) -> Path:
    """Check out the backend's sources at a state, by default with the submodules and LFS files of the configuration."""
    settings = project.settings.backend
    contents = Contents(
        submodules=settings.submodules if submodules is None else submodules, lfs=settings.lfs if lfs is None else lfs
    )
    return _check_out(project, backend, settings.repository, contents)


def removed_files(project: Project, before: Source, folder: Path) -> frozenset[str]:
    """Return the files of the backend at an earlier commit that are not in the folder of its sources any more.

    Raises `SourceError` when the commit is not known.
    """
    settings, limit_s = project.settings.backend, project.settings.limits.git_seconds
    sha, local = resolved_sha(before), local_path(settings.repository, project.root)
    place, below, config = folder, os.path.normpath(before.subdirectory), {"remote.origin.url": settings.repository}
    if local is not None:  # it has the whole history; a checkout has to ask for earlier trees
        place, below, _ = anchor(local, settings.subdirectory, limit_s)
        config = {}
    tree = f"{sha}:{'' if below == os.curdir else below}"
    names = run_git(["ls-tree", "-r", "-z", "--name-only", tree], folder=place, timeout_s=limit_s, config=config)
    return frozenset(name for name in names.split("\0") if name and not os.path.lexists(folder / name))


def checkout_component(project: Project, component: Component, source: Source) -> Path:
    """Check out the sources of a component of the stack at a state. Raises `SourceError`."""
    contents = Contents(submodules=component.submodules, lfs=component.lfs)
    return _check_out(project, source, component.repository, contents)


def checkout_upstream(project: Project, upstream: Source, *, submodules: bool) -> Path:
    """Check out upstream's sources at a state, without their history, which is large."""
    contents = Contents(history=False, submodules=submodules, lfs=project.settings.backend.lfs)
    return _check_out(project, upstream, project.settings.upstream.repository, contents)


def _check_out(project: Project, source: Source, repository: str, contents: Contents) -> Path:
    limit_s = project.settings.limits.git_seconds
    return checkout(source, repository, project.root, project.home / "sources", timeout_s=limit_s, contents=contents)
