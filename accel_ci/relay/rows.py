"""The row of a job's state, as the relay keeps it and as a backend can write it of its builds.

The columns and their meaning belong here: whatever stores, judges or shows results of backends has these columns and no
others. The public relay's callbacks are the source of most of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from accel_ci.errors import AccelCiError
from accel_ci.relay.messages import Conclusion, Status


@dataclass(frozen=True)
class JobRow:
    """The state of a job of a backend, for an event of upstream. Times are seconds of Unix time; None while not known.

    A job is one (delivery, repository, run_id, run_attempt, job_name). It has a row for each state that it went through, and
    the row of the last one tells all that is known.
    """

    delivery_id: str
    event: str
    """`pull_request`, `push`, `nightly` or `periodic`."""
    upstream: str
    pull_request: int | None
    head_sha: str
    repository: str
    level: str
    device: str
    workflow: str
    job_name: str
    run_id: str
    run_attempt: str
    check_run_id: str
    status: Status
    conclusion: Conclusion | None
    is_infrastructure: bool
    """The job ended without a word about the backend: it was lost, or its `triage_verdict` blames the infrastructure."""
    url: str
    artifact_url: str
    passed: int | None
    failed: int | None
    skipped: int | None
    failed_tests: str
    """JSON: a list of the failed tests, as in the callback."""
    triage_verdict: str
    """JSON: the verdict, as in the callback; empty without one."""
    at: float
    """The row was written at this time, by the clock of the relay."""
    dispatched_at: float | None
    started_at: float | None
    """`in_progress` was taken."""
    completed_at: float | None
    queue_s: float | None
    """From the dispatch to the start."""
    execution_s: float | None
    """From the start to the end."""

    @property
    def job(self) -> tuple[str, str, str, str, str]:
        """The identity of the job."""
        return (self.delivery_id, self.repository, self.run_id, self.run_attempt, self.job_name)


_NAMES = tuple(one.name for one in fields(JobRow))


class UnreadableRowError(AccelCiError):
    """A stored row that this version cannot read: it lacks a column, or is damaged."""


def read_row(content: bytes) -> JobRow:
    """Read a row from the JSON in which it is stored. Raises `UnreadableRowError`.

    A newer version may have stored it: columns that are not known here are left out.
    """
    try:
        found = json.loads(content)
        return JobRow(**{name: found[name] for name in _NAMES})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableRowError(f"a stored row cannot be read ({type(error).__name__}: {error}); was it damaged?") from None


def category_of(triage_verdict: str) -> str:
    """Return the category of a `triage_verdict`, such as `infra`; empty without one."""
    try:
        found = json.loads(triage_verdict) if triage_verdict else None
    except (ValueError, RecursionError):
        return ""
    category = found.get("category") if isinstance(found, dict) else None
    return category if isinstance(category, str) else ""
