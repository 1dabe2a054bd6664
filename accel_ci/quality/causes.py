"""Give each failure of a build its cause: infra, flaky, upstream, backend, or unknown where the evidence does not decide.

The order of decision is that of a person on call: was it lost to the infrastructure, did it pass at the same revision, is it
a known flake by its signature, which of the versions that changed explains it. Each step weighs the hypotheses by Bayes'
rule; a cause is given only with a probability of at least `CauseRules.certain`. Pure: grids and attempts in, causes out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from accel_ci.model import FAILING_OUTCOMES, Build
from accel_ci.quality.grid import AttemptRow, Grid, Night, Numbers
from accel_ci.quality.places import BadPlace, Place, discordant, places_of
from accel_ci.quality.versions import (
    Cause,
    Evidence,
    NewDrivers,
    Sibling,
    broken_words,
    on_stacks,
    undecided_words,
    weigh_versions,
)

Identity = tuple[str, str]
"""Suite and test."""

_PASSING = frozenset({"passed", "xpassed"})


@dataclass(frozen=True)
class CauseRules:
    """The weights of the hypotheses.

    `certain` is the probability that a cause needs. `breakage` is the chance that a test breaks from one build to the next,
    `new_flake` that a test becomes flaky then, `flaky_share` the share of tests that are flaky anyway. A flaky test's rate
    comes from a beta distribution with the parameters `flake_rate`; most are far below 10 %, and the measured median is
    0.5 % (the public reruns of 444 flaky tests). `contrary` is the chance that another stack shows the opposite of what a
    cause would make it show.
    """

    certain: float = 0.95
    breakage: float = 5e-4
    new_flake: float = 1e-4
    flaky_share: float = 0.02
    flake_rate: tuple[float, float] = (0.3, 6.0)
    contrary: float = 0.01
    same_signature: float = 0.1
    """The chance that a breakage has the signature of a known flake, before other tests show how common that is."""


@dataclass(frozen=True)
class Doubt:
    """The doubt about a failure that reruns can settle: the chance that it would pass, and its failure rate in that case."""

    passing: float
    rate: float


@dataclass(frozen=True)
class Blame:
    """The cause of a test's failure in a build, with its probability and the 95 % credible interval of that.

    `since` is the first build of the failure, `last_good` the one before in which the test passed: a breakage lies between
    them. A failure that has `place` is blamed on it. `retried` says that it passed when it ran again, and `suspect` is the
    commit at which it broke. `doubt` is None where reruns tell nothing.
    """

    suite: str
    test: str
    build: Build
    cause: Cause
    probability: float
    low: float
    high: float
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    signature: str | None = None
    since: Build | None = None
    last_good: Build | None = None
    place: Place | None = None
    retried: bool = False
    suspect: str | None = None
    doubt: Doubt | None = None

    @property
    def identity(self) -> Identity:
        """Suite and test."""
        return self.suite, self.test


@dataclass(frozen=True)
class _Flake:
    """The hypothesis that a test is flaky: the chance of what was seen, with an interval, in words, and its failure rate."""

    chance: float
    low: float
    high: float
    words: str
    rate: float


@dataclass(frozen=True)
class _Streak:
    """The builds in a row in which a test has only failed: its columns, and the last build before with a pass."""

    begin: int
    fails: int
    last_good: int | None


def counts_of(grid: Grid, identity: Identity) -> tuple[int, int]:
    """The failed and passed attempts of a test in builds in which it passed."""
    row = grid.row(*identity)
    if row is None:
        return 0, grid.builds_run
    cells = grid.passes[row] > 0
    return int(grid.fails[row][cells].sum()), int(grid.passes[row][cells].sum())


def own_rate(grid: Grid, identity: Identity, rules: CauseRules) -> tuple[float, float, float]:
    """The chance that an attempt of a test fails by itself, with its 95 % credible interval."""
    from scipy.special import betaincinv

    fails, passes = counts_of(grid, identity)
    a, b = rules.flake_rate
    share = 1.0 if fails else rules.flaky_share
    a, b = a + fails, b + passes
    return share * a / (a + b), share * float(betaincinv(a, b, 0.025)), min(1.0, share * float(betaincinv(a, b, 0.975)))


def own_rates(grid: Grid, rules: CauseRules) -> tuple[float, Numbers]:
    """The chance that an attempt fails by itself: of a test without a row, and of each row. As `own_rate`, for all tests."""
    import numpy as np

    passed = grid.passes > 0
    fails, passes = (grid.fails * passed).sum(axis=1), (grid.passes * passed).sum(axis=1)
    a, b = rules.flake_rate
    share = np.where(fails > 0, 1.0, rules.flaky_share)
    return own_rate(grid, ("", ""), rules)[0], share * (a + fails) / (a + b + fails + passes)


class Judge:
    """Judges the failures of one build; what many of its tests need is worked out once."""

    def __init__(
        self,
        night: Night,
        grid: Grid,
        siblings: Sequence[Sibling] = (),
        bad: Collection[BadPlace] = (),
        blamed: Collection[tuple[Place, str]] = (),
        drivers: Mapping[str, str] | None = None,
        updated: Mapping[str, float] | None = None,
        earlier: Mapping[Identity, Blame] | None = None,
        rules: CauseRules | None = None,
    ) -> None:
        """Make the judge of a build.

        Args:
            night: The build.
            grid: The line of its variant up to this build, without it.
            siblings: The other variants of the same revision.
            bad: The bad places of the last builds, this one included.
            blamed: The places that alone make tests fail with a signature, likewise.
            drivers: The driver's version of each host.
            updated: The hosts whose driver changed in the last builds, each with its share of all attempts.
            earlier: The causes of the failures of the build before: one that is still failing is not judged worse than then.
            rules: The weights.
        """
        self._night, self._grid, self._siblings = night, grid, siblings
        self._bad = {each.place: each for each in bad}
        self._blamed: set[tuple[Place, str | None]] = set(blamed)
        self._drivers, self._updated, self._rules = drivers or {}, updated or {}, rules or CauseRules()
        self._earlier = earlier or {}

    def blames(self) -> list[Blame]:
        """The cause of each failure, by suite and test."""
        found = {identity: self._lost(*identity, reason) for identity, reason in self._night.lost.items()}
        hard: list[Identity] = []
        for identity, rows in self._attempts.items():
            own = [row for row in rows if row.infra is None]
            if not any(row.outcome in FAILING_OUTCOMES for row in own):
                if any(row.infra is not None for row in rows) and not any(row.outcome in _PASSING for row in own):
                    found[identity] = self._infra(rows)
            elif (doubt := self._doubt_of_passes(identity, own)) is not None:
                found[identity] = self._passed_again(identity, own, doubt)
            else:
                hard.append(identity)
        found |= self._hard_failures(hard, found)
        return [found[identity] for identity in sorted(found)]

    @cached_property
    def _attempts(self) -> dict[Identity, list[AttemptRow]]:
        return self._night.by_test()

    # --- the infrastructure

    def _lost(self, suite: str, test: str, reason: str) -> Blame:
        evidence = Evidence(f"no attempt: {reason}", "infra")
        return Blame(suite, test, self._build, "infra", 0.99, 0.95, 1, f"It did not run: {reason}.", (evidence,), reason)

    def _infra(self, rows: Sequence[AttemptRow]) -> Blame:
        lost = [row for row in rows if row.infra is not None]
        reason = lost[-1].infra or ""
        evidence = Evidence(f"{len(lost)} of {len(rows)} attempts were lost: {reason}", "infra", self._rows(lost))
        place = self._lost_at(lost)
        return Blame(
            rows[0].suite, rows[0].test, self._build, "infra", 0.99, 0.95, 1,
            f"The infrastructure lost it: {reason}.", (evidence,), reason, place=place,
        )  # fmt: skip

    def _place_of(self, rows: Sequence[AttemptRow]) -> Place | None:
        """The bad place that has all of these attempts, or that is to blame for their signature; None if there is none."""
        shared = set.intersection(*({*places_of(row, self._drivers)} for row in rows)) if rows else set()
        bad = [place for place in shared if place in self._bad]
        if bad:
            return max(bad, key=lambda place: self._bad[place].effect)
        blamed = [place for place in shared if all((place, row.signature) in self._blamed for row in rows)]
        return min(blamed, key=lambda place: ("driver", "host", "card").index(place.kind), default=None)

    def _lost_at(self, rows: Sequence[AttemptRow]) -> Place | None:
        """The bad place, or the host, where attempts were lost; None where most hosts lost some."""
        hosts = {row.host for row in rows}
        if 2 * len(self._hosts_that_lost) > len(self._hosts) > 1:
            return None
        return self._place_of(rows) or (Place("host", hosts.pop() or "") if len(hosts) == 1 and None not in hosts else None)

    @cached_property
    def _hosts(self) -> set[str | None]:
        return {row.host for row in self._night.attempts} | set(self._drivers)

    @cached_property
    def _hosts_that_lost(self) -> set[str | None]:
        return {row.host for row in self._night.attempts if row.infra is not None}

    # --- passed and failed at one revision

    def _doubt_of_passes(self, identity: Identity, rows: Sequence[AttemptRow]) -> float | None:
        """The chance that a test is broken although it passed, too; None where its passes do not count.

        They count where it passed as often as it failed. Of one that was run again for that, fewer count, too, if they are
        less likely of a broken test: one that fails in three of four attempts is flaky all the same.
        """
        failed = [row for row in rows if row.outcome in FAILING_OUTCOMES]
        passed = [row for row in rows if row.outcome in _PASSING]
        doubt = 1.0
        for row in passed:  # a pass in the process that failed proves less than one in a fresh process on another card
            other_card = all((row.host, row.card) != (other.host, other.card) for other in failed)
            other_process = all(row.process != other.process for other in failed)
            doubt *= 0.01 if other_card else 0.1 if other_process else 0.25
        if len(passed) >= len(failed):
            return doubt
        if not any(row.rerun_in is not None for row in passed):
            return None
        signature = failed[-1].signature
        flake = self._flake(identity, signature, self._streak(identity), len(failed), passes=len(passed))
        broken = self._weight_of_breakage(identity, signature) * doubt
        doubt = broken / (broken + flake.chance)
        return doubt if doubt < self._rules.certain else None

    def _passed_again(self, identity: Identity, rows: Sequence[AttemptRow], doubt: float) -> Blame:
        """A flake, unless a bad place explains the failures; `doubt` is the chance that it is broken."""
        failed = [row for row in rows if row.outcome in FAILING_OUTCOMES]
        passed = [row for row in rows if row.outcome in _PASSING]
        signature = failed[-1].signature
        flake = 1 - doubt
        evidence = [
            Evidence(f"{len(failed)} of {len(rows)} attempts failed at this revision", "flaky", self._rows(failed)),
            Evidence(f"{len(passed)} passed at the same revision", "flaky", self._rows(passed)),
            *_reruns(rows, "flaky"),
        ]
        place = self._place_of(discordant(rows)) if len(discordant(rows)) == len(failed) else None
        if place is None:
            hosts = {row.host for row in failed if row.host is not None}
            if hosts and hosts <= self._updated.keys() and not self._is_known_flake(identity, signature):
                sentence = f"It passed elsewhere: flaky, or the new driver of {', '.join(sorted(hosts))}."
                return self._unknown(identity, signature, 0.5, sentence, tuple(evidence))
            return self._flaky(identity, signature, flake, (flake / 2 + 0.49, 1), tuple(evidence))
        bad = self._bad.get(place)
        if bad is None:
            fact = f"all failures with this signature are at {place.kind} {place.name}, and the tests pass elsewhere"
            evidence.append(Evidence(fact, "infra", self._rows(failed)))
            return Blame(
                *identity, self._build, "infra", 0.98, 0.95, 1, f"{fact[0].upper()}{fact[1:]}.", tuple(evidence), signature,
                place=place, retried=True,
            )  # fmt: skip
        own, low, high = own_rate(self._grid, identity, self._rules)
        excess = max(bad.excess(signature), 1e-6)
        shares = [excess / (excess + rate) for rate in (own, high, low)]
        fact = f"{place.kind} {place.name} fails {bad.effect:.0f} times as often as its tests do elsewhere"
        evidence.append(Evidence(f"{fact}: {bad.failures} of {bad.attempts} attempts", "infra", self._rows(failed)))
        if shares[0] >= self._rules.certain:
            sentence = f"It passes elsewhere, and {fact}."
            return Blame(
                *identity, self._build, "infra", shares[0], shares[1], shares[2], sentence, tuple(evidence), signature,
                place=place, retried=True,
            )  # fmt: skip
        if 1 - shares[0] >= self._rules.certain:
            return self._flaky(identity, signature, 1 - shares[0], (1 - shares[2], 1 - shares[1]), tuple(evidence))
        sentence = f"It passed at the same revision: flaky, or {place.kind} {place.name} is to blame."
        return self._unknown(identity, signature, max(shares[0], 1 - shares[0]), sentence, tuple(evidence))

    def _flaky(
        self,
        identity: Identity,
        signature: str | None,
        probability: float,
        interval: tuple[float, float],
        evidence: tuple[Evidence, ...],
    ) -> Blame:
        if probability < self._rules.certain:
            sentence = "It passed again only where it had failed, or seldom."
            unknown = self._unknown(identity, signature, probability, sentence, evidence)
            return replace(unknown, doubt=Doubt(probability, 0.5))
        row = self._grid.row(*identity)
        known = int(self._mixed[row].sum()) if row is not None else 0
        more = f"; flaky in {known} of {len(self._grid.points)} builds before" if known else ""
        sentence = f"It failed and passed at the same revision{more}."
        return Blame(*identity, self._build, "flaky", probability, *interval, sentence, evidence, signature, retried=True)

    def _unknown(
        self, identity: Identity, signature: str | None, probability: float, sentence: str, evidence: tuple[Evidence, ...]
    ) -> Blame:
        return Blame(*identity, self._build, "unknown", probability, 0, 1, sentence, evidence, signature, retried=True)

    # --- failed in all attempts

    def _hard_failures(self, tests: Sequence[Identity], judged: Mapping[Identity, Blame]) -> dict[Identity, Blame]:
        """Judge these together: tests that begin to fail in one build with one signature are one event.

        Those of them that ran again stand for the others. Failures of theirs count for all. A pass clears nobody else, but
        leaves the others in doubt. `judged` are the tests that passed.
        """
        groups: defaultdict[tuple[int, str | None], list[Identity]] = defaultdict(list)
        streaks = {identity: self._streak(identity) for identity in tests}
        for identity in tests:
            groups[streaks[identity].begin, self._signature(identity)].append(identity)
        cleared: dict[tuple[int, str | None], Identity] = {}
        for identity, blame in judged.items():
            if blame.retried and blame.cause != "unknown" and self._reruns_of(identity, _PASSING):
                cleared[self._streak(identity).begin, blame.signature] = identity
        found = {}
        for event, members in groups.items():
            signature = event[1]
            first_seen = [identity for identity in members if not self._is_known_flake(identity, signature)]
            drivers = self._new_drivers(members)
            reruns = {identity: self._reruns_of(identity, FAILING_OUTCOMES) for identity in first_seen}
            most = max(reruns.values(), default=0)
            for identity in members:
                together, more = (len(first_seen), most - reruns[identity]) if identity in reruns else (1, 0)
                blame = self._hard_failure(identity, signature, streaks[identity], together, drivers, more)
                if identity in reruns and not most and event in cleared and blame.place is None:
                    blame = _in_doubt(blame, cleared[event])
                found[identity] = blame
        return found

    def _reruns_of(self, identity: Identity, outcomes: Collection[str]) -> int:
        """The number of a test's reruns that ended so."""
        return sum(row.rerun_in is not None and row.outcome in outcomes for row in self._attempts.get(identity, ()))

    def _new_drivers(self, tests: Sequence[Identity]) -> NewDrivers:
        """The hosts with a new driver, if all failures of these tests lie there.

        A breakage would have to hit these hosts alone by chance, and to pass by chance where a test passed on another.
        """
        rows = [row for identity in tests for row in self._attempts[identity] if row.infra is None]
        failed = [row for row in rows if row.outcome in FAILING_OUTCOMES]
        if not self._updated or any(row.host not in self._updated for row in failed):
            return NewDrivers()
        passed = sum(row.outcome in _PASSING and row.host not in self._updated for row in rows)
        chance = min(1.0, sum(self._updated.values())) ** len(failed) * self._rules.contrary**passed
        return NewDrivers(max(1e-6, chance), self._updated)

    def _hard_failure(
        self, identity: Identity, signature: str | None, streak: _Streak, together: int, drivers: NewDrivers, more: int
    ) -> Blame:
        """Judge a test that only failed. `more` failures of another one count, as it stands for this one."""
        rules, rows = self._rules, [row for row in self._attempts[identity] if row.infra is None]
        failed = [row for row in rows if row.outcome in FAILING_OUTCOMES]
        place = self._place_of(failed)
        known_there = self._blamed | (self._seen_discordant if place in self._bad else set())
        if place is not None and all((place, row.signature) in known_there for row in failed):
            fact = f"other tests fail the same way at {place.kind} {place.name} alone"
            evidence = Evidence(f"all {len(failed)} attempts ran at a bad place: {fact}", "infra", self._rows(failed))
            sentence = f"It ran only where {fact}."
            doubt = Doubt(0.97, own_rate(self._grid, identity, rules)[0])
            return Blame(
                *identity, self._build, "infra", 0.97, 0.9, 1, sentence, (evidence,), signature, place=place, doubt=doubt
            )
        since = self._night.point if streak.begin == len(self._grid.points) else self._grid.points[streak.begin]
        last_good = self._grid.points[streak.last_good] if streak.last_good is not None else None
        there = [(sibling, sibling.verdict(*identity)) for sibling in self._siblings]
        attempts = len(failed) * (1 + sum(verdict == "failed" for _, verdict in there)) + more  # they would all be by chance
        flake = self._flake(identity, signature, streak, attempts, together)
        known, why = self._is_known_flake(identity, signature), flake.words
        weight = self._weight_of_breakage(identity, signature)
        broken, low, high = (weight / (weight + each) for each in (flake.chance, flake.high, flake.low))
        doubt = Doubt(1 - broken, flake.rate)
        begun = Evidence(
            f"it has only failed since {since.build.name}"
            + (f"; it passed in {last_good.build.name}" if last_good else "; it has never passed in this series"),
            "backend", self._rows(failed),
        )  # fmt: skip
        if 1 - broken >= rules.certain:
            return Blame(
                *identity, self._build, "flaky", 1 - broken, 1 - high, 1 - low, f"A known flake: {why}.",
                (Evidence(why, "flaky"), begun, *_reruns(rows, "flaky")), signature, since.build,
                last_good.build if last_good else None, doubt=doubt,
            )  # fmt: skip
        shares, changes = weigh_versions(self._night.point, there, since, last_good, rules.contrary, drivers)
        best = max(shares, key=lambda cause: shares[cause])
        probability = broken * shares[best]
        lines = (begun, *_reruns(rows, "backend"), *changes, *((Evidence(why, "flaky"),) if known else ()))
        blame = Blame(
            *identity, self._build, "unknown", probability, low * shares[best], high * shares[best], "", lines, signature,
            since.build, last_good.build if last_good else None, doubt=doubt,
        )  # fmt: skip
        if probability < rules.certain or best == "unknown":
            before = self._earlier.get(identity)
            is_same = before is not None and (before.since, before.signature) == (since.build, signature)
            if before is not None and is_same and before.cause in shares:
                return replace(before, build=self._build, evidence=(*before.evidence, begun), doubt=doubt)
            either = f"It may be broken since {since.build.revision}, or flaky: {why}."
            sentence = undecided_words(shares, since, last_good) if broken >= rules.certain or not last_good else either
            return replace(blame, low=0, high=1, sentence=sentence)
        suspect = {"backend": since.backend, "upstream": since.upstream}.get(best)
        inherited = not self._night.point.is_on_line and since is not self._night.point
        stacks = on_stacks(best, self._night.point, there)
        sentence = broken_words(best, since, last_good, inherited, stacks)
        return replace(blame, cause=best, sentence=sentence, suspect=suspect)

    def _streak(self, identity: Identity) -> _Streak:
        """The failing builds in a row up to this one. A pull request continues the line at the commit it is based on."""
        columns, end = self._grid, len(self._grid.points)
        row = columns.row(*identity)
        if not self._night.point.is_on_line and self._night.point.base is not None:
            bases = [place for place, point in enumerate(columns.points) if point.backend == self._night.point.base]
            end = bases[-1] + 1 if bases else end
        begin, total = len(self._grid.points), 0
        if row is None:  # it has passed, or not run, in every build
            return _Streak(begin, 0, end - 1 if end and columns.builds_run else None)
        fails, passes = columns.fails[row], columns.passes[row]
        for column in range(end - 1, -1, -1):
            if passes[column]:
                return _Streak(begin, total, column)
            if fails[column]:
                begin, total = column, total + int(fails[column])
        return _Streak(begin, total, None)

    @cached_property
    def _mixed(self) -> Any:
        """Cells in which a test both failed and passed, at the same revision."""
        return (self._grid.fails > 0) & (self._grid.passes >= self._grid.fails)

    @cached_property
    def _flaky_signatures(self) -> dict[str, tuple[int, int]]:
        """Of each signature, how often a test that had it passed again, and how often not in two builds in a row."""
        import numpy as np

        hard = (self._grid.fails > 0) & (self._grid.passes < self._grid.fails)
        twice = hard.copy()
        twice[:, 1:] &= hard[:, :-1]
        found: dict[str, list[int]] = {}
        for cells, place in ((self._mixed, 0), (twice, 1)):
            codes, counts = np.unique(self._grid.signatures[cells], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                if code >= 0:
                    pair = found.setdefault(self._grid.signature_names[code], [0, 0])
                    pair[place] += count
        return {name: (flaky, broken) for name, (flaky, broken) in found.items()}

    def _commonness(self, signature: str | None) -> float:
        """The share of the tests that ever went wrong that had this signature, drawn to `same_signature`."""
        import numpy as np

        codes = [code for code, name in enumerate(self._grid.signature_names) if name == signature]
        had = int((self._grid.signatures == codes[0]).any(axis=1).sum()) if codes else 0
        wrong = int(np.any(self._grid.signatures >= 0, axis=1).sum())
        return (max(0, had - 1) + 10 * self._rules.same_signature) / (max(0, wrong - 1) + 10)

    def _signature(self, identity: Identity) -> str | None:
        failed = [row for row in self._attempts[identity] if row.infra is None and row.outcome in FAILING_OUTCOMES]
        return failed[-1].signature if failed else None

    def _is_known_flake(self, identity: Identity, signature: str | None) -> bool:
        """Return whether this test has failed and passed at one revision with this signature."""
        row = self._grid.row(*identity)
        if row is None or signature not in self._flaky_signatures:
            return False
        codes = self._grid.signatures[row][self._mixed[row]]
        return any(self._grid.signature_names[code] == signature for code in codes.tolist() if code >= 0)

    def _weight_of_breakage(self, identity: Identity, signature: str | None) -> float:
        """The chance that a test breaks and then fails with this signature, against that of a flake."""
        known = self._is_known_flake(identity, signature)
        return self._rules.breakage * (self._commonness(signature) if known else 1)

    def _flake(
        self, identity: Identity, signature: str | None, streak: _Streak, now: int, together: int = 1, passes: int = 0
    ) -> _Flake:
        """The chance that a flaky test fails in all attempts of the streak, with `now` in this build, which `passes` follow.

        `together` tests fail for the first time in one build with one signature: flakes would have to do so by chance.
        """
        from scipy.special import betaincinv, betaln

        attempts, passed_now = streak.fails + now, passes
        fails, passes = counts_of(self._grid, identity)
        a, b = self._rules.flake_rate

        def chance(a: float, b: float) -> float:
            return math.exp(float(betaln(a + attempts, b + passed_now) - betaln(a, b)))

        def rate(a: float, b: float) -> float:
            return (a + attempts) / (a + b + attempts + passed_now)

        if self._is_known_flake(identity, signature):
            flaky, hard = self._flaky_signatures.get(signature or "", (0, 0))
            of_signature = (flaky + 0.5) / (flaky + hard + 1)
            a, b = a + fails, b + passes
            interval = [float(betaincinv(a, b, at)) ** attempts * of_signature for at in (0.025, 0.975)]
            text = (
                f"{fails} of its {fails + passes} attempts failed in builds in which it passed, "
                f"and this signature was flaky {flaky} times"
            )
            return _Flake(chance(a, b) * of_signature, interval[0], interval[1], text, rate(a, b))
        # It may have been flaky before, unseen, or have become so with this build.
        before = self._rules.flaky_share * math.exp(float(betaln(a + attempts, b + passes + passed_now) - betaln(a, b)))
        fresh = self._rules.new_flake * chance(a, b)
        both = (before + fresh) ** min(together, 4) * self._rules.breakage ** -(min(together, 4) - 1)
        words = f"it has never been flaky in {passes} attempts that passed"
        mean = (before * rate(a, b + passes) + fresh * rate(a, b)) / (before + fresh)
        return _Flake(both, both / 4, min(1.0, both * 4), words, mean)

    @cached_property
    def _seen_discordant(self) -> set[tuple[Place, str | None]]:
        """Places and signatures of failures of tests that passed elsewhere in this build."""
        found = set()
        for rows in self._attempts.values():
            for row in discordant(rows):
                found |= {(place, row.signature) for place in places_of(row, self._drivers)}
        return found

    @property
    def _build(self) -> Build:
        return self._night.point.build

    def _rows(self, rows: Sequence[AttemptRow]) -> tuple[tuple[str, str, str, int, int], ...]:
        return tuple((row.rerun_in or self._build.name, row.suite, row.test, row.round, row.attempt) for row in rows)


def _reruns(rows: Sequence[AttemptRow], favours: Cause) -> list[Evidence]:
    """The evidence of each build that ran a failure again."""
    found = []
    for build in dict.fromkeys(row.rerun_in for row in rows if row.rerun_in is not None):
        again = [row for row in rows if row.rerun_in == build]
        passed = sum(row.outcome in _PASSING for row in again)
        where = tuple((build, row.suite, row.test, row.round, row.attempt) for row in again)
        found.append(Evidence(f"{passed} of {len(again)} reruns in {build} passed", favours, where))
    return found


def _in_doubt(blame: Blame, cleared: Identity) -> Blame:
    """Leave the cause of a failure open: one that began with it, in the same way, passed when it ran again."""
    sentence = f"It began together with {cleared[1]}, which passed when it ran again; this test did not run again."
    evidence = (*blame.evidence, Evidence(f"{cleared[1]} failed in the same way, and passed when it ran again", "unknown"))
    doubt = Doubt(0.5, blame.doubt.rate if blame.doubt is not None else 0.5)
    found = replace(blame, cause="unknown", probability=0.5, low=0, high=1, sentence=sentence, evidence=evidence)
    return replace(found, suspect=None, doubt=doubt)
