"""Find the cards, hosts and drivers that make tests fail: a mixed model of tests and of the places where they run.

Only failures of tests that passed elsewhere in the same build say something of a place: a broken test fails everywhere. A
place's number of these is Poisson with the mean `effect x expected`, where `expected` sums the tests' own rates over its
attempts. The effect is a gamma random effect with the mean 1, so that places with few attempts are drawn to it (N. E.
Breslow, D. G. Clayton, JASA 88, 1993; the conjugate form is that of W. H. DuMouchel, The American Statistician 53, 1999).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeAlias

from accel_ci.quality.grid import AttemptRow

Kind = Literal["card", "host", "driver"]

Exposure: TypeAlias = Mapping[tuple[str | None, str | None], tuple[int, float]]
"""Of each (host, card), the attempts there and the sum of their tests' own failure rates."""


@dataclass(frozen=True)
class Place:
    """A card of a host, a host, or a driver's version; `name` is what people call it."""

    kind: Kind
    name: str


@dataclass(frozen=True)
class PlaceCount:
    """The attempts and failures at a place in one build.

    `failures` are failed attempts of tests that passed elsewhere in the build, `tests` the number of these tests, and
    `expected` the failures that the tests' own rates explain. `signatures` counts the failures by signature.
    """

    place: Place
    attempts: int
    failures: int
    tests: int
    expected: float
    signatures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BadPlace:
    """A place that fails more often than its tests: the effect with its 95 % credible interval, and what it rests on."""

    place: Place
    effect: float
    low: float
    high: float
    failures: int
    attempts: int
    expected: float
    signatures: Mapping[str, int] = field(default_factory=dict)

    def excess(self, signature: str | None) -> float:
        """The share of attempts there that fail because of the place with this signature, by all failures but one."""
        share = max(0.0, self.failures - self.expected) / max(1, self.attempts)
        others = max(0, self.signatures.get(signature or "", 0) - 1)
        return share * (others + 0.02) / max(1, self.failures - 1)


@dataclass(frozen=True)
class SignatureCount:
    """The tests of a build that failed with a signature and passed elsewhere: all, and those at a place.

    `share` is that of the place in all attempts: the chance that such a test fails there if the place has no part in it.
    """

    place: Place
    signature: str
    here: int
    everywhere: int
    share: float


@dataclass(frozen=True)
class PlaceRules:
    """When a place is called bad.

    The chance to see so many failures at a place with `least_effect` must be below `false_alarms` over all places of a kind,
    and at least `least_tests` tests must fail there. `shape` is that of the random effects: larger draws more to 1. A
    place explains less than `least_expected` failures by chance only where nobody knows it better.
    """

    least_effect: float = 1.25
    false_alarms: float = 1e-3
    least_tests: int = 3
    shape: float = 0.5
    least_expected: float = 0.05


def places_of(row: AttemptRow, drivers: Mapping[str, str]) -> tuple[Place, ...]:
    """The places of an attempt, the smallest first."""
    found = []
    if row.card is not None:
        found.append(Place("card", f"{row.host}:{row.card}" if row.host else row.card))
    if row.host is not None:
        found.append(Place("host", row.host))
        if row.host in drivers:
            found.append(Place("driver", drivers[row.host]))
    return tuple(found)


def discordant(rows: Sequence[AttemptRow]) -> list[AttemptRow]:
    """The failed attempts of a test that passed on another card in the same build."""
    passed = {(row.host, row.card) for row in rows if row.outcome in ("passed", "xpassed") and row.infra is None}
    bad = [row for row in rows if row.outcome in ("failed", "error", "crashed", "timeout")]
    return [row for row in bad if passed - {(row.host, row.card)} and (row.host, row.card) not in passed]


def count_places(
    exposure: Exposure,
    wrong: Iterable[Sequence[AttemptRow]],
    drivers: Mapping[str, str],
) -> list[PlaceCount]:
    """Count what was seen at each place in a build.

    Args:
        exposure: What ran where.
        wrong: The attempts of each test that did not pass at once.
        drivers: The driver's version of each host.
    """
    attempts: defaultdict[Place, int] = defaultdict(int)
    expected: defaultdict[Place, float] = defaultdict(float)
    for (host, card), (count, rate) in exposure.items():
        for place in places_of(AttemptRow("", "", 1, 0, "passed", card, host), drivers):
            attempts[place] += count
            expected[place] += rate
    failures: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    tests: defaultdict[Place, set[tuple[str, str]]] = defaultdict(set)
    for rows in wrong:
        for row in discordant(rows):
            for place in places_of(row, drivers):
                failures[place][row.signature or ""] += 1
                tests[place].add((row.suite, row.test))
    return [
        PlaceCount(place, count, failures[place].total(), len(tests[place]), expected[place], failures[place])
        for place, count in attempts.items()
    ]


