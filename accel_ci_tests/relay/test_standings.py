"""The level of a downstream by its rows: a job counts once, no data is not met, and nobody is believed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from accel_ci.quality.levels import Figure
from accel_ci.relay.allowlist import Downstream
from accel_ci.relay.levels import Standing, attempts_of, breaks_of_upstream, judge_downstream
from accel_ci.relay.rows import JobRow
from accel_ci_tests.fixtures.job_rows import job_row, verdict

TODAY = date(2026, 11, 30)


def stand(level: str, rows: Sequence[JobRow], breaks: frozenset[str] = frozenset()) -> Standing:
    """The standing of a backend, by rows of its level unless they have another one."""
    return judge_downstream(Downstream("org/backend", level), rows, TODAY, breaks)


def jobs(count: int = 40, level: str = "L2", **changes: Any) -> list[JobRow]:
    """A job a day, the newest first."""
    return [job_row(days, level=level, **changes) for days in range(count)]


def figure(standing: Standing, name: str) -> Figure:
    return next(one for one in standing.report.figures if one.name == name)


SLOW: dict[str, Any] = {"dispatched_at": 0.0}
CASES: dict[str, tuple[str, list[JobRow], str, str]] = {
    "L1 is not judged": ("L1", [], "no data", "L1 reports no results"),
    "L2 without a result": ("L2", [], "no data", "no data"),
    "L2 that is ready": ("L2", jobs(), "promote", "few jobs: jobs over 3 h"),
    "L2 for too short a time": ("L2", jobs(20), "hold", "days at L2: 19.0 days, goal ≥ 30 days"),
    "L2 that was L1 lately": ("L2", jobs(10) + jobs(40, "L1")[10:], "hold", "days at L2: 9.0 days"),
    "L2 with failures": ("L2", jobs(40, conclusion="failure"), "hold", "jobs that pass: 0.0%"),
    "L2 that is silent": ("L2", jobs(40)[28:], "demote", "days without a result: 28.0 days"),
    "L2 with jobs that never end": ("L2", jobs(40, status="in_progress"), "no data", "no data"),
    "L2 with cancelled jobs alone": ("L2", jobs(40, conclusion="cancelled"), "no data", "no data"),
    "L2 with slow jobs": ("L2", jobs(40, **SLOW), "hold", "time to signal, P50"),
    "L2 with long queues": ("L2", jobs(40, queue_s=1801.0), "hold", "mean queue: 0.50 h"),
    "L2 of nightlies alone": ("L2", jobs(40, event="nightly", dispatched_at=None), "hold", "time to signal, P50: no data"),
    "L3 that is good": ("L3", jobs(40, "L3"), "hold", ""),
    "L3 without a result": ("L3", [], "no data", ""),
    "L3 with failures in the week": (
        "L3", jobs(2, "L3", conclusion="failure") + jobs(40, "L3")[2:], "demote", "jobs that pass, in a week: 71.4%",
    ),
    "L3 with failures before the week": (
        "L3", jobs(7, "L3") + jobs(14, "L3", conclusion="failure")[7:], "hold", "",
    ),
    "L3 with timeouts": ("L3", jobs(1, "L3", conclusion="timed_out") + jobs(40, "L3")[1:], "demote", "unfinished jobs"),
    "L3 that is slow": ("L3", jobs(40, "L3", **SLOW), "demote", "time to signal, P50, in a week"),
    "L4 that fails": ("L4", jobs(40, "L4", conclusion="failure"), "hold", "at L3: jobs that pass, in a week: 0.0%"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_advice(name: str) -> None:
    level, rows, advice, reason = CASES[name]
    found = stand(level, rows)
    assert found.advice == advice
    assert reason in "\n".join(found.reasons)
    assert found.reasons or not reason


def test_infrastructure_is_told_from_tests() -> None:
    rows = jobs(3, conclusion="failure", is_infrastructure=True) + jobs(14)[3:]
    found = stand("L2", rows)
    assert figure(found, "jobs that pass").value == pytest.approx(11 / 14)
    assert figure(found, "jobs that pass, without infra").value == 1
    lost = found.infrastructure
    assert lost.value == pytest.approx(3 / 14)
    assert len(lost.builds) == 3
    assert (lost.low or 0) < 3 / 14 < (lost.high or 0)


def test_a_job_counts_once_by_its_last_attempt() -> None:
    first = job_row(1, delivery_id="d", conclusion="failure", dispatched_at=job_row(1).at - 600)
    second = job_row(0.5, delivery_id="d", run_attempt="2", dispatched_at=first.dispatched_at)
    third = job_row(0.4, delivery_id="d", run_id="9", dispatched_at=first.dispatched_at)
    assert attempts_of([third, second, first]) == [(first, second, third)]
    found = stand("L2", [third, second, first])
    assert [(job.outcome, job.signal_s) for job in found.jobs] == [("passed", 600)]
    nightlies = [replace(row, event="nightly") for row in (third, second, first)]
    assert [len(each) for each in attempts_of(nightlies)] == [1, 2]


def test_what_runs_and_what_answers_nothing_is_counted_apart() -> None:
    rows = [*jobs(3), job_row(4, status="in_progress"), job_row(5, conclusion="neutral"), job_row(6, conclusion="cancelled")]
    found = stand("L2", rows)
    assert (len(found.jobs), found.pending, found.not_judged) == (3, 1, 2)


def test_upstream_is_to_blame_once_two_backends_agree() -> None:
    blamed = job_row(0, conclusion="failure", triage_verdict=verdict("upstream"), head_sha="b" * 40)
    rows = [blamed, *jobs(10)[1:]]
    other = replace(blamed, repository="org/other")
    assert breaks_of_upstream([blamed, replace(blamed, job_name="another job")]) == frozenset()
    assert breaks_of_upstream([blamed, replace(other, triage_verdict=verdict("backend"))]) == frozenset()
    breaks = breaks_of_upstream([blamed, other])
    assert breaks == {"b" * 40}
    assert figure(stand("L2", rows), "jobs that pass").value == 0.9
    assert figure(stand("L2", rows, breaks), "jobs that pass").value == 1


def test_tenure_begins_with_the_first_row_of_the_level() -> None:
    assert stand("L2", jobs(40)).since == date(2026, 10, 22)
    assert stand("L2", jobs(5) + jobs(10, "L3")[5:] + jobs(40)[10:]).since == date(2026, 11, 26)
    assert stand("L3", jobs(5)).since is None
