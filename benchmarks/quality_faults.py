"""Blame under injected faults: nights of a simulated backend whose true causes are known, judged by `accel_ci.quality`.

    python -m benchmarks.quality_faults --seeds 20 --nights 30

The backend has two variants, on a pinned PyTorch and on PyTorch main, each with its cards. A test that fails runs again on
another card, and if it passes then a third time in a fresh process, as the driver does it.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import click
import numpy as np

from accel_ci.model import Build
from accel_ci.quality.causes import Blame, Judge
from accel_ci.quality.grid import AttemptRow, Night, Point, make_grid
from accel_ci.quality.incidents import incidents_of
from accel_ci.quality.places import (
    PlaceCount,
    SignatureCount,
    bad_places,
    blamed_places,
    count_places,
    count_signatures,
)
from accel_ci.quality.versions import Sibling

VARIANTS = ("pinned", "main")
TESTS, FILES, OPS = 400, 20, 40
HOSTS, CARDS = 4, 6
BACKGROUND = 2e-5
"""The rate of failures of tests that nobody calls flaky."""

Truth = tuple[str, object]
"""The cause, and what joins its failures."""


@dataclass
class Fault:
    """A fault: the tests that it hits on a night, in a variant and at a place, with a chance, and the cause that it is."""

    kind: str
    cause: str
    begin: int
    end: int
    tests: frozenset[int] = frozenset()
    chance: float = 1.0
    variants: tuple[str, ...] = VARIANTS
    hosts: frozenset[int] = frozenset()
    card: tuple[int, int] | None = None
    outcome: str = "failed"
    signature: Callable[[int], str] = str
    loses: str | None = None
    name: object = None

    def hits(self, night: int, variant: str, test: int, host: int, card: int) -> bool:
        """Whether an attempt there can be hit."""
        return (
            self.begin <= night < self.end
            and variant in self.variants
            and (not self.tests or test in self.tests)
            and (not self.hosts or host in self.hosts)
            and (self.card is None or self.card == (host, card))
        )


@dataclass
class World:
    """A simulated backend over some nights."""

    rng: np.random.Generator
    nights: int
    faults: list[Fault] = field(default_factory=list)
    backend: list[int] = field(default_factory=list)
    upstream: list[int] = field(default_factory=list)
    driver: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        backend = upstream = 0
        for _ in range(self.nights):
            backend += int(self.rng.random() < 0.8)
            upstream += int(self.rng.random() < 0.95)
            self.backend.append(backend)
            self.upstream.append(upstream)
            self.driver.append(dict.fromkeys(range(HOSTS), 1))

    def some_tests(self) -> frozenset[int]:
        """Tests of one op: 1 to 12 of them."""
        op = int(self.rng.integers(OPS))
        count = int(self.rng.integers(1, 13))
        return frozenset(list(range(op, TESTS, OPS))[:count])

    def begin(self) -> int:
        """A night after the first third."""
        return int(self.rng.integers(self.nights // 3, self.nights - 4))

    def add(self, kind: str) -> None:
        """Add a fault of a kind."""
        KINDS[kind](self)


def _flaky(world: World) -> None:
    rate = float(10 ** world.rng.uniform(np.log10(0.005), np.log10(0.5)))
    for test in world.rng.choice(TESTS, 3, replace=False).tolist():
        name = f"flaky {test}"
        world.faults.append(
            Fault("flaky", "flaky", 0, world.nights, frozenset({test}), rate, signature=lambda t: f"race {t}", name=name)
        )


def _break(world: World, kind: str, cause: str, outcome: str = "failed", variants: tuple[str, ...] = VARIANTS) -> None:
    begin = world.begin()
    versions = world.upstream if cause == "upstream" else world.backend
    while versions[begin] == versions[begin - 1]:
        begin -= 1
    end = min(world.nights, begin + int(world.rng.integers(1, 8)))
    name = f"{kind} {len(world.faults)}"
    world.faults.append(
        Fault(
            kind, cause, begin, end, world.some_tests(), variants=variants, outcome=outcome, name=name,
            signature=lambda _: f"{name} broke",
        )
    )  # fmt: skip


def _bad_card(world: World) -> None:
    card = int(world.rng.integers(HOSTS)), int(world.rng.integers(CARDS))
    begin, chance = world.begin(), float(world.rng.uniform(0.2, 0.8))
    name = f"card {card[0]}:{card[1]}"
    world.faults.append(
        Fault(
            "bad card", "infra", begin, begin + 4, chance=chance, card=card, signature=lambda _: "tensors differ", name=name
        )
    )


def _slow_card(world: World) -> None:
    card = int(world.rng.integers(HOSTS)), int(world.rng.integers(CARDS))
    slow = frozenset(world.rng.choice(TESTS, TESTS // 4, replace=False).tolist())
    begin = world.begin()
    world.faults.append(
        Fault(
            "slow card", "infra", begin, begin + 4, slow, card=card, outcome="timeout",
            signature=lambda _: "timed out after <n>", name=f"card {card[0]}:{card[1]}",
        )
    )  # fmt: skip


def _dead_host(world: World) -> None:
    host, begin = int(world.rng.integers(HOSTS)), world.begin()
    lost = "the card does not answer" if world.rng.random() < 0.5 else None
    world.faults.append(
        Fault(
            "dead host", "infra", begin, begin + 2, chance=0.9, hosts=frozenset({host}), outcome="crashed", loses=lost,
            signature=lambda _: "worker ended", name=f"host {host}",
        )
    )  # fmt: skip


def _driver(world: World) -> None:
    """A new driver, on one host after the other, or on all while the backend stands still."""
    begin, tests = world.begin(), world.some_tests()
    while any(fault.begin == begin and fault.cause in ("backend", "upstream") for fault in world.faults):
        begin = world.begin()  # the versions that broke something cannot stand still
    rolling = bool(world.rng.random() < 0.5)
    end = min(world.nights, begin + 8)
    for night in range(begin, end):
        for host in range(HOSTS):
            world.driver[night][host] = 2 if not rolling or host <= (night - begin) else 1
    if not rolling:
        still = world.backend[begin - 1], world.upstream[begin - 1]
        world.backend[begin], world.upstream[begin] = still
    name = f"driver {begin}"
    world.faults.append(Fault("driver update", "infra", begin, end, tests, signature=lambda _: f"{name} broke", name=name))


def _outage(world: World) -> None:
    begin = world.begin()
    world.faults.append(
        Fault(
            "outage", "infra", begin, begin + 1, chance=0.95, outcome="error", loses="no card answers",
            signature=lambda _: "no card answers", name="outage",
        )
    )  # fmt: skip


KINDS: dict[str, Callable[[World], None]] = {
    "flaky": _flaky,
    "crash": lambda world: _break(world, "crash", "backend", "crashed"),
    "hang": lambda world: _break(world, "hang", "backend", "timeout"),
    "bad card": _bad_card,
    "slow card": _slow_card,
    "dead host": _dead_host,
    "driver update": _driver,
    "upstream break": lambda world: _break(world, "upstream break", "upstream", variants=("main",)),
    "backend break": lambda world: _break(world, "backend break", "backend"),
    "outage": _outage,
}


def identity_of(test: int) -> tuple[str, str]:
    """Return the suite and the id of a test."""
    return "unit", f"tests/test_{test % FILES}.py::test_op{test % OPS}[{test}]"


@dataclass
class Seen:
    """A variant's night: the attempts of what went wrong, their true causes, and the exposure of each card."""

    night: Night
    truths: dict[tuple[str, str], Truth]
    verdicts: dict[tuple[str, str], str]
    exposure: dict[tuple[str | None, str | None], tuple[int, float]]

    def as_sibling(self) -> Sibling:
        """This night as that of another variant."""
        return Sibling(self.night.point, lambda suite, test: self.verdicts.get((suite, test), "passed"))


