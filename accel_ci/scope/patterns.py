"""Find what many patterns match in many texts at once: 32,000 patterns in 100,000 node ids take a second.

`*` and `?` are wildcards, everything else is literal: node ids hold parameters in brackets. A pattern without wildcards is
looked up. Another one is tried only on the texts that hold the rarest of its literal parts. One pass of an Aho-Corasick
automaton over the texts finds the parts of all patterns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import ahocorasick

_WILDCARDS = re.compile(r"[*?]+")


def find_matches(patterns: Iterable[str], texts: Collection[str]) -> dict[str, Sequence[str]]:
    """Return the texts that each pattern matches whole, in the order of the texts; `texts` are distinct."""
    found: dict[str, Sequence[str]] = {}
    wild: dict[str, list[str]] = {}
    known = texts if isinstance(texts, (dict, set, frozenset)) else frozenset(texts)
    for pattern in patterns:
        if not _WILDCARDS.search(pattern):
            found[pattern] = (pattern,) if pattern in known else ()
        elif not (literals := [part for part in _WILDCARDS.split(pattern) if part]):
            found[pattern] = list(filter(matcher(pattern), texts))
        else:
            wild[pattern] = literals
    holders = _holders({part for literals in wild.values() for part in literals}, texts)
    for pattern, literals in wild.items():
        rarest = min((holders.get(part, ()) for part in literals), key=len)
        found[pattern] = list(filter(matcher(pattern), rarest))
    return found


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that tells whether a pattern matches a whole text.

    To compile a regular expression takes as long as to try a hundred texts, so that only `?` has one.
    """
    if "?" in pattern:
        return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL).fullmatch
    first, *between = pattern.split("*")
    if not between:
        return pattern.__eq__
    last = between.pop()
    inner = [part for part in between if part]
    shortest = len(first) + len(last)

    def matches(text: str) -> bool:
        if len(text) < shortest or not text.startswith(first) or not text.endswith(last):
            return False
        place, end = len(first), len(text) - len(last)
        for part in inner:
            place = text.find(part, place, end)
            if place < 0:
                return False
            place += len(part)
        return True

    return matches


def _holders(parts: Collection[str], texts: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the texts that hold each of the parts, in order."""
    holders: dict[str, list[str]] = defaultdict(list)
    if not parts:
        return holders
    automaton = ahocorasick.Automaton()
    for part in parts:
        automaton.add_word(part, part)
    automaton.make_automaton()
    for text in texts:
        for part in {part for _, part in automaton.iter(text)}:
            holders[part].append(text)
    return holders
