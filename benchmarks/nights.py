"""Synthetic nights of device tests, for judging plans: what is known of the tests, and how tonight really goes.

A night is a JSON object (all times in seconds). A planner may know `files`, `collect_s` and the number of cards, no more.

    files            the recorded duration of each test of each file, null where there is none
    actual           the same shape: tonight's durations
    ready_s, dies_s  when each card's worker can claim its first batch; when the card dies, or null
    collect_s        what a worker pays once, to collect the suite
    claim_s          what it pays for each claim that it tries
    lower_bound_s    no schedule can end before this
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypedDict

UNKNOWN_SHARE = 0.02
SETUP_S, SKEW_S = 60.0, 120.0
LONGEST_S = 350.0


class Night(TypedDict):
    """One night; see the module's description."""

    files: list[list[float | None]]
    actual: list[list[float]]
    ready_s: list[float]
    dies_s: list[float | None]
    collect_s: float
    claim_s: float
    lower_bound_s: float


def make_night(
    *,
    seed: int,
    cards: int,
    tests: int = 20_000,
    files: int = 100,
    mean_s: float = 1.8,
    noise: float = 0.5,
    deaths: float = 0.0,
) -> Night:
    """Draw a night: few large files and many small ones, skewed durations, `noise` (coefficient of variation) on each."""
    rng = random.Random(seed)  # noqa: S311
    counts = [max(1, round(tests / (rank * math.log(files + 1)))) for rank in range(1, files + 1)]
    recorded = [
        [scale * rng.lognormvariate(0, 1) for _ in range(count)] for count in counts for scale in [rng.lognormvariate(0, 1)]
    ]
    factor = mean_s * sum(counts) / math.fsum(map(math.fsum, recorded))
    recorded = []
    for count in counts:
        scale = rng.lognormvariate(0, 1)
        recorded.append([scale * rng.lognormvariate(0, 1) for _ in range(count)])
    factor = mean_s * sum(counts) / math.fsum(map(math.fsum, recorded))
    recorded = [[min(LONGEST_S, factor * duration) for duration in of_file] for of_file in recorded]
    sigma = math.sqrt(math.log1p(noise * noise))
    actual = [[duration * rng.lognormvariate(-sigma * sigma / 2, sigma) for duration in of_file] for of_file in recorded]
    ready = [SETUP_S + SKEW_S * rng.random() for _ in range(cards)]
    bound = bound_s(ready, [duration for of_file in actual for duration in of_file])
    return {
        "files": [[None if rng.random() < UNKNOWN_SHARE else duration for duration in of_file] for of_file in recorded],
        "actual": actual,
        "ready_s": ready,
        "dies_s": [rng.uniform(0, bound) if rng.random() < deaths else None for _ in ready],
        "collect_s": 5.0,
        "claim_s": 0.05,
        "lower_bound_s": bound,
    }


def bound_s(ready: Sequence[float], durations: Sequence[float]) -> float:
    """The end that no schedule beats: the longest test on the first card, or all work poured over the cards as they come."""
    work, first = math.fsum(durations), sorted(ready)
    end = begun = 0.0
    for cards, (begin, following) in enumerate(zip(first, [*first[1:], math.inf], strict=True), 1):
        begun += begin
        end = (work + begun) / cards
        if end <= following:
            break
    return max(end, first[0] + max(durations))
