"""The lanes of cards: their spans lie in the time of the tests, and their seconds sum to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from accel_ci.hud.timeline import MOST_CARDS, SET_UP, make_timeline, shown_cards, slices_for
from accel_ci.model import Attempt, Build, CardReport
from accel_ci.results.questions import CardSlice, CardWork, card_work
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts
from accel_ci_tests.hud.samples import NOW, VARIANTS

BUILD = Build("nightly-20261127", VARIANTS[0])


def report(card: str, busy_s: float = 10.0, setup_s: float = 0.0, *, healthy: bool = True) -> CardReport:
    return CardReport(card, healthy, None, 5, busy_s, setup_s)


def attempt(number: int, card: str, start_s: float, seconds: float, suite: str = "unit") -> Attempt:
    return Attempt(
        suite,
        f"test_a.py::test_{number}",
        1,
        "passed",
        NOW + timedelta(seconds=start_s),
        seconds,
        None,
        None,
        card,
        "h",
        "w",
    )


def test_spans_tell_set_up_suites_and_gaps_apart() -> None:
    work = CardWork(
        0.0, 1.0, tuple(CardSlice("h", "0", "unit" if n < 5 else "ops", n, 1.0) for n in (3, 4, 5, 8, 9))
    )  # fmt: skip
    timeline = make_timeline([report("0", 5.0, 2.0)], work, 10)
    assert timeline is not None
    [lane] = timeline.lanes
    assert [(span.kind, span.from_s, span.to_s) for span in lane.spans] == [
        (SET_UP, 1.0, 3.0), ("unit", 3.0, 5.0), ("ops", 5.0, 6.0), ("ops", 8.0, 10.0),
    ]  # fmt: skip
    assert lane.busy_s + lane.setup_s + lane.idle_s == pytest.approx(timeline.seconds) == 10.0
    assert timeline.suites == ("ops", "unit")


def test_a_large_pool_shows_its_unhealthy_and_its_busiest_cards_in_few_spans() -> None:
    reports = [report(str(n), busy_s=n, healthy=n != 7) for n in range(2048)]
    shown = shown_cards(reports)
    assert len(shown) == MOST_CARDS
    assert [card.card for card in shown[:2]] == ["7", "1985"]
    assert len(shown) * slices_for(len(shown)) <= 4000
    timeline = make_timeline(reports, CardWork(0.0, 1.0, ()), 40)
    assert timeline is not None
    assert (len(timeline.lanes), timeline.left_out) == (MOST_CARDS, 2048 - MOST_CARDS)


def test_the_work_of_cards_is_that_of_their_attempts(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    attempts = [attempt(0, "0", 0, 3.0), attempt(1, "0", 5, 5.0), attempt(2, "1", 2, 0.5), attempt(3, "1", 2.5, 1.0)]
    without_time = replace(attempt(4, "1", 0, 1.0), started_at=None, duration_s=None, outcome="not_run")
    write_attempts(store, BUILD, NOW.date(), [*attempts, without_time, attempt(5, "0", 0, 9.0, "smoke")])
    work = card_work(store, BUILD, ["unit"], ["0", "1"], 20.0, 40)
    assert work is not None
    assert work.first == pytest.approx(NOW.timestamp() - 10), "the time ends with the last attempt, and is 20 seconds long"
    seconds = {card: sum(part.seconds for part in work.slices if part.card == card) for card in "01"}
    assert seconds == {"0": pytest.approx(8.0), "1": pytest.approx(1.5)}
    assert max(part.seconds for part in work.slices) <= work.width_s + 1e-6
    assert max(part.slice for part in work.slices) == 39
    assert card_work(store, BUILD, ["other"], ["0"], 1.0, 40) is None
    assert card_work(store, BUILD, ["unit"], ["9"], 1.0, 40) is None
