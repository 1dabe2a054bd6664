"""Apply a suite's scope to its collected tests: out of scope, in scope and not enabled yet, or enabled in a mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from accel_ci.config.scope_settings import Criteria, Scope, ToleranceRule
from accel_ci.model import AppliedTolerance
from accel_ci.scope.rules import Decisions, Rule, TestIndex, decide
from accel_ci.scope.table import FACTS, SCOPE

NOT_INCLUDED = "matches no pattern of scope.include"
NOT_ENABLED = "is not among the enabled tests"
MUST_PASS = "must_pass"  # noqa: S105 - the mode of a test that no rule names


_Row: TypeAlias = tuple[str, str | None, str | None, str]
"""The status, reason, rule and mode of a test."""


@dataclass(frozen=True)
class AppliedRule:
    """A rule, the number of tests that it matches, and of those that it decided because no earlier one matched."""

    name: str
    kind: str
    matched: int
    decided: int


@dataclass(frozen=True)
class AppliedScope:
    """A row for each test (columns of `SCOPE`), and what each rule did, tolerances included."""

    table: pa.Table
    rules: tuple[AppliedRule, ...]
    tolerances: tuple[AppliedTolerance, ...] = ()

    def reasons(self, status: str) -> dict[str, int]:
        """The number of tests of a status by reason."""
        pairs = zip(self.table["status"].to_pylist(), self.table["reason"].to_pylist(), strict=True)
        return dict(Counter(str(reason) for each, reason in pairs if each == status))


def apply_scope(suite: str, scope: Scope, facts: pa.Table) -> AppliedScope:
    """Decide the tests of a suite by its scope, which holds the rules of its files already.

    `facts` is a table with the columns `FACTS`.
    """
    tests = TestIndex(facts)
    applied: list[AppliedRule] = []
    rows: list[_Row | None] = [None] * len(tests)
    left: Sequence[int] = range(len(tests))

    def decided(kind: str, rules: Sequence[Rule]) -> Sequence[int]:
        decisions = decide(rules, tests, left)
        applied.extend(_applied(kind, rules, decisions))
        return decisions.rules

    numbers = decided("include", [Rule(f"include[{n}]", {"tests": (text,)}) for n, text in enumerate(scope.include)])
    for place in left:
        if numbers[place] < 0:
            rows[place] = ("out_of_scope", NOT_INCLUDED, "include", MUST_PASS)
    left = [place for place in left if numbers[place] >= 0]
    for kind, status, some in (
        ("exclude", "out_of_scope", scope.exclude),
        ("not_enabled", "not_enabled", scope.not_enabled),
    ):
        rules = _rules(kind, some)
        numbers = decided(kind, rules)
        for place in left:
            if (number := numbers[place]) >= 0:
                rows[place] = (status, some[number].reason, rules[number].name, MUST_PASS)
        left = [place for place in left if numbers[place] < 0]
    enabled_by: dict[int, str] = {}
    if scope.enabled is not None:
        rules = _rules("enabled", scope.enabled)
        numbers = decided("enabled", rules)
        for place in left:
            if numbers[place] < 0:
                rows[place] = ("not_enabled", NOT_ENABLED, "enabled", MUST_PASS)
            else:
                enabled_by[place] = rules[numbers[place]].name
        left = list(enabled_by)
    rules = _rules("modes", scope.modes)
    numbers = decided("modes", rules)
    for place in left:
        if (number := numbers[place]) < 0:
            rows[place] = ("enabled", None, enabled_by.get(place), MUST_PASS)
        else:
            rows[place] = ("enabled", scope.modes[number].words, rules[number].name, scope.modes[number].mode)
    rules = _rules("tolerances", scope.tolerances)
    loosened = tuple(_applied("tolerances", rules, decide(rules, tests)))
    tolerances = tuple(
        AppliedTolerance(each.name, rule.criteria, rule.atol, rule.rtol, rule.words, each.decided)
        for rule, each in zip(scope.tolerances, loosened, strict=True)
    )
    columns: dict[str, Any] = {name: facts[name] for name in FACTS.names}
    columns["suite"] = pa.repeat(suite, len(tests))
    for number, name in enumerate(("status", "reason", "rule", "mode")):
        columns[name] = pa.array([row[number] for row in rows if row is not None], pa.string())
    return AppliedScope(
        pa.table({name: columns[name] for name in SCOPE.names}, schema=SCOPE), (*applied, *loosened), tolerances
    )


def matching_rules(scope: Scope, facts: pa.Table) -> list[tuple[str, Criteria | ToleranceRule]]:
    """The rules that match the test in a table of one row, with their names, whether they decide it or not."""
    tests, found = TestIndex(facts), list[tuple[str, Criteria | ToleranceRule]]()
    for kind in ("exclude", "not_enabled", "enabled", "modes", "tolerances"):
        settings: Sequence[Criteria | ToleranceRule] = getattr(scope, kind) or ()
        rules = _rules(kind, settings)
        matched = decide(rules, tests).matched
        found += [(rule.name, each) for rule, each, count in zip(rules, settings, matched, strict=True) if count]
    return found


def _rules(kind: str, rules: Iterable[Criteria | ToleranceRule]) -> list[Rule]:
    return [Rule(rule.name or f"{kind}[{place}]", rule.criteria) for place, rule in enumerate(rules)]


def _applied(kind: str, rules: Sequence[Rule], decisions: Decisions) -> Iterable[AppliedRule]:
    for rule, matched, decided in zip(rules, decisions.matched, decisions.decided, strict=True):
        yield AppliedRule(rule.name, kind, matched, decided)
