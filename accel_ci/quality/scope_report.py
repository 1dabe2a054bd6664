"""Report a build's scope: its tests by status and reason, and the rules of the settings that should be looked at.

The rules are those of the settings as they are now, on the tests that the build has collected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from accel_ci.config.scope_settings import Criteria, Scope, ToleranceRule
from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, AppliedTolerance, Build, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.results.store import ResultsStore
from accel_ci.scope.apply import MUST_PASS, AppliedScope, apply_scope, matching_rules
from accel_ci.scope.rule_files import whole_scope
from accel_ci.scope.table import FACTS, read_scope
from accel_ci.workspace import Workspace

_kernels: Any = pyarrow.compute
_SEARCHED = 8
"""So many of the last builds are searched for a test's verdict."""

_PASSES = frozenset({"passed", "xpassed"})
_MOST_EXPLAINED = 10


@dataclass(frozen=True)
class SuiteScope:
    """The numbers of a suite's tests: `out_of_scope` and `not_enabled` by reason, `modes` of the enabled by mode.

    `tolerances` replace PyTorch's own.
    """

    suite: str
    collected: int
    in_scope: int
    enabled: int
    out_of_scope: Mapping[str, int]
    not_enabled: Mapping[str, int]
    modes: Mapping[str, int]
    tolerances: tuple[AppliedTolerance, ...]


@dataclass(frozen=True)
class RuleFinding:
    """A rule to look at: it matches nothing, decides nothing, or tests that it names pass."""

    suite: str
    rule: str
    tests: int
    finding: str


@dataclass(frozen=True)
class ScopeReport:
    """The scope of a build, suite by suite, and what is to say of its rules."""

    build: Build
    suites: tuple[SuiteScope, ...]
    findings: tuple[RuleFinding, ...]


@dataclass(frozen=True)
class Explanation:
    """A test with the rule that decided it, its facts, and all rules that match it, each with its words."""

    suite: str
    test: str
    status: str
    mode: str
    reason: str | None
    rule: str | None
    facts: Mapping[str, Any]
    matching: tuple[str, ...]


def report_scope(workspace: Workspace, build: Build) -> ScopeReport:
    """Report the scope of a build. Raises `AccelCiError` when its tests are not known."""
    suites: list[SuiteScope] = []
    findings: list[RuleFinding] = []
    for suite, scope, facts in _scopes(workspace, build):
        applied = apply_scope(suite, scope, facts)
        suites.append(_counted(suite, applied))
        findings += _idle(suite, applied)
        findings += _passing(suite, applied.table, _last_verdicts(workspace.trusted_results, build, suite))
    return ScopeReport(build, tuple(suites), tuple(findings))


def explain_tests(workspace: Workspace, build: Build, text: str) -> list[Explanation]:
    """Explain the tests of a build whose id is `text` or ends with it; failing that, up to 10 whose id contains it."""
    exact: list[Explanation] = []
    near: list[Explanation] = []
    for suite, scope, facts in _scopes(workspace, build):
        named = _kernels.or_(_kernels.equal(facts["test"], text), _kernels.ends_with(facts["test"], f"::{text}"))
        exact += _explained(suite, scope, facts.filter(named))
        if not exact:
            near += _explained(suite, scope, facts.filter(_kernels.match_substring(facts["test"], text))[:_MOST_EXPLAINED])
    return exact or near[:_MOST_EXPLAINED]


def _scopes(workspace: Workspace, build: Build) -> Iterator[tuple[str, Scope, pa.Table]]:
    """The suites of a build with their scopes as the settings have them now, and the facts of their tests."""
    selection = workspace.manifests.find(TEST_SELECTION, build, TestSelection)
    if selection is None or selection.scope is None:
        raise AccelCiError(f"{build.name} has no table of its scope: its tests were not collected; name another build")
    table, project = read_scope(selection.scope, workspace.artifacts), workspace.project
    for suite in (each.suite for each in selection.suites):
        if suite in project.settings.suites:
            facts = table.filter(_kernels.equal(table["suite"], suite)).select(FACTS.names)
            yield suite, whole_scope(project.settings.suites[suite].scope, project.root), facts


def _counted(suite: str, applied: AppliedScope) -> SuiteScope:
    statuses = Counter(applied.table["status"].to_pylist())
    modes = zip(applied.table["status"].to_pylist(), applied.table["mode"].to_pylist(), strict=True)
    by_mode = Counter(str(mode) for status, mode in modes if status == "enabled")
    collected, enabled, later = len(applied.table), statuses["enabled"], statuses["not_enabled"]
    reasons = applied.reasons("out_of_scope"), applied.reasons("not_enabled")
    return SuiteScope(suite, collected, enabled + later, enabled, *reasons, dict(by_mode), applied.tolerances)


def _idle(suite: str, applied: AppliedScope) -> Iterator[RuleFinding]:
    for rule in applied.rules:
        if rule.kind == "include" and rule.matched and not rule.decided:
            continue  # includes may overlap: none of them says more than another
        if not rule.matched:
            yield RuleFinding(suite, rule.name, 0, "matches no collected test")
        elif not rule.decided:
            yield RuleFinding(suite, rule.name, rule.matched, "decides none of the tests that it matches: earlier rules do")


def _passing(suite: str, table: pa.Table, verdicts: Mapping[str, str]) -> Iterator[RuleFinding]:
    """The rules that excuse tests, or leave them out, which passed when they last ran."""
    tests: dict[str, list[str]] = defaultdict(list)
    columns = (table[name].to_pylist() for name in ("test", "status", "rule", "mode"))
    for test, status, rule, mode in zip(*columns, strict=True):
        if rule is not None and (status != "enabled" or mode != MUST_PASS):
            tests[str(rule)].append(str(test))
    for rule, some in tests.items():
        passes = sum(verdicts.get(test) in _PASSES for test in some)
        if passes:
            what = "all of its tests pass" if passes == len(some) else f"{passes:,} of its {len(some):,} tests pass"
            yield RuleFinding(suite, rule, passes, what)


def _last_verdicts(store: ResultsStore, build: Build, suite: str) -> dict[str, str]:
    """The verdict of each test of a suite when it last ran in the variant of a build."""
    found: dict[str, str] = {}
    for stored in store.suites(variant=build.variant, suite=suite)[-_SEARCHED:]:
        judged = store.judged(stored, ["verdict"])
        verdicts = zip(judged["test"].to_pylist(), judged["verdict"].to_pylist(), strict=True)
        found.update((str(test), VERDICTS[int(code or 0)]) for test, code in verdicts)
    return found


def _explained(suite: str, scope: Scope, facts: pa.Table) -> Iterator[Explanation]:
    if not len(facts):
        return
    for place, row in enumerate(apply_scope(suite, scope, facts).table.to_pylist()):
        known = {name: row[name] for name in FACTS.names if row[name] and name not in ("test", "file")}
        matching = tuple(_in_words(matching_rules(scope, facts.slice(place, 1))))
        yield Explanation(suite, row["test"], row["status"], row["mode"], row["reason"], row["rule"], known, matching)


def _in_words(rules: Iterable[tuple[str, Criteria | ToleranceRule]]) -> Sequence[str]:
    return [f"{name}: {words}" if (words := getattr(rule, "words", "")) else name for name, rule in rules]
