"""Weigh whose change broke a test: the backend's, upstream's, or one of the environment.

The versions of the last build that passed and of the first that failed say what can have broken it. What the same backend
does in other variants of the revision tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from accel_ci.quality.grid import Point

Cause = Literal["infra", "flaky", "upstream", "backend", "unknown"]

BREAKAGES: tuple[Cause, ...] = ("backend", "upstream")
"""The causes that lie in a source."""


@dataclass(frozen=True)
class Evidence:
    """One line of evidence, and the rows that it rests on: (build, suite, test, round, attempt)."""

    text: str
    favours: Cause
    rows: tuple[tuple[str, str, str, int, int], ...] = ()


@dataclass(frozen=True)
class Sibling:
    """Another variant of the same revision: its point, and each test's verdict there, None if it did not run."""

    point: Point
    verdict: Callable[[str, str], str | None]


@dataclass(frozen=True)
class NewDrivers:
    """The hosts whose driver changed in the last builds, each with its share of all attempts.

    `chance` is that of a breakage whose failures all lie there, 1 where some lie elsewhere or no driver is new.
    """

    chance: float = 1.0
    hosts: Mapping[str, float] = field(default_factory=dict)


def weigh_versions(
    now: Point,
    there: Sequence[tuple[Sibling, str | None]],
    since: Point,
    last_good: Point | None,
    contrary: float,
    drivers: NewDrivers,
) -> tuple[dict[Cause, float], list[Evidence]]:
    """Return the probability of each cause of a breakage, "unknown" alone where nothing tells, and the evidence.

    Args:
        now: The build that is judged.
        there: The other variants of its revision, with the test's verdict.
        since: The first build that failed.
        last_good: The last one before that passed, None if there is none.
        contrary: The chance that another variant shows the opposite of what a cause would make it show.
        drivers: The hosts with a new driver.
    """
    weights, evidence = _changes(since, last_good)
    if drivers.chance < 1 and "infra" in weights:
        weights = {cause: weight * (1 if cause == "infra" else drivers.chance) for cause, weight in weights.items()}
        evidence.append(Evidence("all failures are on hosts with a new driver", "infra"))
    for sibling, verdict in there:
        other, is_other_upstream = sibling.point, sibling.point.upstream != now.upstream
        if other.backend != now.backend:
            continue
        name = other.build.variant
        if verdict == "passed" and is_other_upstream:
            likely: dict[Cause, float] = {"upstream": 1.0, "backend": contrary, "infra": contrary}
            if drivers.chance < 1:  # it may have run on another host there
                likely["infra"] = max(contrary, 1 - sum(drivers.hosts.values()))
            if last_good is None:  # it has never passed here, so nothing tells what changed
                weights = weights or {"upstream": 1.0, "backend": 1.0}
            weights = {cause: weight * likely[cause] for cause, weight in weights.items()}
            evidence.append(Evidence(f"it passes in {name}, the same backend with another upstream", "upstream"))
        elif verdict == "failed" and is_other_upstream:
            weights = {cause: weight * (contrary if cause == "upstream" else 1) for cause, weight in weights.items()}
            evidence.append(Evidence(f"it fails in {name} too, the same backend with another upstream", "backend"))
    total = sum(weights.values())
    return ({cause: weight / total for cause, weight in weights.items()} if total else {"unknown": 1.0}), evidence


def broken_words(cause: Cause, since: Point, last_good: Point | None, inherited: bool, stacks: str) -> str:
    """Say what broke a test, in which range; `inherited` is true for a pull request whose base is broken.

    `stacks` are the words of `on_stacks`.
    """
    if cause == "infra":
        old = _short(last_good.environment) if last_good else "an unknown one"
        return f"It broke when the environment changed, from {old} to {_short(since.environment)}."
    after = since.backend if cause == "backend" else since.upstream
    if inherited:
        return f"The base is broken: {cause} {_short(after)} fails since {since.build.revision}."
    before = (last_good.backend if cause == "backend" else last_good.upstream) if last_good else None
    span = f"between {_short(before)} and {_short(after)}" if before else f"at {_short(after)} or before"
    return f"A change of {cause} broke it, {span}{stacks}."


def on_stacks(cause: Cause, now: Point, there: Sequence[tuple[Sibling, str | None]]) -> str:
    """Name the stacks that tell whose change it was: this variant, and those with the same backend on another upstream."""
    wanted = "passed" if cause == "upstream" else "failed"
    names = [
        sibling.point.build.variant
        for sibling, verdict in there
        if verdict == wanted and sibling.point.backend == now.backend and sibling.point.upstream != now.upstream
    ]
    if not names:
        return ""
    others = " and in ".join(names)
    how = "but passes in" if cause == "upstream" else "and in"
    return f": it fails in {now.build.variant} {how} {others}, with the same backend"


def undecided_words(shares: Mapping[Cause, float], since: Point, last_good: Point | None) -> str:
    """Say why nothing tells whose change it was."""
    if last_good is None:
        return "It has never passed in this series, so nothing tells what broke it."
    causes = sorted(cause for cause, share in shares.items() if share > 0.05 and cause != "unknown")
    if not causes:
        return f"It fails since {since.build.revision}, but nothing that is recorded changed."
    named = " and ".join("the environment" if cause == "infra" else cause for cause in causes)
    return f"It broke in {since.build.revision}; {named} changed, and no other variant tells them apart."


def _changes(since: Point, last_good: Point | None) -> tuple[dict[Cause, float], list[Evidence]]:
    """The causes whose version changed since the last build that passed, or may have."""
    weights, evidence = dict[Cause, float](), list[Evidence]()
    if last_good is None:
        return weights, evidence
    changes: dict[Cause, tuple[str | None, str | None]] = {
        "backend": (last_good.backend, since.backend),
        "upstream": (last_good.upstream, since.upstream),
        "infra": (last_good.environment, since.environment),
    }
    for cause, (before, after) in changes.items():
        named = "the environment" if cause == "infra" else cause
        if before is None or after is None:
            weights[cause] = 1.0
            evidence.append(Evidence(f"the commit of {named} is not known", "unknown"))
        elif before != after:
            weights[cause] = 1.0
            evidence.append(Evidence(f"{named} changed: {_short(before)} to {_short(after)}", cause))
        else:
            evidence.append(Evidence(f"{named} stood still at {_short(after)}", "unknown"))
    return weights, evidence


def _short(version: str | None) -> str:
    return version[:13] if version else "an unknown commit"  # as in `Source.label`
