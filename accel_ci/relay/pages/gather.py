"""The content of the relay's pages, from the rows of jobs. Pure; `write` renders it.

A job is shown once, by its last attempt, so that all pages count the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from statistics import median

from accel_ci.hud.states import State
from accel_ci.hud.text import web_link
from accel_ci.quality.levels import DEMOTION_DAYS, PROMOTION_DAYS, Figure, Job
from accel_ci.relay.levels import Standing, attempts_of, outcome_of
from accel_ci.relay.pages.failures import Baseline, Failure, compared, failures_of, verdict_of
from accel_ci.relay.rows import JobRow

LISTED = 20
"""A job lists so many failed tests; the artifact and the backend's own pages have all."""

RECENT = 60
"""The page of a backend shows so many jobs."""

MOST_FAILING = 100
"""The page of a backend lists so many tests."""


@dataclass(frozen=True)
class ShownJob:
    """A job with its state in words, and links that are safe to follow."""

    repository: str
    workflow: str
    job: str
    event: str
    pull_request: int | None
    head_sha: str
    state: State
    attempts: int
    url: str | None
    artifact_url: str | None
    passed: int | None
    failed: int | None
    skipped: int | None
    at: datetime
    queue_s: float | None
    execution_s: float | None
    verdict: str
    confidence: str
    summary: str
    failures: tuple[Failure, ...]
    more: int
    """The number of failed tests that are not in `failures`."""

    @property
    def new(self) -> int:
        """The number of listed tests that fail only with the change."""
        return sum(one.novelty == "new" for one in self.failures)


@dataclass(frozen=True)
class Day:
    """The judged jobs of a day, and those that passed."""

    day: date
    passed: int
    judged: int


@dataclass(frozen=True)
class BackendLine:
    """A downstream in the summary. `change` is that of the pass rate from the week before, None without jobs in both."""

    repository: str
    level: str
    device: str
    oncalls: tuple[str, ...]
    advice: str
    reasons: tuple[str, ...]
    last: ShownJob | None
    passing: Figure
    without_infra: Figure
    signal: Figure
    queue: Figure
    infrastructure: Figure
    days: tuple[Day, ...]
    change: float | None
    pending: int
    not_judged: int


@dataclass(frozen=True)
class FailingTest:
    """A test that failed in recent jobs of a backend."""

    test: str
    message: str
    jobs: int
    last: ShownJob


@dataclass(frozen=True)
class Times:
    """The times of the jobs of an event over two weeks: medians in seconds, None where nothing is known."""

    event: str
    jobs: int
    signal_s: float | None
    queue_s: float | None
    execution_s: float | None


@dataclass(frozen=True)
class BackendPage:
    """All that the page of a backend shows."""

    line: BackendLine
    since: date | None
    promotion: tuple[Figure, ...]
    demotion: tuple[Figure, ...]
    group: tuple[Figure, ...]
    recent: tuple[ShownJob, ...]
    failing: tuple[FailingTest, ...]
    times: tuple[Times, ...]


@dataclass(frozen=True)
class PullCommit:
    """A commit of a pull request with its jobs."""

    head_sha: str
    jobs: tuple[ShownJob, ...]


@dataclass(frozen=True)
class PullPage:
    """All that the page of a pull request shows: its commits, the newest first."""

    number: int
    upstream: str
    at: datetime
    commits: tuple[PullCommit, ...]

    @property
    def states(self) -> Counter[str]:
        """The number of jobs of the newest commit by state."""
        return Counter(job.state.words for job in self.commits[0].jobs)


def state_of(row: JobRow) -> State:
    """Return the state of a job in words."""
    if row.status == "in_progress":
        return State("absent", "in progress")
    outcome = outcome_of(row)
    if outcome is None:
        return State("absent" if row.conclusion == "neutral" else "stopped", row.conclusion or "unknown")
    if outcome == "unfinished":
        return State("stopped", "timed out")
    return State("incomplete", "infra") if outcome == "infra" else State(outcome, outcome)


def shown_jobs(rows: Iterable[JobRow], baseline: Baseline) -> list[ShownJob]:
    """Return the jobs of rows by their last attempts, in the order of the rows."""
    return [_shown_job(attempts, baseline) for attempts in attempts_of(rows)]


