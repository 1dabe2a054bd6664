"""Choose the next tests to enable: up to a share of those in scope, at the least card-seconds and risk.

First each op and each dtype of the backend gets a test (a greedy set cover); then the tests follow that add most for what
they cost. What a test adds is its chance to pass, more for a first test of an op in a dtype and for a file of which little
is enabled. It costs the card-seconds of each build, and those that a failure would cost. Gains only fall as tests are
chosen, so that a heap with old gains is right (a lazy greedy choice). Equal tests are taken in the order of their names.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from accel_ci.ramp.chances import RampTest

_START_S = 0.02  # of a test beside its duration: its report, its fixtures
_FAILURE_S = 5.0  # card-seconds that a failing test costs: it runs again on another card, and somebody looks at it
_NEW_PAIR = 8  # tests that a first test of an op in a dtype is worth


@dataclass(frozen=True)
class Proposal:
    """The tests to enable, in the order of their choice, and what is enabled before and after.

    `card_s` are the card-seconds that they add to each build. `failures` is the number of them expected to fail, `unproven`
    that of those which never ran. Two kinds are not proposed: `held` tests, which a rule keeps out, and `doubtful` ones,
    which did not pass when they last ran. `passing_held` of those held passed. `ops_left` are ops without an enabled test.
    """

    tests: tuple[RampTest, ...]
    in_scope: int
    enabled_before: int
    target: int
    card_s: float
    failures: float
    unproven: int
    doubtful: int
    held: int
    passing_held: int
    ops: int
    ops_before: int
    ops_left: tuple[str, ...]

    @property
    def enabled_after(self) -> int:
        """The tests that are enabled with the proposal."""
        return self.enabled_before + len(self.tests)

    @property
    def share_after(self) -> float:
        """The enabled share of the tests in scope with the proposal."""
        return self.enabled_after / self.in_scope if self.in_scope else 0.0

    @property
    def missing(self) -> int:
        """The number of tests short of the target."""
        return max(0, self.target - self.enabled_after)


def propose(tests: Sequence[RampTest], share: float, card_s: float = math.inf) -> Proposal:
    """Propose tests until `share` of `tests`, all those in scope, is enabled or their card-seconds come to `card_s`."""
    target = math.ceil(round(share * len(tests), 6))
    enabled = [test for test in tests if test.enabled]
    held = [test for test in tests if test.held]
    others = [test for test in tests if not test.enabled and not test.held]
    candidates = sorted((test for test in others if not test.doubtful), key=lambda test: (test.suite, test.test))
    choice = _Choice(candidates, enabled, tests, target - len(enabled), card_s)
    choice.take(choice.covered)
    choice.take(choice.gained)
    chosen = [candidates[place] for place in choice.taken]
    ops, before = _ops(tests), _ops(enabled)
    return Proposal(
        tuple(chosen),
        in_scope=len(tests),
        enabled_before=len(enabled),
        target=target,
        card_s=sum(test.cost_s for test in chosen),
        failures=sum(1 - test.chance for test in chosen),
        unproven=sum(not test.known for test in chosen),
        doubtful=len(others) - len(candidates),
        held=len(held),
        passing_held=sum(test.known and not test.doubtful for test in held),
        ops=len(ops),
        ops_before=len(before),
        ops_left=tuple(sorted(ops - before - _ops(chosen))),
    )


class _Kind:
    """Candidates of one op, with the same dtypes and in one file: what they add differs by their worth alone."""

    def __init__(self, test: RampTest) -> None:
        self.file = test.file
        self.facets = frozenset([*([("op", test.op)] if test.op else []), *(("dtype", dtype) for dtype in test.dtypes)])
        self.pairs = frozenset((test.op, dtype) for dtype in test.dtypes) if test.op else frozenset()
        self.left: list[tuple[float, int]] = []
        """The worth (negative) and the place of each candidate that is not taken, the best one last."""


class _Choice:
    """Candidates chosen one by one, within a number of tests and of card-seconds. Candidates are known by their places."""

    def __init__(
        self,
        candidates: Sequence[RampTest],
        enabled: Iterable[RampTest],
        in_scope: Iterable[RampTest],
        most: int,
        card_s: float,
    ) -> None:
        self.taken: list[int] = []
        self._most, self._card_s = most, card_s
        self._costs = [test.cost_s for test in candidates]
        self._sizes = Counter(test.file for test in in_scope)
        self._enabled = Counter(test.file for test in enabled)
        self._there: set[Hashable] = set()
        for kind in (_Kind(test) for test in {_kind_of(test): test for test in enabled}.values()):
            self._there |= kind.facets | kind.pairs
        kinds: dict[Hashable, _Kind] = {}
        for place, test in enumerate(candidates):
            if (key := _kind_of(test)) not in kinds:
                kinds[key] = _Kind(test)
            kinds[key].left.append((-test.chance / _price(test), place))
        self._kinds = list(kinds.values())
        for kind in self._kinds:
            kind.left.sort(reverse=True)

    def take(self, gain: Callable[[_Kind], float]) -> None:
        """Take tests while there is a gain, the highest first; one that does not fit is passed over."""
        heap = [entry for number, kind in enumerate(self._kinds) if (entry := self._entry(gain, kind, number))]
        heapq.heapify(heap)
        while heap and len(self.taken) < self._most:
            known, place, number = heap[0]
            kind = self._kinds[number]
            now = self._entry(gain, kind, number)
            if now == (known, place, number):
                kind.left.pop()
                if self._costs[place] <= self._card_s:
                    self._note(kind, place)
                now = self._entry(gain, kind, number)
            if now:
                heapq.heapreplace(heap, now)
            else:
                heapq.heappop(heap)

    @staticmethod
    def _entry(gain: Callable[[_Kind], float], kind: _Kind, number: int) -> tuple[float, int, int] | None:
        if not kind.left or not (factor := gain(kind)):
            return None
        worth, place = kind.left[-1]
        return factor * worth, place, number

    def covered(self, kind: _Kind) -> float:
        """The number of ops and dtypes that no chosen test has yet."""
        return len(kind.facets - self._there)

    def gained(self, kind: _Kind) -> float:
        """The gain of a further test. A file counts by tenths, so that few gains change with each choice."""
        tenths = 10 - 10 * self._enabled[kind.file] // self._sizes[kind.file]
        return 1 + _NEW_PAIR * (not kind.pairs <= self._there) + tenths / 10

    def _note(self, kind: _Kind, place: int) -> None:
        self.taken.append(place)
        self._card_s -= self._costs[place]
        self._enabled[kind.file] += 1
        self._there |= kind.facets | kind.pairs


def _kind_of(test: RampTest) -> Hashable:
    return test.file, test.op, test.dtypes


def _price(test: RampTest) -> float:
    """The card-seconds of a test, with those that its failure would cost."""
    return test.cost_s + _START_S + _FAILURE_S * (1 - test.chance)


def _ops(tests: Iterable[RampTest]) -> set[str]:
    return {test.op for test in tests if test.op is not None}
