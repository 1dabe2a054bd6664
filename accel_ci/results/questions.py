"""Questions about what is stored, each a function with typed answers.

Questions of many builds are answered from rollups, those of one build from its attempts. Values are always bound, never part
of a statement. Flakiness is `accel_ci.quality.flakiness`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta

import pyarrow as pa

from accel_ci.errors import AccelCiError
from accel_ci.model import BAD_VERDICTS, FAILING_OUTCOMES, VERDICTS, Attempt, Build, TestVerdict, Verdict
from accel_ci.results.columns import counted, kernels, pairs
from accel_ci.results.history import names
from accel_ci.results.rollups import CODES, Origin, Rollup, test_key
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again

_TEST_VERDICTS = """
WITH numbered AS (
    SELECT *, round::BIGINT << 32 | attempt AS place, list_contains($failing, outcome) OR infra IS NOT NULL AS bad
    FROM attempts WHERE test IN (SELECT unnest($tests))
)
SELECT test, list(outcome ORDER BY place), arg_max(duration_s, place) FILTER (duration_s IS NOT NULL),
       list(card ORDER BY place) FILTER (card IS NOT NULL),
       arg_max(message, place) FILTER (message IS NOT NULL AND (bad OR NOT any_bad))
FROM (SELECT *, bool_or(bad) OVER (PARTITION BY test) AS any_bad FROM numbered) GROUP BY test ORDER BY test
"""

_RAN = """
SELECT coalesce(host, '') AS host, card, suite, epoch(started_at) AS start, epoch(started_at) + duration_s AS stop
FROM attempts
WHERE card IN (SELECT unnest($cards)) AND started_at IS NOT NULL AND duration_s IS NOT NULL AND NOT coalesce(cached, false)
"""

_CARD_WORK = f"""
WITH ran AS ({_RAN}),
parts AS (
    SELECT *, unnest(range(floor((start - $first) / $width)::BIGINT,
                           least(floor((stop - $first) / $width)::BIGINT, $slices - 1) + 1)) AS slice FROM ran
)
SELECT host, card, suite, slice,
       sum(greatest(0, least(stop, $first + (slice + 1) * $width) - greatest(start, $first + slice * $width))) AS seconds
FROM parts GROUP BY ALL ORDER BY ALL
"""  # noqa: S608 (our own text)


@dataclass(frozen=True)
class CardSlice:
    """The seconds that a card worked for a suite in a slice of time, which count from 0."""

    host: str
    card: str
    suite: str
    slice: int
    seconds: float


@dataclass(frozen=True)
class CardWork:
    """The work of cards in equal slices of time: from `first` (seconds since 1970), each `width_s` seconds."""

    first: float
    width_s: float
    slices: tuple[CardSlice, ...]


@dataclass(frozen=True)
class TestInBuild:
    """A test in one build. `failures` of its `attempts` failed by themselves; the message is the last failure's.

    A `cached` result is that of an earlier build: the test did not run.
    """

    __test__ = False

    day: date
    build: Build
    suite: str
    verdict: Verdict
    attempts: int
    failures: int
    duration_s: float | None
    started_at: datetime | None
    message: str | None
    signature: str | None
    cached: bool


@dataclass(frozen=True)
class FailureCluster:
    """Failed attempts of a build with one signature.

    `infra` counts those of the attempts that the infrastructure lost; `some_tests` are the first 20 by name.
    """

    suite: str
    signature: str
    tests: int
    attempts: int
    infra: int
    cards: tuple[str, ...]
    hosts: tuple[str, ...]
    message: str | None
    some_tests: tuple[str, ...]


@dataclass(frozen=True)
class SlowTest:
    """A test's seconds in a build: all its attempts, and the longest."""

    suite: str
    test: str
    total_s: float
    longest_s: float
    attempts: int


@dataclass(frozen=True)
class Change:
    """A test whose verdict differs between two builds; None for the build in which it did not run."""

    suite: str
    test: str
    before: Verdict | None
    after: Verdict | None
    message: str | None


@dataclass(frozen=True)
class DayCounts:
    """The verdicts of all tests of a day's builds of a variant, by suite."""

    day: date
    variant: str
    suite: str
    builds: int
    attempts: int
    counts: dict[Verdict, int]


@ask_again
def history(
    store: ResultsStore, test: str, today: date, days: int = 90, variant: str | None = None, suite: str | None = None
) -> list[TestInBuild]:
    """List every build of the last days in which a test (its canonical id) was, the newest last."""
    suites = store.suites(today - timedelta(days=days), today, variant=variant, suite=suite)
    found = []
    for stored, rollup in zip(suites, store.rollups(suites), strict=True):
        if (row := rollup.find(test_key(test))) is not None:
            row["verdict"] = VERDICTS[row["verdict"]]
            found.append(TestInBuild(stored.day, stored.build, stored.suite, **row))
    return found


