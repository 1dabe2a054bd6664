"""Replay stored builds under rules that do not act yet, beside those that do.

Each rule set plays the period night by night: it judges a night with the results that were there by then, follows the
incidents, decides on the quarantine and takes it on to the next night. The window before the period is played too, and
not counted. Nothing is kept: what reading makes goes into a folder that is removed. A test that really was disabled has no
results, and one that a rule would have disabled has them: so it can be seen what that would have hidden.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.progress import Step
from accel_ci.quality.current_quarantine import decide_all
from accel_ci.quality.gather import BuildRows, Reader, Reruns
from accel_ci.quality.grid import Grid, Point
from accel_ci.quality.incidents import Incident, Key
from accel_ci.quality.judgement import (
    MOST_BUILDS,
    Causes,
    FinishedBuild,
    JudgementRules,
    Judges,
    builds_by_revision,
    builds_since,
    follow_revision,
    reruns_of,
)
from accel_ci.quality.played import Move, Played
from accel_ci.quality.quarantine import Entry
from accel_ci.quality.quarantine_file import as_entries, read_decisions
from accel_ci.quality.rules import RuleSet
from accel_ci.results.store import ResultsStore
from accel_ci.storage.object_store import FolderStore, OverlayStore
from accel_ci.workspace import Workspace


@dataclass(frozen=True)
class Replay:
    """The verdicts of each rule set on the builds from the first day to the last."""

    first: date
    last: date
    builds: int
    revisions: int
    played: Mapping[str, Played]


def replay(workspace: Workspace, sets: Mapping[str, RuleSet], first: date, last: date, step: Step | None = None) -> Replay:
    """Play rule sets, by name, over the builds of some days. Raises `AccelCiError` where there is no build to judge."""
    if first > last:
        raise AccelCiError(f"the period ends before it begins: from {first} to {last}")
    window = timedelta(days=workspace.project.settings.quality.window_days)
    begin = datetime.combine(first, datetime.min.time(), timezone.utc)
    finished = [each for each in builds_since(workspace, begin - window) if _day(each) <= last]
    counted = [each for each in finished if _day(each) >= first]
    if not counted:
        days = sorted(each.seen_at.date() for each in workspace.manifests.revisions() if each.trigger is not None)
        stored = f"the stored builds are from {days[0]} to {days[-1]}" if days else "there are no builds"
        raise AccelCiError(f"no build from {first} to {last} has a ledger: {stored}")
    revisions = builds_by_revision(finished)
    if step is not None:
        step.total(len(revisions))
    with tempfile.TemporaryDirectory(prefix="accel-ci-replay-") as scratch:
        store = ResultsStore(OverlayStore(workspace.results.objects, FolderStore(Path(scratch))))
        reader = _ReadOnce(store, finished)
        memories = {rules.judgement: _Memory() for rules in sets.values()}
        players = {name: _Player(workspace, reader, rules, memories[rules.judgement]) for name, rules in sets.items()}
        ended = 0
        for builds in revisions.values():
            ended += len(builds)
            known = _known(finished[:ended], window)
            for rules, memory in memories.items():
                memory.judge(reader, known, rules)
            for player in players.values():
                player.play(builds, known, counts=_day(builds[0]) >= first)
            reader.forget_rows()
            if step is not None:
                step.advance(builds[0].revision.key)
    played = {name: player.end() for name, player in players.items()}
    return Replay(first, last, len(counted), len(builds_by_revision(counted)), played)


class _ReadOnce(Reader):
    """Reads each variant's line once, and the rows of a build once for all rules."""

    def __init__(self, store: ResultsStore, finished: Sequence[FinishedBuild]) -> None:
        super().__init__(store)
        self._points: dict[str, list[Point]] = {}
        self._reruns = reruns_of(finished)
        for each in finished:
            if each.point.is_on_line:
                self._points.setdefault(each.build.variant, []).append(each.point)
        self._lines: dict[str, Grid] = {}
        self._rows: dict[Build, BuildRows] = {}

    def rows(self, point: Point, grid: Grid, reruns: Sequence[Build] = ()) -> BuildRows:
        """See `Reader`."""
        if point.build not in self._rows:
            self._rows[point.build] = super().rows(point, grid, reruns)
        return self._rows[point.build]

    def forget_rows(self) -> None:
        """Free the memory of rows."""
        self._rows.clear()

    def grid(self, points: Sequence[Point], reruns: Reruns) -> Grid:
        """See `Reader`."""
        if not points:
            return super().grid(points, reruns)
        variant = points[0].build.variant
        if variant not in self._lines:
            self._lines[variant] = super().grid(self._points[variant], self._reruns)
        wanted = {point.build for point in points}
        return self._lines[variant].only(
            [column for column, point in enumerate(self._points[variant]) if point.build in wanted]
        )


