"""For any bytes: no exception, bounded memory, no invented rows, and the same result whole, in chunks and compressed."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accel_ci.reports.detect import read_as
from accel_ci.reports.junit.read import read_junit
from accel_ci.reports.parse import read_chunks
from accel_ci.reports.report import DEFAULT_LIMITS, ReadLimits, Report, to_json

from .comparison import end, parse_bytes
from .documents import damaged, pieces

LINES = [
    b'{"$report_type":"TestReport","nodeid":"a.py::t","when":"call","outcome":"failed","longrepr":"E"}', b'{"id":{}}',
    b"{", b"[1]",
    b'{"id":{"testResult":{"label":"//a:b"}},"testResult":{"status":"PASSED","testActionOutput":[{"name":"test.xml","uri":7}]}}',
    b'{"id":{"testResult":{"label":"//a:b","configuration":{"id":"k"}}},"testResult":{"status":"FAILED"}}',
    b'{"id":{"testSummary":{"label":"//a:b","configuration":{"id":[]}}},"testSummary":[]}',
    b'{"id":{"targetCompleted":{"label":"//a:b","configuration":{"id":"l\\u0001"}}},"completed":{}}',
    b'{"id":{"configuration":{"id":{}}},"configuration":{"mnemonic":"m"}}',
    b'{"$report_type":"SubTestReport","nodeid":"a.py::t","when":"call","outcome":"failed","longrepr":"S"}',
    b'{"$report_type":"TestReport","nodeid":7,"when":null,"outcome":[],"longrepr":{"reprcrash":3},"duration":NaN}',
    b"null", b"",
    b'{"id":{"testSummary":{"label":"//a:b"}},"testSummary":{"overallStatus":"FAILED","shardCount":"9","runCount":-1}}',
    b'{"event":"attempt","at":"x","suite":"s","test":"a.py::t","outcome":"passed","duration_s":1}', b'{"event":"x","at":1}',
    b'{"$report_type":"SessionFinish"}', b'{"$report_type":"CollectReport","outcome":"failed","longrepr":["x",{}]}',
    b"\xff", b"\x00",
    b'{"id":{"targetCompleted":{"label":"//a:c"}},"aborted":3,"lastMessage":true}', b'{"a":"\\ud800\\u0000"}', b"[" * 3000,
    b'{"id":{"targetConfigured":{"label":"//a:c_test"}},"configured":{"testSize":[]}}', b'{"id":[[]]}', b"9" * 5000,
]  # fmt: skip

json_lines = st.lists(st.sampled_from(LINES), max_size=12).map(b"\n".join)
anything = st.one_of(
    st.binary(max_size=300),
    pieces.map(str.encode),
    damaged(),
    json_lines,
    pieces.map(lambda text: b"<testsuite>" + text.encode()),
    pieces.map(lambda text: text.encode("utf-16")),
    damaged().map(gzip.compress),
    st.builds(lambda data, cut: gzip.compress(data)[:cut], damaged(), st.integers(0, 200)),
)


def read_one_by_one(data: bytes) -> Report:
    """The report of XML without the fast path."""
    return read_as({"<": partial(read_junit, one_by_one=True)}, [data], DEFAULT_LIMITS)


@given(anything)
@example(b"\x1f\x8b")
@example(b"{-?><\xf9z\n")
@example(b"\xff\xfe<")
@example(b"\xef\xbb\xbf")
@example(b'<?xml version="1.0" encoding="utf-16"?>')
def test_any_bytes(data: bytes) -> None:
    report = parse_bytes(data)
    json.dumps(to_json(report))
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" and report.status == "complete" else data
    if report.status == "complete" and plain.lstrip().startswith(b"<"):
        elements = [mark + name for mark in (b"<", b":") for name in (b"testcase", b"rerun", b"flaky", b"testsuite")]
        assert len(report.rows) <= sum(map(plain.count, elements))
    if report.status in ("rejected", "empty"):
        assert not report.rows
        assert report.warnings
    if report.status == "salvaged":
        assert report.warnings
    keys = [(row.target, row.classname, row.name, row.file, row.attempt) for row in report.rows]
    assert len(set(keys)) == len(keys)


@given(anything, st.integers(1, 40))
@example(b"<?xml v " + b"x" * 1100 + b"encoding='q'>", 7)
@example(b"{-?><\xf9z\n", 7)
def test_chunks_make_no_difference(data: bytes, size: int) -> None:
    chunks = (data[start : start + size] for start in range(0, len(data), size))
    assert read_chunks(chunks) == parse_bytes(data)


@given(st.one_of(damaged(), json_lines))
def test_gzip_makes_no_difference(data: bytes) -> None:
    whole = parse_bytes(data)
    assert parse_bytes(gzip.compress(data)) == whole
    half = len(data) // 2
    assert parse_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]) + b"\0\0") == whole


@given(damaged(), st.integers(1, 4))
@settings(max_examples=300)
def test_the_fast_path_makes_no_difference(data: bytes, copies: int) -> None:
    """Runs of ordinary cases are read many at a time, with the same result as one by one."""
    if copies > 1:
        data = data.replace(b"<testcase", b"<testcase classname='x' name='y'/><testcase")
    data = b"<!---->" + data.removeprefix(b'<?xml version="1.0" encoding="utf-8"?>')
    data = data.replace(b"</testsuite>", b'<testcase classname="c" name="last" time="1"/>' * copies + b"</testsuite>")
    assert read_one_by_one(data) == parse_bytes(data)


SMALL = textwrap.dedent("""\
    <?xml version="1.0" encoding="utf-8"?>
    <testsuites><testsuite name="é" tests="4"><properties><property name="a" value="b"/></properties>
    <testcase classname="c" name="a" time="0.1"/>
    <testcase classname="c" name="b" time="0.2"><rerun message="1"/><failure
     message="x &lt; y"><![CDATA[t]]></failure></testcase>
    <!-- c --><testsuite name="in"><testcase classname="c" name="d" time="1"><skipped/></testcase></testsuite>
    <testcase classname="c" name="e" time="2"><system-out>é&#10;</system-out></testcase>
    </testsuite></testsuites>
    """).encode()


def test_each_prefix_has_the_rows_that_were_closed() -> None:
    whole = parse_bytes(SMALL)
    assert (whole.status, len(whole.rows)) == ("complete", 5)
    body = SMALL.rstrip()
    for cut in range(len(body)):
        report = parse_bytes(SMALL[:cut])
        rows = len(report.rows)
        assert report.rows == whole.rows[:rows]
        closed = SMALL[:cut].count(b"</testcase>") + (b'time="0.1"/>' in SMALL[:cut])
        assert rows == closed + (closed > 1)
        if b"<testsuites>" in SMALL[:cut]:
            assert report.status == "salvaged"
            assert "truncated" in report.warnings
        else:
            assert report.status == ("rejected" if cut else "empty")


def test_each_prefix_of_gzip_has_the_rows_that_were_decoded() -> None:
    data, whole = gzip.compress(SMALL), parse_bytes(SMALL)
    for cut in range(len(data)):
        report = parse_bytes(data[:cut])
        assert report.status in ("empty", "rejected", "salvaged")
        assert report.rows == whole.rows[: len(report.rows)]
    assert parse_bytes(data[:-3]).warnings == {"gzip_corrupt"}
    assert parse_bytes(data[:-3]).rows == whole.rows


def test_gzip_faults() -> None:
    data = bytearray(gzip.compress(SMALL))
    data[-6] ^= 1
    assert parse_bytes(bytes(data)).warnings == {"gzip_corrupt"}
    assert len(parse_bytes(bytes(data)).rows) == 5
    assert parse_bytes(gzip.compress(SMALL) + b"rubbish").warnings == {"gzip_corrupt"}
    behind = bytearray(gzip.compress(SMALL.replace(b"<skipped/>", b"<skipped>")))
    behind[-6] ^= 1
    assert parse_bytes(bytes(behind)).warnings == {"malformed"}
    stored = bytearray(gzip.compress(SMALL, 0))
    stored[10:15] = b"\xff" * 5
    assert parse_bytes(bytes(stored)).status == "empty"


@pytest.mark.parametrize("element", ["testsuite", "testcase", "x"])
def test_nesting(element: str) -> None:
    start = b'<testsuite><testcase classname="c" name="before" time="1"/>'
    report = parse_bytes(start + f"<{element}>".encode() * 300 + f"</{element}>".encode() * 300 + b"</testsuite>")
    assert report.status == "salvaged"
    assert "nesting_too_deep" in report.warnings
    assert [row.name for row in report.rows] == ["before"]
    fits = f"<{element}>".encode() * 99 + f"</{element}>".encode() * 99
    assert parse_bytes(start + fits + b"</testsuite>").status == "complete"
    last = b"<testsuite>" * 99 + b'<testcase name="a"/>' * 3
    assert parse_bytes(b"<testsuite>" + last).rows == []


@pytest.mark.parametrize(
    "dtd",
    [
        '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://example.invalid/"> %x;]>',
        "<!DOCTYPE a>",
    ],
)
def test_entities_are_refused(dtd: str) -> None:
    report = parse_bytes(f'<?xml version="1.0"?>{dtd}<testsuite><testcase name="&b;"/></testsuite>'.encode())
    assert (*end(report), *report.rows) == ("rejected", {"dtd_forbidden"})


def test_limits_have_names() -> None:
    case = b'<testcase classname="c" name="n%d" time="1"/>'
    cases = b"<testsuite>" + b"".join(case % number for number in range(30)) + b"</testsuite>"
    report = parse_bytes(cases, ReadLimits(rows=10))
    assert (*end(report), len(report.rows)) == ("salvaged", {"x_too_many_rows"}, 10)
    bomb = gzip.compress(b"<testsuite><system-out>" + b"." * (1 << 22))
    assert "x_expansion_limit" in parse_bytes(bomb, ReadLimits(expanded=1 << 20)).warnings
    line = b'{"$report_type":"TestReport","nodeid":"a::b","when":"call","outcome":"passed","x":[%s1]}\n' % (b"1," * 300_000)
    report = parse_bytes(b'{"$report_type":"SessionStart"}\n' + line, ReadLimits(line=1 << 18))
    assert "x_line_too_long" in report.warnings
    assert report.status == "salvaged"


@pytest.mark.parametrize("size", [64 * 1024, (1 << 20) + 1])
@pytest.mark.parametrize("place", ["output", "error", "text", "cdata", "attribute"])
def test_long_texts(size: int, place: str) -> None:
    text = "x" * size
    body = {
        "output": f'<failure message="m"/><system-out>{text}</system-out>',
        "error": f'<failure message="m"/><system-err>{text}</system-err>',
        "text": f"<failure>{text}</failure>",
        "cdata": f"<failure><![CDATA[{text}]]></failure>",
        "attribute": f'<failure message="{text}"/>',
    }[place]
    data = f'<testsuite><testcase classname="c" name="n" time="1">{body}</testcase></testsuite>'.encode()
    for given_data in (data, data.replace(b"</testsuite>", b"<system-out/></testsuite>")):
        report = parse_bytes(given_data)
        assert report.status == "complete"
        assert report.warnings == ({"output_truncated"} if size > 1 << 20 else set())
        message = report.rows[0].message
        assert message == ("m" if place in ("output", "error") else text[: DEFAULT_LIMITS.text])


def test_long_json_texts() -> None:
    text = "\\n\\u001b[31m" + "é" * 100 + '\\"'
    record = {"$report_type": "TestReport", "nodeid": "a.py::t", "when": "teardown", "outcome": "failed", "duration": 1}
    line = json.dumps({**record, "longrepr": "short", "sections": [["out", "@"]]}).replace("@", text * 20_000)
    report = parse_bytes((line + '\n{"$report_type":"SessionFinish"}').encode())
    assert report.warnings == {"output_truncated", "invalid_char"}
    assert [(row.name, row.message, row.outcome) for row in report.rows] == [("t", "short", "error")]


def _parse_apart(path: Path, megabytes: int) -> tuple[Report, int]:
    """Read a file in a process of its own, which may use this much memory more than at its start."""
    script = r"""
