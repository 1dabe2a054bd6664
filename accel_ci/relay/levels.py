"""Judge the downstreams of the relay by the rows of their jobs: the level that each has, and whether another one is due.

The criteria and their windows are those of `accel_ci.quality.levels`; here is what a row means to them. A job counts once,
however often it was attempted: by the end of its last attempt, and by the time until the first one ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Literal, get_args

from accel_ci.model import Trigger
from accel_ci.quality.flakiness import wilson_interval
from accel_ci.quality.levels import PROMOTION_DAYS, Figure, Job, Level, LevelReport, Outcome, judge_levels, shown
from accel_ci.relay.allowlist import Downstream
from accel_ci.relay.rows import JobRow, category_of

HISTORY_DAYS = 60
"""The rows of so many days are looked at: the tenure is at least as long as the oldest of them is ago."""

Advice = Literal["promote", "hold", "demote", "no data"]

_TRIGGERS: Mapping[str, Trigger] = {"pull_request": "pr", "push": "main", "nightly": "nightly", "periodic": "intraday"}


@dataclass(frozen=True)
class Standing:
    """A downstream by the criteria of its level: what is advised, and why."""

    downstream: Downstream
    since: date | None
    """The first day in the rows from which it has had this level without a break."""
    report: LevelReport
    advice: Advice
    reasons: tuple[str, ...]
    pending: int
    """Jobs that are in progress."""
    not_judged: int
    """Jobs that ended without an answer: neutral or cancelled."""
    infrastructure: Figure
    """The share of the jobs of two weeks that the infrastructure lost, those that were never reported among them."""
    jobs: tuple[Job, ...]


def judge_downstream(
    downstream: Downstream, rows: Sequence[JobRow], today: date, upstream_breaks: frozenset[str] = frozenset()
) -> Standing:
    """Judge a downstream by its rows of the last `HISTORY_DAYS`.

    `upstream_breaks` are the commits for which failures that are blamed on upstream do not count as the backend's; see
    `breaks_of_upstream`.
    """
    attempts = attempts_of(rows)
    jobs = [job for each in attempts if (job := _job(each, upstream_breaks)) is not None]
    since = _since(downstream.level, rows)
    level: Level | None = next((each for each in get_args(Level) if each == downstream.level), None)
    report = judge_levels(jobs, today, level=level, since=since)
    advice, reasons = _advise(report)
    pending = sum(each[-1].status == "in_progress" for each in attempts)
    not_judged = len(attempts) - len(jobs) - pending
    return Standing(
        downstream, since, report, advice, reasons, pending, not_judged, _infrastructure(jobs, today), tuple(jobs)
    )


def breaks_of_upstream(rows: Iterable[JobRow]) -> frozenset[str]:
    """Return the commits that two downstreams blame for a failure. One that blames upstream alone is not believed."""
    blamed: dict[str, set[str]] = {}
    for row in rows:
        if row.conclusion == "failure" and category_of(row.triage_verdict) == "upstream":
            blamed.setdefault(row.head_sha, set()).add(row.repository)
    return frozenset(sha for sha, repositories in blamed.items() if len(repositories) > 1)


def attempts_of(rows: Iterable[JobRow]) -> list[tuple[JobRow, ...]]:
    """Return the attempts of each job, the first one first; jobs come in the order of their newest row in `rows`.

    Another run for the same delivery is another attempt. A nightly has no delivery, so each of its runs is another job.
    """
    found: dict[tuple[str, ...], list[JobRow]] = {}
    for row in rows:
        run = row.run_id if row.event in ("nightly", "periodic") else ""
        found.setdefault((row.delivery_id, row.repository, row.workflow, row.job_name, run), []).append(row)
    return [tuple(sorted(each, key=_begun)) for each in found.values()]


def _begun(row: JobRow) -> tuple[float, int, float]:
    attempt = int(row.run_attempt) if row.run_attempt.isascii() and row.run_attempt.isdecimal() else 0
    return (row.started_at or row.at, attempt, row.at)


def _job(attempts: Sequence[JobRow], upstream_breaks: frozenset[str]) -> Job | None:
    """The job as the criteria see it; None while it runs, and where it ended without an answer."""
    last = attempts[-1]
    outcome = outcome_of(last)
    if outcome is None:
        return None
    first = next((each for each in attempts if each.status == "completed"), last)
    ended = first.completed_at if first.completed_at is not None else first.at
    signal_s = ended - first.dispatched_at if first.dispatched_at is not None and outcome != "unfinished" else None
    blames_upstream = category_of(last.triage_verdict) == "upstream" and last.head_sha in upstream_breaks
    name = f"{last.job_name} {last.head_sha[:12]}"
    at = datetime.fromtimestamp(ended, timezone.utc)
    trigger = _TRIGGERS.get(last.event, "main")
    return Job(name, trigger, at, outcome, signal_s, first.queue_s, outcome == "failed" and blames_upstream)


def outcome_of(row: JobRow) -> Outcome | None:
    """Return the end of a job; None while it runs, and for a neutral or cancelled one: they answer nothing."""
    if row.status != "completed":
        return None
    if row.conclusion == "timed_out":
        return "unfinished"
    if row.conclusion == "success":
        return "passed"
    if row.is_infrastructure:
        return "infra"
    return "failed" if row.conclusion == "failure" else None


def _infrastructure(jobs: Sequence[Job], today: date) -> Figure:
    window = [job for job in jobs if 0 <= (today - job.at.date()).days < PROMOTION_DAYS]
    lost = tuple(job.name for job in window if job.outcome in ("infra", "unfinished"))
    name = "jobs lost by the infrastructure"
    if not window:
        return Figure(name, None, None, None, "share", "shown", None, ())
    return Figure(name, len(lost) / len(window), *wilson_interval(len(lost), len(window)), "share", "shown", None, lost)


def _since(level: str, rows: Iterable[JobRow]) -> date | None:
    """The day of the first row with this level after the last one with another."""
    first: float | None = None
    for row in sorted(rows, key=lambda each: each.at, reverse=True):
        if row.level != level:
            break
        first = row.at
    return datetime.fromtimestamp(first, timezone.utc).date() if first is not None else None


def _advise(report: LevelReport) -> tuple[Advice, tuple[str, ...]]:
    falling = tuple(_in_words(figure) for figure in report.demotion if figure.met is False)
    is_silent = any(figure.name == "days without a result" and figure.met is False for figure in report.demotion)
    has_data = any(figure.value is not None for figure in report.demotion)
    if report.level == "L2":
        if is_silent:
            return "demote", falling
        lacking = tuple(_in_words(figure) for figure in report.promotion if not figure.met)
        if not has_data:
            return "no data", lacking
        uncertain = tuple(f"few jobs: {_in_words(figure)}" for figure in report.promotion if not figure.is_certain)
        return ("hold", lacking) if lacking else ("promote", uncertain)
    if report.level == "L3":
        return ("demote", falling) if falling else ("hold", ()) if has_data else ("no data", ())
    if report.level == "L4":
        return "hold", ("L4 is for the maintainers to judge", *(f"at L3: {reason}" for reason in falling))
    return "no data", ("L1 reports no results; L2 comes on request",)


def _in_words(figure: Figure) -> str:
    return f"{figure.name}: {shown(figure)}, goal {figure.goal}"