@ask_again
def failures(store: ResultsStore, build: Build, suite: str | None = None) -> list[FailureCluster]:
    """The failed attempts of a build by signature, those of most tests first."""
    rows = store.query(
        """
        SELECT suite, coalesce(signature, '') AS signature, count(DISTINCT test) AS tests, count(*), count(infra),
               list_sort(list(DISTINCT card) FILTER (card IS NOT NULL)),
               list_sort(list(DISTINCT host) FILTER (host IS NOT NULL)),
               arg_min(message, test), list_sort(list(DISTINCT test))[1:$some]
        FROM attempts WHERE outcome IN (SELECT unnest($failing)) OR infra IS NOT NULL
        GROUP BY suite, coalesce(signature, '') ORDER BY tests DESC, suite, signature
        """,
        {"failing": sorted(FAILING_OUTCOMES), "some": 20},
        stored_suites(store, build, suite),
    )
    return [
        FailureCluster(where, what, tests, attempts, infra, tuple(cards or ()), tuple(hosts or ()), message, tuple(some))
        for where, what, tests, attempts, infra, cards, hosts, message, some in rows
    ]


@ask_again
def failed_attempts(store: ResultsStore, build: Build, suites: Collection[str]) -> list[Attempt]:
    """The attempts of some suites of a build that failed or were lost to the infrastructure, in the order of their start."""
    columns = [field.name for field in fields(Attempt) if field.name not in ("output_tail", "cached")]
    rows = store.query(
        f"""
        SELECT {", ".join(columns)} FROM attempts
        WHERE outcome IN (SELECT unnest($failing)) OR infra IS NOT NULL ORDER BY started_at, suite, test, round, attempt
        """,  # noqa: S608 (names of our own columns)
        {"failing": sorted(FAILING_OUTCOMES)},
        [stored for stored in store.suites(build=build) if stored.suite in suites],
    )
    return [Attempt(output_tail=None, **dict(zip(columns, row, strict=True))) for row in rows]


@ask_again
def bad_tests(store: ResultsStore, build: Build, suites: Collection[str], slowest: int = 0) -> list[TestVerdict]:
    """The tests of some suites of a build that failed, were flaky or did not run, and the `slowest` of each suite.

    Raises `AccelCiError` when nothing is stored of one of the suites.
    """
    found: list[TestVerdict] = []
    for stored in (stored for suite in suites for stored in stored_suites(store, build, suite)):
        [rollup] = store.rollups([stored])
        table = rollup.table(["verdict", "duration_s", "place"])
        wanted = kernels.is_in(table["verdict"], pa.array([CODES[verdict] for verdict in BAD_VERDICTS], pa.int8()))
        if slowest and len(table):
            longest = kernels.select_k_unstable(table, k=slowest, sort_keys=[("duration_s", "descending")])
            wanted = kernels.or_(wanted, kernels.is_in(counted(len(table)), longest.cast(pa.int32())))
        found += verdicts_of(store, stored, rollup, table.filter(wanted))
    return found


@ask_again
def bad_tests_in_brief(store: ResultsStore, build: Build, suites: Collection[str]) -> list[TestVerdict]:
    """The tests that `bad_tests` lists, from the rollups alone: without attempts and cards.

    A message is cut short, and there only for failures that the infrastructure did not cause. It takes a tenth of the time.
    Raises `AccelCiError` when nothing is stored of one of the suites.
    """
    found: list[TestVerdict] = []
    kept = [stored for stored in store.suites(build=build) if stored.suite in suites]
    for missing in set(suites) - {stored.suite for stored in kept}:
        stored_suites(store, build, missing)
    for stored, rollup in zip(kept, store.rollups(kept), strict=True):
        table = rollup.table(["verdict", "duration_s", "message", "place"])
        table = table.filter(kernels.is_in(table["verdict"], pa.array([CODES[name] for name in BAD_VERDICTS], pa.int8())))
        found += [
            TestVerdict(stored.suite, row["test"], VERDICTS[row["verdict"]], (), row["duration_s"], (), row["message"])
            for row in table.append_column("test", rollup.tests(table["place"])).to_pylist()
        ]
    return found


@ask_again
def card_work(
    store: ResultsStore, build: Build, suites: Collection[str], cards: Collection[str], least_s: float, slices: int
) -> CardWork | None:
    """Return the work of some cards in a build over time; None where no attempt tells when it ran.

    The time ends with the last attempt, and is at least `least_s` seconds long.
    """
    kept = [stored for stored in store.suites(build=build) if stored.suite in suites]
    asked = {"cards": sorted(cards)}
    if not cards or not kept:
        return None
    [(begin, end)] = store.query(f"SELECT min(start), max(stop) FROM ({_RAN})", asked, kept)  # noqa: S608 (our own text)
    if begin is None:
        return None
    first = min(begin, end - least_s)
    width = max(end - first, 1e-3) / slices
    rows = store.query(_CARD_WORK, {**asked, "first": first, "width": width, "slices": slices}, kept)
    return CardWork(first, width, tuple(CardSlice(*row) for row in rows))


