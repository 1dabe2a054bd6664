"""Builds that did not run here: their results were ingested, and their status comes from these alone."""

from __future__ import annotations

from accel_ci.ledger.status import BuildStatus, shortcomings
from accel_ci.model import VERDICTS, Build, Ledger, Verdict
from accel_ci.results.questions import stored_suites
from accel_ci.results.store import ResultsStore


def ingested_builds(store: ResultsStore) -> list[Build]:
    """List the builds of which results are stored, those of the newest day first."""
    newest_first = sorted(store.suites(), key=lambda stored: (stored.day, stored.build.name), reverse=True)
    return list(dict.fromkeys(stored.build for stored in newest_first))


def ingested_status(store: ResultsStore, build: Build) -> BuildStatus:
    """Return the status of a build from its stored results. Raises `AccelCiError` when there are none."""
    origins = [rollup.origin for rollup in store.rollups(stored_suites(store, build))]
    counts: dict[Verdict, int] = {verdict: sum(origin.counts[verdict] for origin in origins) for verdict in VERDICTS}
    bad = shortcomings(Ledger(build, sum(counts.values()), counts, {}, (), (), 0, 0.0, 0.0))
    return BuildStatus(
        build,
        f"ingested: {', '.join(bad) or 'passed'}",
        passed=not bad,
        expected=sum(counts.values()),
        counts=counts,
        infra_attempts=0,
        cards=(),
        unhealthy_cards=(),
        wall_s=None,
        work_s=0.0,
        makespan_s=None,
        lower_bound_s=None,
    )