def try_once(
    world: World, active: Sequence[Fault], night: int, variant: str, test: int, place: int, number: int
) -> tuple[AttemptRow, Fault | None]:
    """Run a test on a card in a round; return the fault that hits it."""
    host, card = divmod(place, CARDS)
    row = AttemptRow(*identity_of(test), number, 0, "passed", str(card), f"h{host}", worker=f"w{place}")
    for fault in sorted(active, key=lambda fault: fault.cause == "flaky"):
        if fault.kind == "driver update" and world.driver[night][host] != 2:
            continue
        if fault.hits(night, variant, test, host, card) and world.rng.random() < fault.chance:
            return replace(row, outcome=fault.outcome, infra=fault.loses, signature=fault.signature(test)), fault
    return row, None


def run_night(world: World, night: int, variant: str) -> Seen:
    """Run all tests once, and those that fail again."""
    rng = world.rng
    places = rng.permutation(TESTS) % (HOSTS * CARDS)
    active = [fault for fault in world.faults if fault.begin <= night < fault.end and variant in fault.variants]
    hosts = {host: world.driver[night][host] for host in range(HOSTS)}
    environment = str(max(hosts.values())) if len(set(hosts.values())) == 1 else f"mixed {sorted(hosts.items())}"
    point = Point(
        Build(f"nightly-{night:02d}", variant), f"b{world.backend[night]}",
        f"u{world.upstream[night]}" if variant == "main" else "u0", environment,
    )  # fmt: skip
    attempts: list[AttemptRow] = []
    truths: dict[tuple[str, str], Truth] = {}
    verdicts: dict[tuple[str, str], str] = {}
    exposure: defaultdict[tuple[str | None, str | None], list[float]] = defaultdict(lambda: [0, 0.0])
    quiet = rng.random(TESTS) >= BACKGROUND

    def attempt(test: int, place: int, number: int) -> tuple[AttemptRow, Fault | None]:
        host, card = divmod(place, CARDS)
        cell = exposure[f"h{host}", str(card)]
        cell[0] += 1
        row, fault = try_once(world, active, night, variant, test, place, number)
        if fault is None and number == 1 and not quiet[test]:
            row = replace(row, outcome="failed", signature=f"rare {test}")
            return row, Fault("flaky", "flaky", 0, 0, name=f"flaky {test}")
        return row, fault

    for test in range(TESTS):
        place = int(places[test])
        row, fault = attempt(test, place, 1)
        if fault is None:
            continue
        rows, blamed = [row], [fault]
        again, fault = attempt(test, (place + 1 + int(rng.integers(HOSTS * CARDS - 1))) % (HOSTS * CARDS), 2)
        rows.append(again)
        blamed += [fault] if fault else []
        if again.outcome == "passed" and row.infra is None:
            third, fault = attempt(test, (place + 7) % (HOSTS * CARDS), 3)
            rows.append(third)
            blamed += [fault] if fault else []
        own = [each for each in rows if each.infra is None]
        failed, passed = sum(each.outcome != "passed" for each in own), sum(each.outcome == "passed" for each in own)
        if not failed and passed:
            continue  # lost once, passed elsewhere
        attempts += rows
        identity = identity_of(test)
        main = next((each for each in blamed if each.cause in ("backend", "upstream")), blamed[0])
        truths[identity] = main.cause, main.name
        verdicts[identity] = "infra" if not own else "flaky" if passed >= failed else "failed"
    whole = {key: (int(count), rate) for key, (count, rate) in exposure.items()}
    return Seen(Night(point, tuple(attempts)), truths, verdicts, whole)