def backend_line(standing: Standing, last: JobRow | None, today: date) -> BackendLine:
    """Summarise a downstream."""
    figures = {figure.name: figure for figure in standing.report.figures}
    downstream = standing.downstream
    weeks = [_share(_within(standing.jobs, today, first, first + DEMOTION_DAYS)) for first in (0, DEMOTION_DAYS)]
    days = [today - timedelta(days=ago) for ago in reversed(range(PROMOTION_DAYS))]
    by_day = Counter(job.at.date() for job in standing.jobs)
    passed = Counter(job.at.date() for job in standing.jobs if job.outcome == "passed")
    return BackendLine(
        downstream.repository, downstream.level, downstream.device, downstream.oncalls, standing.advice, standing.reasons,
        next(iter(shown_jobs([last], {})), None) if last is not None else None,
        figures["jobs that pass"], figures["jobs that pass, without infra"], figures["time to signal, P50"],
        figures["mean queue"], standing.infrastructure,
        tuple(Day(day, passed[day], by_day[day]) for day in days),
        weeks[0] - weeks[1] if weeks[0] is not None and weeks[1] is not None else None,
        standing.pending, standing.not_judged,
    )  # fmt: skip


def backend_page(
    line: BackendLine, standing: Standing, rows: Sequence[JobRow], recent: Sequence[JobRow], baseline: Baseline, today: date
) -> BackendPage:
    """Return the page of a backend: `rows` are those of the window, `recent` the newest ones with their failed tests."""
    report = standing.report
    jobs = shown_jobs(recent, baseline)
    return BackendPage(
        line, standing.since, report.promotion, report.demotion, report.group, tuple(jobs),
        _failing(recent, jobs), _times(rows, today),
    )  # fmt: skip


def pull_page(number: int, rows: Sequence[JobRow], baseline: Baseline) -> PullPage:
    """Return the page of a pull request by its rows, the newest first."""
    commits: dict[str, list[ShownJob]] = {}
    for job in shown_jobs(rows, baseline):
        commits.setdefault(job.head_sha, []).append(job)
    ordered = [
        PullCommit(sha, tuple(sorted(jobs, key=lambda job: (job.repository.lower(), job.workflow, job.job))))
        for sha, jobs in commits.items()
    ]
    return PullPage(number, rows[0].upstream, _moment(rows[0].at), tuple(ordered))


def _shown_job(attempts: Sequence[JobRow], baseline: Baseline) -> ShownJob:
    row = attempts[-1]
    failures = compared(row, baseline) if row.event == "pull_request" else failures_of(row)
    return ShownJob(
        row.repository, row.workflow, row.job_name, row.event, row.pull_request, row.head_sha, state_of(row), len(attempts),
        web_link(row.url), web_link(row.artifact_url), row.passed, row.failed, row.skipped, _moment(row.at), row.queue_s,
        row.execution_s, *verdict_of(row), tuple(failures[:LISTED]),
        max(row.failed or 0, len(failures)) - len(failures[:LISTED]),
    )  # fmt: skip


def _failing(rows: Iterable[JobRow], jobs: Sequence[ShownJob]) -> tuple[FailingTest, ...]:
    """The tests that failed in the last attempts of these jobs, the most frequent first."""
    found: dict[str, FailingTest] = {}
    for attempts, job in zip(attempts_of(rows), jobs, strict=True):
        for one in {failure.test: failure for failure in failures_of(attempts[-1])}.values():
            known = found.get(one.test)
            found[one.test] = FailingTest(
                one.test,
                known.message if known else one.message,
                known.jobs + 1 if known else 1,
                known.last if known else job,
            )
    return tuple(sorted(found.values(), key=lambda one: (-one.jobs, one.test))[:MOST_FAILING])


def _times(rows: Sequence[JobRow], today: date) -> tuple[Times, ...]:
    found: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.status == "completed" and 0 <= (today - _moment(row.at).date()).days < PROMOTION_DAYS:
            found.setdefault(row.event, []).append(row)
    return tuple(
        Times(
            event,
            len(every),
            _median(
                row.completed_at - row.dispatched_at
                for row in every
                if row.completed_at is not None and row.dispatched_at is not None
            ),
            _median(row.queue_s for row in every if row.queue_s is not None),
            _median(row.execution_s for row in every if row.execution_s is not None),
        )
        for event, every in sorted(found.items())
    )


def _median(seconds: Iterable[float]) -> float | None:
    known = list(seconds)
    return median(known) if known else None


def _within(jobs: Iterable[Job], today: date, first: int, end: int) -> list[Job]:
    return [job for job in jobs if first <= (today - job.at.date()).days < end]


def _share(jobs: Sequence[Job]) -> float | None:
    return sum(job.outcome == "passed" for job in jobs) / len(jobs) if jobs else None


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
