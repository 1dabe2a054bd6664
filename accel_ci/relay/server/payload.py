"""The body of a dispatch, cut down where GitHub would refuse it.

GitHub takes at most 65,535 characters of `client_payload` (its documentation of "Create a repository dispatch event"). The
whole webhook is sent where it fits. Where it does not, parts go in the order of `_STEPS` until it does, those that no CI
needs first, and the payload gets `relay: {left_out: [...]}`, which names the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

LARGEST = 65_535
"""Characters of `client_payload`. Counted in ASCII, where other characters are escaped and so never counted too low."""

_TEXT = 1000
_NEWEST_COMMITS = 20
_USED_URLS = frozenset(
    {"clone_url", "compare_url", "diff_url", "git_url", "html_url", "patch_url", "ssh_url", "statuses_url"}
)
_SHORT = 1000
_ESSENTIAL = (
    ("action",), ("number",), ("ref",), ("before",), ("after",), ("created",), ("deleted",), ("forced",), ("base_ref",),
    ("label", "name"), ("sender", "login"), ("repository", "full_name"), ("repository", "default_branch"),
    ("repository", "clone_url"), ("head_commit", "id"), ("head_commit", "timestamp"), ("installation", "id"),
    ("pull_request", "number"), ("pull_request", "state"), ("pull_request", "draft"), ("pull_request", "merged"),
    ("pull_request", "updated_at"),
    ("pull_request", "title"), ("pull_request", "html_url"), ("pull_request", "user", "login"),
    ("pull_request", "merge_commit_sha"),
    *(("pull_request", end, *path) for end in ("head", "base")
      for path in (("sha",), ("ref",), ("repo", "full_name"), ("repo", "clone_url"))),
)  # fmt: skip
"""All that a CI needs to find the commit."""


def dispatch_body(event: str, delivery: str, payload: dict[str, Any], raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the body of the request to GitHub, and the names of what was left out, in order.

    `raw` is the text that `payload` was read from. Where it fits it is sent as it is, which is faster than to write it anew.
    """
    names = f'"event_type":{json.dumps(event)},"delivery_id":{json.dumps(delivery)}'.encode("ascii")
    if len(names) + len('{,"payload":}') + len(raw) + 2 * _bytes_beyond_ascii(raw) <= LARGEST:
        return b'{"event_type":%b,"client_payload":{%b,"payload":%b}}' % (json.dumps(event).encode("ascii"), names, raw), ()
    left_out: list[str] = []
    sent = _writable(payload)
    while True:
        if left_out:
            sent = {**sent, "relay": {"left_out": left_out}}
        client_payload = json.dumps({"event_type": event, "delivery_id": delivery, "payload": sent}, separators=(",", ":"))
        if len(client_payload) <= LARGEST or len(left_out) == len(_STEPS):
            body = f'{{"event_type":{json.dumps(event)},"client_payload":{client_payload}}}'
            return body.encode("ascii"), tuple(left_out)
        name, step = _STEPS[len(left_out)]
        sent = step(sent)
        left_out.append(name)


def _writable(value: Any) -> Any:
    """Return a copy without the numbers that were read as infinite, such as 1e400: written again, they are no JSON."""
    return None if isinstance(value, float) and math.isinf(value) else _each(value, _writable)


def _without_long_texts(payload: dict[str, Any]) -> dict[str, Any]:
    """Cut the texts that people write: bodies of pull requests and messages of commits."""

    def cut(value: Any) -> Any:
        if isinstance(value, str):
            return value if len(value) <= _TEXT else value[:_TEXT] + "…"
        return _each(value, cut)

    found: dict[str, Any] = cut(payload)
    return found


def _without_api_urls(payload: dict[str, Any]) -> dict[str, Any]:
    """Remove the addresses of GitHub's API, some 40 for each repository and 15 for each person."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: clean(each)
                for key, each in value.items()
                if key != "_links" and (not key.endswith("_url") or key in _USED_URLS)
            }
        return _each(value, clean)

    found: dict[str, Any] = clean(payload)
    return found


def _without_file_lists(payload: dict[str, Any]) -> dict[str, Any]:
    """Remove the names of changed files of each commit."""
    for commit in (*_commits(payload), payload.get("head_commit")):
        if isinstance(commit, dict):
            for name in ("added", "modified", "removed"):
                commit.pop(name, None)
    return payload


def _without_old_commits(payload: dict[str, Any]) -> dict[str, Any]:
    """Keep the newest commits of a push, which are the last of the list."""
    if commits := _commits(payload):
        payload["commits"] = commits[-_NEWEST_COMMITS:]
    return payload


def _essentials(payload: dict[str, Any]) -> dict[str, Any]:
    """Keep only what names the event and its commit, and the labels that ask for a backend's CI; long texts are cut."""
    found: dict[str, Any] = {}
    for path in _ESSENTIAL:
        value: Any = payload
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) or (isinstance(value, int) and abs(value) < 1 << 63):
            _put(found, path, _short(value))
    pull_request = payload.get("pull_request")
    labels = pull_request.get("labels") if isinstance(pull_request, dict) else None
    names = [one.get("name") for one in labels if isinstance(one, dict)] if isinstance(labels, list) else []
    kept = [{"name": _short(name)} for name in names if isinstance(name, str) and name.startswith("ciflow/crcr/")][:10]
    if kept:
        found.setdefault("pull_request", {})["labels"] = kept
    return found


_STEPS: tuple[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
    ("texts over 1000 characters", _without_long_texts),
    ("addresses of the API", _without_api_urls),
    ("changed files of commits", _without_file_lists),
    ("all but the newest 20 commits", _without_old_commits),
    ("all but the essentials", _essentials),
)


def _bytes_beyond_ascii(raw: bytes) -> int:
    """Count the bytes of characters beyond ASCII. Escaped, two to four of them become 6 or 12: each at most three."""
    return 0 if raw.isascii() else len(raw) - len(raw.decode("ascii", "ignore"))


def _short(value: str | int) -> str | int:
    """Cut a text that is long in escaped form, where a character has at most 12: all essentials together fit for certain."""
    return value[: _SHORT // 12] if isinstance(value, str) and len(json.dumps(value)) > _SHORT else value


def _commits(payload: dict[str, Any]) -> list[Any]:
    commits = payload.get("commits")
    return commits if isinstance(commits, list) else []


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(each) for key, each in value.items()}
    return [change(each) for each in value] if isinstance(value, list) else value


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value
