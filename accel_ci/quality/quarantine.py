"""Decide which flaky tests are muted or disabled, for how long, and when they come back.

A muted test runs and never gates; a disabled one does not run. The rule works on what the causes say: it never quarantines a
test for a breakage. A person's decision beats the rule's. What the quarantine would have hidden is its debt. Pure: grids,
causes and entries in, entries out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Literal

from accel_ci.quality.grid import Grid

State = Literal["active", "muted", "disabled"]
By = Literal["rule", "person"]
Identity = tuple[str, str]
"""Suite and test."""


@dataclass(frozen=True)
class Entry:
    """A decision on a test of a variant. `evidence` are the builds that it rests on; it ends on `expires`.

    A person's entry with the state `active` keeps the rule from quarantining the test.
    """

    suite: str
    test: str
    variant: str
    state: State
    reason: str
    by: By
    since: date
    expires: date
    owner: str | None = None
    issue: str | None = None
    evidence: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """Suite and test."""
        return self.suite, self.test


@dataclass(frozen=True)
class QuarantineRules:
    """When the rule quarantines a test.

    It does with at least `least_flakes` builds in which the test failed and passed, if the 95 % lower bound of the share of
    such builds is above `mute_above`; above `disable_above`, the test does not run. It comes back when the 95 % upper bound
    is below `release_below`. The quarantine holds at most the share `budget` of the tests in scope, the flakiest ones. An
    entry ends after `days`, and is made anew where its reason still holds.
    """

    least_flakes: int = 2
    mute_above: float = 0.01
    disable_above: float = 0.5
    release_below: float = 0.02
    budget: float = 0.01
    days: int = 30
    prior: tuple[float, float] = (0.3, 6.0)


@dataclass(frozen=True)
class Flakes:
    """The number of builds in which a test ran, and the `builds` in which it failed and passed, the newest last.

    `passes_between` says that it simply passed in a build between two of these.
    """

    runs: int
    builds: tuple[str, ...]
    passes_between: bool


@dataclass(frozen=True)
class Debt:
    """A breakage of a quarantined test: nobody would have seen it in these builds."""

    suite: str
    test: str
    builds: tuple[str, ...]


def flakes_of(grid: Grid, flaky: Collection[tuple[str, str, str]]) -> dict[Identity, Flakes]:
    """Count the flakes of each test of a grid.

    `flaky` has (revision, suite, test) of the failures whose cause is a flaky test.
    """
    import numpy as np

    found = {}
    column_of = {point.build.revision: column for column, point in enumerate(grid.points)}
    columns_of: defaultdict[Identity, list[int]] = defaultdict(list)
    for revision, suite, test in flaky:
        if revision in column_of:
            columns_of[suite, test].append(column_of[revision])
    revisions = list(column_of)
    for row, (suite, test) in enumerate(grid.tests):
        columns = sorted(columns_of.get((suite, test), ()))
        if not columns:
            continue
        ran = (grid.fails[row] + grid.passes[row]) > 0
        clean = (grid.passes[row] > 0) & (grid.fails[row] == 0)
        between = bool(np.any(clean[columns[0] : columns[-1]]))
        found[suite, test] = Flakes(int(ran.sum()), tuple(revisions[column] for column in columns), between)
    return found


def decide(
    variant: str,
    flakes: Mapping[Identity, Flakes],
    people: Sequence[Entry],
    before: Sequence[Entry],
    in_scope: int,
    today: date,
    rules: QuarantineRules | None = None,
) -> tuple[list[Entry], list[Entry]]:
    """Return the entries of a variant that hold today, and those that the rule did not make for want of budget.

    Args:
        variant: The variant.
        flakes: What is known of its tests.
        people: The decisions of people, expired ones included.
        before: The entries of the last decision.
        in_scope: The number of tests in scope.
        today: The day.
        rules: The thresholds.
    """
    from scipy.special import betaincinv

    rules = rules or QuarantineRules()
    decided = {entry.identity: entry for entry in people if entry.variant == variant and entry.expires >= today}
    known = {entry.identity: entry for entry in before if entry.variant == variant and entry.by == "rule"}
    a, b = rules.prior
    wanted: list[tuple[float, Entry]] = []
    for identity, seen in flakes.items():
        if identity in decided:
            continue
        count = len(seen.builds)
        low, high = (float(betaincinv(a + count, b + seen.runs - count, at)) for at in (0.05, 0.95))
        earlier = known.get(identity)
        enters = count >= rules.least_flakes and seen.passes_between and low > rules.mute_above
        stays = earlier is not None and high >= rules.release_below
        if not enters and not stays:
            continue
        rate = (a + count) / (a + b + seen.runs)
        state: State = "disabled" if low > rules.disable_above else "muted"
        reason = f"flaky in {count} of {seen.runs} builds: {low:.1%} to {high:.1%} of them"
        if earlier is not None and earlier.expires >= today:
            entry = replace(earlier, state=state, reason=reason, evidence=seen.builds)
        else:
            entry = Entry(
                *identity, variant, state, reason, "rule", today, today + timedelta(days=rules.days), evidence=seen.builds
            )
        wanted.append((rate, entry))
    wanted.sort(key=lambda each: (-each[0], each[1].identity))
    room = max(0, int(rules.budget * in_scope) - sum(entry.state != "active" for entry in decided.values()))
    chosen, spent = [entry for _, entry in wanted[:room]], f"but the budget of {rules.budget:.1%} is spent"
    left_out = [replace(entry, reason=f"{entry.reason}, {spent}") for _, entry in wanted[room:]]
    return sorted([*decided.values(), *chosen], key=lambda entry: entry.identity), left_out


def debt_of(entries: Sequence[Entry], breakages: Sequence[tuple[date, str, str, str]]) -> list[Debt]:
    """Find the breakages that the quarantine would have hidden: (day, build, suite, test) while a test was not active."""
    hidden: dict[Identity, list[str]] = {}
    states = {entry.identity: entry for entry in entries if entry.state != "active"}
    for day, build, suite, test in breakages:
        entry = states.get((suite, test))
        if entry is not None and entry.since <= day <= entry.expires:
            hidden.setdefault((suite, test), []).append(build)
    return [Debt(suite, test, tuple(builds)) for (suite, test), builds in sorted(hidden.items())]
