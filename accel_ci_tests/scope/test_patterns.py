"""Patterns that are matched all at once, against one regular expression each."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.scope.patterns import find_matches, matcher

LETTERS = st.text("ab[.", max_size=6)


def plain(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


@given(st.lists(st.text("ab[.*?", max_size=6), max_size=8), st.lists(LETTERS, unique=True, max_size=12))
def test_as_a_regular_expression_of_each(patterns: list[str], texts: list[str]) -> None:
    found = find_matches(patterns, texts)
    assert {pattern: list(some) for pattern, some in found.items()} == {
        pattern: list(filter(plain(pattern).fullmatch, texts)) for pattern in patterns
    }


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a*a", "a", False),  # the two parts need a character each
        ("a*a", "aa", True),
        ("*ab*ab", "ab", False),
        ("*ab*ab*", "xabab", True),
        ("a*b*c", "a\nb\nc", True),
        ("test_x[1-2]", "test_x1", False),  # brackets are literal
        ("?", "\n", True),
        ("", "", True),
    ],
)
def test_matcher(pattern: str, text: str, matches: bool) -> None:
    assert bool(matcher(pattern)(text)) is matches


def test_many_wildcards_cost_no_more_than_the_text() -> None:
    assert not matcher("*a" * 40 + "*b")("a" * 100_000)
