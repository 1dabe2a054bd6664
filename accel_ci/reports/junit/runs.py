"""Runs of ordinary test cases, many at a time: the fast path, with the same result as one by one.

An ordinary case has the attributes of the case before it and at most one child, an outcome element without children.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from accel_ci.reports.fields import Fields
from accel_ci.reports.markup import Markup, Tag, Values
from accel_ci.reports.scanner import Damage
from accel_ci.reports.text import is_blank

from .rows import Children, Rows, Suite
from .verdicts import OUTCOMES, ElementVerdict, verdict_of_element

_MAX_CHILDREN = 20_000
_MAX_CHILD_CHARS = 500
_MAX_PATTERNS = 16
_MAX_WAIT = 64


class Runs:
    """Takes runs of cases from the markup into rows. After an empty run it waits for some cases."""

    def __init__(self, markup: Markup, fields: Fields, rows: Rows) -> None:
        self._markup, self._fields, self._rows = markup, fields, rows
        self._children: dict[tuple[str, str], ElementVerdict] = {}  # by start and end tag, without the text
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._wait = self._waited = 0  # cases to read one by one before the next run

    def take(self, tag: Tag, suite: Suite) -> None:
        """Take the ordinary cases that follow a case with this tag."""
        if self._waited < self._wait:
            self._waited += 1
            return
        pattern = self._patterns.get(tag.attributes)
        if pattern is None:
            if len(self._patterns) >= _MAX_PATTERNS or tag.qualified != "testcase" or not 0 < len(tag.attributes) <= 20:
                return
            pattern = self._patterns[tag.attributes] = _pattern(tag.attributes)
        cases_before = suite.cases
        while found := self._markup.run(pattern, room=2):
            if self._take(tag, suite, found) < len(found):
                break
        self._waited = 0
        self._wait = 0 if suite.cases > cases_before else min(2 * self._wait + 1, _MAX_WAIT)

    def _take(self, tag: Tag, suite: Suite, found: list[tuple[str, ...]]) -> int:
        """Take the first cases of those that a pattern found; returns their number."""
        found = found[: self._rows.room]
        if not found:
            return 0
        wholes, *columns, children, texts, ends, _ = zip(*found, strict=True)
        count = len(found)
        verdicts: dict[int, ElementVerdict] = {}
        known = self._children
        for place, child in enumerate(children):
            if child:
                verdict = known.get((child, ends[place]))
                if verdict is None or "&" in texts[place] or "]" in texts[place]:
                    verdict = self._verdict(child, texts[place], ends[place])
                    if verdict is None:
                        count = place
                        break
                verdicts[place] = verdict
        try:
            values = {name: self._values(raws[:count]) for name, raws in zip(tag.attributes, columns, strict=True)}
        except Damage:
            return 0
        if not self._rows.add_ordinary(suite, values, verdicts, count):
            for place, of_case in enumerate(zip(*values.values(), strict=True)):
                spread: Values = [None, *(part for value in of_case for part in (value, None))]
                self._rows.add(suite, tag, spread, Children([verdicts[place]] if place in verdicts else []))
        suite.cases += count
        suite.faults.update(verdict.kind for verdict in verdicts.values())
        self._markup.take(sum(map(len, wholes[:count])))
        return count

    def _values(self, raws: Sequence[str]) -> Sequence[str]:
        """Values of an attribute from the text between its quotes; raises `Damage`."""
        joined = "".join(raws)
        if "<" in joined:
            raise Damage("malformed")
        return raws if "&" not in joined and joined.isprintable() else [self._markup.value(raw) for raw in raws]

    def _verdict(self, raw: str, text: str, end: str) -> ElementVerdict | None:
        """The verdict of an only child from the inside of its start tag, its text and its end tag; None if not ordinary."""
        try:
            child = self._markup.ordinary_tag(raw)
            text = self._markup.unescaped(text)
        except Damage:
            return None
        if child is None or child[0].name not in OUTCOMES or end != ("" if child[0].closed else child[0].qualified):
            return None
        tag, values = child
        verdict = verdict_of_element(tag, values, self._fields.plain(text), self._fields)
        depends_on_text = not tag.closed and is_blank(tag.value(values, "message"))
        if not depends_on_text and len(self._children) < _MAX_CHILDREN and len(raw) < _MAX_CHILD_CHARS:
            self._children[raw, end] = verdict
        return verdict


def _pattern(attributes: Iterable[str]) -> re.Pattern[str]:
    """Matches a case with these attributes and at most one child, which holds at most text.

    Groups: the whole, each attribute, the inside of the child's start tag, its text, its end tag, everything else.
    """
    values = "".join(f' {re.escape(attribute)}="([^"]*)"' for attribute in attributes)
    space = "[ \\n\\t]*"
    child = f"{space}<([^>]*)>(?:([^<]*)</([^>]*)>)?{space}"
    return re.compile(f"({space}<testcase{values} ?(?:/>|>(?:{child})?</testcase>))|((?s:.+))")