@dataclass
class Score:
    """The confusion matrix of causes, and the number of nights that had exactly their incidents."""

    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    nights: int = 0
    nights_right: int = 0
    misses: list[str] = field(default_factory=list)
    doubts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Score) -> None:
        """Add another score."""
        self.confusion += other.confusion
        self.nights += other.nights
        self.nights_right += other.nights_right
        self.misses += other.misses
        self.doubts += other.doubts

    def summary(self) -> dict[str, object]:
        """The shares that the issue asks for."""
        total = sum(self.confusion.values()) or 1
        right = sum(count for (truth, said), count in self.confusion.items() if truth == said)
        unknown = sum(count for (_, said), count in self.confusion.items() if said == "unknown")
        wrong = sum(
            count
            for (truth, said), count in self.confusion.items()
            if truth in ("backend", "upstream") and said in ("flaky", "infra")
        )
        return {
            "failures": total,
            "blamed_right": round(right / total, 4),
            "blamed_right_or_unknown": round((right + unknown) / total, 4),
            "breakages_called_flaky": wrong,
            "nights": self.nights,
            "nights_with_their_incidents": round(self.nights_right / max(1, self.nights), 4),
        }


@dataclass(frozen=True)
class JudgedNight:
    """A night, the causes that were found, and the true ones by variant, suite and test."""

    night: int
    blames: list[Blame]
    truths: dict[tuple[str, str, str], Truth]


