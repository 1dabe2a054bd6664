"""Read what the judgement of a build needs: its point, the grid of its line, its attempts, and what ran where.

Reading alone belongs here. Cost: a few columns of the rollups that are new, and the attempts of the build itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import pyarrow as pa
from packaging.utils import canonicalize_name

from accel_ci.model import FAILING_OUTCOMES, VERDICTS, Build, Revision, RuntimeImage, TestSelection, Wheel
from accel_ci.pipelines import DEVICE_TEST_RESULTS, REVISION, RUNTIME_IMAGE, SMOKE_RESULTS, TEST_SELECTION, WHEEL
from accel_ci.quality.causes import CauseRules, own_rates
from accel_ci.quality.grid import AttemptRow, Grid, Night, Numbers, Point, join_suites
from accel_ci.quality.places import Exposure
from accel_ci.results.columns import kernels, one_chunk, pairs
from accel_ci.results.rollups import CODES, Rollup, test_key
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again
from accel_ci.results.timelines import read_timeline
from accel_ci.storage.manifests import ManifestStore

Reruns: TypeAlias = Mapping[Build, Sequence[Build]]
"""The builds that ran failures of a build again, the oldest first."""

_WRONG = [CODES[verdict] for verdict in ("failed", "flaky")]
_LOST = [CODES[verdict] for verdict in ("infra", "not_run")]
_ATTEMPT = ["round", "attempt", "outcome", "card", "host", "worker", "infra", "signature", "cached"]
_CODED = ["outcome", "card", "host", "worker", "infra", "signature"]


def point_of(manifests: ManifestStore, build: Build) -> tuple[Point, Revision] | None:
    """Return the versions that a build's results depend on, and its revision; None where its manifest cannot be read."""
    revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
    if revision is None:
        return None
    image = manifests.read_history(manifests.path(RUNTIME_IMAGE, build.revision, build.variant), RuntimeImage)
    wheel = manifests.read_history(manifests.path(WHEEL, build.revision, build.variant), Wheel)
    backend = revision.backend.label if revision.backend.sha is not None else None
    upstream, environment = revision.upstream.sha, list[str]()
    if image is not None:
        upstream = image.torch_sha or image.torch_version
        wheels = [wheel.name, *(each.name.partition("-")[0] for each in wheel.companions)] if wheel is not None else []
        own = {canonicalize_name(name) for name in ("torch", *wheels)}
        others = sorted(
            each for each in image.packages if canonicalize_name(re.split("[ =@]", each, maxsplit=1)[0]) not in own
        )
        environment = [image.python_version, *others]
    drivers = _drivers_of(manifests, build)
    if len(set(drivers.values())) > 1:  # hosts get a new driver one after the other
        environment += [f"driver of {host}: {drivers[host]}" for host in sorted(drivers)]
    else:
        environment += [f"driver: {driver}" for driver in set(drivers.values())]
    base = None
    if revision.trigger == "pr":  # known where only a part of the tests was chosen by the change
        path = manifests.path(TEST_SELECTION, build.revision, build.variant)
        selection = manifests.read_history(path, TestSelection)
        if selection is not None and selection.subset is not None and selection.subset.base is not None:
            base = replace(revision.backend, sha=selection.subset.base, dirty=False).label
    digest = hashlib.sha256("\n".join(environment).encode()).hexdigest()[:12] if environment else ""
    return Point(build, backend, upstream, digest, revision.trigger, base, drivers), revision


@dataclass(frozen=True)
class _Reported:
    """The part of the results of a stage that is needed here: the others may have thousands of cards."""

    drivers: dict[str, str] = field(default_factory=dict)


def _drivers_of(manifests: ManifestStore, build: Build) -> dict[str, str]:
    """The driver's version of each host that ran tests of a build, where the health probe printed one."""
    drivers: dict[str, str] = {}
    for stage in (SMOKE_RESULTS, DEVICE_TEST_RESULTS):
        found = manifests.read_history(manifests.path(stage, build.revision, build.variant), _Reported)
        drivers |= found.drivers if found is not None else {}
    return drivers


@ask_again
def read_grid(store: ResultsStore, points: Sequence[Point], reruns: Reruns | None = None) -> Grid:
    """Read the tests that went wrong in some builds, all of one variant, in the order of the builds.

    `reruns` are the builds that ran failures of some of them again: their attempts count with those of the failures.
    """
    columns = {point.build: column for column, point in enumerate(points)}
    by_suite: dict[str, list[StoredSuite]] = {}
    for one in store.suites(variant=points[0].build.variant) if points else []:
        if one.build in columns:
            by_suite.setdefault(one.suite, []).append(one)
    timelines = {
        suite: ([columns[one.build] for one in suites], read_timeline(store, points[0].build.variant, suite, suites))
        for suite, suites in sorted(by_suite.items())
    }
    grid = join_suites(points, timelines)
    for column, point in enumerate(points):
        for build in (reruns or {}).get(point.build, ()):
            _add_reruns(store, build, grid, column)
    return grid


