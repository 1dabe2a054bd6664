"""The quarantine as of now: people's decisions and what the rule adds; kept as the manifest `quarantine`.

What the rule decides is in `quarantine.py`. Stages ask `quarantined` which tests are muted or disabled in a build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa

from accel_ci.config.scope_settings import ModeRule
from accel_ci.config.settings import Suite
from accel_ci.model import Ledger, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.quality.collector import paused_collector
from accel_ci.quality.feeds import FEEDS, write_feeds
from accel_ci.quality.gather import Reader
from accel_ci.quality.judgement import CausesOnDisk, FinishedBuild, KeptCauses, finished_builds, reruns_of
from accel_ci.quality.quarantine import Debt, Entry, QuarantineRules, debt_of, decide, flakes_of
from accel_ci.quality.quarantine_file import as_entries, read_decisions
from accel_ci.quality.rules import rules_of
from accel_ci.quality.versions import BREAKAGES
from accel_ci.results.history import median_durations
from accel_ci.results.questions import bad_tests
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import encoded
from accel_ci.workspace import Workspace

QUARANTINE = "quarantine"
"""The manifest."""


@dataclass(frozen=True)
class QuarantineState:
    """The entries that hold, what the rule left out for want of budget, and the breakages that would have been hidden."""

    day: date
    entries: tuple[Entry, ...] = ()
    over_budget: tuple[str, ...] = ()
    debt: tuple[Debt, ...] = ()

    def count(self, state: str) -> int:
        """The number of entries with a state."""
        return sum(entry.state == state for entry in self.entries)


@paused_collector()
def update_quarantine(workspace: Workspace, now: datetime) -> QuarantineState:
    """Decide anew for all variants, and keep the result."""
    before = read_quarantine(workspace)
    state, _ = decide_all(
        workspace,
        finished_builds(workspace, now),
        Reader(workspace.results),
        CausesOnDisk(workspace),
        before.entries if before is not None else (),
        now.date(),
        rules_of(workspace.project.settings).acting,
    )
    workspace.manifests.write(workspace.manifests.path(QUARANTINE), state)
    return state


def decide_all(
    workspace: Workspace,
    finished: Sequence[FinishedBuild],
    reader: Reader,
    kept: KeptCauses,
    before: Sequence[Entry],
    today: date,
    rules: QuarantineRules | None,
) -> tuple[QuarantineState, list[Entry]]:
    """Decide for all variants as of a day; return also the entries that had no room in the budget. Nothing is kept.

    Args:
        workspace: The project, with people's decisions and the tests in scope.
        finished: The builds that are known.
        reader: Reads their results.
        kept: Their causes.
        before: The entries of the last decision.
        today: The day.
        rules: The thresholds of the rule; None where people alone decide.
    """
    decisions = read_decisions(workspace.project)
    entries: list[Entry] = []
    over: list[Entry] = []
    breakages: list[tuple[date, str, str, str]] = []
    for variant in workspace.project.settings.variants:
        line = [each for each in finished if each.point.is_on_line and each.build.variant == variant.name]
        causes = [(each, kept.read(each.build)) for each in line]
        blames = [(each, blame) for each, found in causes if found is not None for blame in found.blames]
        breakages += [
            (each.revision.created_at.date(), each.build.name, blame.suite, blame.test)
            for each, blame in blames
            if blame.cause in BREAKAGES
        ]
        people = [entry for entry in as_entries(decisions, variant.name) if entry.since <= today]
        if rules is None:
            entries += [entry for entry in people if entry.expires >= today]
            continue
        flaky = {(each.build.revision, *blame.identity) for each, blame in blames if blame.cause == "flaky"}
        flakes = flakes_of(reader.grid([each.point for each in line], reruns_of(line)), flaky) if flaky else {}
        in_scope = _in_scope(workspace, [each.build.revision for each in line], variant.name)
        decided, left_out = decide(variant.name, flakes, people, before, in_scope, today, rules)
        entries += decided
        over += left_out
    words = tuple(f"{each.suite}: {each.test}: {each.reason}" for each in over)
    return QuarantineState(today, tuple(entries), words, tuple(debt_of(entries, breakages))), over


def publish_feeds(workspace: Workspace, state: QuarantineState, now: datetime) -> dict[str, Path]:
    """Write the feeds of each variant below the data folder, and return their folders (`feeds.py`).

    Where the results are in a bucket, the feeds are there, too, as `feeds/<variant>/<file>`.
    """
    settings, folders = workspace.project.settings, dict[str, Path]()
    window = settings.quality.window_days
    for variant in settings.variants:
        known = median_durations(workspace.trusted_results, variant.name, now.date(), window)
        seconds = {test: each for (_, test), each in known.items()}
        entries = [entry for entry in state.entries if entry.variant == variant.name]
        folder = workspace.manifests.path(QUARANTINE).parent / "feeds" / variant.name
        folders[variant.name] = write_feeds(folder, entries, seconds, now)
        if settings.place_of_results.bucket is not None:
            for name in FEEDS:
                workspace.results.objects.put(
                    f"feeds/{encoded(variant.name)}/{name}", pa.py_buffer((folder / name).read_bytes())
                )
    return folders


def read_quarantine(workspace: Workspace) -> QuarantineState | None:
    """Read the last decision; None before the first."""
    return workspace.manifests.read_history(workspace.manifests.path(QUARANTINE), QuarantineState)


def quarantined(workspace: Workspace, variant: str, today: date) -> dict[tuple[str, str], Entry]:
    """Return the tests of a variant that are muted or disabled today; people's newest decisions count at once."""
    settings = workspace.project.settings.quality.quarantine
    people = [each for each in as_entries(read_decisions(workspace.project), variant) if each.expires >= today]
    before = read_quarantine(workspace) if settings.automatic else None
    rule = [each for each in (before.entries if before is not None else ()) if each.by == "rule" and each.variant == variant]
    found = {each.identity: each for each in (*rule, *people) if each.expires >= today}
    return {identity: entry for identity, entry in found.items() if entry.state != "active"}