class _Memory:
    """The causes that some rules have found so far; `newest` are those of the revision that was judged last."""

    def __init__(self) -> None:
        self._kept: dict[Build, Causes] = {}
        self.newest: list[Causes] = []

    def read(self, build: Build) -> Causes | None:
        """See `KeptCauses`."""
        return self._kept.get(build)

    def keep(self, causes: Causes) -> None:
        """See `KeptCauses`."""
        self._kept[causes.build] = causes

    def judge(self, reader: Reader, known: Sequence[FinishedBuild], rules: JudgementRules) -> None:
        """Judge the newest revision of the builds that are known by then."""
        judges = Judges(reader, known, self, rules)
        for builds in builds_by_revision(known).values():
            self.newest = [judges.causes(each, builds) for each in builds]
        self._kept = {each.build: self._kept[each.build] for each in known if each.build in self._kept}


class _Player:
    """Plays a rule set, one revision after the other."""

    def __init__(self, workspace: Workspace, reader: Reader, rules: RuleSet, memory: _Memory) -> None:
        self._workspace, self._reader, self._rules, self._memory = workspace, reader, rules, memory
        self._played = Played()
        self._incidents: list[Incident] = []
        self._shown: set[str] = set()
        """The incidents that the counted revisions showed."""
        self._entries: dict[Key, Entry] = {}
        self._left_out: set[Key] = set()
        decisions = read_decisions(workspace.project)
        self._people = [entry for each in workspace.project.settings.variants for entry in as_entries(decisions, each.name)]

    def play(self, builds: Sequence[FinishedBuild], known: Sequence[FinishedBuild], *, counts: bool) -> None:
        """Play a revision, which `counts` or only prepares the others."""
        causes, revision, today = self._memory.newest, builds[0].revision.key, _day(builds[0])
        self._incidents = follow_revision(self._incidents, builds, causes)
        if counts:
            self._shown |= {each.id for each in self._incidents if each.last == revision and each.state != "fixed"}
            silent = {key: entry.state for key, entry in self._in_force(today).items() if entry.state != "active"}
            self._played.quarantined |= silent.keys()
            for each in causes:
                self._count(each, silent)
        if builds[0].point.is_on_line:
            self._decide(revision, known, today, counts=counts)

    def end(self) -> Played:
        """Return what was counted."""
        self._played.incidents.update(each.cause for each in self._incidents if each.id in self._shown)
        return self._played

    def _in_force(self, today: date) -> dict[Key, Entry]:
        """The entries that hold for a build of that day: the rule's of the day before, and people's newest."""
        ruled = [entry for entry in self._entries.values() if entry.by == "rule"]
        return {_key(entry): entry for entry in (*ruled, *self._people) if entry.since <= today <= entry.expires}

    def _count(self, causes: Causes, silent: Mapping[Key, str]) -> None:
        played, build = self._played, causes.build
        for blame in causes.blames:
            failure, key = (build.name, *blame.identity), (build.variant, *blame.identity)
            played.failures[blame.cause] += 1
            played.causes[failure] = blame.cause
            if blame.cause == "flaky":
                played.flaky.add(key)
            if key in silent:
                played.silenced[failure] = silent[key]
        for bad in causes.bad:
            played.places.setdefault(f"{bad.place.kind} {bad.place.name}", []).append(build.name)

    def _decide(self, revision: str, known: Sequence[FinishedBuild], today: date, *, counts: bool) -> None:
        state, over = decide_all(
            self._workspace, known, self._reader, self._memory, tuple(self._entries.values()), today, self._rules.acting
        )
        before, after = self._entries, {_key(entry): entry for entry in state.entries}
        left_out = {_key(entry): entry for entry in over}
        if counts:
            self._played.quarantined |= {key for key, entry in after.items() if entry.state != "active"}
            new = [entry for key, entry in after.items() if key not in before or before[key].state != entry.state]
            self._played.moves += [Move.of(revision, entry, entry.state) for entry in new]
            gone = [entry for key, entry in before.items() if key not in after]
            self._played.moves += [Move.of(revision, entry, "released") for entry in gone]
            no_room = [entry for key, entry in left_out.items() if key not in self._left_out]
            self._played.moves += [Move.of(revision, entry, "over budget") for entry in no_room]
        self._entries, self._left_out = after, set(left_out)


def _known(finished: Sequence[FinishedBuild], window: timedelta) -> list[FinishedBuild]:
    """The builds of the window that ends with the last one, as `finished_builds` chose them then."""
    since, counts = finished[-1].revision.created_at - window, Counter[tuple[str, bool]]()
    found = []
    for each in reversed(finished):
        kind = each.build.variant, each.point.is_on_line
        counts[kind] += 1
        if each.revision.created_at >= since and counts[kind] <= MOST_BUILDS:
            found.append(each)
    return found[::-1]


def _key(entry: Entry) -> Key:
    return entry.variant, *entry.identity


def _day(build: FinishedBuild) -> date:
    return build.revision.created_at.astimezone(timezone.utc).date()
