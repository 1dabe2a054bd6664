"""Read what the ramp needs of a project's builds: their tables of scope, their verdicts and the evidence of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from accel_ci.config.settings import Settings
from accel_ci.errors import AccelCiError, ConfigError, SelectionError
from accel_ci.model import VERDICTS, Build, Ledger, Revision, SelectedTest, TestSelection, Trigger
from accel_ci.pipelines import LEDGER, REVISION, TEST_SELECTION
from accel_ci.ramp.chances import RampTest, estimate_tests
from accel_ci.ramp.coverage import Coverage, CoverageReport, TrendPoint, add_to_trend, lost_share, measure_coverage
from accel_ci.ramp.evidence import gather_evidence, with_evidence
from accel_ci.ramp.sweep import choose_sweep
from accel_ci.results.columns import constant, counts_of, kernels, pairs
from accel_ci.scope.selection import write_selection
from accel_ci.scope.table import read_scope
from accel_ci.workspace import Workspace

COVERAGE = "coverage"
"""The manifest of the asset."""

COUNTED: tuple[Trigger, ...] = ("nightly", "manual")
"""The triggers whose builds test all that is enabled."""

SWEEPS: tuple[Trigger, ...] = ("sweep",)
"""The triggers whose builds have the same table of scope, and run the other tests."""

NOT_SWEPT = "is not in this sweep"
"""The reason of tests in scope that a sweep does not run."""

_LOOKED_AT = 60  # of the newest builds


@dataclass(frozen=True)
class ScopedBuild:
    """A finished build that has a table of scope."""

    revision: Revision
    build: Build
    scope: pa.Table


def ramped_suites(settings: Settings) -> tuple[str, ...]:
    """Return the suites whose enabled tests are listed in a file; all that are not smoke where none is."""
    listed = tuple(name for name, suite in settings.suites.items() if suite.scope.enabled_file)
    return listed or tuple(name for name, suite in settings.suites.items() if suite.stage == "device")


class RampState:
    """The ramp of a variant, by default the first one: its newest build with a table of scope, and what is known since."""

    def __init__(self, workspace: Workspace, variant: str | None = None, suites: Sequence[str] = ()) -> None:
        """Raises `AccelCiError` for an unknown variant or suite, or where no such build has finished."""
        settings = workspace.project.settings
        self.workspace = workspace
        self.variant = settings.variant(variant).name if variant else settings.variants[0].name
        self.suites = tuple(suites) or ramped_suites(settings)
        for suite in self.suites:
            if suite not in settings.suites:
                raise ConfigError(f"there is no suite {suite!r}; known: {', '.join(settings.suites)}")
        found = next(chain.from_iterable(scoped_builds(workspace, self.variant, some) for some in (COUNTED, SWEEPS)), None)
        if found is None:
            raise AccelCiError(
                f"no build of {self.variant} with a table of scope has finished yet: use `accel-ci run nightly` or `sweep`"
            )
        self.newest = found

    @cached_property
    def scope(self) -> pa.Table:
        """The rows of the suites that count."""
        rows: pa.Table = self.newest.scope
        return rows.filter(kernels.is_in(rows["suite"], pa.array(self.suites, pa.string())))

    @cached_property
    def coverage(self) -> Coverage:
        """The counts of the newest build."""
        return measure_coverage(self.newest.build, self.scope, verdicts_of_build(self.workspace, self.newest), self.suites)

    def tests(self, today: date) -> list[RampTest]:
        """Return the tests in scope with what is known of them today."""
        return known_tests(self.workspace, self.variant, self.scope, today)


def known_tests(
    workspace: Workspace, variant: str, scope: pa.Table, today: date, until: datetime | None = None
) -> list[RampTest]:
    """Return the tests in scope of a table with what is known of them in a variant on a day.

    Revisions that were not there before `until` do not count.
    """
    settings = workspace.project.settings
    later = {each.key for each in workspace.manifests.revisions() if each.seen_at >= until} if until is not None else set()
    window, limit_s = settings.ramp.window_days, settings.limits.test_timeout_seconds
    evidence = gather_evidence(
        workspace.trusted_results, variant, set(counts_of(scope["suite"])), today, window, limit_s, later
    )
    cards = {name: suite.cards for name, suite in settings.suites.items()}
    return estimate_tests(with_evidence(scope, evidence), cards)


def sweep_selection(workspace: Workspace, selection: TestSelection, variant: str, today: date) -> TestSelection:
    """Return the selection of a sweep: of the tests that are not enabled, those that its card-hours are enough for.

    Raises `SelectionError` where there is none.
    """
    if selection.scope is None:
        raise SelectionError("the selection has no table of scope, so there is nothing to sweep")
    scope, artifacts = read_scope(selection.scope, workspace.artifacts), workspace.artifacts
    card_s = workspace.project.settings.ramp.sweep.card_hours * 3600
    chosen = choose_sweep(known_tests(workspace, variant, scope, today), card_s)
    if not chosen:
        raise SelectionError("every test in scope is enabled, or takes longer than ramp.sweep.card_hours: nothing to sweep")
    counts = Counter(test.suite for test in chosen)
    bare = [replace(suite, collection_errors=(), skipped_files={}) for suite in selection.suites]
    suites = [
        replace(suite, selected=counts[suite.suite], not_enabled={NOT_SWEPT: suite.in_scope - counts[suite.suite]})
        for suite in bare
    ]
    grouped = scope.filter(kernels.is_valid(scope["group"]))
    groups = {(suite, test): group for suite, test, group in pairs(grouped, "suite", "test", "group")}
    tests = [SelectedTest(test.suite, test.test, groups.get((test.suite, test.test))) for test in chosen]
    return replace(selection, tests=write_selection(tests, artifacts), suites=tuple(suites))


def current_coverage(workspace: Workspace) -> CoverageReport:
    """Measure the newest build of each variant, and add those that the last report does not know to its trend."""
    settings, manifests = workspace.project.settings, workspace.manifests
    before = manifests.read_history(manifests.path(COVERAGE), CoverageReport) or CoverageReport()
    suites = ramped_suites(settings)
    trend = before.trend if before.suites == suites else ()
    known = {point.build for point in trend}
    latest: list[Coverage] = []
    points: list[TrendPoint] = []
    for variant in settings.variants:
        newest: Coverage | None = None
        for found in scoped_builds(workspace, variant.name, COUNTED, known):
            coverage = measure_coverage(found.build, found.scope, verdicts_of_build(workspace, found), suites)
            points.append(TrendPoint(found.build, found.revision.created_at, coverage.total))
            newest = newest or coverage
        latest += [newest] if newest else []
    return CoverageReport(suites, tuple(latest), add_to_trend(trend, points))


def share_fault(workspace: Workspace, revision: Revision, build: Build) -> str | None:
    """Report that a build has a lower enabled share than the one before of its trigger; None if not, or with a reason."""
    settings, manifests = workspace.project.settings, workspace.manifests
    if revision.trigger not in COUNTED or settings.ramp.lower_share_reason:
        return None
    now = manifests.find(TEST_SELECTION, build, TestSelection)
    before = manifests.previous(TEST_SELECTION, build, TestSelection, lambda found: found.scope is not None)
    if now is None or now.scope is None or before is None or before.scope is None:
        return None
    tables = [read_scope(artifact, workspace.artifacts) for artifact in (before.scope, now.scope)]
    chosen = {suite.suite for suite in now.suites} & {suite.suite for suite in before.suites} & set(ramped_suites(settings))
    lost, earlier, share = lost_share(tables[0], tables[1], chosen) if chosen else ({}, 0.0, 0.0)
    if not lost or share >= earlier:
        return None
    some = ", ".join(f"{test} ({why})" for test, why in islice(lost.items(), 3))
    more = f", and {len(lost) - 3:,} more" if len(lost) > 3 else ""
    return (
        f"the enabled share fell from {earlier:.2%} to {share:.2%}: {len(lost):,} tests are not enabled any more, such as "
        f"{some}{more}; enable them again, or give a reason (ramp.lower_share_reason)"
    )


def scoped_builds(
    workspace: Workspace,
    variant: str,
    triggers: Collection[Trigger],
    known: Collection[Build] = (),
    until: datetime | None = None,
) -> Iterator[ScopedBuild]:
    """Yield the newest finished build of a variant that has a table of scope, then earlier ones that are not `known`.

    With `until`, only revisions count that were there before.
    """
    manifests, first = workspace.manifests, True
    counted = (
        each for each in manifests.revisions() if each.trigger in triggers and (until is None or each.seen_at < until)
    )
    for each in islice(counted, _LOOKED_AT):
        build = Build(each.key, variant)
        if build in known and not first:
            continue
        selection = manifests.read_history(manifests.path(TEST_SELECTION, build.revision, variant), TestSelection)
        ledger = manifests.read_history(manifests.path(LEDGER, build.revision, variant), Ledger)
        if selection is None or selection.scope is None or ledger is None:
            continue
        revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
        if revision is not None and not revision.suites:
            yield ScopedBuild(revision, build, read_scope(selection.scope, workspace.artifacts))
            first = False


def verdicts_of_build(workspace: Workspace, found: ScopedBuild) -> pa.Table:
    """The verdicts of a build's tests: columns `suite`, `test` and `verdict`."""
    store, names = workspace.results.around(found.revision.created_at.date()), pa.array(VERDICTS)
    tables = [pa.table({"suite": pa.array([], pa.string()), "test": pa.array([], pa.string()), "verdict": names[:0]})]
    for stored in store.suites(build=found.build):
        judged = store.judged(stored, ["verdict"])
        suite = constant(stored.suite, len(judged), pa.string())
        columns: Any = {"suite": suite, "test": judged["test"], "verdict": names.take(judged["verdict"])}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)
