"""Judge a backend's CI by the criteria of the relay's levels (RFC-0050 as amended) and of PyTorch's accelerator group.

Pure: jobs in, figures out. Windows are fixed, whatever a page shows. A figure without data is not met. Each comes with an
interval and with the builds that it was computed from. The infrastructure is judged apart: rates are there with and without
what it lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from accel_ci.model import Trigger
from accel_ci.quality.flakiness import wilson_interval
from accel_ci.quality.grid import LINE

Level = Literal["L1", "L2", "L3", "L4"]
Outcome = Literal["passed", "failed", "infra", "unfinished"]
"""The end of a job. `infra`: all that it failed of is the infrastructure's; `unfinished`: it never reported."""

PROMOTION_DAYS, DEMOTION_DAYS, TENURE_DAYS, SILENCE_DAYS, OUTAGE_DAYS = 14, 7, 30, 28, 3
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Job:
    """A job of the relay, or a build as one: when it was asked for, how long its signal took, and how it ended.

    `name` is that of the build. `signal_s` are the seconds from the revision to its ledger, or from the dispatch to the end,
    `queue_s` those before it began; None while not known. `upstream_only` is true if all failures are upstream's.
    """

    name: str
    trigger: Trigger
    at: datetime
    outcome: Outcome
    signal_s: float | None = None
    queue_s: float | None = None
    upstream_only: bool = False


@dataclass(frozen=True)
class Figure:
    """A number with its 95 % interval and its goal. `met` is None where there is no data.

    `limit` is the number of the goal; None where the goal has none.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: Literal["share", "s", "days"]
    goal: str
    met: bool | None
    builds: tuple[str, ...]
    limit: float | None = None

    @property
    def is_certain(self) -> bool:
        """The interval does not reach over the limit."""
        return self.limit is None or self.low is None or self.high is None or not self.low < self.limit < self.high

    @property
    def query(self) -> str:
        """A command that shows the builds behind the figure."""
        return f"accel-ci quality --builds {self.name!r}"


@dataclass(frozen=True)
class LevelReport:
    """The figures of all criteria on a day, and what they advise."""

    day: date
    level: Level | None
    since: date | None
    promotion: tuple[Figure, ...]
    demotion: tuple[Figure, ...]
    group: tuple[Figure, ...]
    advice: str

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures."""
        return (*self.promotion, *self.demotion, *self.group)


def judge_levels(
    jobs: Sequence[Job],
    today: date,
    flaky: tuple[int, int] = (0, 0),
    level: Level | None = None,
    since: date | None = None,
) -> LevelReport:
    """Return the figures of a backend's jobs.

    Args:
        jobs: The jobs of the last weeks.
        today: The day.
        flaky: The number of flaky tests, and of tests.
        level: The level that the backend has.
        since: The day on which it reached that level.
    """
    window = [job for job in jobs if 0 <= (today - job.at.date()).days < PROMOTION_DAYS]
    week = [job for job in window if (today - job.at.date()).days < DEMOTION_DAYS]
    promotion = (
        _quantile("time to signal, P50", window, 0.5, 3 * _HOUR_S),
        _share("jobs over 3 h", _timed(window), lambda job: (job.signal_s or 0) > 3 * _HOUR_S, below=0.01),
        _mean_queue("mean queue", window, _HOUR_S / 2),
        _share("unfinished jobs", window, lambda job: job.outcome == "unfinished", below=0.01),
        _share("jobs that pass", window, _passed, above=0.9),
        _share("jobs that pass, without infra", _judged(window), _passed, above=0.9),
        _tenure(level, since, today),
    )
    demotion = (
        _share("jobs that pass, in a week", week, _passed, above=0.9),
        _share("jobs that pass, in a week, without infra", _judged(week), _passed, above=0.9),
        _share("unfinished jobs, in a week", week, lambda job: job.outcome == "unfinished", below=0.01),
        _quantile("time to signal, P50, in a week", week, 0.5, 3 * _HOUR_S),
        _silence(jobs, today),
    )
    month = [job for job in jobs if 0 <= (today - job.at.date()).days < TENURE_DAYS]
    group = (
        _flaky(*flaky),
        _longest_outage(month, today),
        _quantile("time to signal, P90", month, 0.9, None),
        _days_with("nightly builds", month, today, ("nightly",)),
    )
    return LevelReport(today, level, since, promotion, demotion, group, _advice(level, promotion, demotion))


def shown(figure: Figure) -> str:
    """A figure in words: its value and, where it has one, its interval."""

    def one(value: float) -> str:
        if figure.unit == "share":
            return f"{value:.1%}"
        return f"{value / _HOUR_S:.2f} h" if figure.unit == "s" else f"{value:.1f} days"

    if figure.value is None or figure.low is None or figure.high is None:
        return "no data"
    interval = f" ({one(figure.low)} to {one(figure.high)})" if figure.low != figure.high else ""
    return one(figure.value) + interval


def _advice(level: Level | None, promotion: Sequence[Figure], demotion: Sequence[Figure]) -> str:
    lacking = [figure.name for figure in promotion if not figure.met]
    falling = [figure.name for figure in demotion if figure.met is False]
    if level == "L2":
        return f"not ready for L3: {', '.join(lacking)}" if lacking else "all criteria of L3 are met: ask for the promotion"
    if level in ("L3", "L4"):
        return f"at risk of demotion: {', '.join(falling)}" if falling else f"the criteria of {level} are held"
    return "set quality.level to be told what the next level needs"