def muted_failures(store: ResultsStore, ledger: Ledger, entries: Mapping[tuple[str, str], Entry]) -> tuple[str, ...]:
    """Return the failed tests of a build that are muted, as `<suite>: <test>`."""
    muted = {identity for identity, entry in entries.items() if entry.state == "muted"}
    if not muted or not ledger.counts.get("failed", 0):
        return ()
    failed = [(each.suite, each.test) for each in bad_tests(store, ledger.build, ledger.suites) if each.verdict == "failed"]
    return tuple(f"{suite}: {test}" for suite, test in failed if (suite, test) in muted)


def without_disabled(suites: Mapping[str, Suite], entries: Mapping[tuple[str, str], Entry]) -> dict[str, Suite]:
    """Return suites whose rules skip the tests that are disabled."""
    found = dict(suites)
    for name, suite in suites.items():
        disabled = [entry for entry in entries.values() if entry.suite == name and entry.state == "disabled"]
        if disabled:
            rules = tuple(map(_skip_rule, disabled))
            scope = suite.scope.model_copy(update={"modes": (*rules, *suite.scope.modes)})
            found[name] = suite.model_copy(update={"scope": scope})
    return found


def _skip_rule(entry: Entry) -> ModeRule:
    name = f"quarantine: {entry.test}"
    return ModeRule(tests=(entry.test,), mode="skip", reason="quarantine", text=entry.reason, issue=entry.issue, name=name)


def _in_scope(workspace: Workspace, revisions: list[str], variant: str) -> int:
    """The tests in scope of the newest build that has a selection."""
    manifests = workspace.manifests
    for revision in reversed(revisions):
        selection = manifests.read_history(manifests.path(TEST_SELECTION, revision, variant), TestSelection)
        if selection is not None:
            return selection.in_scope
    return 0
