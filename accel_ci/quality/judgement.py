"""Judge the builds that have finished since the last time, and keep what was found beside the manifests.

    quality/causes/<build>.json          the causes of a build's failures, and what was seen at its cards
    quality/incidents.json               the incidents, the open ones first

A build is judged when its ledger is there, with what is known then of the other variants of its revision, and again when its
ledger or that of another variant changes, or its failures ran again. Everything can be made anew from the results store.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec

from accel_ci.errors import AccelCiError
from accel_ci.model import CONFIRM, Build, Ledger, Revision
from accel_ci.pipelines import LEDGER
from accel_ci.progress import Step
from accel_ci.quality.causes import Blame, CauseRules, Judge
from accel_ci.quality.collector import paused_collector
from accel_ci.quality.gather import Reader, point_of
from accel_ci.quality.grid import LINE, Grid, Point
from accel_ci.quality.incidents import Incident, Key, follow, incidents_of
from accel_ci.quality.owners import with_owners
from accel_ci.quality.places import (
    BadPlace,
    Exposure,
    PlaceCount,
    PlaceRules,
    SignatureCount,
    bad_places,
    blamed_places,
    count_places,
    count_signatures,
)
from accel_ci.quality.versions import Cause, Sibling
from accel_ci.redaction import redact_bytes
from accel_ci.results.stored_suite import encoded
from accel_ci.source.revision import is_trusted
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

INCIDENTS = "incidents"
"""The manifest of all incidents."""

_CARD_BUILDS, _SIGNATURE_BUILDS = 6, 14
_NEW_DRIVER = timedelta(days=7)
"""For so long a driver is new to its host, and a suspect."""

MOST_BUILDS = 100
"""So many builds of a variant on its line are looked at, and so many others of it."""


@dataclass(frozen=True)
class JudgementRules:
    """The weights that a judgement of failures rests on."""

    causes: CauseRules = field(default_factory=CauseRules)
    places: PlaceRules = field(default_factory=PlaceRules)


@dataclass(frozen=True)
class Causes:
    """The causes of a build's failures.

    `judged_from` names the ledgers that were there, by variant, and those of builds that ran failures again, by name.
    """

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
class JudgedRevision:
    """A revision of the line, and the number of failures in all its builds by cause."""

    revision: str
    at: datetime
    counts: dict[Cause, int]


@dataclass(frozen=True)
class Incidents:
    """All incidents of the window, and the revisions that were judged, the oldest first."""

    incidents: tuple[Incident, ...]
    nights: tuple[JudgedRevision, ...] = ()

    @property
    def revision(self) -> str | None:
        """The newest revision that was judged."""
        return self.nights[-1].revision if self.nights else None

    def of(self, revision: str) -> list[Incident]:
        """The incidents that a revision shows."""
        return [incident for incident in self.incidents if incident.last == revision and incident.state != "fixed"]


@dataclass(frozen=True)
class FinishedBuild:
    """A build with a ledger, its revision and its place among versions.

    `reruns` are the finished builds that ran its failures again, each with the digest of its ledger, the oldest first.
    What was judged of code that is not trusted tells nothing of the builds of trusted code.
    """

    point: Point
    revision: Revision
    ledger: Ledger
    reruns: Mapping[Build, str] = field(default_factory=dict)
    is_trusted: bool = True

    @property
    def build(self) -> Build:
        """The build."""
        return self.point.build


class KeptCauses(Protocol):
    """The place where the causes of builds are kept."""

    def read(self, build: Build) -> Causes | None:
        """Read the causes of a build; None where there are none."""

    def keep(self, causes: Causes) -> None:
        """Keep the causes of a build."""


@paused_collector()
def judge_new_builds(workspace: Workspace, now: datetime, step: Step | None = None) -> Incidents:
    """Judge the finished builds of the window that were not judged yet, and follow the incidents through them."""
    finished = finished_builds(workspace, now)
    by_revision = builds_by_revision(finished)
    judges = Judges(Reader(workspace.results), finished, CausesOnDisk(workspace))
    incidents: list[Incident] = []
    nights: list[JudgedRevision] = []
    for key, builds in by_revision.items():
        causes = [judges.causes(each, builds) for each in builds]
        incidents = follow_revision(incidents, builds, causes)
        if builds[0].point.is_on_line:
            counts = Counter(blame.cause for each in causes for blame in each.blames)
            nights.append(JudgedRevision(key, builds[0].revision.created_at, dict(counts)))
        if step is not None:
            step.advance()
    _forget_pruned(workspace)
    owned = with_owners(workspace, incidents, [each.build for each in reversed(finished)], now.date())
    found = Incidents(tuple(owned), tuple(nights))
    workspace.manifests.write(workspace.manifests.path(INCIDENTS), found)
    return found


def builds_by_revision(finished: Sequence[FinishedBuild]) -> dict[str, list[FinishedBuild]]:
    """Return the builds of each revision, in their order."""
    found: dict[str, list[FinishedBuild]] = {}
    for each in finished:
        found.setdefault(each.revision.key, []).append(each)
    return found


def follow_revision(
    incidents: Sequence[Incident], builds: Sequence[FinishedBuild], causes: Sequence[Causes]
) -> list[Incident]:
    """Bring incidents up to date with the causes of a revision's builds; one that is not on the line changes none."""
    if not builds[0].point.is_on_line:
        return list(incidents)
    seen = incidents_of([blame for each in causes for blame in each.blames])
    ran = {(each.build.variant, suite) for each in builds for suite in each.ledger.suites}

    def has_run(test: Key) -> bool:
        return test[:2] in ran

    return follow(incidents, seen, has_run, builds[0].revision.key)


