"""Decide tests by rules: the first rule whose criteria all hold for a test decides it.

A criterion is a list of patterns, of which one must match. Where a test has several values, such as its decorators, it must
match one of them. All rules are applied at once: their patterns are matched against the distinct values of the tests, and
each rule begins at the criterion that fewest tests fulfil.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from accel_ci.scope.patterns import find_matches

_EVERY_TEST = {"tests": ("*",)}


@dataclass(frozen=True)
class Rule:
    """A rule under a name that tells its place; `criteria` has the alternatives of each one."""

    name: str
    criteria: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Decisions:
    """The number of the rule that decided each test, -1 for none, and of each rule the tests matched and decided."""

    rules: Sequence[int]
    matched: Sequence[int]
    decided: Sequence[int]


class TestIndex:
    """Tests by the values that criteria are about. The table has the columns of `accel_ci.scope.table.FACTS`."""

    __test__ = False

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._values: dict[str, list[tuple[str, ...]]] = {}
        self._holders: dict[str, dict[str, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def values(self, criterion: str) -> list[tuple[str, ...]]:
        """The values of each test that a criterion is about."""
        if criterion not in self._values:
            self._values[criterion] = _READERS[criterion](self._table)
        return self._values[criterion]

    def holders(self, criterion: str) -> dict[str, list[int]]:
        """The places of the tests that have each value."""
        if criterion not in self._holders:
            holders: dict[str, list[int]] = defaultdict(list)
            for place, values in enumerate(self.values(criterion)):
                for value in values:
                    holders[value].append(place)
            self._holders[criterion] = dict(holders)
        return self._holders[criterion]


def decide(rules: Sequence[Rule], tests: TestIndex, among: Iterable[int] | None = None) -> Decisions:
    """Apply the rules to all tests, and let them decide those at the places `among`; by default all."""
    if not rules:
        return Decisions([-1] * len(tests), (), ())
    patterns: dict[str, set[str]] = defaultdict(set)
    for rule in rules:
        if rule.criteria == _EVERY_TEST:
            continue
        for criterion, alternatives in rule.criteria.items():
            patterns[criterion].update(alternatives)
    found = {criterion: find_matches(some, tests.holders(criterion)) for criterion, some in patterns.items()}

    @cache
    def fulfilled(criterion: str, alternatives: tuple[str, ...]) -> _Fulfilled:
        values = {value for pattern in alternatives for value in found[criterion][pattern]}
        holders = tests.holders(criterion)
        return _Fulfilled(criterion, values, sum(len(holders[value]) for value in values))

    deciding = [-1] * len(tests)
    undecided = set(range(len(tests)) if among is None else among)
    matched: list[int] = []
    decided: list[int] = []
    for number, rule in enumerate(rules):
        if rule.criteria == _EVERY_TEST:
            places = set(range(len(tests)))
        else:
            places = _places([fulfilled(*criterion) for criterion in rule.criteria.items()], tests)
        mine = places & undecided
        undecided -= mine
        for place in mine:
            deciding[place] = number
        matched.append(len(places))
        decided.append(len(mine))
    return Decisions(deciding, matched, decided)


@dataclass(frozen=True)
class _Fulfilled:
    """The values that fulfil a criterion of a rule, and the number of tests that have them."""

    criterion: str
    values: set[str]
    count: int


def _places(criteria: Sequence[_Fulfilled], tests: TestIndex) -> set[int]:
    """The places of the tests for which all criteria hold."""
    fewest, *others = sorted(criteria, key=lambda each: each.count)
    holders = tests.holders(fewest.criterion)
    places = {place for value in fewest.values for place in holders[value]}
    for other in others:
        values = tests.values(other.criterion)
        places = {place for place in places if not other.values.isdisjoint(values[place])}
    return places


def _values(table: pa.Table, column: str) -> list[Any]:
    return table[column].to_pylist()


def _column(name: str) -> Callable[[pa.Table], list[tuple[str, ...]]]:
    return lambda table: [(value,) if value is not None else () for value in _values(table, name)]


def _lists(name: str) -> Callable[[pa.Table], list[tuple[str, ...]]]:
    return lambda table: [tuple(values) for values in _values(table, name)]


def _class_names(table: pa.Table) -> list[tuple[str, ...]]:
    """The class in the file, and that of the node id, which PyTorch may have made of it for a device."""
    names = _values(table, "class_name")
    return [_distinct(name, *parts[1:-1][-1:]) for name, parts in zip(names, _parts(table), strict=True)]


def _methods(table: pa.Table) -> list[tuple[str, ...]]:
    """The method in the file, and that of the node id, with and without its parameters or PyTorch's device and dtypes."""
    facts = zip(*(_values(table, name) for name in ("method", "device", "dtypes")), _parts(table), strict=True)
    return [
        _distinct(name, parts[-1], front := parts[-1].partition("[")[0], _without_suffix(front, device, dtypes))
        for name, device, dtypes, parts in facts
    ]


def _without_suffix(method: str, device: str | None, dtypes: Sequence[str]) -> str:
    return method.removesuffix("_".join(("", device, *dtypes))) if device else method


def _parts(table: pa.Table) -> Iterable[list[str]]:
    """The parts of the node ids: file, classes and function; parameters may have colons."""
    for test in _values(table, "test"):
        front, bracket, parameters = test.partition("[")
        parts = front.split("::")
        parts[-1] += bracket + parameters
        yield parts


def _distinct(*names: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


_READERS: Mapping[str, Callable[[Any], list[tuple[str, ...]]]] = {
    "tests": _column("test"),
    "files": _column("file"),
    "classes": _class_names,
    "methods": _methods,
    "ops": _column("op"),
    "dtypes": _lists("dtypes"),
    "modules": _column("module"),
    "markers": _lists("markers"),
    "decorators": _lists("decorators"),
}
CRITERIA = tuple(_READERS)
"""The names of the criteria: what rules may ask of a test."""
