"""Scope rules: the collected tests that belong to a suite, and the reasons why others do not. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from accel_ci.config.settings import Scope

NOT_INCLUDED = "matches no pattern of scope.include"


def in_scope(tests: Iterable[str], scope: Scope) -> tuple[tuple[str, ...], dict[str, int]]:
    """The node ids in scope, in order, and the number of tests left out for each reason."""
    included = [_pattern(text) for text in scope.include]
    excluded = [(_pattern(text), rule.reason) for rule in scope.exclude for text in rule.tests]
    kept: list[str] = []
    left_out: Counter[str] = Counter()
    for test in tests:
        reason = _reason(test, included, excluded)
        if reason is None:
            kept.append(test)
        else:
            left_out[reason] += 1
    return tuple(kept), dict(left_out)


def _reason(test: str, included: Sequence[re.Pattern[str]], excluded: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    if not any(pattern.fullmatch(test) for pattern in included):
        return NOT_INCLUDED
    return next((reason for pattern, reason in excluded if pattern.fullmatch(test)), None)


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern: `*` and `?` are wildcards; brackets are literal, because node ids hold parameters in them."""
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