def read_causes(workspace: Workspace, build: Build) -> Causes | None:
    """Read the causes of a build's failures; None where it was not judged yet, or the file is damaged, which is logged."""
    path = causes_file(workspace, build)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Causes)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _LOG.warning("passed over: %s: %s", path, error)
        return None


@dataclass(frozen=True)
class CausesOnDisk:
    """The causes that are kept beside the manifests."""

    workspace: Workspace

    def read(self, build: Build) -> Causes | None:
        """See `KeptCauses`."""
        return read_causes(self.workspace, build)

    def keep(self, causes: Causes) -> None:
        """See `KeptCauses`."""
        path = causes_file(self.workspace, causes.build)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(path, redact_bytes(msgspec.json.encode(causes)))


def read_incidents(workspace: Workspace) -> Incidents:
    """Read the incidents; there are none before the first build was judged."""
    return workspace.manifests.read_history(workspace.manifests.path(INCIDENTS), Incidents) or Incidents(())


def finished_builds(workspace: Workspace, now: datetime) -> list[FinishedBuild]:
    """Return the newest finished builds of the window of days, the oldest first.

    They are at most `MOST_BUILDS` of each variant on its line, and as many others of it: pull requests push no nightly out.
    """
    return builds_since(workspace, now - timedelta(days=workspace.project.settings.quality.window_days), MOST_BUILDS)


def builds_since(workspace: Workspace, since: datetime, most: int | None = None) -> list[FinishedBuild]:
    """Return the finished builds since a time, the oldest first; with `most`, the newest ones of each kind alone.

    Those that run failures of another build again are with that build, and not builds for themselves.
    """
    manifests, found, counts = workspace.manifests, list[FinishedBuild](), Counter[tuple[str, bool]]()
    reruns: defaultdict[Build, dict[Build, str]] = defaultdict(dict)
    revisions = [each for each in manifests.revisions() if each.trigger is not None and each.seen_at >= since]
    for each in revisions:
        for build in manifests.builds_of(each.key):
            kind = build.variant, each.trigger in LINE
            if counts[kind] == most and each.trigger != CONFIRM:
                continue
            ledger = manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger)
            place = point_of(manifests, build) if ledger is not None else None
            if ledger is None or place is None:
                continue
            point, revision = place
            if revision.trigger != CONFIRM:
                own, trusted = dict(reversed(reruns[build].items())), is_trusted(workspace.project.settings, revision)
                found.append(FinishedBuild(point, revision, ledger, own, trusted))
                counts[kind] += 1
            elif revision.confirms is not None:  # it is younger than the build with the failures, so it comes first
                reruns[Build(revision.confirms, build.variant)][build] = ledger.digest
    return sorted(found, key=lambda each: (each.revision.created_at, each.build.name))


def reruns_of(builds: Sequence[FinishedBuild]) -> dict[Build, tuple[Build, ...]]:
    """Return the builds that ran failures of each build again, the oldest first."""
    return {each.build: tuple(each.reruns) for each in builds}


