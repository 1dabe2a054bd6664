"""The checks of a webhook, in the order of the public relay, as a decision without effects.

The order is part of the contract: an event that nobody wants is ignored before its signature is looked at, and nothing of
the body is believed before its signature is good.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accel_ci.relay.allowlist import DEVICE
from accel_ci.relay.server.payload import dispatch_body
from accel_ci.relay.strict_json import JsonError, parse_object

EVENTS = frozenset({"pull_request", "push", "check_run", "check_suite"})
ACTIONS = frozenset({"opened", "reopened", "synchronize", "closed"})
LABEL = "ciflow/crcr/"

_DELIVERY = re.compile(r"[A-Za-z0-9-]{1,100}")


@dataclass(frozen=True)
class Delivery:
    """An event that is to be dispatched. With a `device`, it is for the L3 downstreams of this device alone."""

    id: str
    event: str
    device: str | None
    body: bytes
    """The body of the request to GitHub, the same for each downstream."""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """An answer other than 200 and 202; GitHub shows the text in its list of deliveries."""

    status: int
    detail: str


class Ignored:
    """An event that is well-formed, and of which nothing follows."""


IGNORED = Ignored()
Decision = Delivery | Refusal | Ignored


def is_known_event(headers: Mapping[str, str]) -> bool:
    """Return whether the kind of event is one that is looked at; all others are ignored without a look at the body."""
    return headers.get("x-github-event", "") in EVENTS


def decide(headers: Mapping[str, str], body: bytes, secret: bytes, upstream: str, depth: int) -> Decision:
    """Decide about a webhook by its headers (with names in lower case) and its raw body."""
    if not is_known_event(headers):
        return IGNORED
    if (refusal := _check_signature(headers.get("x-hub-signature-256", ""), body, secret)) is not None:
        return refusal
    delivery = headers.get("x-github-delivery", "")
    if not _DELIVERY.fullmatch(delivery):
        return Refusal(400, "X-GitHub-Delivery is missing, or is no id")
    try:
        payload = parse_object(body, depth)
    except JsonError as error:
        advice = "; set the content type of the webhook to application/json" if body.startswith(b"payload=") else ""
        return Refusal(400, f"the body is refused: {error}{advice}")
    if _text(payload, "repository", "full_name").lower() != upstream.lower():
        return IGNORED
    event, device = headers["x-github-event"], None
    if event == "pull_request":
        action = _text(payload, "action")
        if action == "labeled":
            label = _text(payload, "label", "name")
            device = label.removeprefix(LABEL)
            if device == label or not DEVICE.fullmatch(device):
                return IGNORED
        elif action not in ACTIONS:
            return IGNORED
    elif event != "push":
        return IGNORED
    return Delivery(delivery, event, device, *dispatch_body(event, delivery, payload, body))


def _check_signature(given: str, body: bytes, secret: bytes) -> Refusal | None:
    if not given:
        return Refusal(400, "X-Hub-Signature-256 is missing")
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
        return Refusal(401, "the signature is wrong")
    return None


def _text(payload: Mapping[str, Any], *path: str) -> str:
    """Return a text of the payload; an empty one where something else stands there."""
    value: Any = payload
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""