def _add_reruns(store: ResultsStore, build: Build, grid: Grid, column: int) -> None:
    """Add the attempts of a build's tests to a column of the grid, where they failed."""
    for one, rollup in store.open_rollups(store.suites(build=build)):
        rows = rollup.table(["failures", "passes", "place"])
        found = pa.table({"test": rollup.tests(rows["place"]), "failures": rows["failures"], "passes": rows["passes"]})
        for test, failures, passes in pairs(found, "test", "failures", "passes"):
            row = grid.row(one.suite, test)
            if row is not None and grid.fails[row, column]:
                grid.fails[row, column] += failures
                grid.passes[row, column] += passes


@dataclass(frozen=True)
class SuitePlaces:
    """The cards that ran a suite's tests: the host and card of each stored attempt, None where it has no card.

    The attempts of the test with the key `keys[n]` are the `attempts[n]` rows from `first[n]` on; keys are sorted.
    """

    hosts: pa.DictionaryArray[Any, Any]
    cards: pa.DictionaryArray[Any, Any]
    keys: Numbers
    first: Numbers
    attempts: Numbers


@dataclass(frozen=True)
class BuildRows:
    """A build to judge: its night, and where its suites ran."""

    night: Night
    places: Mapping[str, SuitePlaces]

    def exposure(self, grid: Grid, rules: CauseRules) -> Exposure:
        """Count the attempts on each card, and the failures there that the tests' own rates explain."""
        import numpy as np

        usual, rates = own_rates(grid, rules)
        suites = np.array([suite for suite, _ in grid.tests])
        found: dict[tuple[str | None, str | None], tuple[int, float]] = {}
        for suite, places in self.places.items():
            rows = np.flatnonzero(suites == suite)
            rows = rows[np.argsort(grid.keys[rows])]  # keys in order are found several times as fast
            expected = np.full(len(places.cards), usual)
            at = np.searchsorted(places.keys, grid.keys[rows]).clip(max=max(0, len(places.keys) - 1))
            is_there = places.keys[at] == grid.keys[rows] if len(places.keys) else np.zeros(len(rows), bool)
            at, rows = at[is_there], rows[is_there]
            expected[ranges(places.first[at], places.attempts[at])] = np.repeat(rates[rows], places.attempts[at])
            hosts, cards = ([*each.dictionary.to_pylist(), None] for each in (places.hosts, places.cards))
            of_host, of_card = (
                kernels.fill_null(each.indices, len(each.dictionary)).to_numpy() for each in (places.hosts, places.cards)
            )
            ran = of_card < len(cards) - 1
            codes = of_host[ran] * len(cards) + of_card[ran]
            attempts, sums = np.bincount(codes), np.bincount(codes, expected[ran])
            for code in np.flatnonzero(attempts).tolist():
                host, card = divmod(code, len(cards))
                key = hosts[host], cards[card]
                count, before = found.get(key, (0, 0.0))
                found[key] = count + int(attempts[code]), before + float(sums[code])
        for row in self.night.attempts:
            if row.rerun_in is not None and row.card is not None:
                number, (count, before) = grid.row(row.suite, row.test), found.get((row.host, row.card), (0, 0.0))
                found[row.host, row.card] = count + 1, before + float(usual if number is None else rates[number])
        return found


def ranges(first: Numbers, lengths: Numbers) -> Numbers:
    """Return the numbers from each of `first` on, as many as its length, one range after the other."""
    import numpy as np

    ends = np.cumsum(lengths)
    found: Numbers = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - lengths), lengths)
    return found


@dataclass(frozen=True)
class SuiteTables:
    """The results of a suite: a row for each test, the `wrong` ones of these rows, and the attempts."""

    suite: str
    rollup: Rollup
    tests: pa.Table
    wrong: Numbers
    attempts: pa.Table


def read_tables(store: ResultsStore, build: Build) -> list[SuiteTables]:
    """Read the results of the suites of a build in which a test went wrong."""
    found = []
    for one, rollup in store.open_rollups(store.suites(build=build)):
        tests = rollup.table(["key", "verdict", "failures", "place", "attempts"])
        if len(wrong := _wrong(tests)):
            found.append(SuiteTables(one.suite, rollup, tests, wrong, store.read(one, _ATTEMPT, coded=_CODED)))
    return found


def _wrong(tests: pa.Table) -> Numbers:
    """The rows of the tests that did not simply pass, or have no attempt."""
    import numpy as np

    verdicts, failures = (one_chunk(tests[name]).to_numpy() for name in ("verdict", "failures"))
    found: Numbers = np.flatnonzero(np.isin(verdicts, [*_WRONG, *_LOST]) | (failures > 0))
    return found


