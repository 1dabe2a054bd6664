from __future__ import annotations

from datetime import datetime, timezone

import pytest

from accel_ci.model import Batch, Outcome
from accel_ci.rounds.events import Event, InvalidEvent, decode_events
from accel_ci.rounds.tally import Tally
from accel_ci.secrets import learn_secrets

AT = datetime(2026, 11, 28, tzinfo=timezone.utc)
LINE = b'{"event":"attempt","at":"2026-11-28T00:00:00+00:00","suite":"s","test":"t","outcome":"passed","duration_s":1}'


def test_lines_become_events() -> None:
    [event] = decode_events(LINE + b"\n")
    assert event == Event("attempt", AT, "s", "t", "passed", duration_s=1.0)
    assert decode_events(b"") == []


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense", b"[1]", b"[" * 100_000, b'{"event":1,"at":"x"}', LINE.replace(b":1}", b':"long"}'),
        *(LINE.replace(b":1}", b":%b}" % number) for number in (b"NaN", b"Infinity", b"1e999", b"-1", b"1e300")),
        LINE.replace(b"passed", b"splendid"), LINE.replace(b'"t"', b"1"), LINE.replace(b'"s"', b'"' + b"s" * 5000 + b'"'),
        LINE.replace(b"+00:00", b""), LINE.replace(b"2026-11-28T00:00:00+00:00", b"yesterday"), LINE[:-2],
    ],
    ids=lambda line: line[:20].hex() + str(len(line)),
)  # fmt: skip
def test_a_line_that_is_no_event_is_told_from_the_others(line: bytes) -> None:
    first, second, third = decode_events(b"%b\n%b\n%b\n" % (LINE, line, LINE))
    assert first == third == decode_events(LINE)[0]
    assert isinstance(second, InvalidEvent)
    assert "no event" in second.problem


def test_half_surrogates_do_not_stop_the_rest() -> None:
    [event, _] = decode_events(LINE.replace(b'"t"', rb'"t[\ud800]"') + b"\n" + LINE + b"\n")
    assert isinstance(event, Event)
    assert event.test == r"t[\ud800]"


def tally(*tests: str) -> Tally:
    return Tally(["0", "1"], [Batch("b", "s", "a.py", tests, 1.0)], lambda *_: None)


def attempt(test: str, outcome: Outcome, started_at: str | None = None) -> Event:
    return Event("attempt", AT, "s", test, outcome, started_at, 2.0)


