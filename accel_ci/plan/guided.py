"""Guided batches: large ones first, smaller as the work runs out, so that all cards end together.

Here belongs the making of a plan from what is known of durations. Which worker takes which batch is decided while it
runs (`accel_ci.runner.choice`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from accel_ci.model import Batch, SelectedTest

UNKNOWN_S = 1.0
"""The estimate of a test when nothing of its file and its suite is known."""

_SHARES = 3
"""A batch is about this part of a card's share of the remaining work: 1 / (_SHARES * cards)."""

_LONG_SHARE = 1 / 8
"""A test longer than this part of the lower bound has a batch of its own that is taken first."""


@dataclass(frozen=True)
class Plan:
    """Batches in the order in which they should be taken; the first `urgent` of them wherever a worker is.

    `unknown` counts tests without a recorded duration. `estimated_s` is the work of all tests, `lower_bound_s` the
    makespan that no schedule on the plan's cards beats, both from the estimates.
    """

    batches: tuple[Batch, ...]
    urgent: int
    unknown: int
    estimated_s: float
    lower_bound_s: float


def lower_bound(durations: Iterable[float], cards: int) -> float:
    """The seconds that no schedule on `cards` cards beats: the longest test, or all work spread evenly."""
    known = list(durations)
    return max(max(known, default=0.0), sum(known) / max(1, cards))


def make_plan(
    tests: Sequence[SelectedTest],
    durations: Mapping[tuple[str, str], float],
    cards: int,
    *,
    smallest_s: float = 0.25,
    collect_s: float = 2.0,
) -> Plan:
    """Cut the tests into batches for `cards` cards.

    `durations` has the recorded seconds by (suite, test). A test that is not there is estimated by the median of its
    file, else of its suite, else 1 s. Never-seen tests (while they are the smaller part of the work) and very long ones
    are urgent. Batches are not cut smaller than `smallest_s` seconds, and the tests of one keep their order.
    """
    if cards < 1:
        raise ValueError(f"a plan needs at least one card, not {cards}")
    estimates = _estimates(tests, durations)
    bound_s = lower_bound(estimates.values(), cards)
    long_s = max(smallest_s, bound_s * _LONG_SHARE)
    long = [test for test in tests if _key(test) in durations and estimates[_key(test)] > long_s]
    unseen = [test for test in tests if _key(test) not in durations]
    if 2 * sum(estimates[_key(test)] for test in unseen) > sum(estimates.values()):
        unseen = []
    apart = {_key(test) for test in (*long, *unseen)}
    rest = [test for test in tests if _key(test) not in apart]

    long.sort(key=lambda test: -estimates[_key(test)])
    first = [*_guided(unseen, estimates, cards, smallest_s), *([test] for test in long)]
    groups = [*first, *_guided(rest, estimates, cards, smallest_s)]
    batches = tuple(
        Batch(
            id=f"b{number:05d}",
            suite=group[0].suite,
            file=group[0].file,
            tests=tuple(test.test for test in group),
            estimate_s=sum(estimates[_key(test)] for test in group),
        )
        for number, group in enumerate(groups)
    )
    unknown = sum(_key(test) not in durations for test in tests)
    return Plan(batches, len(first), unknown, sum(estimates.values()), bound_s)


def _key(test: SelectedTest) -> tuple[str, str]:
    return test.suite, test.test


def _estimates(tests: Sequence[SelectedTest], durations: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    by_file: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    by_suite: defaultdict[str, list[float]] = defaultdict(list)
    for test in tests:
        if (known := durations.get(_key(test))) is not None:
            by_file[test.suite, test.file].append(known)
            by_suite[test.suite].append(known)
    of_suite = {suite: median(known) for suite, known in by_suite.items()}
    of_file = {file: median(known) for file, known in by_file.items()}
    return {
        _key(test): durations.get(_key(test), of_file.get((test.suite, test.file), of_suite.get(test.suite, UNKNOWN_S)))
        for test in tests
    }


def _guided(
    tests: Sequence[SelectedTest], estimates: Mapping[tuple[str, str], float], cards: int, smallest_s: float
) -> Iterator[list[SelectedTest]]:
    """Cut from the file with most work left, each time a share of all that is left."""
    files: defaultdict[tuple[str, str], list[SelectedTest]] = defaultdict(list)
    for test in tests:
        files[test.suite, test.file].append(test)
    left = [
        (-sum(estimates[_key(test)] for test in of_file), place, 0, of_file) for place, of_file in enumerate(files.values())
    ]
    heapq.heapify(left)
    remaining = -sum(entry[0] for entry in left)
    while left:
        negative, place, begin, of_file = heapq.heappop(left)
        size = max(smallest_s, remaining / (_SHARES * cards))
        end, taken = begin, 0.0
        while end < len(of_file) and (end == begin or taken + estimates[_key(of_file[end])] <= size):
            taken += estimates[_key(of_file[end])]
            end += 1
        if -negative - taken < smallest_s:
            end, taken = len(of_file), -negative
        yield of_file[begin:end]
        remaining -= taken
        if end < len(of_file):
            heapq.heappush(left, (negative + taken, place, end, of_file))
