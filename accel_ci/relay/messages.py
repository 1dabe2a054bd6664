"""The messages of the relay, which both of its ends share: the dispatch to a backend, and the callback from it.

The shapes and their limits belong here, and nothing that reads, sends or stores them. The limits are those of the public
relay of PyTorch (2026-09) and of its RFCs 0050 and 0054.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

AUDIENCE = "pytorch-cross-repo-ci-relay"
"""The audience of the OIDC tokens of callbacks."""

LARGEST_DISPATCH = 1 << 20
"""Bytes of the document in which a dispatch comes. GitHub's own limit for a `client_payload` is 65 KB."""

LARGEST_CALLBACK = 2 << 20
"""Bytes of a callback."""

MOST_FAILED_TESTS = 1_000
LONGEST_MESSAGE = 1 << 10
"""Bytes of the message of a failed test."""

LARGEST_TRIAGE_VERDICT = 16 << 10
"""Bytes of a `triage_verdict`; a larger one is dropped whole."""

DeliveryId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\z")]
"""The identity of a webhook of upstream. It becomes the name of a file, so no other characters are allowed."""

Status = Literal["in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "timed_out"]
"""The results of a job, as GitHub names them."""

_Number = Annotated[str, Field(pattern=r"\A[0-9]{1,19}\z")]


class Dispatch(BaseModel):
    """The `client_payload` of a `repository_dispatch`: a webhook of upstream, whole.

    Further keys are kept, since a callback repeats the whole.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    event_type: Literal["pull_request", "push"]
    delivery_id: DeliveryId
    payload: dict[str, Any]


class CountedTests(BaseModel):
    """The tests of a job by result; `total` is the sum of the others."""

    model_config = ConfigDict(frozen=True)

    passed: int
    failed: int
    skipped: int
    total: int


class FailedTest(BaseModel):
    """A failed test of a job. `duration` is in seconds."""

    model_config = ConfigDict(frozen=True)

    name: str
    classname: str
    message: str = ""
    duration: float | None = None


class Workflow(BaseModel):
    """The state of a job, as a callback tells it.

    `job_name` tells the jobs of a run apart, and so does `check_run_id`. `run_id` and `run_attempt` are numbers.
    """

    model_config = ConfigDict(frozen=True)

    schema_version: Literal["1"] = "1"
    status: Status
    conclusion: Conclusion | None
    name: Annotated[str, Field(min_length=1)]
    url: str
    run_id: _Number
    run_attempt: _Number
    job_name: Annotated[str, Field(min_length=1)]
    check_run_id: Annotated[str, Field(min_length=1)]
    started_at: datetime | None
    completed_at: datetime | None
    test_results: CountedTests | None = None
    failed_tests_detail: tuple[FailedTest, ...] = ()
    artifact_url: str | None = None
    triage_verdict: dict[str, Any] | None = None


def callback_body(client_payload: Mapping[str, Any], workflow: Workflow) -> bytes:
    """Return the body of a callback within `LARGEST_CALLBACK`: the dispatch that it answers, and the state of a job.

    Failed tests are left out from the end where it would be larger. Raises `ValueError` if it still is.
    """
    failed = workflow.failed_tests_detail[:MOST_FAILED_TESTS]
    while True:
        body = _encode(client_payload, workflow.model_copy(update={"failed_tests_detail": failed}))
        if len(body) <= LARGEST_CALLBACK:
            return body
        if not failed:
            raise ValueError(f"the dispatch is so large that its callback has {len(body)} bytes")
        failed = failed[: len(failed) // 2]


def _encode(client_payload: Mapping[str, Any], workflow: Workflow) -> bytes:
    document = workflow.model_dump(mode="json")
    optional = ("test_results", "failed_tests_detail", "artifact_url", "triage_verdict")
    kept = {key: value for key, value in document.items() if value or key not in optional}
    # Not escaped, since the escaped form of other alphabets is three times as long.
    text = json.dumps({**client_payload, "workflow": kept}, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text that has at most `limit` bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
