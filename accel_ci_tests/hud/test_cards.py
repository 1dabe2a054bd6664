"""The page of cards: days are added up, a card has one row, and the worst come first."""

from __future__ import annotations

from datetime import date, timedelta

from accel_ci.hud.cards import CardBuild, CardRow, make_cards
from accel_ci.model import CardReport
from accel_ci.quality.places import BadPlace, Place, PlaceCount

DAY = date(2026, 11, 20)


def report(card: str, healthy: bool = True) -> CardReport:
    return CardReport(card, healthy, None if healthy else "ECC errors", 10, 5.0, 1.0)


def count(name: str, failures: int, attempts: int = 100, kind: str = "card") -> PlaceCount:
    return PlaceCount(Place(kind, name), attempts, failures, failures, 0.1)  # type: ignore[arg-type]


def by_name(builds: list[CardBuild]) -> dict[str, CardRow]:
    return {row.name: row for row in make_cards(builds).cards}


def test_builds_of_a_day_are_added_up_and_days_without_work_are_empty() -> None:
    builds = [
        CardBuild(DAY, [report("0")], [count("host:0", 2), count("host", 2, kind="host")]),
        CardBuild(DAY, [report("0", healthy=False)], [count("host:0", 3)]),
        CardBuild(DAY + timedelta(days=2), [report("0"), report("1")]),
    ]
    page = make_cards(builds)
    assert page.days == (DAY, DAY + timedelta(days=2))
    rows = by_name(builds)
    assert set(rows) == {"host:0", "1"}, "the health is that of the only card of that name, and hosts have no row"
    first, last = rows["host:0"].days
    assert first is not None
    assert (first.healthy, first.reason, first.failures, first.attempts) == (False, "ECC errors", 5, 200)
    assert last is not None
    assert (last.healthy, last.failures, last.attempts) == (True, 0, 0)
    assert rows["1"].days[0] is None
    assert rows["host:0"].total.healthy is True, "that of the last day"
    assert rows["host:0"].total.share == 5 / 200


def test_cards_of_two_hosts_with_one_name_stay_apart() -> None:
    rows = by_name([CardBuild(DAY, [report("0")], [count("a:0", 1), count("b:0", 4)])])
    assert {name: row.total.failures for name, row in rows.items()} == {"a:0": 1, "b:0": 4, "0": 0}


def test_bad_and_unhealthy_cards_come_first_as_of_the_newest_judgement() -> None:
    bad = BadPlace(Place("card", "a:3"), 8.0, 4.0, 12.0, 8, 100, 1.0)
    was_bad = BadPlace(Place("card", "a:1"), 8.0, 4.0, 12.0, 8, 100, 1.0)
    counts = [count(f"a:{number}", number == 2) for number in range(12)]
    reports = [report(str(number), healthy=number != 7) for number in range(12)]
    builds = [CardBuild(DAY, reports, counts, [was_bad]), CardBuild(DAY, reports, counts, [bad])]
    assert [row.name for row in make_cards(builds).cards][:5] == ["a:3", "a:7", "a:2", "a:0", "a:1"]
    host = BadPlace(Place("host", "b"), 8.0, 4.0, 12.0, 8, 100, 1.0)
    assert make_cards([CardBuild(DAY, reports, counts, [host])]).cards[0].name == "host b"