def read_build(
    store: ResultsStore, point: Point, grid: Grid, reruns: Sequence[Build], tables: Sequence[SuiteTables]
) -> BuildRows:
    """Take the attempts of the tests that did not simply pass, those that have none, and what ran where out of `tables`.

    The grid of the build's variant has the names of most. The attempts of the builds `reruns` count as further ones of its
    failures.
    """
    attempts: list[AttemptRow] = []
    lost: dict[tuple[str, str], str] = {}
    places: dict[str, SuitePlaces] = {}
    for one in tables:
        places[one.suite] = _places_of(one.attempts, one.tests)
        bad = one.tests.take(cast(Any, one.wrong))
        first, lengths = (one_chunk(bad[name]).to_numpy() for name in ("place", "attempts"))
        ids = [
            name
            for name, count in zip(_names(one.rollup, bad, grid, one.suite), lengths.tolist(), strict=True)
            for _ in range(count)
        ]
        for test, row in zip(ids, one.attempts.take(cast(Any, ranges(first, lengths))).to_pylist(), strict=True):
            if row.pop("cached"):
                continue
            if row["outcome"] == "not_run":
                lost[one.suite, test] = row["infra"] or "no worker ran it"
            else:
                attempts.append(AttemptRow(suite=one.suite, test=test, **row))
    failed = {(row.suite, row.test) for row in attempts if row.outcome in FAILING_OUTCOMES and row.infra is None}
    attempts += [row for build in reruns for row in _reruns_of(store, build, failed)]
    ran = {(row.suite, row.test) for row in attempts}
    gone = {identity: reason for identity, reason in lost.items() if identity not in ran}
    return BuildRows(Night(point, tuple(attempts), gone), places)


def _places_of(attempts: pa.Table, tests: pa.Table) -> SuitePlaces:
    cached = kernels.fill_null(attempts["cached"], False)
    hosts, cards = (cast("pa.DictionaryArray[Any, Any]", one_chunk(attempts[name])) for name in ("host", "card"))
    if kernels.any(cached).as_py():
        is_own = one_chunk(kernels.invert(cached))
        cards = pa.DictionaryArray.from_arrays(kernels.if_else(is_own, cards.indices, None), cards.dictionary)
    return SuitePlaces(hosts, cards, *(one_chunk(tests[name]).to_numpy() for name in ("key", "place", "attempts")))


def _names(rollup: Rollup, tests: pa.Table, grid: Grid, suite: str) -> list[str]:
    """The ids of a rollup's tests: read out of the attempts only where the grid does not have them all."""
    import numpy as np

    rows = np.flatnonzero(np.isin(grid.keys, one_chunk(tests["key"]).to_numpy())).tolist()
    known = {int(grid.keys[row]): grid.tests[row][1] for row in rows if grid.tests[row][0] == suite}
    found = [known.get(key) for key in one_chunk(tests["key"]).to_numpy().tolist()]
    complete = [name for name in found if name is not None]
    return complete if len(complete) == len(found) else list(map(str, rollup.tests(tests["place"]).to_pylist()))


def _reruns_of(store: ResultsStore, build: Build, failed: Collection[tuple[str, str]]) -> Iterator[AttemptRow]:
    """Yield the attempts of a build's failures in one that ran them again."""
    for one in store.suites(build=build):
        for row in store.read(one, ["test", *_ATTEMPT]).drop_columns(["cached"]).to_pylist():
            if (one.suite, row["test"]) in failed and row["outcome"] != "not_run":
                yield AttemptRow(suite=one.suite, **row, rerun_in=build.name)


def verdicts_of(store: ResultsStore, build: Build, reruns: Sequence[Build] = ()) -> Callable[[str, str], str | None]:
    """Return a function that looks up the verdict of a test in a build; None for one that did not run.

    A failure that passed in one of the builds `reruns` is `flaky`.
    """
    rollups, *again = (
        {one.suite: rollup for one, rollup in store.open_rollups(store.suites(build=each))} for each in (build, *reruns)
    )

    def verdict(suite: str, test: str) -> str | None:
        row = rollups[suite].find(test_key(test)) if suite in rollups else None
        found = VERDICTS[row["verdict"]] if row is not None else None
        if found == "failed":
            rows = (each[suite].find(test_key(test)) for each in again if suite in each)
            if any(row is not None and VERDICTS[row["verdict"]] in ("passed", "flaky") for row in rows):
                return "flaky"
        return found

    return verdict


@dataclass(frozen=True)
class Reader:
    """Reads what judgements need out of a store."""

    store: ResultsStore
    _ahead: dict[Build, Future[list[SuiteTables]]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")

    def read_ahead(self, build: Build) -> None:
        """Begin to read a build that may be judged next, while another one is judged."""
        self._ahead.clear()
        self._ahead[build] = self._thread.submit(read_tables, self.store, build)

    def rows(self, point: Point, grid: Grid, reruns: Sequence[Build] = ()) -> BuildRows:
        """Read a build to judge, with the builds that ran its failures again: see `read_build`."""
        begun = self._ahead.pop(point.build, None)
        tables = begun.result() if begun is not None else read_tables(self.store, point.build)
        return read_build(self.store, point, grid, reruns, tables)

    def grid(self, points: Sequence[Point], reruns: Reruns) -> Grid:
        """Read the tests that went wrong in some builds of one variant: see `read_grid`."""
        return read_grid(self.store, points, reruns)

    def verdicts(self, build: Build, reruns: Sequence[Build] = ()) -> Callable[[str, str], str | None]:
        """Return a function that looks up the verdict of a test in a build: see `verdicts_of`."""
        return verdicts_of(self.store, build, reruns)
