"""Reruns within a budget of card-seconds: how many causes become right if `accel_ci.quality.confirm` chooses, or others do.

    python -m benchmarks.confirm [--json] [--seeds 20] [--nights 30] [--budget 60]

The backend is that of `benchmarks.quality_faults`, with flaky tests of up to 50 %, breakages of the backend and of upstream,
and a bad card. Each night is judged after its own retries, and once more after reruns on other cards. Histories do not
depend on the choice, so that all choices have the same nights. A test takes a second in the median, and 20 or more in 2 %
of them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import click
import numpy as np

from accel_ci.quality.causes import Blame, Identity, Judge
from accel_ci.quality.confirm import choose_reruns
from accel_ci.quality.grid import AttemptRow, Night, Point, make_grid
from accel_ci.quality.places import (
    PlaceCount,
    SignatureCount,
    bad_places,
    blamed_places,
    count_places,
    count_signatures,
)
from accel_ci.quality.versions import Sibling
from benchmarks.quality_faults import (
    CARDS,
    HOSTS,
    KINDS,
    TESTS,
    VARIANTS,
    Seen,
    World,
    filled,
    identity_of,
    run_night,
    try_once,
)

FAULTS = ("flaky",) * 8 + ("backend break",) * 3 + ("upstream break", "bad card", "crash")
FIRST = 8
"""The first night that counts."""

MOST = 4

Choose = Callable[[Sequence[Blame], dict[Identity, float], float, np.random.Generator], dict[Identity, int]]
"""Choose the failures to run again, and how often."""


def by_worth(
    blames: Sequence[Blame], card_s: dict[Identity, float], budget_s: float, rng: np.random.Generator
) -> dict[Identity, int]:
    """Choose as the job `confirm` does."""
    return {rerun.identity: rerun.times for rerun in choose_reruns(blames, card_s, budget_s, MOST).reruns}


def _until_spent(blames: Iterable[Blame], card_s: dict[Identity, float], budget_s: float) -> dict[Identity, int]:
    """Take failures in order, but none that has passed again already, while they fit."""
    found = {}
    for blame in blames:
        cost_s = card_s[blame.identity] * MOST
        if cost_s <= budget_s and not blame.retried:
            found[blame.identity] = MOST
            budget_s -= cost_s
    return found


def at_random(
    blames: Sequence[Blame], card_s: dict[Identity, float], budget_s: float, rng: np.random.Generator
) -> dict[Identity, int]:
    """Choose any failures."""
    return _until_spent((blames[place] for place in rng.permutation(len(blames))), card_s, budget_s)


def cheapest(
    blames: Sequence[Blame], card_s: dict[Identity, float], budget_s: float, rng: np.random.Generator
) -> dict[Identity, int]:
    """Choose the cheapest failures."""
    return _until_spent(sorted(blames, key=lambda blame: card_s[blame.identity]), card_s, budget_s)


def least_certain(
    blames: Sequence[Blame], card_s: dict[Identity, float], budget_s: float, rng: np.random.Generator
) -> dict[Identity, int]:
    """Choose the failures of the least certain cause, the cheapest of equal ones."""
    by_doubt = sorted(blames, key=lambda each: (each.cause != "unknown", each.probability, card_s[each.identity]))
    return _until_spent(by_doubt, card_s, budget_s)


def everything(
    blames: Sequence[Blame], card_s: dict[Identity, float], budget_s: float, rng: np.random.Generator
) -> dict[Identity, int]:
    """Choose all failures, whatever they cost."""
    return _until_spent(blames, card_s, math.inf)


CHOICES: dict[str, Choose] = {
    "no reruns": lambda *_: {}, "random": at_random, "cheapest first": cheapest, "least certain first": least_certain,
    "confirm": by_worth, "all, without a budget": everything,
}  # fmt: skip


@dataclass
class Past:
    """The nights of a variant so far, and all that was seen at cards."""

    cells: list[tuple[int, str, str, int, int, str | None]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    tests: set[Identity] = field(default_factory=set)
    places: list[list[PlaceCount]] = field(default_factory=list)
    signatures: list[list[SignatureCount]] = field(default_factory=list)

    def judge(self, seen: Seen, siblings: Sequence[Sibling], reruns: Sequence[AttemptRow] = ()) -> list[Blame]:
        """Judge the next night with the reruns of its failures."""
        night = Night(seen.night.point, (*seen.night.attempts, *reruns))
        places, signatures = _counts(seen, night)
        bad = bad_places([*self.places[-5:], places])
        blamed = blamed_places([*self.signatures[-13:], signatures], HOSTS * CARDS)
        grid = make_grid(self.points, filled(self.cells, self.tests, len(self.points)), len(self.points))
        return Judge(night, grid, siblings, bad, blamed).blames()

    def remember(self, seen: Seen, blames: Sequence[Blame]) -> None:
        """Add a night as it was without reruns."""
        places, signatures = _counts(seen, seen.night)
        self.places.append(places)
        self.signatures.append(signatures)
        doubtful = {blame.identity for blame in blames if blame.cause in ("infra", "unknown")}
        for identity, rows in seen.night.by_test().items():
            own = [row for row in rows if row.infra is None]
            failed = [row for row in own if row.outcome != "passed"]
            passed = len(own) - len(failed)
            if identity in doubtful and passed:
                failed, passed = [], 0
            last = failed[-1].signature if failed else None
            self.cells.append((len(self.points), *identity, len(failed), passed, last))
            self.tests.add(identity)
        self.points.append(seen.night.point)


def _counts(seen: Seen, night: Night) -> tuple[list[PlaceCount], list[SignatureCount]]:
    exposure = {key: (count, count * 2e-4) for key, (count, _) in seen.exposure.items()}
    rows = list(night.by_test().values())
    return count_places(exposure, rows, {}), count_signatures(exposure, rows, {})


def play(seed: int, nights: int, budget_s: float, score: dict[str, Counter[str]]) -> None:
    """Simulate a backend, and count the causes of its failures for each choice."""
    world = World(np.random.default_rng([seed, 7]), nights)
    for kind in FAULTS:
        KINDS[kind](world)
    seconds = np.minimum(60.0, world.rng.lognormal(0.0, 1.5, TESTS))
    card_s = {identity_of(test): float(seconds[test]) for test in range(TESTS)}
    past = {variant: Past() for variant in VARIANTS}
    for night in range(nights):
        seen = {variant: run_night(world, night, variant) for variant in VARIANTS}
        for variant, mine in seen.items():
            siblings = [seen[other].as_sibling() for other in VARIANTS if other != variant]
            before = past[variant].judge(mine, siblings)
            for name, choose in CHOICES.items() if night >= FIRST else ():
                rng = np.random.default_rng([seed, night, len(variant)])
                times = choose(before, card_s, budget_s, rng)
                reruns = run_again(replace(world, rng=rng), night, variant, times)
                score[name]["card-seconds"] += round(sum(card_s[each] * most for each, most in times.items()))
                score[name]["reruns"] += len(reruns)
                for blame in past[variant].judge(mine, siblings, reruns) if reruns else before:
                    truth = mine.truths[blame.identity][0]
                    score[name]["right" if blame.cause == truth else "unknown" if blame.cause == "unknown" else "wrong"] += 1
                    is_excused = truth in ("backend", "upstream") and blame.cause in ("flaky", "infra")
                    score[name]["breakages excused"] += is_excused
            past[variant].remember(mine, before)


def run_again(world: World, night: int, variant: str, times: dict[Identity, int]) -> list[AttemptRow]:
    """Run failures again, each time on another card."""
    active = [fault for fault in world.faults if fault.begin <= night < fault.end and variant in fault.variants]
    numbers = {identity_of(test): test for test in range(TESTS)}
    found = []
    for identity, most in times.items():
        for number, place in enumerate(world.rng.permutation(HOSTS * CARDS)[:most].tolist(), 1):
            row, _ = try_once(world, active, night, variant, numbers[identity], place, number)
            found.append(replace(row, rerun_in="confirm"))
    return found


def main() -> None:
    """Print the causes by choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--budget", type=float, default=60.0, help="card-seconds of a build")
    given = parser.parse_args()
    score: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(given.seeds):
        play(seed, given.nights, given.budget, score)
    if given.json:
        click.echo(json.dumps(score))
        return
    for name, found in score.items():
        click.echo(f"{name:20} {dict(found)}")


if __name__ == "__main__":
    main()