def judged_nights(world: World, missed: frozenset[int] = frozenset()) -> Iterator[JudgedNight]:
    """Run the nights of a world but the `missed` ones, and judge each when it ends."""
    cells: dict[str, list[tuple[int, str, str, int, int, str | None]]] = {variant: [] for variant in VARIANTS}
    points: dict[str, list[Point]] = {variant: [] for variant in VARIANTS}
    seen_bad: dict[str, set[tuple[str, str]]] = {variant: set() for variant in VARIANTS}
    counts: list[list[PlaceCount]] = []
    signatures: list[list[SignatureCount]] = []
    earlier: dict[str, dict[tuple[str, str], Blame]] = {variant: {} for variant in VARIANTS}
    for night in range(world.nights):
        if night in missed:
            continue
        seen = {variant: run_night(world, night, variant) for variant in VARIANTS}
        drivers = {f"h{host}": str(version) for host, version in world.driver[night].items()}
        for variant in VARIANTS:
            exposure = {key: (count, count * 2e-4) for key, (count, _) in seen[variant].exposure.items()}
            wrong = list(seen[variant].night.by_test().values())
            counts.append(count_places(exposure, wrong, drivers))
            signatures.append(count_signatures(exposure, wrong, drivers))
        before = world.driver[max(0, night - 7)]
        updated = {f"h{host}": 1 / HOSTS for host, version in world.driver[night].items() if version != before[host]}
        blames: list[Blame] = []
        for variant in VARIANTS:
            mine = seen[variant]
            played = len(points[variant])
            grid = make_grid(points[variant], filled(cells[variant], seen_bad[variant], played), played)
            siblings = [seen[other].as_sibling() for other in VARIANTS if other != variant]
            bad = bad_places(counts[-6:], drivers)
            blamed = blamed_places(signatures[-14:], HOSTS * CARDS)
            blames += Judge(mine.night, grid, siblings, bad, blamed, drivers, updated, earlier[variant]).blames()
        earlier = {
            variant: {blame.identity: blame for blame in blames if blame.build.variant == variant} for variant in VARIANTS
        }
        doubtful = {(blame.build.variant, blame.identity) for blame in blames if blame.cause in ("infra", "unknown")}
        for variant in VARIANTS:
            for identity, rows in seen[variant].night.by_test().items():
                own = [row for row in rows if row.infra is None]
                failed = [row for row in own if row.outcome != "passed"]
                passed = len(own) - len(failed)
                if (variant, identity) in doubtful and passed:
                    failed, passed = [], 0  # nobody knows it to be the test's
                signature = failed[-1].signature if failed else None
                cells[variant].append((len(points[variant]), *identity, len(failed), passed, signature))
                seen_bad[variant].add(identity)
            points[variant].append(seen[variant].night.point)
        truths = {(variant, *identity): truth for variant in VARIANTS for identity, truth in seen[variant].truths.items()}
        yield JudgedNight(night, blames, truths)


def play(kinds: Sequence[str], seed: int, nights: int) -> Score:
    """Simulate a backend with these faults, and judge each night when it ends."""
    world = World(np.random.default_rng([seed, *map(list(KINDS).index, kinds)]), nights)
    for kind in kinds:
        world.add(kind)
    score = Score()
    for judged in judged_nights(world):
        blames, truths = judged.blames, judged.truths
        for blame in blames:
            truth = truths[(blame.build.variant, *blame.identity)]
            score.confusion[truth[0], blame.cause] += 1
            if blame.cause not in (truth[0], "unknown"):
                score.misses.append(f"{kinds} seed {seed} night {judged.night} {truth}: {blame.cause}, {blame.sentence}")
            elif blame.cause == "unknown":
                score.doubts[blame.sentence.partition(":")[0], truth[0]] += 1
        groups = {frozenset(key for key in truths if truths[key] == truth) for truth in set(truths.values())}
        found = {incident.now for incident in incidents_of(blames, op_of)}
        score.nights += 1
        score.nights_right += groups == found
        if groups != found:
            score.misses.append(
                f"{kinds} seed {seed} night {judged.night}: {len(found)} incidents, {len(groups)} causes "
                f"{sorted({str(t) for t in truths.values()})}"
            )
    return score


def op_of(_: str, test: str) -> str:
    """Return the op of a test."""
    return test.partition("::")[2].partition("[")[0]


def filled(
    cells: list[tuple[int, str, str, int, int, str | None]], tests: set[tuple[str, str]], nights: int
) -> list[tuple[int, str, str, int, int, str | None]]:
    """Add the nights in which tests that went wrong at least once passed."""
    there = {(column, suite, test) for column, suite, test, *_ in cells}
    return cells + [
        (column, *identity, 0, 1, None) for identity in tests for column in range(nights) if (column, *identity) not in there
    ]


def measure(seeds: int, nights: int, *, show: Callable[[str], None] = lambda _: None) -> tuple[Score, float]:
    """Play each kind of fault alone, and each two together; return the whole score and the seconds."""
    began, whole = time.perf_counter(), Score()
    scenarios = [(), *((kind,) for kind in KINDS), *combinations(KINDS, 2)]
    for kinds in scenarios:
        score = Score()
        for seed in range(seeds):
            score.add(play(kinds, seed, nights))
        show(f"{' + '.join(kinds) or 'no fault':32} {score.summary()}")
        whole.add(score)
    return whole, time.perf_counter() - began


def main() -> None:
    """Print the confusion matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--misses", type=int, default=0, help="show so many wrong answers")
    given = parser.parse_args()
    score, seconds = measure(given.seeds, given.nights, show=click.echo)
    said = ("infra", "flaky", "upstream", "backend", "unknown")
    click.echo(f"{'truth':10}" + "".join(f"{each:>10}" for each in said))
    for truth in said[:-1]:
        click.echo(f"{truth:10}" + "".join(f"{score.confusion[truth, each]:>10,}" for each in said))
    click.echo(f"{score.summary()} in {seconds:.0f} s")
    for (sentence, truth), count in score.doubts.most_common(given.misses):
        click.echo(f"unknown {count} times, {truth}: {sentence}")
    for miss in score.misses[: given.misses]:
        click.echo(miss)


if __name__ == "__main__":
    main()
