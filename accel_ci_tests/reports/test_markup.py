"""XML is read as strictly as by expat, and the same in chunks of any size."""

from __future__ import annotations

import re
from xml.parsers import expat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accel_ci.reports.characters import Characters
from accel_ci.reports.markup import Markup, Rejection
from accel_ci.reports.report import ReadLimits
from accel_ci.reports.scanner import Damage

from .documents import damaged, documents, pieces

Events = list[tuple[str, dict[str, str]] | None]


def by_markup(data: bytes, size: int = 1 << 20) -> tuple[Events, str]:
    """Elements with attributes, None for ends, and the status at the end."""
    characters = Characters((data[start : start + size] for start in range(0, len(data), size)), ReadLimits(depth=1000))
    markup = Markup(characters, ReadLimits(depth=1000))
    events: Events = []
    try:
        tag, values = markup.root()
        events.append((tag.qualified, dict(zip(tag.attributes, values[1::2], strict=True))))  # type: ignore[arg-type]
        if tag.closed:
            events.append(None)
        for event in markup.tags():
            if event is None:
                events.append(None)
            else:
                tag, values = event
                events.append((tag.qualified, dict(zip(tag.attributes, values[1::2], strict=True))))  # type: ignore[arg-type]
                if tag.closed:
                    events.append(None)
    except Rejection as rejection:
        return events, rejection.code
    except Damage as damage:
        return events, damage.code
    return events, "complete"


def by_expat(data: bytes) -> tuple[Events, bool]:
    """The same by expat, with True if the document is whole."""
    events: Events = []
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda name, attributes: events.append((name, attributes))
    parser.EndElementHandler = lambda name: events.append(None)
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        return events, False
    return events, True


@given(st.one_of(pieces, st.tuples(documents(), pieces).map("".join), pieces.map(lambda text: f"<a>{text}</a>")))
@example("<a b=\"1\" b='2'/>")
@example("<a>]]></a>")
@example("<a b=\"1\"c='2'/>")
@example("<a/><!-- x --><?y?>\n")
@example("<a><b></a></b>")
@example("<a><?XML x?></a>")
@example("<a b='\U0001f600'><!--\U0001f600-->\U0001f600</a>")
def test_reads_the_same_as_expat(text: str) -> None:
    if re.search("<(?!!)(?:[^<>\"']|\"[^\"]*\"|'[^']*')*[\U00010000-\U000effff]", text):
        return  # characters that names may have by XML's fifth edition, but not by expat
    forbidden = re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#x?0|&#x1b|&#xD8|&#27", text)
    if forbidden or "<!DOCTYPE" in text or not text.lstrip().startswith("<") or "<html" in text.lower():
        return
    text = text.lstrip()
    ours, status = by_markup(text.encode())
    theirs, whole = by_expat(text.encode())
    assert (status == "complete") == whole
    assert ours == theirs


@given(damaged(), st.integers(1, 9))
def test_chunks_make_no_difference(data: bytes, size: int) -> None:
    assert by_markup(data, size) == by_markup(data)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<a", "unparseable"),
        ("<a b='1' b='2'>", "unparseable"),
        ("<a>", "truncated"),
        ("<a><b c", "truncated"),
        ("<a><b c=d", "malformed"),
        ('<a><b c="<', "malformed"),
        ("<a></b>", "malformed"),
        ("<a></", "truncated"),
        ("<a><![CDATA[x]]", "truncated"),
        ("<a><![CDATX[", "malformed"),
        ("<a><!-- x -", "truncated"),
        ("<a><!-- x -- y --></a>", "malformed"),
        ("<a>&am", "truncated"),
        ("<a>& ", "malformed"),
        ("<a>&#", "truncated"),
        ("<a></a><b/>", "trailing_content"),
        ("<a></a> x", "trailing_content"),
        ("<a></a><!-- x", "trailing_content"),
        ("<a></a><!-- x --><?y z?>\n ", "complete"),
        ("<!-- x --><?y?><a/>", "complete"),
        ("<!-- x --><?xml version='1.0'?><a/>", "unparseable"),
        ("<?xml version='1.0' encoding=utf-8?><a/>", "unparseable"),
        ("<!DOCTYPE a><a/>", "dtd_forbidden"),
        ("<!DOCTYPE a [<!ENTITY b '>'> <!-- ' > --> <?p '?>]><HTML>", "html_document"),
        ("<!DOCTYPE a [<!ENTITY b '>'>", "dtd_forbidden"),
        ("<!DOCTYPE HTML PUBLIC", "html_document"),
        ("<!doctype html><p>", "html_document"),
        ("<html lang=en>", "html_document"),
        ("<x:Html>", "html_document"),
        ("<htmlx/>", "complete"),
        ("<a><!DOCTYPE b></a>", "malformed"),
        ("<a><b c='&bad;'/></a>", "malformed"),
        ("<a><b c='&#xFFFFFFFFFFFFFF;'/></a>", "complete"),
        ("<a>&#x110000;</a>", "complete"),
        ("<a>&#X41;</a>", "malformed"),
        ("<a\x01/>", "unparseable"),
        ("<a></a>\x00", "trailing_content"),
    ],
)
def test_statuses(text: str, status: str) -> None:
    for size in (1, 2, 3, 1 << 20):
        assert by_markup(text.encode(), size)[1] == status


def test_attributes() -> None:
    events, _ = by_markup(b"<a b='x\r\ny\tz&#10;&amp;lt; >' c = \"'\"/>")
    assert events[0] == ("a", {"b": "x y z\n&lt; >", "c": "'"})