def _passed(job: Job) -> bool:
    return job.outcome == "passed" or job.upstream_only


def _judged(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose outcome is not the infrastructure's."""
    return [job for job in jobs if job.outcome not in ("infra", "unfinished")]


def _timed(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.signal_s is not None]


def _names(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(job.name for job in jobs)


def _share(
    name: str, jobs: Sequence[Job], hit: Callable[[Job], bool], *, below: float | None = None, above: float | None = None
) -> Figure:
    goal = f"< {below:.0%}" if below is not None else f"> {above:.0%}"
    if not jobs:
        return Figure(name, None, None, None, "share", goal, None, ())
    hits = sum(map(hit, jobs))
    value, (low, high) = hits / len(jobs), wilson_interval(hits, len(jobs))
    met = value < below if below is not None else value > (above or 0)
    return Figure(name, value, low, high, "share", goal, met, _names(jobs), below if below is not None else above)


def _quantile(name: str, jobs: Sequence[Job], at: float, below_s: float | None) -> Figure:
    """A quantile of the seconds to a signal, with the order-statistics interval (H. A. David, Order Statistics, 2.5)."""
    goal = f"< {below_s / _HOUR_S:g} h" if below_s is not None else "shown"
    known = sorted((job.signal_s, job.name) for job in jobs if job.signal_s is not None)
    if not known:
        return Figure(name, None, None, None, "s", goal, None, ())
    seconds = [each for each, _ in known]
    count, spread = len(seconds), 1.96 * math.sqrt(len(seconds) * at * (1 - at))
    low = seconds[max(0, math.floor(count * at - spread))]
    high = seconds[min(count - 1, math.ceil(count * at + spread))]
    value = seconds[min(count - 1, math.ceil(count * at) - 1 if count > 1 else 0)]
    met = value < below_s if below_s is not None else True
    return Figure(name, value, low, high, "s", goal, met, tuple(build for _, build in known), below_s)


def _mean_queue(name: str, jobs: Sequence[Job], below_s: float) -> Figure:
    goal, known = f"< {below_s / 60:g} min", [job for job in jobs if job.queue_s is not None]
    if not known:
        return Figure(name, None, None, None, "s", goal, None, ())
    waits = [job.queue_s or 0.0 for job in known]
    mean = sum(waits) / len(waits)
    deviation = math.sqrt(sum((wait - mean) ** 2 for wait in waits) / max(1, len(waits) - 1) / len(waits))
    return Figure(
        name,
        mean,
        max(0.0, mean - 1.96 * deviation),
        mean + 1.96 * deviation,
        "s",
        goal,
        mean < below_s,
        _names(known),
        below_s,
    )


def _tenure(level: Level | None, since: date | None, today: date) -> Figure:
    days = (today - since).days if since is not None and level == "L2" else None
    goal = f"≥ {TENURE_DAYS} days"
    return Figure("days at L2", days, days, days, "days", goal, None if days is None else days >= TENURE_DAYS, ())


def _silence(jobs: Sequence[Job], today: date) -> Figure:
    """The days since the last result."""
    reported = [job for job in jobs if job.outcome != "unfinished"]
    goal = f"< {SILENCE_DAYS} days"
    if not reported:
        return Figure("days without a result", None, None, None, "days", goal, None, ())
    newest = max(reported, key=lambda job: job.at)
    days = (today - newest.at.date()).days
    return Figure("days without a result", days, days, days, "days", goal, days < SILENCE_DAYS, (newest.name,))


def _flaky(flaky: int, tests: int) -> Figure:
    if not tests:
        return Figure("flaky tests", None, None, None, "share", "< 5%", None, ())
    low, high = wilson_interval(flaky, tests)
    return Figure("flaky tests", flaky / tests, low, high, "share", "< 5%", flaky / tests < 0.05, ())


def _longest_outage(jobs: Sequence[Job], today: date) -> Figure:
    """The longest time without a job whose tests ran, up to now."""
    line = sorted((job for job in jobs if job.trigger in LINE), key=lambda job: job.at)
    goal = f"≤ {OUTAGE_DAYS} days"
    if not line:
        return Figure("longest outage", None, None, None, "days", goal, None, ())
    longest, lost, last = 0.0, list[Job](), line[0].at
    during: list[Job] = []
    for job in line:
        if job.outcome in ("infra", "unfinished"):
            lost.append(job)
            continue
        if lost and (job.at - last).total_seconds() / 86400 > longest:
            longest, during = (job.at - last).total_seconds() / 86400, lost
        lost, last = [], job.at
    until = datetime(today.year, today.month, today.day, tzinfo=last.tzinfo) + timedelta(days=1)
    if lost and (until - last).total_seconds() / 86400 > longest:
        longest, during = (until - last).total_seconds() / 86400, lost
    return Figure("longest outage", longest, longest, longest, "days", goal, longest <= OUTAGE_DAYS, _names(during))


def _days_with(name: str, jobs: Sequence[Job], today: date, triggers: Sequence[Trigger]) -> Figure:
    """The share of the days since the first of these jobs that have one which reported."""
    some = [job for job in jobs if job.trigger in triggers and job.outcome != "unfinished"]
    if not some:
        return Figure(name, None, None, None, "share", "> 90%", None, ())
    days = {job.at.date() for job in some}
    span = (today - min(days)).days + 1
    value, (low, high) = len(days) / span, wilson_interval(len(days), span)
    return Figure(name, value, low, high, "share", "> 90%", value > 0.9, _names(some))
