"""The batches of the rounds after the first: what is run again, where, and what must run before it. Pure functions.

A test that failed is run again, away from the cards on which it failed. If it belongs to a group, the whole group is. Other
tests may depend on the tests before them without a sign of it: such a test is skipped when it runs again alone. The round
after the last one is for those. They run after the tests before them, as pytest would run them. One more round confirms
flakes: a test that failed and passed has failed, unless it passes as often as it fails once it has run another time.

Where tests have numbers of times to run, each runs so often, however it ends: once a round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from accel_ci.model import Batch, SelectedTest
from accel_ci.plan.guided import make_plan
from accel_ci.rounds.engine import groups_of
from accel_ci.rounds.tally import Tally, TestKey

IN_ORDER_S = 600.0
"""Tests are run again for one that depends on them only if they are expected to take so many seconds at most."""


def retries(batches: Sequence[Batch], tally: Tally, number: int) -> list[Batch]:
    """The batches of round `number`, for tests without an attempt and those whose last one failed or did not find them."""
    return _again(batches, tally, number, lambda batch: tally.to_retry(batch, number))


def confirmations(batches: Sequence[Batch], tests: Sequence[SelectedTest], tally: Tally, number: int) -> list[Batch]:
    """The batches of round `number` for tests that failed and passed, and that one more try decides."""
    alone = _again(batches, tally, number, lambda batch: tally.to_confirm(batch, number, in_order=False))
    together = {
        (batch.suite, test)
        for batch in batches
        if batch.group is None
        for test in tally.to_confirm(batch, number, in_order=True)
    }
    return alone + _in_order(batches, tests, together, number)


def repetitions(batches: Sequence[Batch], tally: Tally, number: int, times: Mapping[TestKey, int]) -> list[Batch]:
    """The batches of round `number` for tests that run so many `times`: those that have not run in it and are not done."""
    left = tally.open_tests(batches, number)
    left = {test for test in left if times.get(test, 1) >= number}
    return _again(batches, tally, number, lambda batch: [test for test in batch.tests if (batch.suite, test) in left])


def _again(batches: Sequence[Batch], tally: Tally, number: int, wanted: Callable[[Batch], Sequence[str]]) -> list[Batch]:
    """The batches of round `number` for the wanted tests, each alone or with its group, away from where it failed."""
    cards = tally.healthy()
    groups: list[Batch] = []
    apart: dict[tuple[int, tuple[str, ...]], list[SelectedTest]] = {}

    def away(batch: Batch, tests: Sequence[str]) -> tuple[str, ...]:
        """The cards to avoid: those of the plan as well, if others are left."""
        holders = groups_of(cards, batch.cards)
        failed_on = {card for test in tests for card in tally.failed_on((batch.suite, test))}
        return cards_to_avoid(holders, {*failed_on, *batch.avoid_cards}) or cards_to_avoid(holders, failed_on)

    for batch in batches:
        again = wanted(batch)
        if again and batch.group is not None:
            groups.append(replace(batch, id=f"r{number}-g{len(groups)}", avoid_cards=away(batch, again)))
            continue
        for test in again:
            key = batch.cards, away(batch, [test])
            apart.setdefault(key, []).append(SelectedTest(batch.suite, test))
    return groups + [
        replace(batch, id=f"r{number}-{place}-{batch.id}", avoid_cards=avoid, cards=width)
        for place, ((width, avoid), tests) in enumerate(apart.items())
        for batch in make_plan(tests, tally.failure_durations, max(1, len(cards) // width - len(avoid))).batches
    ]


def retries_in_order(batches: Sequence[Batch], tests: Sequence[SelectedTest], tally: Tally, number: int) -> list[Batch]:
    """The batches of round `number` for tests that failed, or were not found, and were skipped when they ran again.

    A batch has the tests of a file in the order of `tests`, up to the last one that needs it. Where these take too long, it
    has those of its class; where these do too, there is none, and the failure stands.
    """
    needy = {
        (batch.suite, test)
        for batch in batches
        if batch.group is None
        for test in tally.skipped_after_failure(batch, number)
    }
    return _in_order(batches, tests, needy, number)


def _in_order(
    batches: Sequence[Batch], tests: Sequence[SelectedTest], needy: Collection[TestKey], number: int
) -> list[Batch]:
    """The batches of round `number` for the needy tests, each after those before it."""
    if not needy:
        return []
    single = {(batch.suite, test): batch for batch in batches if batch.group is None for test in batch.tests}
    scopes: dict[tuple[str, str], list[SelectedTest]] = defaultdict(list)
    for test in tests or [SelectedTest(*key) for key in single]:
        if (test.suite, test.test) in single:
            scopes[test.suite, test.file].append(test)
    found: list[Batch] = []
    for of_file in scopes.values():
        classes: dict[str | None, list[SelectedTest]] = defaultdict(list)
        for test in of_file:
            classes[test.class_id].append(test)
        for part in [of_file] if _seconds(_until(of_file, needy), single) <= IN_ORDER_S else classes.values():
            wanted = _until(part, needy)
            estimate_s = _seconds(wanted, single)
            if wanted and estimate_s <= IN_ORDER_S:
                suite, file, ids = part[0].suite, part[0].file, tuple(test.test for test in wanted)
                width = single[suite, ids[0]].cards
                found.append(Batch(f"r{number}-{len(found)}", suite, file, ids, estimate_s, cards=width))
    return found


def _until(tests: Sequence[SelectedTest], needy: Collection[TestKey]) -> Sequence[SelectedTest]:
    """The tests up to the last one that is among the needy."""
    return tests[: max((place for place, test in enumerate(tests, 1) if (test.suite, test.test) in needy), default=0)]


def _seconds(tests: Sequence[SelectedTest], batches: dict[TestKey, Batch]) -> float:
    return sum((batch := batches[test.suite, test.test]).estimate_s / len(batch.tests) for test in tests)


def cards_to_avoid(holders: Sequence[str], failed_on: Collection[str]) -> tuple[str, ...]:
    """Those of the cards, or groups of cards, on which a test failed; none if it failed on all."""
    avoid = tuple(holder for holder in holders if holder in failed_on)
    return avoid if len(avoid) < len(holders) else ()
