"""A callback of a downstream: what its body may say, and the step that a job may take by it.

All here is without effects. The tables are in `jobs`, the HTTP side is in `application`. Nothing of the echoed dispatch is
believed: the pull request and the commit come from the stored delivery, so that nobody reports for another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from accel_ci.relay.messages import (
    LARGEST_TRIAGE_VERDICT,
    LONGEST_MESSAGE,
    MOST_FAILED_TESTS,
    Conclusion,
    DeliveryId,
    Status,
    cut,
)
from accel_ci.relay.server.webhook import LABEL

REPORTS = frozenset({"nightly", "periodic"})
"""Events without a dispatch: one `completed` callback makes the job. The delivery is a commit of upstream."""

LONGEST_STACK = 4 << 10
"""Bytes of the stack of a failed test, as in the public relay."""

LONGEST_NAME = 300
_LONGEST_URL = 2048
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTROL = {code: " " for code in (*range(32), 127) if chr(code) not in "\n\t"}


class CallbackError(ValueError):
    """A callback that is refused with 400; the message is safe to show."""


@dataclass(frozen=True)
class Callback:
    """A callback whose form is good. `failed_tests` and `triage_verdict` are JSON, as in `JobRow`."""

    event: str
    delivery_id: str
    workflow: str
    job_name: str
    run_id: str
    run_attempt: str
    check_run_id: str
    status: Status
    conclusion: Conclusion | None
    url: str
    artifact_url: str
    passed: int | None
    failed: int | None
    skipped: int | None
    failed_tests: str
    triage_verdict: str
    is_infrastructure: bool

    @property
    def digest(self) -> str:
        """A digest by which a repetition is known. The time at which a verdict was made does not count."""
        fields = asdict(self)
        if self.triage_verdict:
            fields["triage_verdict"] = {**json.loads(self.triage_verdict), "analyzed_at": None}
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Subject:
    """The event that a job is of, from the stored delivery. `devices` are those of its labels `ciflow/crcr/<device>`."""

    event: str
    pull_request: int | None
    head_sha: str
    devices: frozenset[str] = frozenset()


def parse_callback(body: Mapping[str, Any], upstream: str) -> Callback:
    """Check the parsed body of a callback. Raises `CallbackError` with the place of the first mistake."""
    try:
        found = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CallbackError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    if found.event_type in REPORTS:
        _check_report(found, upstream)
    flow = found.workflow
    is_end = flow.status == "completed"
    if is_end and flow.conclusion is None:
        raise CallbackError("workflow.conclusion: a completed job must have one")
    counts = flow.test_results if is_end else None
    verdict = _read_verdict(flow.triage_verdict) if is_end else None
    return Callback(
        event=found.event_type,
        delivery_id=found.delivery_id,
        workflow=flow.name,
        job_name=flow.job_name,
        run_id=flow.run_id,
        run_attempt=flow.run_attempt,
        check_run_id=flow.check_run_id,
        status=flow.status,
        conclusion=flow.conclusion if is_end else None,
        url=flow.url,
        artifact_url=flow.artifact_url,
        passed=counts.passed if counts else None,
        failed=counts.failed if counts else None,
        skipped=counts.skipped if counts else None,
        failed_tests=json.dumps(_read_failed_tests(flow.failed_tests_detail) if is_end else []),
        triage_verdict=json.dumps(verdict) if verdict else "",
        is_infrastructure=verdict is not None and verdict["category"] == "infra",
    )


def subject_of(event: str, device: str | None, body: bytes) -> Subject:
    """Read the subject of a stored delivery, whose `body` is that of its dispatch."""
    payload = json.loads(body)["client_payload"]["payload"]
    devices = {device} if device else set()
    if event != "pull_request":
        return Subject(event, None, _commit(payload.get("after")))
    described = payload.get("pull_request")
    described = described if isinstance(described, dict) else {}
    labels, head, number = described.get("labels"), described.get("head"), described.get("number", payload.get("number"))
    for label in labels if isinstance(labels, list) else ():
        name = _text(label.get("name")) if isinstance(label, dict) else ""
        if name.startswith(LABEL):
            devices.add(name.removeprefix(LABEL))
    sha = _commit(head.get("sha")) if isinstance(head, dict) else ""
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return Subject(event, number if is_number else None, sha, frozenset(devices))


@dataclass(frozen=True)
class KnownJob:
    """The state of a job: the digests of the callbacks that were taken. With `swept`, the relay itself has ended it."""

    status: Status
    started: str | None
    ended: str | None
    swept: bool = False


Step = Literal["in_progress", "completed", "corrected", "known"]
"""The end of a callback that is taken. `corrected` is the end of a job that was given up; `known` changes nothing."""


def next_step(job: KnownJob | None, callback: Callback) -> Step:
    """Decide which step a job takes. Raises `CallbackError` where it can take none.

    The states are DISPATCHED (there is no job yet), IN_PROGRESS and COMPLETED, in this order. The job of a report
    without a dispatch begins with its end.
    """
    is_report = callback.event in REPORTS
    if job is None:
        if callback.status == "completed" and not is_report:
            raise CallbackError("bad transition: DISPATCHED to COMPLETED; send in_progress first")
        if callback.status == "in_progress" and is_report:
            raise CallbackError(f"bad transition: a {callback.event} job has one callback, completed")
        return callback.status
    if callback.digest == (job.started if callback.status == "in_progress" else job.ended):
        return "known"
    if callback.status == "completed" and job.status == "in_progress":
        return "completed"
    if callback.status == "completed" and job.swept:
        return "corrected"
    raise CallbackError(f"bad transition: {job.status.upper()} to {callback.status.upper()} with other content")


def _check_report(found: _Body, upstream: str) -> None:
    repository = found.payload.get("repository")
    name = repository.get("full_name") if isinstance(repository, dict) else None
    if _text(name).lower() != upstream.lower():
        raise CallbackError(f"payload.repository.full_name: must be {upstream}")
    if not _COMMIT.fullmatch(found.delivery_id):
        raise CallbackError(f"delivery_id: of a {found.event_type} report, it is a commit of upstream, 40 digits")
    if found.payload.get("head_sha") != found.delivery_id:
        raise CallbackError("payload.head_sha: must be the same as delivery_id")


def _name(value: Any) -> str:
    """A name: it ends up in pages, check runs and labels of metrics."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME or not text.isprintable() or text.isspace():
        raise ValueError(f"must be a text of 1 to {LONGEST_NAME} printable characters")
    return text


