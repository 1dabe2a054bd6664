"""Judge the builds that have finished since the last time, and keep what was found beside the manifests.

    quality/causes/<build>.json          the causes of a build's failures, and what was seen at its cards
    quality/incidents.json               the incidents, the open ones first

A build is judged when its ledger is there, with what is known then of the other variants of its revision, and again when its
ledger or that of another variant changes. Everything can be made anew from the results store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Ledger, Revision
from accel_ci.pipelines import LEDGER
from accel_ci.progress import Step
from accel_ci.quality.causes import Blame, CauseRules, Judge, Sibling
from accel_ci.quality.gather import point_of, read_exposure, read_grid, read_night, verdicts_of
from accel_ci.quality.grid import Point
from accel_ci.quality.incidents import Incident, Key, follow, incidents_of
from accel_ci.quality.places import (
    BadPlace,
    PlaceCount,
    SignatureCount,
    bad_places,
    blamed_places,
    count_places,
    count_signatures,
)
from accel_ci.results.stored_suite import encoded
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

INCIDENTS = "incidents"
"""The manifest of all incidents."""

_CARD_BUILDS, _SIGNATURE_BUILDS = 6, 14
_MOST_BUILDS = 100


@dataclass(frozen=True)
class Causes:
    """The causes of a build's failures. `judged_from` names the ledgers that were there, by variant."""

    build: Build
    judged_from: dict[str, str]
    suites: tuple[str, ...]
    blames: tuple[Blame, ...]
    places: tuple[PlaceCount, ...] = ()
    signatures: tuple[SignatureCount, ...] = ()
    bad: tuple[BadPlace, ...] = ()

    def counts(self) -> dict[str, int]:
        """The number of failures by cause."""
        found: dict[str, int] = {}
        for blame in self.blames:
            found[blame.cause] = found.get(blame.cause, 0) + 1
        return found


@dataclass(frozen=True)
class Incidents:
    """All incidents of the window, and the newest revision that was judged."""

    incidents: tuple[Incident, ...]
    revision: str | None = None

    def of(self, revision: str) -> list[Incident]:
        """The incidents that a revision shows."""
        return [incident for incident in self.incidents if incident.last == revision and incident.state != "fixed"]


@dataclass(frozen=True)
class _Finished:
    """A build with a ledger, its revision and its place among versions."""

    point: Point
    revision: Revision
    ledger: Ledger

    @property
    def build(self) -> Build:
        """The build."""
        return self.point.build


def judge_new_builds(workspace: Workspace, now: datetime, step: Step | None = None) -> Incidents:
    """Judge the finished builds of the window that were not judged yet, and follow the incidents through them."""
    window = workspace.project.settings.quality.window_days
    finished = _finished_builds(workspace, now - timedelta(days=window))
    by_revision: dict[str, list[_Finished]] = {}
    for each in finished:
        by_revision.setdefault(each.revision.key, []).append(each)
    incidents: list[Incident] = []
    judged: list[tuple[_Finished, Causes]] = []
    for key, builds in by_revision.items():
        causes = [_causes(workspace, each, builds, judged, window) for each in builds]
        judged += zip(builds, causes, strict=True)
        if not builds[0].point.is_on_line:
            continue
        seen = incidents_of([blame for each in causes for blame in each.blames])
        ran = {(each.build.variant, suite) for each in builds for suite in each.ledger.suites}

        def has_run(test: Key, ran: set[tuple[str, str]] = ran) -> bool:
            return test[:2] in ran

        incidents = follow(incidents, seen, has_run, key)
        if step is not None:
            step.advance()
    found = Incidents(tuple(incidents), next(reversed(by_revision), None))
    workspace.manifests.write(workspace.manifests.path(INCIDENTS), found)
    return found


def read_causes(workspace: Workspace, build: Build) -> Causes | None:
    """Read the causes of a build's failures; None where it was not judged yet."""
    return workspace.manifests.read_history(_path(workspace, build), Causes)


def read_incidents(workspace: Workspace) -> Incidents:
    """Read the incidents; there are none before the first build was judged."""
    return workspace.manifests.read_history(workspace.manifests.path(INCIDENTS), Incidents) or Incidents(())


def _finished_builds(workspace: Workspace, since: datetime) -> list[_Finished]:
    """The newest finished builds since a time, the oldest first."""
    manifests, found = workspace.manifests.at_one_moment(), list[_Finished]()
    for build in manifests.list_builds():
        ledger = manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger)
        place = point_of(manifests, build) if ledger is not None else None
        if ledger is None or place is None:
            continue
        point, revision = place
        if revision.created_at < since or len(found) >= _MOST_BUILDS:
            break
        found.append(_Finished(point, revision, ledger))
    return sorted(found, key=lambda each: (each.revision.created_at, each.build.name))


def _causes(
    workspace: Workspace,
    build: _Finished,
    of_revision: Sequence[_Finished],
    judged: Sequence[tuple[_Finished, Causes]],
    window: int,
) -> Causes:
    """The causes of a build's failures: those that were kept if nothing changed since, else found now."""
    basis = {each.build.variant: each.ledger.digest for each in of_revision}
    kept = read_causes(workspace, build.build)
    if kept is not None and kept.judged_from == basis:
        return kept
    try:
        causes = _judge(workspace, build, of_revision, judged, window, basis)
    except AccelCiError as error:
        _LOG.warning("%s cannot be judged: %s", build.build.name, error)
        return Causes(build.build, {}, tuple(build.ledger.suites), ())
    workspace.manifests.write(_path(workspace, build.build), causes)
    return causes


def _judge(
    workspace: Workspace,
    build: _Finished,
    of_revision: Sequence[_Finished],
    judged: Sequence[tuple[_Finished, Causes]],
    window: int,
    basis: dict[str, str],
) -> Causes:
    store, rules, day = workspace.results, CauseRules(), build.revision.created_at.date()
    night = read_night(store, build.point)
    if not night.attempts and not night.lost:
        return Causes(build.build, basis, tuple(build.ledger.suites), ())
    line = [(each, causes) for each, causes in judged if each.point.is_on_line and each.build.variant == build.build.variant]
    doubtful = {
        each.build: {blame.identity for blame in causes.blames if blame.cause in ("infra", "unknown") and blame.retried}
        for each, causes in line
    }
    wrong = {(row.suite, row.test) for row in night.attempts}
    grid = read_grid(store, [each.point for each, _ in line], day, window, wrong, doubtful)
    exposure = read_exposure(store, build.build, grid, rules)
    attempts = list(night.by_test().values())
    places, signatures = count_places(exposure, attempts, {}), count_signatures(exposure, attempts, {})
    recent = [causes for _, causes in judged]
    bad = bad_places([*(causes.places for causes in recent[1 - _CARD_BUILDS :]), places])
    blamed = blamed_places([*(causes.signatures for causes in recent[1 - _SIGNATURE_BUILDS :]), signatures], len(places))
    siblings = [Sibling(each.point, verdicts_of(store, each.build)) for each in of_revision if each.build != build.build]
    earlier = {blame.identity: blame for blame in line[-1][1].blames} if line else {}
    blames = Judge(night, grid, siblings, bad, blamed, earlier=earlier, rules=rules).blames()
    return Causes(
        build.build, basis, tuple(build.ledger.suites), tuple(blames), tuple(places), tuple(signatures), tuple(bad)
    )


def _path(workspace: Workspace, build: Build) -> Path:
    return workspace.manifests.path(f"causes/{encoded(build.revision)}~{encoded(build.variant)}")