@ask_again
def find_tests(store: ResultsStore, build: Build, text: str) -> list[TestVerdict]:
    """The tests of a build whose id is `text` or ends with `::` and it; failing that, up to 10 whose id contains it."""
    exact: list[TestVerdict] = []
    near: list[TestVerdict] = []
    for stored in stored_suites(store, build):
        [rollup] = store.rollups([stored])
        table = rollup.table(["verdict", "place"])
        tests = rollup.tests(table["place"])
        named = kernels.or_(kernels.equal(tests, text), kernels.ends_with(tests, f"::{text}"))
        exact += verdicts_of(store, stored, rollup, table.filter(named))
        if not exact:
            near += verdicts_of(store, stored, rollup, table.filter(kernels.match_substring(tests, text))[:10])
    return exact or near[:10]


def verdicts_of(store: ResultsStore, stored: StoredSuite, rollup: Rollup, rows: pa.Table) -> list[TestVerdict]:
    """Some tests of a stored suite, by name; `rows` has their columns `verdict` and `place` of the rollup."""
    codes: dict[str, int] = dict(pairs(rows.append_column("test", rollup.tests(rows["place"])), "test", "verdict"))
    asked = {"tests": list(codes), "failing": sorted(FAILING_OUTCOMES)}
    return [
        TestVerdict(
            stored.suite, test, VERDICTS[codes[test]], tuple(outcomes), seconds, tuple(dict.fromkeys(cards or ())), message
        )
        for test, outcomes, seconds, cards, message in store.query(_TEST_VERDICTS, asked, [stored])
    ]  # fmt: skip


@ask_again
def slowest(store: ResultsStore, build: Build, suite: str | None = None, limit: int = 20) -> list[SlowTest]:
    """The tests of a build that took longest over all their attempts."""
    rows = store.query(
        """
        SELECT suite, test, sum(duration_s) AS total, max(duration_s), count(*) FROM attempts WHERE duration_s IS NOT NULL
        GROUP BY suite, test ORDER BY total DESC, suite, test LIMIT $limit
        """,
        {"limit": limit},
        stored_suites(store, build, suite),
    )
    return [SlowTest(*row) for row in rows]


@ask_again
def newly_failing(store: ResultsStore, before: Build, after: Build) -> list[Change]:
    """Tests that failed for good in `after` and not in `before`, new tests included, by suite and name."""
    return [change for change in _changes(store, before, after, after) if change.before != "failed"]


@ask_again
def newly_passing(store: ResultsStore, before: Build, after: Build) -> list[Change]:
    """Tests that failed for good in `before` and passed in `after`, by suite and name."""
    return [change for change in _changes(store, before, after, before) if change.after == "passed"]


@ask_again
def counts_per_day(store: ResultsStore, today: date, days: int = 30, variant: str | None = None) -> list[DayCounts]:
    """Count the verdicts of each of the last days, from the headers of the rollups."""
    suites = store.suites(today - timedelta(days=days), today, variant=variant)
    groups: defaultdict[tuple[date, str, str], list[Origin]] = defaultdict(list)
    for stored, rollup in zip(suites, store.rollups(suites), strict=True):
        groups[stored.day, stored.build.variant, stored.suite].append(rollup.origin)
    found = []
    for group, builds in sorted(groups.items()):
        counts: dict[Verdict, int] = {verdict: sum(build.counts[verdict] for build in builds) for verdict in VERDICTS}
        found.append(DayCounts(*group, len(builds), sum(build.attempts for build in builds), counts))
    return found


def _changes(store: ResultsStore, before: Build, after: Build, failed_in: Build) -> list[Change]:
    """The tests that failed for good in one of two builds, with their verdicts in both."""
    found: list[Change] = []
    sides = {build: {stored.suite: stored for stored in stored_suites(store, build)} for build in (before, after)}
    for suite, stored in sides[failed_in].items():
        [rollup] = store.rollups([stored])
        table = rollup.table(["key", "verdict", "message"])
        failed = table.filter(kernels.equal(table["verdict"], CODES["failed"]))
        keys = failed["key"].combine_chunks()
        tests = dict(pairs(names([rollup], keys), "key", "test"))
        codes: dict[int, int] = {}
        if other := sides[before if failed_in is after else after].get(suite):
            [rollup] = store.rollups([other])
            table = rollup.table(["key", "verdict"])
            codes = dict(pairs(table.filter(kernels.is_in(table["key"], keys)), "key", "verdict"))
        for row in failed.to_pylist():
            there = VERDICTS[codes[row["key"]]] if row["key"] in codes else None
            pair: tuple[Verdict | None, Verdict | None] = (there, "failed") if failed_in is after else ("failed", there)
            found.append(Change(suite, tests[row["key"]], *pair, row["message"]))
    return sorted(found, key=lambda change: (change.suite, change.test))


def stored_suites(store: ResultsStore, build: Build, suite: str | None = None) -> Sequence[StoredSuite]:
    """The stored suites of a build, or one of them. Raises `AccelCiError` if there are none."""
    found = store.suites(build=build, suite=suite)
    if not found:
        what = build.name if suite is None else f"{build.name}, suite {suite}"
        raise AccelCiError(f"no results are stored for {what}; run it, or ingest its reports")
    return found
