"""Strategies for reports: JUnit documents as producers write them, whole and damaged."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = [
    "<testsuites>", "</testsuites>", '<testsuite name="s" tests="3">', "</testsuite>",
    '<testcase classname="c" name="n" time="1"/>',
    '<testcase classname="c" name="m" time="0.5">', "</testcase>", '<failure message="m">text</failure>', "<skipped/>",
    "<error>", "<testsuite errors='1' failures='1'>", "<system-err>e</system-err>",
    "</error>", "<![CDATA[", "]]>", "<!--", "-->", "--", "<?pi x?>", "<?xml version='1.0'?>", "&lt;", "&amp;", "&#10;",
    "&#x1b;",
    "&nbsp;", "&", "<", ">", '"', "'", "/", "=", "\n", "\r\n", "\r", "\t", " ", "\x00", "\x1b", "\ufffe", "]]", "é", "漢",
    "😀", "a",
    " time=", "x:y", ":", "</", "/>", "<!DOCTYPE x>", "<a b='c\"d'>", "</a>", "<a", " b=\"<\"", "<a>", "&#xD800;", "&#0;",
]  # fmt: skip

pieces = st.lists(st.sampled_from(_PIECES), max_size=30).map("".join)

_characters = st.text("abn[]-:./ é<&\"'>\\\x07\t\n\u00a0", max_size=8)
_time = st.sampled_from(["0.1", "1", "", "1,5", "x", "1:02:03", "-1", "2.50", "1e-3"])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


@st.composite
def cases(draw: st.DrawFn) -> str:
    """A test case, mostly an ordinary one."""
    names = draw(st.sampled_from(["n", "n", "n", "n2", "\u00a0", ""])) + str(draw(st.integers(0, 30)))
    if draw(st.integers(0, 9)) == 0:
        names = draw(_characters)
    classname = draw(st.sampled_from(["c.A", "c.B", "", "c&amp;d", "c>d"]))
    attributes = [f'classname="{classname}"', f'name="{_escape(names)}"', f'time="{draw(_time)}"']
    attributes += draw(st.sampled_from([[], [], [], ['file="f.py"'], ['status="run"'], ['status="disabled"']]))
    if draw(st.integers(0, 12)) == 0:
        attributes = draw(st.permutations(attributes))[: draw(st.integers(0, 4))]
    start = " ".join(["<testcase", *attributes])
    body = draw(st.sampled_from([
        "", "", "", "", '<skipped type="pytest.skip" message="r">f:1: r</skipped>',
        '<skipped type="pytest.xfail" message="x" />',
        '<failure message="a &gt; b">trace\n</failure>', "<failure>\n  first\nsecond</failure>", "<failure/>",
        "<error></error>",
        '<error message="failed on teardown with &quot;E&quot;">E</error>', '<rerun message="once"/><failure message="f"/>',
        "<system-out>noise &amp; more</system-out>", "<failure><![CDATA[</testcase>]]></failure>",
        "<failure>a]]>b</failure>",
        '<properties><property name="k" value="v"/></properties>', "\n  <skipped/>\n ", "<failure message='q'>t</failure>",
        '<error message="worker \'gw0\' crashed while running">x</error>', "<skipped></failure>", "&#27;",
        "<failure a=\"1\" a=\"2\"/>",
        "<!-- c --><skipped/>", "<failure>&#x1b;t</failure>", "<failure>t&bad;</failure>",
    ]))  # fmt: skip
    if not body:
        return start + draw(st.sampled_from(["/>", " />", "></testcase>"]))
    return f"{start}>{body}</testcase>"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A whole JUnit document."""
    inner = "\n".join(draw(st.lists(cases(), max_size=25)))
    counts = st.sampled_from(["", "", ' errors="1"', ' failures="1"', ' errors="1" failures="2"'])
    faults = st.sampled_from(["", "", '<error message="own"/>', "<failure>own</failure>", "<system-err>own</system-err>"])
    suite = f'<testsuite name="t" file="g.py"{draw(counts)}>{draw(cases())}{draw(faults)}</testsuite>'
    nested = draw(st.sampled_from(["", suite])) + draw(faults)
    head = '<?xml version="1.0" encoding="utf-8"?>'
    return f'{head}\n<testsuites><testsuite name="s"{draw(counts)}>{inner}{nested}\n</testsuite></testsuites>\n'


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A document with a few bytes replaced, removed or inserted, often none."""
    data = draw(documents()).encode()
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 5))
        data = (
            data[:place]
            + draw(st.sampled_from([b"", b"<", b"&", b"\x1b", b"\xff", b'"', b"\r", b"/>"]))
            + data[place + length :]
        )
    return data
