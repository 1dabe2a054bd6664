"""Choose the failures of a build to run again: those whose reruns tell most about their causes for the card-seconds.

A failure that passes when it runs again is a flaky test's or a place's; one that fails each time is a breakage. So reruns
answer one question, and are worth the information that they are expected to give, in bits: the expected drop of the entropy
of the answer (D. V. Lindley, Ann. Math. Statist. 27, 1956). A flake with the failure rate f fails n reruns with the chance
f^n, and a breakage always. Failures that began together, in the same way, are one event: one of them answers for all, and a
second one only adds what the first has left open. Failures are taken by bits per card-second until the budget is spent, the
greedy rule for a knapsack (G. B. Dantzig, Operations Research 5, 1957). Pure: causes and costs in, reruns out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from accel_ci.quality.causes import Blame, Doubt, Identity
from accel_ci.quality.incidents import incidents_of


@dataclass(frozen=True)
class ConfirmRules:
    """The limits of the choice.

    A failure whose cause has the probability `certain` does not run again, nor does one that is worth fewer than `least`
    bits. At most `per_incident` failures of an incident do. Each runs until a flake would have passed with the probability
    1 - `error`, but at least `fewest` times. `outage` is the chance that failures of a new event have a cause that is over:
    no other rule knows of it.
    """

    certain: float = 0.99
    least: float = 0.02
    per_incident: int = 2
    error: float = 0.05
    fewest: int = 2
    outage: float = 0.01


@dataclass(frozen=True)
class Rerun:
    """A failure that runs again, so many `times`, for `card_s` card-seconds in all.

    It answers for the causes of `failures` failures, itself included, which is worth so many `bits`.
    """

    suite: str
    test: str
    times: int
    card_s: float
    failures: int
    bits: float
    reason: str

    @property
    def identity(self) -> Identity:
        """Suite and test."""
        return self.suite, self.test


@dataclass(frozen=True)
class RerunPlan:
    """The failures of a build that run again, of all `failures`, within a budget; `left_out` counts others by reason."""

    reruns: tuple[Rerun, ...]
    failures: int
    budget_s: float
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def card_s(self) -> float:
        """The card-seconds that all reruns are expected to take."""
        return sum(rerun.card_s for rerun in self.reruns)

    def in_words(self) -> str:
        """Describe the plan in a line."""
        budget = f"for {self.card_s:,.1f} of {self.budget_s:,.1f} card-seconds"
        left_out = f"; left out: {self.left_out_in_words()}" if self.left_out else ""
        return f"{len(self.reruns):,} of {self.failures:,} failures run again, {budget}{left_out}"

    def left_out_in_words(self) -> str:
        """Count the failures that do not run again by reason."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())


CERTAIN = "with a certain cause"
NOTHING_TO_LEARN = "that no rerun settles"
REPRESENTED = "for which others run"
OVER_BUDGET = "over the budget"


def choose_reruns(
    blames: Sequence[Blame],
    card_s: Mapping[Identity, float],
    budget_s: float,
    most: int,
    unfit: Mapping[Identity, str] | None = None,
    rules: ConfirmRules | None = None,
) -> RerunPlan:
    """Choose among the failures of a build. The same data gives the same choice.

    Args:
        blames: The causes of its failures.
        card_s: The card-seconds of one run of each failure that can run again, more than 0.
        budget_s: The card-seconds for all reruns.
        most: The most reruns of a failure.
        unfit: The failures that cannot run again, with the reason.
        rules: The limits.
    """
    rules, unfit = rules or ConfirmRules(), unfit or {}
    left_out: Counter[str] = Counter()
    heap: list[tuple[float, Identity, int, Blame, Doubt]] = []
    for blame in blames:
        if (reason := unfit.get(blame.identity)) is not None:
            left_out[reason] += 1
        elif blame.probability >= rules.certain:
            left_out[CERTAIN] += 1
        elif blame.doubt is None:
            left_out[NOTHING_TO_LEARN] += 1
        else:
            heap.append((-math.inf, blame.identity, -1, blame, blame.doubt))
    heapq.heapify(heap)
    incident_of = {key[1:]: incident.id for incident in incidents_of(blames) for key in incident.now}
    sizes = Counter(map(_event, blames))
    done: Counter[Hashable] = Counter()  # reruns by event
    taken: Counter[str] = Counter()  # failures by incident
    chosen: list[Rerun] = []
    left_s = budget_s
    while heap:
        # A choice makes others of its event worth less, and none worth more: the first is the best if it is up to date.
        _, identity, known, blame, doubt = heapq.heappop(heap)
        event = _event(blame)
        if taken[incident_of[identity]] >= rules.per_incident:
            left_out[REPRESENTED] += 1
            continue
        rerun = _rerun(blame, doubt, sizes[event], done[event], card_s[identity], most, rules)
        if known != done[event]:
            heapq.heappush(heap, (-rerun.bits / rerun.card_s, identity, done[event], blame, doubt))
        elif rerun.bits < rules.least:
            left_out[REPRESENTED if done[event] else NOTHING_TO_LEARN] += 1
        elif rerun.card_s > left_s:
            left_out[OVER_BUDGET] += 1
        else:
            chosen.append(rerun)
            left_s -= rerun.card_s
            done[event] += rerun.times
            taken[incident_of[identity]] += 1
    return RerunPlan(tuple(chosen), len(blames), budget_s, dict(sorted(left_out.items())))


def information(passing: float, rate: float, reruns: int) -> float:
    """The bits that reruns of a failure are expected to tell of the question if it is one that passes.

    `passing` is the chance that it is, and `rate` the rate at which it then fails.
    """
    all_fail = 1 - passing * (1 - rate**reruns)
    return _entropy(passing) - (all_fail * _entropy(passing * rate**reruns / all_fail) if all_fail else 0.0)


def _entropy(chance: float) -> float:
    return -sum(part * math.log2(part) for part in (chance, 1 - chance) if part > 0)


def _event(blame: Blame) -> Hashable:
    """The failures that one of them answers for: at one place, or from one build on with one signature."""
    if blame.place is not None:
        return blame.place, blame.signature
    is_alone = blame.retried or blame.cause == "flaky" or blame.signature is None
    return blame.identity if is_alone else (blame.since, blame.signature)


def _rerun(blame: Blame, doubt: Doubt, failures: int, done: int, card_s: float, most: int, rules: ConfirmRules) -> Rerun:
    """The reruns of a failure after `done` ones of its event, and what they are worth."""
    from accel_ci.quality.posterior import runs_to_prove_a_flake  # it loads scipy

    passing = max(doubt.passing, rules.outage if blame.since == blame.build else 0.0)
    times = int(min(most, max(rules.fewest, float(runs_to_prove_a_flake(doubt.rate, rules.error)))))
    bits = failures * (information(passing, doubt.rate, done + times) - information(passing, doubt.rate, done))
    answers = f"; it answers for {failures:,} failures" if failures > 1 else ""
    reason = f"{blame.cause}, {blame.probability:.0%}; it may pass, {passing:.0%}{answers}"
    return Rerun(*blame.identity, times, card_s * times, failures, bits, reason)
