"""The open pull requests as they are now, and what was decided for each: read from GitHub, or from refs of git.

Requests and the record of them belong here; the rules are in `policy`, and runs are the sensor's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from accel_ci.config.github_settings import PullRequestRefs, PullRequests
from accel_ci.errors import AccelCiError
from accel_ci.github.fields import field_at, label_names, read_time
from accel_ci.pull_requests.policy import (
    Labelled,
    PullRequest,
    is_trusted,
    maintainers_to_ask,
    other_target,
    reason_to_pass_over,
    wait_for_label,
)
from accel_ci.source.git import run_git
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.manifests import REPAIR
from accel_ci.workspace import Workspace

if TYPE_CHECKING:
    from accel_ci.github.client import GitHubRequests

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}(\[bot\])?")
_BRANCH = re.compile(r"[^\s~^:?*\[\\]{1,250}")
_MAINTAINERS = ("admin", "maintain", "write")
_RESETS = ("head_ref_force_pushed", "head_ref_deleted", "head_ref_restored")

State = Literal["passed over", "waiting", "allowed", "asked", "started"]


@dataclass(frozen=True)
class Head:
    """The newest commit of a pull request, and what became of it.

    It was first seen at `seen_at`, by GitHub's clock. `revision` and `variants` are those of the builds that were asked for.
    A stranger's builds are there, with all of their runs if it is `screened`, while it still waits for a label.
    """

    sha: str
    seen_at: datetime
    state: State = "waiting"
    reason: str = ""
    revision: str | None = None
    variants: tuple[str, ...] = ()
    asked_at: datetime | None = None
    screened: bool = False


@dataclass(frozen=True)
class Watched:
    """The open pull requests and their heads, by number, and where the next look begins."""

    pulls: dict[int, PullRequest] = field(default_factory=dict)
    heads: dict[int, Head] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None
    paused_until: datetime | None = None
    seen_refs: dict[int, str] | None = None


_WATCHED = TypeAdapter(Watched)


AFTER_REPAIR = "labels of maintainers must be set again"
AFTER_REPAIR_OF_COMPONENT = "the next look only notes the change requests that are there"


def watched_file(workspace: Workspace, component: str | None = None) -> Path:
    """The record of the backend's pull requests, or of the change requests of a component of the stack."""
    name = "watched" if component is None else f"watched-{component}"
    return workspace.project.home / "pull_requests" / f"{name}.json"


def read_watched(workspace: Workspace, component: str | None = None) -> Watched:
    """Read the record; an empty one before the first look. Raises `AccelCiError` where it is damaged."""
    path = watched_file(workspace, component)
    workspace.manifests.share.bring_file(path)
    try:
        return _WATCHED.validate_json(path.read_bytes())
    except FileNotFoundError:
        return Watched()
    except (OSError, ValueError):
        then = AFTER_REPAIR if component is None else AFTER_REPAIR_OF_COMPONENT
        raise AccelCiError(f"{path} cannot be read: {REPAIR}, and {then}") from None


def keep_watched(workspace: Workspace, watched: Watched, component: str | None = None) -> None:
    """Keep the record, before anything is done that follows from it."""
    path, content = watched_file(workspace, component), _WATCHED.dump_json(watched, indent=1)
    workspace.manifests.share.send(path, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, content, durable=True)


def target_of(workspace: Workspace, watched: Watched, number: int) -> str | None:
    """Return the branch that a pull request is for, where that is not the configured one (see `Revision.target`)."""
    pull, settings = watched.pulls.get(number), workspace.project.settings
    return other_target(pull, settings.jobs.pr.target or settings.backend.ref) if pull is not None else None


def targets_now(workspace: Workspace, watched: Watched) -> dict[str, str | None]:
    """Return the branches that the open pull requests are for, by the keys of their revisions (see `target_of`)."""
    return {
        head.revision: target_of(workspace, watched, number)
        for number, head in watched.heads.items()
        if head.revision is not None and number in watched.pulls
    }


def look_at_github(
    github: GitHubRequests, repository: str, watched: Watched, policy: PullRequests, now: datetime
) -> Watched:
    """Return the open pull requests as GitHub has them now, with a decision on each. Raises `GitHubError`."""
    pulls, etags, since = dict(watched.pulls), dict(watched.etags), watched.since
    changed: set[int] = set()
    query = "state=open" if since is None else "state=all"
    path = f"repos/{repository}/pulls?{query}&sort=updated&direction=desc&per_page=100"
    for one in github.pages(path, None if since is None else etags):
        if (at := read_time(one.get("updated_at"))) is None or (number := _number(one)) is None:
            continue
        if watched.since is not None and at < watched.since:  # those of the same second come again, and do no harm
            break
        since = max(at, since or at)
        changed.add(number)
        pull = read_pull_request(one, repository)
        if pull is None or one.get("state") != "open":
            pulls.pop(number, None)
        else:
            pulls[number] = pull
    after = replace(
        watched, pulls=pulls, etags=etags, since=since or now, heads=_heads(pulls, watched.heads, github.clock(now))
    )
    return replace(after, heads=dict(_decided(github, repository, after, changed, policy)))


