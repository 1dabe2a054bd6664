"""Plan guided batches: large ones first, smaller ones as the work of a file runs out, so that all cards finish together.

Making a plan from known durations belongs here. Which worker takes which batch is decided during the run
(`accel_ci.runner.choice`).

Each batch is a fraction of the remaining work divided by the number of workers on it. This limits how long workers wait
for each other at the end, and needs few claims: guided self-scheduling (Polychronopoulos and Kuck, 1987), with a fraction
well below one as in factoring (Hummel, Schonberg and Flynn, 1992), because durations are known only from other nights. It
is done for each file: a worker that moves to another file has to collect it, so workers share files, and every file has to
end in small batches.

Tests that belong together are one piece, which is never cut: those of a group (`SelectedTest.group`), which have a batch of
their own, and those of a small file or class, since the tests of many depend on their order. One card alone runs every file
whole, and all in order, as pytest does.

With tests to run first, each piece that has one of them, or on one card each file, comes before all others: both parts are
planned for themselves, and all batches of the first one are urgent, the longest ones first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

_WHOLE_TESTS = 16  # a file or class of more tests may be cut
_WHOLE_FILE_S, _WHOLE_CLASS_S = 16.0, 60.0  # so may one that takes longer, and is not short for the plan either
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
    first_estimates: Mapping[tuple[str, str], float] | None = None,
    first: Collection[tuple[str, str]] = (),
) -> Plan:
    """Cut the tests into batches for `cards` cards.

    `durations` has the recorded seconds by (suite, test). A missing test is estimated by the median of its file, else by
    `first_estimates`, the seconds by (suite, file), else by the median of its suite, else by 1 s. Very long tests are
    urgent, followed by never-seen ones if these are the smaller part of the work. The tests of a batch keep their order.
    `collect_s` is the cost for a worker of each file that it collects: batches much shorter than that would save nothing.
    `widths` maps a suite to the number of cards that its tests hold; each number of cards is planned separately, because it
    also runs separately. The tests `first` (suite and test) come before all others of their number of cards.
    """
    if cards < 1:
        raise ValueError(f"a plan needs at least one card, not {cards}")
    width_of = {test.suite: (widths or {}).get(test.suite, 1) for test in tests}
    estimates = _estimates(tests, durations, first_estimates or {})
    place = {_key(test): number for number, test in enumerate(tests)}
    wanted = frozenset(first)
    early: list[list[_Piece]] = []
    later: list[list[_Piece]] = []
    durations_s: list[float] = []  # of what cannot be spread over cards
    cards_held: list[int] = []
    for width in sorted(set(width_of.values())):
        single, groups = _pieces([test for test in tests if width_of[test.suite] == width], durations, estimates)
        workers = max(1, cards // width)
        if workers == 1:
            files = [*_by_file(single), *([group] for group in groups)]
            files.sort(key=lambda batch: (_of_none(batch, wanted), place[_key(batch[0].tests[0])]))
            urgent, rest = files, list[list[_Piece]]()
        else:
            urgent, rest = _batches(single, groups, workers, collect_s, wanted)
        early += urgent
        later += rest
        durations_s += [piece.estimate_s for piece in (*single, *groups)]
        cards_held += [width] * (len(single) + len(groups))
    batches = []
    for number, pieces in enumerate([*early, *later]):
        ordered = sorted((test for piece in pieces for test in piece.tests), key=lambda test: place[_key(test)])
        suite, file, ids = ordered[0].suite, ordered[0].file, tuple(test.test for test in ordered)
        estimate_s = sum(piece.estimate_s for piece in pieces)
        batches.append(Batch(f"b{number:05d}", suite, file, ids, estimate_s, cards=width_of[suite], group=ordered[0].group))
    unknown = sum(_key(test) not in durations for test in tests)
    bound_s = lower_bound(durations_s, cards, cards_held)
    return Plan(tuple(batches), len(early), unknown, sum(estimates.values()), bound_s)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tests that are not cut apart: one, or those of a group or a small file or class.

    `is_seen` is true if all have a recorded duration.
    """

    tests: tuple[SelectedTest, ...]
    estimate_s: float
    is_seen: bool

    @property
    def file(self) -> tuple[str, str]:
        """The suite and file of the first test."""
        return self.tests[0].suite, self.tests[0].file


def _pieces(
    tests: Sequence[SelectedTest], durations: Mapping[tuple[str, str], float], estimates: Mapping[tuple[str, str], float]
) -> tuple[list[_Piece], list[_Piece]]:
    """Make a piece of each single test and of each group."""
    single: list[_Piece] = []
    groups: defaultdict[tuple[str, str], list[_Piece]] = defaultdict(list)
    for test in tests:
        piece = _Piece((test,), estimates[_key(test)], _key(test) in durations)
        (single if test.group is None else groups[test.suite, test.group]).append(piece)
    return single, list(map(_joined, groups.values()))


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    tests = tuple(test for piece in pieces for test in piece.tests)
    return _Piece(tests, sum(piece.estimate_s for piece in pieces), all(piece.is_seen for piece in pieces))