import json, pathlib, re, sys
from accel_ci.reports.parse import parse_path
def peak(): # getrusage returns the peak of pytest, the parent, where that is higher
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
begin = peak()
report = parse_path(pathlib.Path(sys.argv[1]))
print(json.dumps([report.status, sorted(report.warnings), len(report.rows), (peak() - begin) * 1024]))
"""
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True, text=True, timeout=200)
    status, warnings, rows, grown = json.loads(done.stdout)
    assert grown < megabytes << 20
    return Report(status, set(warnings)), rows


@pytest.mark.parametrize(
    "place", ["<system-out>{}</system-out>", "<failure>{}</failure>", "<!--{}-->", '<failure message="{}"/>']
)
def test_memory_does_not_grow_with_a_text(tmp_path: Path, place: str) -> None:
    before, after = place.split("{}")
    path = tmp_path / "report.xml"
    with path.open("w") as out:
        out.write(f'<testsuite><testcase classname="c" name="n" time="1">{before}')
        for _ in range(64):
            out.write(("x" * 99 + "\n") * 10_000)
        out.write(f'{after}</testcase><testcase classname="c" name="after" time="1"/></testsuite>')
    report, rows = _parse_apart(path, 20)
    assert (report.status, rows) == ("complete", 2)
    assert report.warnings == (set() if "--" in place else {"output_truncated"})


def test_memory_does_not_grow_with_a_json_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as out:
        out.write(
            '{"$report_type":"TestReport","nodeid":"a.py::t","when":"teardown","outcome":"passed","duration":1,"sections":[["o","'
        )
        for _ in range(32):
            out.write(("x" * 98 + "\\n") * 10_000)
        out.write('"]]}\n{"$report_type":"SessionFinish"}\n')
    report, rows = _parse_apart(path, 40)
    assert (*end(report), rows) == ("complete", {"output_truncated"}, 1)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_fuzz(tmp_path: Path) -> None:
    """A bounded run of the fuzzer; `ACCEL_CI_FUZZ_RUNS` makes it longer."""
    runs = os.environ.get("ACCEL_CI_FUZZ_RUNS", "5000")
    command = [sys.executable, "-m", "accel_ci_tests.reports.fuzz", f"-runs={runs}", "-max_len=2000"]
    command.append(f"-artifact_prefix={tmp_path}/")
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
