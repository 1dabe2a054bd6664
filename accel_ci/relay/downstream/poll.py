"""Polling: a CI that neither GitHub nor a relay can reach asks GitHub's REST API for upstream's changes.

Asking, and turning changes into deliveries, belong here; what follows from a delivery is the same as for one that was
dispatched. The ids of deliveries follow from the change, so that what was found twice is known. The API is that of GitHub's
documentation of "List pull requests", "Get a reference", conditional requests (`ETag`), pagination (`Link`) and rate limits.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError
from accel_ci.github.answers import is_paused
from accel_ci.github.client import GitHubRequests, RateLimitError, TooManyPagesError
from accel_ci.github.fields import field_at, label_names, read_time
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.relay.downstream.deliveries import POLLED, DispatchError, deliveries_of, read_dispatch
from accel_ci.relay.downstream.relayed_builds import relay_settings
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.manifests import REPAIR
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

TOKEN = "ACCEL_CI_RELAY_GITHUB_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with a token that may read upstream. Without one, GitHub answers to 60 requests an hour."""


@dataclass(frozen=True)
class _State:
    """The end of the last poll: the time of the newest change, the head of the branch, and ETags."""

    since: datetime | None = None
    head: str | None = None
    etags: dict[str, str] = field(default_factory=dict)
    paused_until: datetime | None = None


_STATE = TypeAdapter(_State)


def poll_upstream(workspace: Workspace, now: datetime) -> list[str]:
    """Keep a delivery for each change of upstream since the last poll; return a line for each that is new.

    The first poll only remembers where it begins. Raises `AccelCiError` where GitHub refuses or does not answer; the next
    poll then begins at the same place.
    """
    settings, path = relay_settings(workspace), workspace.project.home / "relay" / "poll.json"
    share = workspace.manifests.share
    share.bring_file(path)
    try:
        state = _STATE.validate_json(path.read_bytes()) if path.exists() else _State()
    except ValueError:
        raise AccelCiError(f"{path} is damaged: {REPAIR}, and the next poll begins with the changes from then on") from None
    if state.paused_until is not None and is_paused(state.paused_until, now):
        return [f"GitHub's rate limit is used up until {state.paused_until:%H:%M:%S}"]
    lines: list[str] = []
    try:
        with GitHubRequests(settings.poll.api, _token) as github:
            payloads, after = _changes(github, workspace, state, now)
            lines += [line for payload in payloads if (line := _keep(workspace, payload, now)) is not None]
    except RateLimitError as error:
        after = replace(state, paused_until=now + timedelta(seconds=error.wait_s))
        lines = [str(error)]
    content = _STATE.dump_json(after, indent=1)
    share.send(path, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, content, durable=True)
    return lines


def _token() -> str | None:
    """The token of the variable, which is redacted from now on; None without one."""
    token = os.environ.get(TOKEN, "").strip() or None
    OF_THIS_PROCESS.learn([token] if token else [])
    return token


def _changes(
    github: GitHubRequests, workspace: Workspace, state: _State, now: datetime
) -> tuple[list[dict[str, Any]], _State]:
    """Return the client payloads of all changes, the oldest first, and the state after them."""
    settings, upstream = relay_settings(workspace), workspace.project.settings.upstream
    repository = {"full_name": settings.repository}
    found: list[dict[str, Any]] = []
    since, etags = state.since, dict(state.etags)
    known: set[int | None] | None = None
    for one in _pull_requests(github, settings.repository, etags):
        if (at := read_time(one.get("updated_at"))) is None:
            continue
        if state.since is None:
            since = at + timedelta(microseconds=1)  # what is there at the first poll was there before it
            break
        since = max(at, since or at)
        if at < state.since:  # those of the same second come again, and are known
            break
        number, sha, is_open = one.get("number"), str(field_at(one, "head", "sha"))[:12], one.get("state") == "open"
        if not is_open:
            if known is None:
                known = {kept.delivery.change.pull_request for kept in deliveries_of(workspace).summaries()}
            if number not in known:
                continue
        elif settings.poll.label is not None and settings.poll.label not in label_names(one):
            continue
        payload = {"action": "synchronize" if is_open else "closed", "number": number, "repository": repository}
        identity = f"{POLLED}{number}-{sha}{'' if is_open else '-closed'}"
        found.append(_client_payload("pull_request", identity, {**payload, "pull_request": _essentials(one)}))
    head = _head(github, settings.repository, upstream.ref, etags) or state.head
    if head is not None and state.head is not None and head != state.head:
        payload = {"ref": upstream.ref, "before": state.head, "after": head, "repository": repository}
        found.append(_client_payload("push", f"{POLLED}main-{head[:12]}", payload))
    return found[::-1], _State(since or now, head, etags)


def _keep(workspace: Workspace, payload: dict[str, Any], now: datetime) -> str | None:
    """Keep a delivery; return a line if it is new."""
    try:
        delivery = read_dispatch(json.dumps(payload).encode(), relay_settings(workspace).repository, now)
    except DispatchError as error:
        return f"passed over: {error}"
    return f"{delivery.id}: {delivery.change.ref}" if deliveries_of(workspace).add(delivery) else None


def _client_payload(event: str, identity: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"event_type": event, "delivery_id": identity, "payload": payload}


def _essentials(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pull request that a build needs: a whole one has 20 KB."""
    ends = {
        end: {
            "sha": field_at(one, end, "sha"),
            "ref": field_at(one, end, "ref"),
            "repo": {"full_name": field_at(one, end, "repo", "full_name")},
        }
        for end in ("head", "base")
    }
    kept = {key: one.get(key) for key in ("number", "state", "draft", "title", "html_url", "updated_at")}
    return {**kept, **ends, "labels": [{"name": name} for name in sorted(set(label_names(one)))]}


def _pull_requests(github: GitHubRequests, repository: str, etags: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield pull requests, open and closed, the last changed first; nothing if none has changed since the last poll.

    Those of the first pages are all where more have changed: the next poll would find no fewer.
    """
    try:
        yield from github.pages(f"repos/{repository}/pulls?state=all&sort=updated&direction=desc&per_page=100", etags)
    except TooManyPagesError as error:
        _LOG.warning("%s that have changed since the last poll; the changes before these are passed over", error)


def _head(github: GitHubRequests, repository: str, ref: str, etags: dict[str, str]) -> str | None:
    """Return the commit of a ref; None if it has not changed since the last poll."""
    path = f"repos/{repository}/git/ref/{ref.removeprefix('refs/')}"
    page = github.get(path, etags.get(path))
    if page.etag:
        etags[path] = page.etag
    sha = field_at(page.document, "object", "sha")
    return sha if isinstance(sha, str) else None
