from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel_ci.model import Attempt, Build
from accel_ci.results.rollups import MESSAGE_CHARS, ROLLUP, Rollup, encode, judge_tests, test_key
from accel_ci.results.rows import ATTEMPTS
from accel_ci_tests.fixtures.stored_attempts import rows_of

BUILD = Build("r", "v")


def stored(path: Path, attempts: list[Attempt]) -> Rollup:
    rows = rows_of(BUILD, "s", attempts)
    path.write_bytes(encode(judge_tests(rows), "v1", "2026-11-27", "r", "v", "s"))
    return Rollup(path, lambda: rows["test"])


def judged(attempts: list[Attempt]) -> dict[str, dict[str, Any]]:
    """What is said of each test."""
    rows = rows_of(BUILD, "s", attempts)
    return {rows["test"][row["place"]].as_py(): row for row in judge_tests(rows).to_pylist()}


def test_durations_and_messages_of_several_attempts(attempt: Callable[..., Attempt]) -> None:
    attempts = [
        attempt("t", "failed", seconds=1.0, message="first at 1"),
        attempt("t", "timeout", round=2, seconds=60.0, message="second at 2"),
        attempt("t", "failed", round=3, seconds=9.0, message="of the card", infra="bad card"),
        attempt("t", "passed", round=4, seconds=2.0, message="a warning"),
        attempt("u", "failed", message="x" * 5000),
    ]
    rows = judged(attempts)
    assert (rows["t"]["attempts"], rows["t"]["failures"], rows["t"]["duration_s"]) == (4, 2, 1.5)
    assert (rows["t"]["message"], rows["t"]["signature"]) == ("second at 2", "second at <n>")
    assert len(rows["u"]["message"]) == MESSAGE_CHARS


def test_every_test_is_found_in_its_bucket(tmp_path: Path, attempt: Callable[..., Attempt]) -> None:
    names = [f"tests/test_{number % 7}.py::test[{number}]" for number in range(5000)]
    rollup = stored(tmp_path / "a.arrow", [attempt(name, "passed", seconds=float(n)) for n, name in enumerate(names)])
    for number in (0, 1, 17, 2500, 4999):
        row = rollup.find(test_key(names[number]))
        assert row is not None
        assert row["duration_s"] == number
    assert rollup.find(test_key("never seen")) is None
    table = rollup.table(["key", "place"])
    tests = rollup.tests(table["place"]).to_pylist()
    assert {test_key(test): test for test in names} == dict(zip(table["key"].to_pylist(), tests, strict=True))
    assert (rollup.origin.attempts, rollup.origin.counts["passed"], rollup.source) == (5000, 5000, "v1")


def test_hostile_names_have_their_keys(attempt: Callable[..., Attempt]) -> None:
    names = ["", "'; DROP TABLE x; --", "a\x00b", "a\x00c", "naïve [ü]", "\u202egnp", "\n", "x" * 10_000, "\U0001f4a9"]
    rows = judged([attempt(name, "passed") for name in names])
    assert {test: row["key"] for test, row in rows.items()} == {name: test_key(name) for name in names}


def test_a_rollup_of_nothing_finds_nothing(tmp_path: Path) -> None:
    table = judge_tests(ATTEMPTS.empty_table())
    assert table.schema == ROLLUP
    (tmp_path / "a.arrow").write_bytes(encode(table, "v1", "2026-11-27", "r", "v", "s"))
    rollup = Rollup(tmp_path / "a.arrow", lambda: table["key"])
    assert rollup.find(1) is None
    assert not any(Counter(rollup.origin.counts).values())