def _number(value: Any) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError("must be a number")
    return text


def _address(value: Any) -> str:
    """An address of a page; an empty text where it is none, such as `javascript:`."""
    if not isinstance(value, str) or len(value) > _LONGEST_URL or not value.isascii() or not value.isprintable():
        return ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    return value if parts.scheme in ("http", "https") and parts.netloc and not set(value) & set(" \"'<>\\`") else ""


def _conclusion(value: Any) -> Any:
    return "neutral" if value == "skipped" else value


_Name = Annotated[str, BeforeValidator(_name)]
_Number = Annotated[str, BeforeValidator(_number)]
_Address = Annotated[str, BeforeValidator(_address)]
_Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]


class _Counts(BaseModel):
    passed: _Count
    failed: _Count
    skipped: _Count


class _Workflow(BaseModel):
    schema_version: Literal["1"] = "1"
    status: Status
    conclusion: Annotated[Conclusion | None, BeforeValidator(_conclusion)] = None
    name: _Name
    url: _Address = ""
    run_id: _Number
    run_attempt: _Number
    job_name: _Name
    check_run_id: _Name
    test_results: _Counts | None = None
    failed_tests_detail: Any = None
    artifact_url: _Address = ""
    triage_verdict: Any = None


class _Body(BaseModel):
    event_type: Literal["pull_request", "push", "nightly", "periodic"]
    delivery_id: DeliveryId
    payload: dict[str, Any]
    workflow: _Workflow


def _read_failed_tests(found: Any) -> list[dict[str, Any]]:
    """Return the failed tests within the caps of the public relay; entries that are none are left out."""
    tests = []
    for one in found[:MOST_FAILED_TESTS] if isinstance(found, list) else ():
        name = _clean(one.get("name"), LONGEST_MESSAGE) if isinstance(one, dict) else ""
        if not name:
            continue
        duration = one.get("duration")
        test: dict[str, Any] = {
            "name": name,
            "classname": _clean(one.get("classname"), LONGEST_MESSAGE),
            "message": _clean(one.get("message"), LONGEST_MESSAGE),
            "duration": duration if isinstance(duration, (int, float)) and 0 <= duration < 1e9 else None,
        }
        if stack := _clean(one.get("stack"), LONGEST_STACK):
            test["stack"] = stack
        tests.append(test)
    return tests


def _clean(value: Any, limit: int) -> str:
    """A text without control characters that has at most `limit` bytes; an empty one where something else stands there."""
    return cut(_text(value).translate(_CONTROL), limit)


def _commit(value: Any) -> str:
    text = _text(value)
    return text if _COMMIT.fullmatch(text) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _safe_entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    if any(isinstance(value, str) and key.endswith("url") and not _address(value) for key, value in entry.items()):
        raise ValueError("must have addresses of pages alone")
    return entry


def _cleaned(value: Any) -> Any:
    return _clean(value, LARGEST_TRIAGE_VERDICT) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_cleaned)]
_Entry = Annotated[dict[_Text, _Text | int | FiniteFloat | bool | None], AfterValidator(_safe_entry)]


class _Suspect(BaseModel):
    pr: int | _Text | None = None
    commit: _Text | None = None
    reason: _Text | None = None


class _Verdict(BaseModel):
    """RFC-0056's verdict. Other keys are left out."""

    model_config = ConfigDict(strict=True)

    schema_version: Literal[1] = 1
    category: Literal["upstream", "backend", "infra", "flake", "unknown"]
    confidence: Literal["high", "medium", "low"]
    summary: Annotated[_Text, Field(min_length=1)]
    suspected_upstream: _Suspect | None = None
    evidence: list[_Entry] = []
    reproduced_on_retry: bool | None = None
    analyzer: _Text | dict[str, _Text] | None = None
    analyzed_at: _Text | None = None


def _read_verdict(found: Any) -> dict[str, Any] | None:
    """Return the verdict; None where any of it has another shape, or it is larger than the relay's limit."""
    if not isinstance(found, dict) or len(json.dumps(found)) > LARGEST_TRIAGE_VERDICT:
        return None
    try:
        return _Verdict.model_validate(found).model_dump(exclude_none=True)
    except ValidationError:
        return None