def count_signatures(
    exposure: Exposure,
    wrong: Iterable[Sequence[AttemptRow]],
    drivers: Mapping[str, str],
) -> list[SignatureCount]:
    """Count, of each signature, the tests that failed with it at each place and passed elsewhere. Arguments as before."""
    total = sum(count for count, _ in exposure.values())
    attempts: defaultdict[Place, int] = defaultdict(int)
    for (host, card), (count, _) in exposure.items():
        for place in places_of(AttemptRow("", "", 1, 0, "passed", card, host), drivers):
            attempts[place] += count
    here: defaultdict[tuple[Place, str], int] = defaultdict(int)
    everywhere: defaultdict[str, int] = defaultdict(int)
    for rows in wrong:
        first = next((row for row in discordant(rows) if row.signature is not None), None)
        if first is not None and first.signature is not None:
            everywhere[first.signature] += 1
            for place in places_of(first, drivers):
                here[place, first.signature] += 1
    return [
        SignatureCount(place, signature, count, everywhere[signature], attempts[place] / max(1, total))
        for (place, signature), count in here.items()
    ]


def blamed_places(
    builds: Sequence[Collection[SignatureCount]], places: int, rules: PlaceRules | None = None
) -> set[tuple[Place, str]]:
    """Find the places that alone make tests fail with a signature: by chance, such failures lie at `places` places.

    Where the place is all that there is, as a driver is once every host has it, a build tells nothing.
    """
    rules = rules or PlaceRules()
    chance: dict[tuple[Place, str], float] = {}
    elsewhere: set[tuple[Place, str]] = set()
    seen_at: defaultdict[str, list[set[Place]]] = defaultdict(list)
    for counts in builds:
        at: defaultdict[str, set[Place]] = defaultdict(set)
        for count in counts:
            key = count.place, count.signature
            chance[key] = chance.get(key, 1.0) * count.share**count.here
            if count.here < count.everywhere:
                elsewhere.add(key)
            at[count.signature].add(count.place)
        for signature, found in at.items():
            seen_at[signature].append(found)
    return {
        (place, signature)
        for (place, signature), by_chance in chance.items()
        if by_chance * places < rules.false_alarms
        and (place, signature) not in elsewhere
        and all(place in found for found in seen_at[signature])
    }


def bad_places(
    builds: Sequence[Collection[PlaceCount]], drivers: Mapping[str, str] | None = None, rules: PlaceRules | None = None
) -> list[BadPlace]:
    """Name the bad places of the last builds, the worst first; `drivers` has the newest driver's version of each host.

    A fault is named once: a bad card not for its host too, a bad host not for its cards, a bad driver not for its hosts.
    """
    from scipy.special import gammainc, gammaincinv

    rules = rules or PlaceRules()
    by_place: defaultdict[Place, list[PlaceCount]] = defaultdict(list)
    for count in (count for counts in builds for count in counts):
        by_place[count.place].append(count)
    sums = {place: _sum(place, counts) for place, counts in by_place.items()}
    found = {}
    for kind in ("card", "host", "driver"):
        counts = [count for place, count in sums.items() if place.kind == kind and count.expected > 0]
        usual = max(1.0, median(count.failures / count.expected for count in counts)) if counts else 1.0
        for count in counts:
            expected = max(count.expected * usual, rules.least_expected)  # what all places exceed is not theirs
            shape, rate = rules.shape + count.failures, rules.shape + expected
            # The chance of as many failures or more: the Poisson distribution's tail.
            doubt = float(gammainc(count.failures, rules.least_effect * expected)) if count.failures else 1.0
            if count.tests >= rules.least_tests and doubt < rules.false_alarms / len(counts):
                low, high = (float(gammaincinv(shape, at)) / rate for at in (0.025, 0.975))
                found[count.place] = BadPlace(
                    count.place, shape / rate, low, high, count.failures, count.attempts, expected, count.signatures
                )
    kept = _named_once(set(found), set(sums), drivers or {})
    return sorted((found[place] for place in kept), key=lambda each: (-each.effect, each.place.name))


def _sum(place: Place, counts: Sequence[PlaceCount]) -> PlaceCount:
    signatures: Counter[str] = Counter()
    for count in counts:
        if count.signatures:
            signatures.update(count.signatures)
    return PlaceCount(
        place, sum(count.attempts for count in counts), sum(count.failures for count in counts),
        sum(count.tests for count in counts), sum(count.expected for count in counts), signatures,
    )  # fmt: skip


def _named_once(bad: set[Place], known: Collection[Place], drivers: Mapping[str, str]) -> set[Place]:
    """Keep the largest places whose parts are bad in their majority, without these parts, and no others that have parts."""
    parts: defaultdict[Place, set[Place]] = defaultdict(set)
    for place in known:
        if place.kind == "card" and ":" in place.name:
            parts[Place("host", place.name.rpartition(":")[0])].add(place)
        if place.kind == "host" and place.name in drivers:
            parts[Place("driver", drivers[place.name])].add(place)
    kept = set(bad)
    for kind in ("host", "driver"):
        for whole in [place for place in kept if place.kind == kind and len(parts[place]) > 0]:
            wrong = parts[whole] & bad
            if len(parts[whole]) > 1 and 2 * len(wrong) > len(parts[whole]):
                kept -= parts[whole]
            elif wrong:
                kept.discard(whole)
    return kept
