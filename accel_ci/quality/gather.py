"""Read what the judgement of a build needs: its point, the grid of its line, its attempts, and what ran where.

Reading alone belongs here. Cost: a few columns of the rollups that are new, and the attempts of the build itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from packaging.utils import canonicalize_name

from accel_ci.model import VERDICTS, Build, Revision, RuntimeImage, TestSelection, Wheel
from accel_ci.pipelines import REVISION, RUNTIME_IMAGE, TEST_SELECTION, WHEEL
from accel_ci.quality.causes import CauseRules, own_rates
from accel_ci.quality.grid import AttemptRow, Grid, Night, Point, join_suites
from accel_ci.quality.places import Exposure
from accel_ci.results.columns import kernels, one_chunk
from accel_ci.results.rollups import CODES, test_key
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again
from accel_ci.results.timelines import read_timeline
from accel_ci.storage.manifests import ManifestStore

_WRONG = [CODES[verdict] for verdict in ("failed", "flaky")]
_LOST = [CODES[verdict] for verdict in ("infra", "not_run")]
_ATTEMPT = ["test", "round", "attempt", "outcome", "card", "host", "worker", "infra", "signature", "cached"]


def point_of(manifests: ManifestStore, build: Build) -> tuple[Point, Revision] | None:
    """Return the versions that a build's results depend on, and its revision; None where its manifest cannot be read."""
    revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
    if revision is None:
        return None
    image = manifests.read_history(manifests.path(RUNTIME_IMAGE, build.revision, build.variant), RuntimeImage)
    wheel = manifests.read_history(manifests.path(WHEEL, build.revision, build.variant), Wheel)
    backend = revision.backend.label if revision.backend.sha is not None else None
    upstream, environment = revision.upstream.sha, ""
    if image is not None:
        upstream = image.torch_sha or image.torch_version
        wheels = [wheel.name, *(each.name.partition("-")[0] for each in wheel.companions)] if wheel is not None else []
        own = {canonicalize_name(name) for name in ("torch", *wheels)}
        others = sorted(
            each for each in image.packages if canonicalize_name(re.split("[ =@]", each, maxsplit=1)[0]) not in own
        )
        environment = hashlib.sha256("\n".join([image.python_version, *others]).encode()).hexdigest()[:12]
    base = None
    if revision.trigger == "pr":  # known where only a part of the tests was chosen by the change
        path = manifests.path(TEST_SELECTION, build.revision, build.variant)
        selection = manifests.read_history(path, TestSelection)
        if selection is not None and selection.subset is not None and selection.subset.base is not None:
            base = replace(revision.backend, sha=selection.subset.base, dirty=False).label
    return Point(build, backend, upstream, environment, revision.trigger, base), revision


@ask_again
def read_grid(store: ResultsStore, points: Sequence[Point]) -> Grid:
    """Read the tests that went wrong in some builds, all of one variant, in the order of the builds."""
    columns = {point.build: column for column, point in enumerate(points)}
    by_suite: dict[str, list[StoredSuite]] = {}
    for one in store.suites(variant=points[0].build.variant) if points else []:
        if one.build in columns:
            by_suite.setdefault(one.suite, []).append(one)
    timelines = {
        suite: ([columns[one.build] for one in suites], read_timeline(store, points[0].build.variant, suite, suites))
        for suite, suites in sorted(by_suite.items())
    }
    return join_suites(points, timelines)


@dataclass(frozen=True)
class BuildRows:
    """A build to judge: its night, and the places of all its attempts by suite (columns `test`, `host`, `card`)."""

    night: Night
    places: Mapping[str, pa.Table]

    def exposure(self, grid: Grid, rules: CauseRules) -> Exposure:
        """Count the attempts on each card, and the failures there that the tests' own rates explain."""
        import numpy as np

        usual, rates = own_rates(grid, rules)
        found: dict[tuple[str | None, str | None], tuple[int, float]] = {}
        for suite, table in self.places.items():
            rows = [row for row, (of, _) in enumerate(grid.tests) if of == suite]
            known = pa.array([grid.tests[row][1] for row in rows], pa.string())
            of_row = kernels.fill_null(kernels.index_in(table["test"], known), len(rows)).to_numpy()
            expected = np.append(rates[rows], usual)[of_row]
            hosts, cards = (one_chunk(table[name]).dictionary_encode("encode") for name in ("host", "card"))
            codes = hosts.indices.to_numpy() * len(cards.dictionary) + cards.indices.to_numpy()
            attempts, sums = np.bincount(codes), np.bincount(codes, expected)
            for code in np.flatnonzero(attempts).tolist():
                host, card = divmod(code, len(cards.dictionary))
                key = hosts.dictionary[host].as_py(), cards.dictionary[card].as_py()
                count, before = found.get(key, (0, 0.0))
                found[key] = count + int(attempts[code]), before + float(sums[code])
        return found


def read_build(store: ResultsStore, point: Point) -> BuildRows:
    """Read the attempts of the tests of a build that did not simply pass, those that have none, and what ran where."""
    attempts: list[AttemptRow] = []
    lost: dict[tuple[str, str], str] = {}
    places: dict[str, pa.Table] = {}
    for one, rollup in store.open_rollups(store.suites(build=point.build)):
        rows = rollup.table(["verdict", "failures", "place"])
        wrong = kernels.or_(kernels.is_in(rows["verdict"], pa.array([*_WRONG, *_LOST], pa.int8())), _some(rows["failures"]))
        if not kernels.any(wrong).as_py():
            continue
        table = store.read(one, _ATTEMPT)
        table = table.filter(kernels.invert(kernels.fill_null(table["cached"], False))).drop_columns(["cached"])
        places[one.suite] = table.select(["test", "host", "card"]).filter(kernels.is_valid(table["card"]))
        tests = rollup.tests(rows.filter(wrong)["place"])
        for row in table.filter(kernels.is_in(table["test"], tests)).to_pylist():
            if row["outcome"] == "not_run":
                lost[one.suite, row["test"]] = row["infra"] or "no worker ran it"
            else:
                attempts.append(AttemptRow(suite=one.suite, **row))
    ran = {(row.suite, row.test) for row in attempts}
    gone = {identity: reason for identity, reason in lost.items() if identity not in ran}
    return BuildRows(Night(point, tuple(attempts), gone), places)


def verdicts_of(store: ResultsStore, build: Build) -> Callable[[str, str], str | None]:
    """Return a function that looks up the verdict of a test in a build; None for one that did not run."""
    rollups = {one.suite: rollup for one, rollup in store.open_rollups(store.suites(build=build))}

    def verdict(suite: str, test: str) -> str | None:
        row = rollups[suite].find(test_key(test)) if suite in rollups else None
        return VERDICTS[row["verdict"]] if row is not None else None

    return verdict


def _some(column: Any) -> Any:
    return kernels.greater(column, 0)