def _batches(
    single: Sequence[_Piece], groups: Sequence[_Piece], workers: int, collect_s: float, wanted: frozenset[tuple[str, str]]
) -> tuple[list[list[_Piece]], list[list[_Piece]]]:
    """Put the pieces of one width into batches for some workers: the urgent batches, then the others.

    All batches of pieces with a `wanted` test are urgent, and come first.
    """
    bound_s = lower_bound((piece.estimate_s for piece in (*single, *groups)), workers)
    pieces = _with_small_scopes_joined(single, max(collect_s, bound_s * _URGENT))
    if not wanted:
        return _cut_all(pieces, groups, workers, collect_s, bound_s)
    cut = []
    for is_other in (False, True):
        own, of_groups = ([piece for piece in some if _of_none([piece], wanted) is is_other] for some in (pieces, groups))
        bound_s = lower_bound((piece.estimate_s for piece in (*own, *of_groups)), workers)
        cut.append(_cut_all(own, of_groups, workers, collect_s, bound_s))
    (urgent, rest), (other_urgent, later) = cut
    early = sorted((*urgent, *rest), key=lambda batch: -sum(piece.estimate_s for piece in batch))
    return [*early, *other_urgent], later


def _of_none(pieces: Iterable[_Piece], wanted: frozenset[tuple[str, str]]) -> bool:
    return not any(_key(test) in wanted for piece in pieces for test in piece.tests)


def _cut_all(
    pieces: Sequence[_Piece], groups: Sequence[_Piece], workers: int, collect_s: float, bound_s: float
) -> tuple[list[list[_Piece]], list[list[_Piece]]]:
    """Cut pieces into batches: the urgent ones, then the others. `bound_s` is the lower bound of all their makespans.

    Groups are urgent, since they cannot be cut; a longer one comes before a shorter one.
    """
    work_s = sum(piece.estimate_s for piece in (*pieces, *groups))
    urgent_s = max(collect_s, bound_s * _URGENT)
    unseen = [piece for piece in pieces if not piece.is_seen]
    if 2 * sum(piece.estimate_s for piece in unseen) > work_s:
        unseen = []
    apart = {piece.tests for piece in unseen}
    urgent = [piece for piece in pieces if piece.estimate_s > urgent_s and piece.tests not in apart]
    apart.update(piece.tests for piece in urgent)

    first = [[piece] for piece in sorted((*urgent, *groups), key=lambda piece: -piece.estimate_s)]
    for of_file in _by_file(unseen):
        first += _cut(of_file, max(collect_s, bound_s * _UNSEEN))
    later: list[list[_Piece]] = []
    smallest_s = max(collect_s / 4, bound_s * _SMALLEST)
    long_s = max(smallest_s, bound_s * _LONG)
    for of_file in _by_file(piece for piece in pieces if piece.tests not in apart):
        of_file.sort(key=lambda piece: -max(piece.estimate_s, long_s))
        share = sum(piece.estimate_s for piece in of_file) * workers / work_s if work_s else 0.0
        later += _cut(of_file, smallest_s, _SHARES * max(1.0, share))
    return first, later


def _with_small_scopes_joined(single: Sequence[_Piece], short_s: float) -> list[_Piece]:
    """Join the tests of each small file, and in larger files those of each small class; `short_s` is always short enough."""
    found: list[_Piece] = []
    for of_file in _by_file(single):
        if _is_small(of_file, max(_WHOLE_FILE_S, short_s)):
            found.append(_joined(of_file))
            continue
        scopes: defaultdict[str, list[_Piece]] = defaultdict(list)
        for piece in of_file:
            scopes[piece.tests[0].class_id or piece.tests[0].test].append(piece)
        for of_class in scopes.values():
            found += [_joined(of_class)] if _is_small(of_class, max(_WHOLE_CLASS_S, short_s)) else of_class
    return found


def _is_small(pieces: Sequence[_Piece], short_s: float) -> bool:
    return len(pieces) <= _WHOLE_TESTS and sum(piece.estimate_s for piece in pieces) <= short_s


def _key(test: SelectedTest) -> tuple[str, str]:
    return test.suite, test.test


def _estimates(
    tests: Sequence[SelectedTest],
    durations: Mapping[tuple[str, str], float],
    first_estimates: Mapping[tuple[str, str], float],
) -> dict[tuple[str, str], float]:
    by_file: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    by_suite: defaultdict[str, list[float]] = defaultdict(list)
    for test in tests:
        if (known := durations.get(_key(test))) is not None:
            by_file[test.suite, test.file].append(known)
            by_suite[test.suite].append(known)
    of_suite = {suite: median(known) for suite, known in by_suite.items()}
    of_file = {**first_estimates, **{file: median(known) for file, known in by_file.items()}}
    return {
        _key(test): durations.get(_key(test), of_file.get((test.suite, test.file), of_suite.get(test.suite, UNKNOWN_S)))
        for test in tests
    }


def _by_file(pieces: Iterable[_Piece]) -> Iterable[list[_Piece]]:
    files: defaultdict[tuple[str, str], list[_Piece]] = defaultdict(list)
    for piece in pieces:
        files[piece.file].append(piece)
    return files.values()


def _cut(pieces: Sequence[_Piece], smallest_s: float, shares: float = math.inf) -> Iterator[list[_Piece]]:
    """Cut pieces in order: each batch takes at most its share of the remaining work, or `smallest_s`, or one piece.

    A remainder shorter than half of `smallest_s` joins the batch before it.
    """
    left_s = sum(piece.estimate_s for piece in pieces)
    batch: list[_Piece] = []
    taken_s = 0.0
    for piece in pieces:
        full = taken_s + piece.estimate_s > max(smallest_s, left_s / shares)
        if batch and full and left_s - taken_s >= smallest_s / 2:
            yield batch
            left_s -= taken_s
            batch, taken_s = [], 0.0
        batch.append(piece)
        taken_s += piece.estimate_s
    if batch:
        yield batch
