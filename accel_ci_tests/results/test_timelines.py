"""Timelines are the same whether they are made anew or brought up to date, and whatever happens to the store meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from accel_ci.model import FAILING_OUTCOMES, Attempt, Build
from accel_ci.results.store import ResultsStore
from accel_ci.results.timelines import read_timeline
from accel_ci_tests.fixtures.stored_attempts import write_attempts

FIRST = date(2026, 11, 1)
VARIANT, SUITE = "py3", "unit"

Cells = dict[str, list[tuple[int, int, str | None]]]
"""Of each test that failed: failed and passed attempts and the last failure's signature, build by build."""


def expected(nights: Sequence[Sequence[Attempt]]) -> Cells:
    own = [[row for row in rows if not row.cached and row.infra is None] for rows in nights]
    tests = sorted({row.test for rows in own for row in rows if row.outcome in FAILING_OUTCOMES})
    found: Cells = {test: [] for test in tests}
    for rows, test in ((rows, test) for rows in own for test in tests):
        bad = [row for row in rows if row.test == test and row.outcome in FAILING_OUTCOMES]
        good = [row for row in rows if row.test == test and row.outcome in ("passed", "xpassed")]
        found[test].append((len(bad), len(good), bad[-1].message if bad else None))
    return found


def read(store: ResultsStore, days: int, last: int) -> Cells:
    since = FIRST + timedelta(days=last - days + 1)
    suites = store.suites(since, FIRST + timedelta(days=last), variant=VARIANT, suite=SUITE)
    timeline = read_timeline(store, VARIANT, SUITE, suites)
    found: Cells = {}
    for row, test in enumerate(timeline.tests):
        codes = timeline.signatures[row].tolist()
        signatures = [timeline.signature_names[code] if code >= 0 else None for code in codes]
        found[test] = list(zip(timeline.failures[row].tolist(), timeline.passes[row].tolist(), signatures, strict=True))
    return found


def random_night(chance: random.Random, night: int, attempt: Callable[..., Attempt]) -> list[Attempt]:
    rows = []
    for number in range(night // 2, night // 2 + 20):  # tests come and go
        cached = chance.random() < 0.1
        for place in range(chance.choice((1, 1, 1, 2, 3))):
            outcome = chance.choice(("passed",) * 12 + ("failed", "crashed", "skipped", "xpassed"))
            message = chance.choice(("it broke", "it leaked", "it hung")) if outcome in FAILING_OUTCOMES else None
            infra = "the card is lost" if chance.random() < 0.05 else None
            row = attempt(f"test_{number}", outcome, round=place + 1, message=message, infra=infra)
            rows.append(replace(row, cached=cached))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_a_timeline_that_is_kept_is_the_one_that_is_made_anew(
    tmp_path: Path, attempt: Callable[..., Attempt], seed: int
) -> None:
    chance, store = random.Random(seed), ResultsStore(tmp_path)
    nights: list[list[Attempt]] = []
    for night in range(12):
        nights.append(random_night(chance, night, attempt))
        write_attempts(store, Build(f"night-{night:02}", VARIANT), FIRST + timedelta(days=night), nights[night])
        if chance.random() < 0.3:  # an earlier night is stored again
            other = chance.randrange(night + 1)
            nights[other] = random_night(chance, other, attempt)
            write_attempts(store, Build(f"night-{other:02}", VARIANT), FIRST + timedelta(days=other), nights[other])
        if chance.random() < 0.7:
            assert read(store, 5, night) == expected(nights[max(0, night - 4) :])
        if chance.random() < 0.3 and night > 3:  # a question about the past
            assert read(store, 3, night - 2) == expected(nights[max(0, night - 4) : night - 1])
    assert read(store, 5, 11) == expected(nights[7:])


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("hurt", [damage, Path.unlink])
@pytest.mark.parametrize("kind", ["passes", "failures"])
def test_a_kept_timeline_that_is_damaged_is_made_anew(
    tmp_path: Path, attempt: Callable[..., Attempt], hurt: Callable[[Path], None], kind: str
) -> None:
    chance, store = random.Random(1), ResultsStore(tmp_path)
    nights = [random_night(chance, night, attempt) for night in range(2)]
    for night, rows in enumerate(nights):
        write_attempts(store, Build(f"night-{night:02}", VARIANT), FIRST + timedelta(days=night), rows)
    before = read(store, 5, 1)
    hurt(tmp_path / "timelines" / f"{VARIANT}~{SUITE}~{kind}.arrow")
    assert read(store, 5, 1) == before == expected(nights)


def test_builds_whose_results_are_damaged_are_left_out(
    tmp_path: Path, attempt: Callable[..., Attempt], caplog: pytest.LogCaptureFixture
) -> None:
    store = ResultsStore(tmp_path)
    told: Mapping[int, str] = {0: "passed", 1: "failed", 2: "failed"}
    for night, outcome in told.items():
        write_attempts(store, Build(f"night-{night:02}", VARIANT), FIRST + timedelta(days=night), [attempt("t", outcome)])
    [attempts] = tmp_path.glob("day=2026-11-02/*.parquet")
    attempts.write_bytes(b"no parquet")
    for _ in ("anew", "kept"):
        found = read(store, 5, 2)
        assert [(fails, passes) for fails, passes, _ in found["t"]] == [(0, 1), (0, 0), (1, 0)]
        assert "passed over" in caplog.text
