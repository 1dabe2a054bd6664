"""The deliveries that the relay has dispatched to this project: what they are about, and what became of them.

`relay/deliveries/<id>.json` is the dispatch as it came, once however often it comes, and `relay/outcomes/<id>.json` what
became of it. Where several machines share the project, so do these files. They go after `KEPT`.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from accel_ci.errors import AccelCiError
from accel_ci.redaction import redact_bytes
from accel_ci.relay.messages import LARGEST_DISPATCH, Dispatch
from accel_ci.relay.strict_json import JsonError, parse_object
from accel_ci.storage.atomic_file import create_whole_file, write_whole_file
from accel_ci.storage.shared_folder import FolderShare
from accel_ci.workspace import Workspace

KEPT = timedelta(days=14)
"""For so long a delivery is kept, so that it is known if it comes again."""

POLLED = "poll-"
"""The beginning of the ids of deliveries that come from polling."""

State = Literal["new", "asked", "started", "obsolete", "refused", "reported"]
"""The state of a delivery.

Its runs were `asked` for; they are known to have `started`; it is `obsolete`, since its pull request was closed or has a
newer commit; it was `refused`, or needs no build; all its results are `reported`.
"""

_LOG = logging.getLogger(__name__)
_SHA = re.compile(r"[0-9a-f]{40}")
_ACTIONS = ("opened", "reopened", "synchronize", "labeled", "closed")
_SHOWN = 200
_DEPTH = 72
"""As deep as a relay takes a callback, which repeats the dispatch."""


class DispatchError(AccelCiError):
    """A dispatch cannot be understood, or is not for this project."""


@dataclass(frozen=True)
class Change:
    """The change of upstream that a delivery is about. `at` orders the deliveries of a pull request."""

    sha: str
    ref: str
    at: datetime
    pull_request: int | None = None
    closes: bool = False


@dataclass(frozen=True)
class CallingWorkflow:
    """The run of GitHub Actions that passed a delivery on: callbacks name it as theirs."""

    run_id: str
    run_attempt: str
    url: str


@dataclass(frozen=True)
class Delivery:
    """A dispatch and when it came. `client_payload` is whole, since each callback repeats it."""

    id: str
    client_payload: dict[str, Any]
    change: Change
    received_at: datetime
    caller: CallingWorkflow | None = None

    @property
    def is_polled(self) -> bool:
        """True if this end has found the change itself: the relay has not dispatched it, and so takes no callback."""
        return self.id.startswith(POLLED)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a delivery: the builds that were asked for at `asked_at`, or the reason why there are none."""

    state: State = "new"
    asked_at: datetime | None = None
    revision: str | None = None
    variants: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class KeptDelivery:
    """A delivery with what became of it."""

    delivery: Delivery
    outcome: Outcome


_Versions = tuple[tuple[int, ...], tuple[int, ...]]
_SEEN: dict[Path, dict[str, tuple[_Versions, KeptDelivery]]] = {}
"""By folder and name: the versions of both files of a delivery, and its summary."""

_DELIVERY, _OUTCOME = TypeAdapter(Delivery), TypeAdapter(Outcome)


def read_dispatch(document: bytes, repository: str, now: datetime, caller: CallingWorkflow | None = None) -> Delivery:
    """Read a dispatch: the event of a `repository_dispatch`, or its `client_payload` alone.

    `repository` is the full name of upstream. Raises `DispatchError`.
    """
    if len(document) > LARGEST_DISPATCH:
        raise DispatchError(f"the dispatch is larger than {LARGEST_DISPATCH >> 10} KiB, which no relay sends")
    try:
        found: Any = parse_object(document, _DEPTH)
    except JsonError as error:
        raise DispatchError(
            f"the dispatch is no JSON object that a relay sends: {_brief(error)}{_advice(document)}"
        ) from None
    # JSON can spell halves of characters, which no file holds: each becomes a question mark.
    found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    if "client_payload" in found:
        found = found["client_payload"]
    try:
        dispatch = Dispatch.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise DispatchError(f"this is no dispatch of the relay: {where}: {_brief(first['msg'])}") from None
    return Delivery(dispatch.delivery_id, found, _read_change(dispatch, repository, now), now, caller)


def _read_change(dispatch: Dispatch, repository: str, now: datetime) -> Change:
    payload = dispatch.payload
    name = _at(payload, "repository", "full_name")
    if not isinstance(name, str) or name.lower() != repository.lower():
        raise DispatchError(f"the dispatch is of {_brief(name)}, not of {repository}: see relay.repository")
    if dispatch.event_type == "push":
        ref = payload.get("ref")
        if not isinstance(ref, str) or not ref.startswith("refs/"):
            raise DispatchError(f"the push has no ref: {_brief(ref)}")
        return Change(_sha(payload.get("after")), ref, now)
    action, number = payload.get("action"), _at(payload, "pull_request", "number")
    if action not in _ACTIONS:
        raise DispatchError(f"the action {_brief(action)} of a pull request starts no build")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 31:
        raise DispatchError(f"the pull request has no number: {_brief(number)}")
    sha = _sha(_at(payload, "pull_request", "head", "sha"))
    return Change(sha, f"refs/pull/{number}/head", _time(_at(payload, "pull_request", "updated_at"), now), number,
                  closes=action == "closed")  # fmt: skip


