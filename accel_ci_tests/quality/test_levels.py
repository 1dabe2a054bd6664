"""The criteria of the levels: fixed windows, no data is not met, and infrastructure apart."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import pytest

from accel_ci.quality.levels import Figure, Job, LevelReport, judge_levels, shown

TODAY = date(2026, 11, 27)
NOON = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)


def job(days: float, outcome: str = "passed", hours: float | None = 1.0, **more: object) -> Job:
    signal_s = hours * 3600 if hours is not None and outcome != "unfinished" else None
    return Job(f"nightly-{days}~py3", "nightly", NOON - timedelta(days=days), outcome, signal_s, **more)  # type: ignore[arg-type]


def figure(report: LevelReport, name: str) -> Figure:
    return next(each for each in report.figures if each.name == name)


def test_without_jobs_nothing_is_met() -> None:
    report = judge_levels([], TODAY, level="L2", since=date(2026, 1, 1))
    assert {each.name: each.met for each in report.figures if each.met is not None} == {"days at L2": True}
    assert "not ready for L3" in report.advice
    assert shown(figure(report, "jobs that pass")) == "no data"


def test_windows_are_fixed() -> None:
    jobs = [job(days, "failed" if days >= 14 else "passed") for days in range(28)]
    report = judge_levels(jobs, TODAY)
    assert figure(report, "jobs that pass").value == 1
    assert len(figure(report, "jobs that pass").builds) == 14
    assert len(figure(report, "jobs that pass, in a week").builds) == 7


def test_infrastructure_is_judged_apart() -> None:
    jobs = [job(days, "infra" if days < 3 else "passed") for days in range(14)]
    report = judge_levels(jobs, TODAY)
    raw, without = (figure(report, f"jobs that pass{end}") for end in ("", ", without infra"))
    assert (round(raw.value or 0, 3), raw.met, without.value, without.met) == (0.786, False, 1, True)


def test_upstreams_failures_do_not_sink_a_backend() -> None:
    jobs = [job(days, "failed", upstream_only=days < 5) for days in range(10)]
    assert figure(judge_levels(jobs, TODAY), "jobs that pass").value == 0.5


@pytest.mark.parametrize(
    ("hours", "met"), [([1.0] * 10, True), ([1.0] * 4 + [5.0] * 6, False), ([1.0] * 6 + [9.0] * 4, True)]
)
def test_the_median_time_to_a_signal(hours: list[float], met: bool) -> None:
    found = figure(judge_levels([job(days, hours=each) for days, each in enumerate(hours)], TODAY), "time to signal, P50")
    assert found.met is met
    assert (found.low or 0) <= (found.value or 0) <= (found.high or 0)


def test_a_level_is_kept_or_at_risk() -> None:
    good = [job(days) for days in range(10)]
    assert judge_levels(good, TODAY, level="L3").advice == "the criteria of L3 are held"
    bad = [replace(each, outcome="failed") for each in good]
    assert "at risk of demotion: jobs that pass, in a week" in judge_levels(bad, TODAY, level="L3").advice
    ready = judge_levels([replace(each, queue_s=60.0) for each in good], TODAY, level="L2", since=date(2026, 9, 1))
    assert ready.advice == "all criteria of L3 are met: ask for the promotion"
    young = judge_levels([replace(each, queue_s=60.0) for each in good], TODAY, level="L2", since=date(2026, 11, 20))
    assert young.advice == "not ready for L3: days at L2"


def test_an_outage_is_counted_until_tests_run_again() -> None:
    jobs = [job(days, "infra" if 3 <= days <= 6 else "passed") for days in range(12)]
    outage = figure(judge_levels(jobs, TODAY), "longest outage")
    assert (outage.value, outage.met, len(outage.builds)) == (5.0, False, 4)
    still = [job(days, "unfinished" if days <= 1 else "passed") for days in range(12)]
    assert figure(judge_levels(still, TODAY), "longest outage").value == 2.5


def test_silence_and_flaky_tests() -> None:
    report = judge_levels([job(29)], TODAY, (6, 100))
    assert (figure(report, "days without a result").value, figure(report, "days without a result").met) == (29, False)
    assert (figure(report, "flaky tests").value, figure(report, "flaky tests").met) == (0.06, False)
