"""Plan guided batches: large ones first, smaller ones as the work of a file runs out, so that all cards finish together.

Making a plan from known durations belongs here. Which worker takes which batch is decided during the run
(`accel_ci.runner.choice`).

Each batch is a fraction of the remaining work divided by the number of workers on it. This limits how long workers wait
for each other at the end, and needs few claims: guided self-scheduling (Polychronopoulos and Kuck, 1987), with a fraction
well below one as in factoring (Hummel, Schonberg and Flynn, 1992), because durations are known only from other nights. It
is done for each file: a worker that moves to another file has to collect it, so workers share files, and every file has to
end in small batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import median

from accel_ci.model import Batch, SelectedTest

UNKNOWN_S = 1.0  # the estimate of a test if no durations of its file or suite are known
COLLECT_S = 1.0  # the default cost for a worker to collect a file

# Fractions of the lower bound of the makespan.
_URGENT = 1 / 8  # a test that takes longer is run first, whatever its file: started late, it would finish last
_UNSEEN = 1 / 16  # never-seen tests of a file share batches up to this length, since each may turn out to be long
_LONG = 1 / 100  # a test that takes longer is run before the others of its file
_SMALLEST = 1 / 200  # batches are not cut smaller than this

_SHARES = 3  # a batch is about 1 / _SHARES of one worker's share of the remaining work of its file


@dataclass(frozen=True)
class Plan:
    """Batches: the first `urgent` ones are taken first and in order, the others in order within each file.

    `unknown` counts tests without a recorded duration. `estimated_s` is the work of all tests and `lower_bound_s` the
    makespan that no schedule on the plan's cards can beat, both from the estimates.
    """

    batches: tuple[Batch, ...]
    urgent: int
    unknown: int
    estimated_s: float
    lower_bound_s: float


def lower_bound(durations: Iterable[float], cards: int, widths: Iterable[int] | None = None) -> float:
    """The makespan that no schedule on `cards` cards can beat: the longest test, or all work spread evenly.

    `widths` is the number of cards that each test holds, one by default.
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

    `durations` has the recorded seconds by (suite, test). A missing test is estimated by the median of its file, else of
    its suite, else 1 s. Very long tests are urgent, followed by never-seen ones if these are the smaller part of the
    work. The tests of a batch keep their order. `collect_s` is the cost for a worker of each file that it collects:
    batches much shorter than that would save nothing. `widths` maps a suite to the number of cards that its tests hold;
    each number of cards is planned separately, because it also runs separately.
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
    batches = []
    for number, group in enumerate([*first, *later]):
        suite, file = group[0].suite, group[0].file
        ids = tuple(test.test for test in sorted(group, key=lambda test: place[_key(test)]))
        estimate_s = sum(estimates[_key(test)] for test in group)
        batches.append(Batch(f"b{number:05d}", suite, file, ids, estimate_s, cards=width_of[suite]))
    unknown = sum(_key(test) not in durations for test in tests)
    bound_s = lower_bound(estimates.values(), cards, (width_of[suite] for suite, _ in estimates))
    return Plan(tuple(batches), len(first), unknown, sum(estimates.values()), bound_s)


def _groups(
    tests: Sequence[SelectedTest],
    durations: Mapping[tuple[str, str], float],
    estimates: Mapping[tuple[str, str], float],
    cards: int,
    collect_s: float,
) -> tuple[list[list[SelectedTest]], list[list[SelectedTest]]]:
    """Group the tests of one width into batches for `cards` worker groups: the urgent batches, then the others."""
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
    tests: Sequence[SelectedTest], estimates: Mapping[tuple[str, str], float], smallest_s: float, shares: float = math.inf
) -> Iterator[list[SelectedTest]]:
    """Cut tests in order: each batch takes at most its share of the remaining work, or `smallest_s`, or one test.

    A remainder shorter than half of `smallest_s` joins the batch before it.
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