def _at(value: Any, *keys: str) -> Any:
    """A value in nested mappings; None where it is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _sha(value: Any) -> str:
    if not isinstance(value, str) or not _SHA.fullmatch(value) or not value.strip("0"):
        raise DispatchError(f"the dispatch names no commit: {_brief(value)}")
    return value


def _time(value: Any, otherwise: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return otherwise
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)


def _advice(document: bytes) -> str:
    return "; set the content type of the webhook to application/json" if document.startswith(b"payload=") else ""


def _brief(value: object) -> str:
    """A strange value, short and on one line, for a message."""
    return repr(" ".join(str(value).split())[:_SHOWN]) if value is not None else "nothing"


def obsolete_since(delivery: Delivery, others: Iterable[Delivery], *, supersede: bool) -> str | None:
    """Say why a delivery needs no build any more; None if it does.

    Deliveries may come late and in another order: what counts is the time of the change.
    """
    change = delivery.change
    if change.pull_request is None:
        return None
    for other in others:
        later = (other.change.at, other.received_at, other.id) > (change.at, delivery.received_at, delivery.id)
        if other.change.pull_request != change.pull_request or not later:
            continue
        if other.change.closes:
            return f"pull request {change.pull_request} was closed"
        if supersede and other.change.sha != change.sha:
            return f"pull request {change.pull_request} has a newer commit, {other.change.sha[:12]}"
    return None


def found_otherwise(delivery: Delivery, others: Iterable[KeptDelivery]) -> KeptDelivery | None:
    """Return a delivery of the same change whose runs can stand for this one too; None where it needs its own.

    The relay dispatches a change, and polling finds the same one. A second dispatch for a commit asks for another run.
    """
    known = list(others)
    taken = Counter(other.outcome.asked_at for other in known)
    change = (delivery.change.sha, delivery.change.ref)
    for other in known:
        state, asked_at = other.outcome.state, other.outcome.asked_at
        is_twin = (other.delivery.change.sha, other.delivery.change.ref) == change
        is_twin = is_twin and other.delivery.is_polled != delivery.is_polled
        if is_twin and state in ("asked", "started", "reported") and asked_at is not None and taken[asked_at] == 1:
            return other
    return None


def deliveries_of(workspace: Workspace) -> Deliveries:
    """Return the deliveries of a project."""
    return Deliveries(workspace.project.home, workspace.manifests.share)


class Deliveries:
    """The deliveries of a project, in its data folder."""

    def __init__(self, home: Path, share: FolderShare) -> None:
        self._share = share
        self._deliveries, self._outcomes = home / "relay" / "deliveries", home / "relay" / "outcomes"

    def add(self, delivery: Delivery) -> bool:
        """Keep a delivery. Return False if it is known already: the first one stays."""
        path = self._deliveries / f"{delivery.id}.json"
        content = _DELIVERY.dump_json(delivery, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._share.create(path, content):
            return False
        return create_whole_file(path, content)

    def find(self, delivery_id: str) -> KeptDelivery | None:
        """Return a delivery; None if it is not known."""
        kept = next((each for each in self.summaries() if each.delivery.id == delivery_id), None)
        return None if kept is None else self.whole(kept)

    def whole(self, summary: KeptDelivery) -> KeptDelivery | None:
        """Return the delivery of a summary with its `client_payload`; None if it is gone."""
        return self._read(self._deliveries / f"{summary.delivery.id}.json")

    def all(self) -> list[KeptDelivery]:
        """Return all deliveries, in the order in which they came. Damaged files are passed over, which is logged."""
        self._share.bring(self._deliveries, self._outcomes)
        return _sorted(filter(None, map(self._read, self._deliveries.glob("*.json"))))

    def summaries(self) -> list[KeptDelivery]:
        """Return the same with an empty `client_payload`: for what looks at all of them again and again.

        A process reads each file once, and again when it has changed.
        """
        self._share.bring(self._deliveries, self._outcomes)
        seen, now = _SEEN.get(self._deliveries, {}), {}
        for path in self._deliveries.glob("*.json"):
            versions = (_version(path), _version(self._outcomes / path.name))
            known = seen.get(path.name)
            if known is not None and known[0] == versions:
                now[path.name] = known
            elif (kept := self._read(path)) is not None:
                now[path.name] = (versions, replace(kept, delivery=replace(kept.delivery, client_payload={})))
        _SEEN[self._deliveries] = now
        return _sorted(kept for _, kept in now.values())

    def _read(self, path: Path) -> KeptDelivery | None:
        try:
            delivery = _DELIVERY.validate_json(path.read_bytes())
            noted = self._outcomes / path.name
            outcome = _OUTCOME.validate_json(noted.read_bytes()) if noted.exists() else Outcome()
        except (OSError, ValueError) as error:
            _LOG.warning("passed over: %s: %s", path, _brief(error))
            return None
        return KeptDelivery(delivery, outcome)

    def note(self, kept: KeptDelivery, **changes: Any) -> KeptDelivery:
        """Keep what became of a delivery: its outcome with some fields changed."""
        outcome = replace(kept.outcome, **changes)
        path = self._outcomes / f"{kept.delivery.id}.json"
        content = redact_bytes(_OUTCOME.dump_json(outcome, indent=1))
        self._share.send(path, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(path, content, durable=True)
        return KeptDelivery(kept.delivery, outcome)

    def forget_old(self, kept: Sequence[KeptDelivery], now: datetime) -> None:
        """Remove the deliveries that came long ago."""
        for each in kept:
            if now - each.delivery.received_at > KEPT:
                for folder in (self._deliveries, self._outcomes):
                    path = folder / f"{each.delivery.id}.json"
                    self._share.remove(path)
                    path.unlink(missing_ok=True)


def _sorted(found: Iterable[KeptDelivery]) -> list[KeptDelivery]:
    return sorted(found, key=lambda kept: (kept.delivery.received_at, kept.delivery.id))


def _version(path: Path) -> tuple[int, ...]:
    """The identity of a file's content, which is always replaced as a whole; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns)
