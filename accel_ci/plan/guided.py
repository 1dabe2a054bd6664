"""Guided batches: large ones first, smaller as the work of a file runs out, so that all cards end together.

Here belongs the making of a plan from what is known of durations. Which worker takes which batch is decided while it
runs (`accel_ci.runner.choice`).

A batch that is a part of what is left, shared by the workers that are at it, bounds how long they wait for each other at
the end, for few claims: guided self-scheduling (Polychronopoulos and Kuck, 1987), with a part well below one as in factoring
(Hummel, Schonberg and Flynn, 1992), because durations are known from other nights only. This is done file by file: who goes
to another file has to collect it, so workers meet in files, and every file has to end in small batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import median

from accel_ci.model import Batch, SelectedTest

UNKNOWN_S = 1.0
"""The estimate of a test when nothing of its file and its suite is known."""

COLLECT_S = 1.0
"""What the collection of a file costs a worker when nothing else is said."""

# Parts of the lower bound of the makespan.
_URGENT = 1 / 8
"""A test that takes longer is taken first, wherever it is: begun late, it would end last."""

_UNSEEN = 1 / 16
"""Never-seen tests of a file go together up to here, since each may turn out to be long."""

_LONG = 1 / 100
"""A test that takes longer is taken before the others of its file."""

_SMALLEST = 1 / 200
"""No batch is cut smaller."""

_SHARES = 3
"""A batch is about this part of a worker's share of what is left of its file: 1 / _SHARES."""


@dataclass(frozen=True)
class Plan:
    """Batches; the first `urgent` are taken first and in their order, the others in their order within each file.

    `unknown` counts tests without a recorded duration. `estimated_s` is the work of all tests, `lower_bound_s` the
    makespan that no schedule on the plan's cards beats, both from the estimates.
    """

    batches: tuple[Batch, ...]
    urgent: int
    unknown: int
    estimated_s: float
    lower_bound_s: float


def lower_bound(durations: Iterable[float], cards: int, widths: Iterable[int] | None = None) -> float:
    """The seconds that no schedule on `cards` cards beats: the longest test, or all work spread evenly.

    `widths` says how many cards each test holds, one by default.
    """
    known = list(durations)
    work_s = sum(known) if widths is None else sum(map(mul, known, widths))
    return max(max(known, default=0.0), work_s / max(1, cards))


def make_plan(
    tests: Sequence[SelectedTest],
    durations: Mapping[tuple[str, str], float],
    cards: int,
    *,
    collect_s: float = COLLECT_S,
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """Cut the tests into batches for `cards` cards.

    `durations` has the recorded seconds by (suite, test). A test that is not there is estimated by the median of its
    file, else of its suite, else 1 s. Very long tests and then never-seen ones (while these are the smaller part of the
    work) are urgent. The tests of a batch keep their order. `collect_s` is what a worker pays for each file that it
    touches: batches much shorter than that would save nothing. `widths` says for a suite how many cards its tests hold;
    each number of cards is planned by itself, since it runs by itself.
    """
    if cards < 1:
        raise ValueError(f"a plan needs at least one card, not {cards}")
    width_of = {test.suite: (widths or {}).get(test.suite, 1) for test in tests}
    estimates = _estimates(tests, durations)
    first: list[list[SelectedTest]] = []
    later: list[list[SelectedTest]] = []
    for width in sorted(set(width_of.values())):
        of_width = [test for test in tests if width_of[test.suite] == width]
        urgent, rest = _groups(of_width, durations, estimates, max(1, cards // width), collect_s)
        first += urgent
        later += rest
    place = {_key(test): number for number, test in enumerate(tests)}
    batches = tuple(
        Batch(
            id=f"b{number:05d}",
            suite=group[0].suite,
            file=group[0].file,
            tests=tuple(test.test for test in sorted(group, key=lambda test: place[_key(test)])),
            estimate_s=sum(estimates[_key(test)] for test in group),
            cards=width_of[group[0].suite],
        )
        for number, group in enumerate([*first, *later])
    )
    unknown = sum(_key(test) not in durations for test in tests)
    bound_s = lower_bound(estimates.values(), cards, (width_of[suite] for suite, _ in estimates))
    return Plan(batches, len(first), unknown, sum(estimates.values()), bound_s)


def _groups(
    tests: Sequence[SelectedTest],
    durations: Mapping[tuple[str, str], float],
    estimates: Mapping[tuple[str, str], float],
    cards: int,
    collect_s: float,
) -> tuple[list[list[SelectedTest]], list[list[SelectedTest]]]:
    """The tests of batches for one number of cards, of which `cards` groups work: the urgent ones, then the others."""
    work_s = sum(estimates[_key(test)] for test in tests)
    bound_s = lower_bound((estimates[_key(test)] for test in tests), cards)
    unseen = [test for test in tests if _key(test) not in durations]
    if 2 * sum(estimates[_key(test)] for test in unseen) > work_s:
        unseen = []
    apart = {_key(test) for test in unseen}
    urgent_s = max(collect_s, bound_s * _URGENT)
    urgent = [test for test in tests if estimates[_key(test)] > urgent_s and _key(test) not in apart]
    urgent.sort(key=lambda test: -estimates[_key(test)])
    apart.update(map(_key, urgent))

    first = [[test] for test in urgent]
    for of_file in _by_file(unseen):
        first += _cut(of_file, estimates, max(collect_s, bound_s * _UNSEEN))
    later: list[list[SelectedTest]] = []
    smallest_s = max(collect_s / 4, bound_s * _SMALLEST)
    long_s = max(smallest_s, bound_s * _LONG)
    for of_file in _by_file(test for test in tests if _key(test) not in apart):
        of_file.sort(key=lambda test: -max(estimates[_key(test)], long_s))
        workers = sum(estimates[_key(test)] for test in of_file) * cards / work_s if work_s else 0.0
        later += _cut(of_file, estimates, smallest_s, _SHARES * max(1.0, workers))
    return first, later


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


def _by_file(tests: Iterable[SelectedTest]) -> Iterable[list[SelectedTest]]:
    files: defaultdict[tuple[str, str], list[SelectedTest]] = defaultdict(list)
    for test in tests:
        files[test.suite, test.file].append(test)
    return files.values()


def _cut(
    tests: Sequence[SelectedTest],
    estimates: Mapping[tuple[str, str], float],
    smallest_s: float,
    shares: float = math.inf,
) -> Iterator[list[SelectedTest]]:
    """Cut tests in their order: a batch takes at most a share of what is left then, or `smallest_s`, or one test.

    What would be left over at the end and shorter than half of `smallest_s` goes with the batch before it.
    """
    left_s = sum(estimates[_key(test)] for test in tests)
    group: list[SelectedTest] = []
    taken_s = 0.0
    for test in tests:
        full = taken_s + estimates[_key(test)] > max(smallest_s, left_s / shares)
        if group and full and left_s - taken_s >= smallest_s / 2:
            yield group
            left_s -= taken_s
            group, taken_s = [], 0.0
        group.append(test)
        taken_s += estimates[_key(test)]
    if group:
        yield group