class Judges:
    """Judges builds in their order. The grid of a variant is read once, when a build of it must be judged."""

    def __init__(
        self,
        reader: Reader,
        finished: Sequence[FinishedBuild],
        kept: KeptCauses,
        rules: JudgementRules | None = None,
    ) -> None:
        """`finished` are all builds that are known; they must be judged in this order."""
        self._reader, self._kept, self._rules = reader, kept, rules or JudgementRules()
        self._lines: dict[str, list[Point]] = {}
        self._reruns = reruns_of(finished)
        self._after = {one.build: another.build for one, another in pairwise(finished)}
        for each in finished:
            if each.point.is_on_line:
                self._lines.setdefault(each.build.variant, []).append(each.point)
        self._grids: dict[str, Grid] = {}
        self._judged: list[tuple[FinishedBuild, Causes]] = []
        self._newest: dict[str, Causes] = {}
        """The newest judged build of each variant's line."""
        self._columns: dict[str, int] = dict.fromkeys(self._lines, 0)
        """The number of builds of each variant's line that were judged."""

    def causes(self, build: FinishedBuild, of_revision: Sequence[FinishedBuild]) -> Causes:
        """The causes of a build's failures: those that were kept if nothing changed since, else found now."""
        basis = {each.build.variant: each.ledger.digest for each in of_revision}
        basis |= {rerun.name: digest for each in of_revision for rerun, digest in each.reruns.items()}
        found = self._kept.read(build.build)
        if found is None or found.judged_from != basis:
            try:
                found = self._judge(build, of_revision, basis)
                self._kept.keep(found)
            except AccelCiError as error:
                _LOG.warning("%s cannot be judged: %s", build.build.name, error)
                found = Causes(build.build, {}, tuple(build.ledger.suites), ())
        self._judged.append((build, found))
        if build.point.is_on_line:
            variant = build.build.variant
            self._newest[variant] = found
            self._columns[variant] += 1
            if variant in self._grids:
                self._leave_out_doubtful(found)
        return found

    def _judge(self, build: FinishedBuild, of_revision: Sequence[FinishedBuild], basis: dict[str, str]) -> Causes:
        grid, newest = self._grid(build.build.variant), self._newest.get(build.build.variant)
        if build.revision.target is not None:  # a pull request for another branch than that of the line
            grid, newest = grid.before(0), None
        rows = self._reader.rows(build.point, grid, tuple(build.reruns))
        if (after := self._after.get(build.build)) is not None:
            self._reader.read_ahead(after)
        suites, night = tuple(build.ledger.suites), rows.night
        if not night.attempts and not night.lost:
            return Causes(build.build, basis, suites, ())
        exposure, attempts = rows.exposure(grid, self._rules.causes), list(night.by_test().values())
        drivers = build.point.drivers
        places, signatures = count_places(exposure, attempts, drivers), count_signatures(exposure, attempts, drivers)
        judged = [causes for one, causes in self._judged if one.is_trusted or not build.is_trusted]
        counts = [*(causes.places for causes in judged[1 - _CARD_BUILDS :]), places]
        bad = bad_places(counts, drivers, self._rules.places)
        recent = judged[1 - _SIGNATURE_BUILDS :]
        blamed = blamed_places([*(causes.signatures for causes in recent), signatures], len(places), self._rules.places)
        others = [each for each in of_revision if each.build != build.build]
        siblings = [Sibling(each.point, self._reader.verdicts(each.build, tuple(each.reruns))) for each in others]
        earlier = {blame.identity: blame for blame in newest.blames} if newest is not None else {}
        updated, rules = self._updated_hosts(build, exposure), self._rules.causes
        blames = Judge(night, grid, siblings, bad, blamed, drivers, updated, earlier, rules).blames()
        return Causes(build.build, basis, suites, tuple(blames), tuple(places), tuple(signatures), tuple(bad))

    def _updated_hosts(self, build: FinishedBuild, exposure: Exposure) -> dict[str, float]:
        """The hosts that had another driver in the last days, each with its share of the build's attempts."""
        since = build.revision.created_at - _NEW_DRIVER
        known = [one for one, _ in self._judged if one.is_trusted or not build.is_trusted]
        earlier = [each.point.drivers for each in known if each.revision.created_at >= since]
        now = build.point.drivers
        updated = {host for host in now if any(each.get(host, now[host]) != now[host] for each in earlier)}
        total = sum(count for count, _ in exposure.values())
        attempts = Counter[str]()
        for (host, _), (count, _) in exposure.items():
            attempts[host or ""] += count
        return {host: attempts[host] / max(1, total) for host in updated}

    def _grid(self, variant: str) -> Grid:
        """The grid of a variant's line up to the build that is judged now."""
        if variant not in self._grids:
            self._grids[variant] = self._reader.grid(self._lines.get(variant, []), self._reruns)
            for point in self._lines.get(variant, [])[: self._columns.get(variant, 0)]:
                if (causes := self._kept.read(point.build)) is not None:
                    self._leave_out_doubtful(causes)
        return self._grids[variant].before(self._columns.get(variant, 0))

    def _leave_out_doubtful(self, causes: Causes) -> None:
        """Failures that passed again but may not be the test's own count as not run from now on."""
        grid = self._grids[causes.build.variant]
        columns = [column for column, point in enumerate(grid.points) if point.build == causes.build]
        for blame in causes.blames:
            row = grid.row(*blame.identity)
            if blame.retried and blame.cause in ("infra", "unknown") and row is not None:
                grid.fails[row, columns] = grid.passes[row, columns] = 0


def _forget_pruned(workspace: Workspace) -> None:
    """Remove the causes of builds that are gone."""
    for path in workspace.manifests.path(INCIDENTS).parent.glob("causes/*~*.json"):
        revision, variant = map(unquote, path.stem.split("~"))
        if not workspace.manifests.folder(Build(revision, variant)).is_dir():
            path.unlink(missing_ok=True)


def causes_file(workspace: Workspace, build: Build) -> Path:
    """The file that keeps the causes of a build's failures."""
    return workspace.manifests.path(f"causes/{encoded(build.revision)}~{encoded(build.variant)}")
