"""Estimate a test's chance to pass and its seconds from what is known of it and of its siblings.

Siblings have the same op, dtype or file. The chance of a test that never ran is the share of passes of all tests, with the
odds of its op, its dtypes and its file applied one after the other (naive Bayes); its own tries then count on top. Its
seconds are the median of the closest siblings that have run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Any, TypeAlias

import pyarrow as pa

from accel_ci.results.columns import pairs

_PRIOR_TRIES = 2.0  # as many tries as the prior of a test is worth
_SMOOTHING = 4.0  # as many tests with the common share are added to those of an op, dtype or file
_UNKNOWN_S = 1.0

Facet: TypeAlias = Hashable

ENABLED_RULE = "enabled"
"""The rule that names itself where a test is in no list of enabled tests."""

_COLUMNS = (
    "suite", "test", "file", "class_name", "method", "op", "dtypes", "status", "rule", "last_day", "tries", "passes", "last",
    "duration_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RampTest:
    """A test in scope. `chance` is its estimated chance to pass, `cost_s` the card-seconds of a run, `known` if it ever ran.

    A `doubtful` test did not pass in its last run: it failed, was flaky or was skipped. `held` is true where a rule with a
    reason keeps the test from being enabled. `last_day` is the day of its last run.
    """

    suite: str
    test: str
    file: str
    owner: str
    op: str | None
    dtypes: tuple[str, ...]
    enabled: bool
    chance: float
    cost_s: float
    known: bool
    doubtful: bool
    held: bool = False
    last_day: date | None = None


def estimate_tests(known: pa.Table, cards: dict[str, int]) -> list[RampTest]:
    """Return the tests in scope with their estimates, in the order of the table.

    `known` is a table of scope with its evidence (`accel_ci.ramp.evidence`); `cards` has the cards that a test of each
    suite holds.
    """
    rows = [row for row in pairs(known, *_COLUMNS) if row[7] != "out_of_scope"]
    chances, seconds = _chances(rows), _seconds(rows)
    return [
        RampTest(
            suite, test, file, f"{file}::{owner or ''}", op, tuple(dtypes), status == "enabled", chance,
            cost * cards.get(suite, 1), tries > 0, tries > 0 and last not in ("passed", "xpassed"),
            status == "not_enabled" and rule not in (None, ENABLED_RULE), last_day,
        )
        for (suite, test, file, owner, _, op, dtypes, status, rule, last_day, tries, _, last, _), chance, cost
        in zip(rows, chances, seconds, strict=True)
    ]  # fmt: skip


def _chances(rows: Sequence[tuple[Any, ...]]) -> list[float]:
    rates = [passes / tries if tries else None for *_, tries, passes, _, _ in rows]
    ran = [rate for rate in rates if rate is not None]
    common = (sum(ran) + 1) / (len(ran) + 2)
    facets = [_facets(file, op, dtypes) for _, _, file, _, _, op, dtypes, *_ in rows]
    sums: defaultdict[Facet, float] = defaultdict(float)
    counts: defaultdict[Facet, int] = defaultdict(int)
    for own, rate in zip(facets, rates, strict=True):
        if rate is not None:
            for facet in own:
                sums[facet] += rate
                counts[facet] += 1
    shift = {
        facet: _logit((sums[facet] + _SMOOTHING * common) / (count + _SMOOTHING)) - _logit(common)
        for facet, count in counts.items()
    }
    found = []
    for own, (*_, tries, passes, _, _) in zip(facets, rows, strict=True):
        prior = _expit(_logit(common) + sum(shift.get(facet, 0.0) for facet in own))
        found.append((passes + _PRIOR_TRIES * prior) / (tries + _PRIOR_TRIES))
    return found


def _facets(file: str, op: str | None, dtypes: Iterable[str]) -> list[Facet]:
    return [("file", file), *([("op", op)] if op else []), *(("dtype", dtype) for dtype in dtypes)]


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _expit(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _seconds(rows: Sequence[tuple[Any, ...]]) -> list[float]:
    """The seconds of each test: its own, else the median of the closest siblings, else `_UNKNOWN_S`."""
    groups: defaultdict[Facet, list[float]] = defaultdict(list)
    for row in rows:
        if (own := row[-1]) is not None:
            for group in _siblings(row):
                groups[group].append(own)
    medians = {group: median(values) for group, values in groups.items()}
    return [
        row[-1] if row[-1] is not None else next((medians[g] for g in _siblings(row) if g in medians), _UNKNOWN_S)
        for row in rows
    ]


def _siblings(row: tuple[Any, ...]) -> list[Facet]:
    """The groups that a test belongs to, the closest first."""
    suite, _, file, owner, method, op, *_ = row
    closest = [("method", file, owner, method)] if method else []
    return [*closest, ("class", file, owner, op), ("file", file), ("suite", suite), ("all",)]