def look_at_refs(address: str, refs: PullRequestRefs, watched: Watched, timeout_s: float, now: datetime) -> Watched:
    """Return the pull requests whose refs are there; only those that are new or have changed since the first look are built.

    Raises `SourceError`.
    """
    found: dict[int, str] = {}
    for line in run_git(["ls-remote", "--", address, refs.pattern], timeout_s=timeout_s).splitlines():
        sha, _, name = line.partition("\t")
        if (number := refs.number_of(name)) is not None and _SHA.fullmatch(sha):
            found[number] = sha
    if watched.seen_refs is None:  # a host keeps the refs of closed ones, and nobody wants all of them built
        return replace(watched, seen_refs=found)
    old = watched.seen_refs
    pulls = {number: PullRequest(number, sha) for number, sha in found.items() if old.get(number) != sha}
    heads = {
        number: replace(head, state="allowed") if head.state == "waiting" else head
        for number, head in _heads(pulls, watched.heads, now).items()
    }
    return replace(watched, pulls=pulls, heads=heads)


def read_pull_request(one: Mapping[str, Any], repository: str) -> PullRequest | None:
    """Read GitHub's description of a pull request; None where it has not what is needed."""
    number, head = _number(one), one.get("head")
    sha, origin = field_at(head, "sha"), field_at(head, "repo", "full_name")
    if number is None or not isinstance(sha, str) or not _SHA.fullmatch(sha):
        return None
    base = _text(field_at(one, "base", "ref"))
    return PullRequest(
        number,
        sha,
        author=_text(field_at(one, "user", "login")),
        owner=_text(field_at(head, "repo", "owner", "login")) or None,
        is_fork=_text(origin).lower() != repository.lower(),
        is_draft=one.get("draft") is not False,
        labels=tuple(label_names(one)),
        base=base if _BRANCH.fullmatch(base) else "",
        is_for_default=field_at(one, "base", "repo", "default_branch") in (base, None),
        updated_at=read_time(one.get("updated_at")),
    )


def _heads(pulls: Mapping[int, PullRequest], before: Mapping[int, Head], at: datetime) -> dict[int, Head]:
    """Keep what is known of each head. A new one was seen now, and nobody has trusted it yet."""
    return {
        number: known if (known := before.get(number)) is not None and known.sha == pull.head else Head(pull.head, at)
        for number, pull in pulls.items()
    }


def _decided(
    github: GitHubRequests, repository: str, watched: Watched, changed: Collection[int], policy: PullRequests
) -> Iterator[tuple[int, Head]]:
    """Decide on each head. A label changes its pull request, so GitHub is asked only about those that have changed."""
    for number, head in watched.heads.items():
        pull = watched.pulls[number]
        if head.state in ("allowed", "asked", "started"):
            yield number, head
        elif (reason := reason_to_pass_over(pull, policy)) is not None:
            yield number, replace(head, state="passed over", reason=reason)
        elif is_trusted(pull, policy):
            yield number, replace(head, state="allowed", reason="")
        else:
            waiting = replace(head, state="waiting", reason=wait_for_label(policy))
            yield number, _looked_at(github, repository, pull, waiting, policy) if number in changed else waiting


def _looked_at(github: GitHubRequests, repository: str, pull: PullRequest, head: Head, policy: PullRequests) -> Head:
    """Look for a maintainer's label. A pull request of which that cannot be told waits; the others do not wait for it."""
    from accel_ci.github.client import GitHubError, TooManyPagesError

    try:
        return _labelled(github, repository, pull, head, policy)
    except GitHubError as error:
        if not isinstance(error, TooManyPagesError) and error.status not in (404, 410):
            raise
        return replace(head, reason=f"its labels cannot be read; start its build by hand: {error}")


def _labelled(github: GitHubRequests, repository: str, pull: PullRequest, head: Head, policy: PullRequests) -> Head:
    """Allow a head that a maintainer has labelled. GitHub is asked only where the pull request has such a label.

    Who resets a branch could show one commit to the maintainer and have another one built: after that, the commit counts as
    seen anew, so that it needs a newer label.
    """
    if not set(policy.labels) & set(pull.labels):
        return head
    labelled: list[Labelled] = []
    for one in github.pages(f"repos/{repository}/issues/{pull.number}/events?per_page=100"):
        if (at := read_time(one.get("created_at"))) is None:
            continue
        if one.get("event") in _RESETS and at >= head.seen_at:
            return replace(head, seen_at=max(at, github.clock(at)))
        if one.get("event") == "labeled":
            labelled.append(Labelled(_text(field_at(one, "label", "name")), _text(field_at(one, "actor", "login")), at))
    for login, label in maintainers_to_ask(pull, head.seen_at, labelled, policy).items():
        if _LOGIN.fullmatch(login) and _may_push(github, repository, login):
            now = github.get(f"repos/{repository}/pulls/{pull.number}").document
            if field_at(now, "head", "sha") == head.sha:  # otherwise the label may be newer than another push
                return replace(head, state="allowed", reason=f"{label} set by {login}")
    return head


def _may_push(github: GitHubRequests, repository: str, login: str) -> bool:
    from accel_ci.github.client import GitHubError

    try:
        answer = github.get(f"repos/{repository}/collaborators/{login}/permission").document
    except GitHubError as error:
        if error.status == 404:
            return False
        raise
    return field_at(answer, "permission") in _MAINTAINERS


def pause(watched: Watched, wait_s: float, now: datetime) -> Watched:
    """Ask GitHub nothing for so many seconds."""
    return replace(watched, paused_until=now + timedelta(seconds=wait_s))


def _number(one: Mapping[str, Any]) -> int | None:
    number = one.get("number")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