def rows_of(tally: Tally) -> list[tuple[object, ...]]:
    rows = tally.rows().select(["test", "round", "outcome", "card", "worker"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_a_test_counts_once_a_round_whichever_worker_reports_it() -> None:
    both = tally("t", "u")
    both.take(1, "w0-0", "0", [attempt("t", "failed")])
    both.take(1, "w0-1", "1", [attempt("t", "passed"), attempt("u", "passed")])
    both.take(2, "w1-0", "1", [attempt("t", "passed")])
    assert rows_of(both) == [
        ("t", 1, "failed", "0", "w0-0"), ("u", 1, "passed", "1", "w0-1"), ("t", 2, "passed", "1", "w1-0"),
    ]  # fmt: skip
    assert [(card.attempts, card.busy_s) for card in both.card_reports()] == [(1, 2.0), (2, 4.0)]


def test_the_set_up_of_a_card_includes_collection_once() -> None:
    ready = tally("t", "u")
    started = Event("child_started", AT, "s", setup_s=3.0)
    ready.take(1, "w0-0", "0", [Event("collected", AT, "s"), started, attempt("t", "passed")])
    ready.take(1, "w0-1", "1", [started, attempt("u", "crashed"), started])
    assert [card.setup_s for card in ready.card_reports()] == [3.0, 6.0]


def test_the_attempts_of_a_plug_in_that_tries_again_count_all() -> None:
    tried = tally("t", "u")
    tried.take(1, "w0-0", "0", [attempt("t", "failed"), attempt("t", "failed")])
    tried.take(1, "w0-0", "0", [attempt("t", "passed"), attempt("u", "passed")])
    assert [row[:3] for row in rows_of(tried)] == [
        ("t", 1, "failed"), ("t", 1, "failed"), ("t", 1, "passed"), ("u", 1, "passed"),
    ]  # fmt: skip
    assert tried.to_retry(Batch("b", "s", "a.py", ("t", "u"), 1.0), 9) == []
    assert tried.round_report(1, 1.0).tests == 2
    assert sum(card.attempts for card in tried.card_reports()) == 4


def test_a_failure_is_not_lost_although_another_worker_had_run_the_test() -> None:
    both = tally("t", "u")
    both.take(1, "w0-0", "0", [attempt("t", "passed"), attempt("u", "skipped")])
    both.take(1, "w0-1", "1", [attempt("t", "failed"), attempt("u", "skipped")])
    assert [row[:3] for row in rows_of(both)] == [("t", 1, "passed"), ("u", 1, "skipped"), ("t", 1, "failed")]


def test_a_failure_that_became_a_skip_is_known_until_the_test_passes() -> None:
    skips = tally("t", "u")
    batch = Batch("b", "s", "a.py", ("t", "u"), 1.0)
    skips.take(1, "w0-0", "0", [attempt("t", "failed"), attempt("u", "skipped")])
    assert skips.skipped_after_failure(batch, 9) == []
    skips.take(2, "w0-0", "0", [attempt("t", "not_run")])
    assert (skips.skipped_after_failure(batch, 9), skips.to_retry(batch, 9)) == ([], ["t"])
    skips.take(2, "w0-0", "0", [attempt("t", "skipped")])
    assert (skips.skipped_after_failure(batch, 9), skips.to_retry(batch, 9)) == (["t"], [])
    skips.take(3, "w0-0", "0", [attempt("t", "passed")])
    skips.take(4, "w0-0", "0", [attempt("t", "skipped")])
    assert skips.skipped_after_failure(batch, 9) == []


def test_failures_since_the_last_healthy_probe_are_the_cards() -> None:
    doubtful = tally("a", "b", "c")
    well, ill = Event("probe", AT, healthy=True), Event("probe", AT, healthy=False, reason="no answer")
    doubtful.take(1, "w0-0", "0", [attempt("a", "failed"), well, attempt("b", "failed"), attempt("c", "passed"), ill])
    assert doubtful.rows()["infra"].to_pylist() == [None, "card 0 is unhealthy: no answer", None]
    assert doubtful.healthy() == ["1"]


def test_a_start_that_is_no_time_is_null() -> None:
    times = tally("a", "b")
    times.take(1, "w0-0", "0", [attempt("a", "passed", "2026-11-28T01:00:00+00:00"), attempt("b", "passed", "yesterday")])
    assert times.rows()["started_at"].to_pylist() == [AT.replace(hour=1), None]


def probe(driver: str | None) -> Event:
    return Event("probe", AT, healthy=True, driver=driver)


def test_the_driver_of_a_host_is_the_one_that_its_last_probe_told() -> None:
    def started(host: str) -> Event:
        return Event("worker_started", AT, card="0", host=host)

    known = tally("t")
    known.take(1, "w0-0", "0", [started("a"), probe("1.0"), probe(None), probe("1.1")])
    known.take(1, "w0-1", "1", [started("b"), probe("2.0")])
    known.take(1, "w0-2", "1", [probe("of no host")])
    assert known.drivers == {"a": "1.1", "b": "2.0"}
    with known.keeping_health():
        known.take(1, "w1-0", "0", [started("a"), probe("0.9")])
        known.take(1, "w1-1", "0", [started("c"), probe("0.9")])
    assert known.drivers == {"a": "1.1", "b": "2.0", "c": "0.9"}, "what was told before does not count where more is known"


def test_a_forged_driver_is_one_short_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_TOKEN", "tok-5f1e8a9b2c")
    learn_secrets()
    known = tally("t")
    forged = "\x1b[31m1.0\u202e\n" + "tok-5f1e8a9b2c " + "x" * 4000
    known.take(1, "w0-0", "0", [Event("worker_started", AT, card="0", host="a"), probe(forged)])
    [driver] = known.drivers.values()
    assert (len(driver), driver.isprintable()) == (100, True)
    assert "tok-5f1e8a9b2c" not in driver
