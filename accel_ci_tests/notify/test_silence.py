"""Silences become troubles when a limit has passed, and end when the signal is back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.config.notify_settings import Silence
from accel_ci.notify.silence import Nightly, nightly_troubles, outage_troubles, tick_troubles
from accel_ci.notify.troubles import Trouble
from accel_ci.quality.levels import Job, Outcome

TWO = datetime(2026, 11, 27, 2, tzinfo=timezone.utc)
TIMES = [TWO - timedelta(days=1), TWO]
YESTERDAY = Nightly("nightly-20261126", TIMES[0], (), TIMES[0] + timedelta(hours=5))
SILENCE = Silence(start_minutes=60, end_hours=12)


def open_ones(troubles: list[Trouble]) -> list[str]:
    """The ids of the open troubles."""
    return [trouble.id for trouble in troubles if trouble.is_open]


def after(hours: float, *nightlies: Nightly, failed: tuple[str, ...] = ()) -> list[str]:
    """The open troubles of the nightly so long after its time."""
    return open_ones(nightly_troubles(TIMES, [YESTERDAY, *nightlies], SILENCE, TWO + timedelta(hours=hours), failed))


class TestNightly:
    started = Nightly("nightly-20261127", TWO, ("nightly-20261127~py3",))

    def test_one_that_does_not_start_is_told_after_its_time(self) -> None:
        assert (after(0.9), after(1.1)) == ([], ["silence-nightly-start"])

    def test_one_that_starts_late_ends_the_trouble(self) -> None:
        late = Nightly("nightly-20261127", TWO + timedelta(hours=3), ("nightly-20261127~py3",))
        assert after(4, late) == []

    def test_one_that_was_started_by_hand_on_that_day_counts(self) -> None:
        assert after(2, Nightly("nightly-20261127", TWO - timedelta(hours=1), ())) == []

    def test_one_without_a_ledger_is_told_when_it_should_have_ended(self) -> None:
        assert (after(11, self.started), after(13, self.started)) == ([], ["silence-nightly-ledger"])

    def test_a_build_whose_run_failed_is_told_as_a_failed_run_alone(self) -> None:
        assert after(13, self.started, failed=self.started.missing) == []

    def test_one_that_ends_late_says_when(self) -> None:
        ended = Nightly("nightly-20261127", TWO, (), TWO + timedelta(hours=13))
        found = nightly_troubles(TIMES, [YESTERDAY, ended], SILENCE, TWO + timedelta(hours=14))
        assert [each.sentence for each in found if each.id == "silence-nightly-ledger"] == [
            "nightly-20261127 ended after 13.0 h."
        ]

    def test_a_schedule_that_is_off_is_no_silence(self) -> None:
        assert nightly_troubles([], [YESTERDAY], SILENCE, TWO + timedelta(days=3)) == []


def job(hours: float, outcome: Outcome) -> Job:
    """A nightly that began so long after two o'clock, and took five hours."""
    return Job(f"nightly+{hours}", "nightly", TWO + timedelta(hours=hours), outcome, 5 * 3600.0)


class TestOutage:
    @pytest.mark.parametrize(
        ("jobs", "hours", "expected"),
        [
            ([job(0, "passed"), job(24, "infra")], 28, []),
            ([job(0, "passed"), job(24, "infra")], 30, ["silence-outage"]),
            ([job(0, "failed"), job(24, "unfinished")], 30, ["silence-outage"]),
            ([job(0, "passed"), job(24, "infra"), job(26, "failed")], 32, []),
            ([job(0, "passed")], 100, []),
            ([job(0, "infra")], 100, []),
        ],
    )
    def test_it_is_open_after_a_day_in_which_builds_were_lost(
        self, jobs: list[Job], hours: float, expected: list[str]
    ) -> None:
        assert open_ones(outage_troubles(jobs, None, Silence(), TWO + timedelta(hours=hours))) == expected

    def test_a_nightly_that_was_missed_counts_as_lost(self) -> None:
        missed = TWO + timedelta(hours=24)
        assert open_ones(outage_troubles([job(0, "passed")], missed, Silence(), TWO + timedelta(hours=30)))


class TestTicks:
    @pytest.mark.parametrize(
        ("outcomes", "expected"),
        [
            ([False] * 5, [True]),
            ([False] * 4, []),
            ([False] * 4 + [True], []),
            ([True] + [False] * 4, [False]),
            ([False] * 5 + [True], [True]),
            ([], []),
        ],
    )
    def test_five_in_a_row_are_a_trouble_until_one_does_not_fail(self, outcomes: list[bool], expected: list[bool]) -> None:
        found = tick_troubles({"upstream_main_sensor": outcomes}, Silence(failed_ticks=5))
        assert [each.is_open for each in found] == expected
