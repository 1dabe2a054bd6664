"""Reports in the shapes that producers write, by their own documents and sources, and formats that are not read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest

from .comparison import parse_bytes

NEXTEST = """<testsuites name="nextest-run" tests="4" failures="1" errors="1" uuid="u"
timestamp="2031-01-01T00:00:00.000+00:00">
<testsuite name="toy" tests="4" disabled="0" errors="1" failures="1">
<testcase name="tests::flaky" classname="toy" timestamp="2031-01-01T00:00:00Z" time="0.2">
<flakyFailure timestamp="2031-01-01T00:00:00Z" time="0.1" message="thread panicked" type="test failure with exit code 101">
thread panicked<system-out>out</system-out></flakyFailure></testcase>
<testcase name="tests::fails" classname="toy" time="0.1"><failure message="m" type="test failure">t</failure>
<rerunFailure time="0.3" type="test failure">again</rerunFailure></testcase>
<testcase name="tests::slow" classname="toy" time="60.0"><error type="test timeout"/></testcase>
<testcase name="@setup-script:prepare" classname="toy" time="0.0"/></testsuite></testsuites>"""

CTEST = """<testsuite name="Linux-c++" tests="4" failures="1" disabled="1" skipped="1" hostname="" time="0"
timestamp="2031-01-01T00:00:00">
<testcase name="good" classname="good" time="0.01" status="run"><properties/><system-out>ok</system-out></testcase>
<testcase name="bad" classname="bad" time="0.01" status="fail"><failure message="SEGFAULT"/><properties/></testcase>
<testcase name="absent" classname="absent" time="0" status="notrun"><skipped message="Unable to find executable"/>
</testcase>
<testcase name="off" classname="off" time="0" status="disabled"><properties/></testcase></testsuite>"""

GOOGLETEST = """<testsuites tests="3" failures="2" disabled="0" errors="0" time="0." timestamp="2031-01-01T00:00:00.000"
name="AllTests">
<testsuite name="Device" tests="2" failures="1" disabled="0" skipped="1" errors="0" time="0."
timestamp="2031-01-01T00:00:00.000">
<testcase name="Adds" file="d.cc" line="3" value_param="1" status="run" result="completed" time="0." classname="Device">
<failure message="d.cc:4&#x0A;Value of: x" type=""><![CDATA[d.cc:4
Value of: x]]></failure></testcase>
<testcase name="Skips" file="d.cc" line="9" status="run" result="skipped" time="0." classname="Device">
<skipped message="d.cc:10&#x0A;no device"><![CDATA[d.cc:10
no device]]></skipped></testcase></testsuite>
<testsuite name="NonTestSuiteFailure" tests="1" failures="1" disabled="0" skipped="0" errors="0" time="0.">
<testcase name="" status="run" result="completed" time="0." classname=""><failure message="set-up" type=""/></testcase>
</testsuite></testsuites>"""

JEST = """<testsuites name="jest tests" tests="2" failures="1" errors="1" time="0.5">
<testsuite name="broken.test.js" errors="1" failures="0" skipped="0" timestamp="2031-01-01T00:00:00" time="0" tests="1">
<testcase classname="Test suite failed to run" name="broken.test.js" time="0"><error>Cannot find module 'x'
Require stack:</error></testcase></testsuite>
<testsuite name="adds" errors="0" failures="1" skipped="0" tests="1"><testcase classname="adds one" name="adds one"
time="0.1">
<failure>Error: expect(received)
 at x</failure></testcase></testsuite></testsuites>"""

GO = """<testsuites tests="2" failures="1" errors="1">
<testsuite name="example.org/a" tests="1" failures="0" errors="1" id="0" hostname="h" time="0.000"
timestamp="2031-01-01T00:00:00Z">
<testcase name="[build failed]" classname="example.org/a" time="0.000"><error message="Build error"><![CDATA[a.go:3: x]]>
</error>
</testcase></testsuite><testsuite name="example.org/b" tests="1" failures="1" errors="0" id="1">
<properties><property name="go.version" value="go1.26"/></properties>
<testcase name="TestX/sub" classname="example.org/b" time="0.010"><failure message="Failed">
<![CDATA[    b_test.go:9: no]]></failure>
</testcase><system-out><![CDATA[exit status 1]]></system-out></testsuite></testsuites>"""

BATS = """<testsuites time="0.02"><testsuite name="a.bats" tests="3" failures="1" errors="0" skipped="1" time="0.02"
timestamp="2031-01-01T00:00:00" hostname="h">
<testcase classname="a.bats" name="adds &amp; takes" time="0.01" />
<testcase classname="a.bats" name="fails" time="0.01"><failure type="failure">(in test file a.bats, line 3)
 `false&#39; failed</failure></testcase>
<testcase classname="a.bats" name="later" time="0"><skipped>not yet</skipped></testcase></testsuite></testsuites>"""

GRADLE = """<testsuite name="org.example.DeviceTest" tests="2" skipped="1" failures="1" errors="0"
timestamp="2031-01-01T00:00:00.000Z">
<properties/><testcase name="fails(int)[1]" classname="org.example.DeviceTest" time="0.1">
<failure message="java.lang.AssertionError" type="java.lang.AssertionError">java.lang.AssertionError
 at x</failure></testcase><testcase name="off()" classname="org.example.DeviceTest" time="0.0"><skipped/></testcase>
<system-out><![CDATA[]]></system-out><system-err><![CDATA[]]></system-err></testsuite>"""

PLAYWRIGHT = """<testsuites id="" name="" tests="1" failures="1" skipped="0" errors="0" time="1.5">
<testsuite name="a.spec.ts" timestamp="2031-01-01T00:00:00.000Z" hostname="chromium" tests="1" failures="1" skipped="0"
time="1.5">
<testcase name="shows › a row" classname="a.spec.ts" time="1.5"><failure message="a.spec.ts:3:1 shows" type="FAILURE">
<![CDATA[  [chromium] › a.spec.ts:3:1 ]]></failure><system-out><![CDATA[[[ATTACHMENT|x.png]]]]></system-out></testcase>
</testsuite></testsuites>"""

XUNIT_LOGGER = """<testsuites><testsuite name="Toy.dll" tests="1" skipped="0" failures="1" errors="0" time="0.1"
timestamp="2031-01-01T00:00:00">
<testcase classname="Toy.Tests" name="Fails" time="0.1"><failure type="failure"
message="Assert.Equal() Failure">at x</failure>
</testcase><system-out>Test Framework Informational Messages:</system-out><system-err>Error - no</system-err></testsuite>
</testsuites>"""


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (
            NEXTEST,
            [
                ("tests::flaky", 0, "failed", "thread panicked"), ("tests::flaky", 1, "passed", None),
                ("tests::fails", 0, "failed", "again"), ("tests::fails", 1, "failed", "m"),
                ("tests::slow", 0, "error", None), ("@setup-script:prepare", 0, "passed", None),
            ],
        ),
        (
            CTEST,
            [
                ("good", 0, "passed", None), ("bad", 0, "failed", "SEGFAULT"),
                ("absent", 0, "skipped", "Unable to find executable"), ("off", 0, "not_run", None),
            ],
        ),
        (
            GOOGLETEST,
            [
                ("Adds", 0, "failed", "d.cc:4\nValue of: x"), ("Skips", 0, "skipped", "d.cc:10\nno device"),
                ("(unnamed)", 0, "failed", "set-up"),
            ],
        ),
        (
            JEST,
            [
                ("broken.test.js", 0, "error", "Cannot find module 'x'"),
                ("adds one", 0, "failed", "Error: expect(received)"),
            ],
        ),
        (GO, [("[build failed]", 0, "error", "Build error"), ("TestX/sub", 0, "failed", "Failed")]),
        (
            BATS,
            [
                ("adds & takes", 0, "passed", None), ("fails", 0, "failed", "(in test file a.bats, line 3)"),
                ("later", 0, "skipped", "not yet"),
            ],
        ),
        (GRADLE, [("fails(int)[1]", 0, "failed", "java.lang.AssertionError"), ("off()", 0, "skipped", None)]),
        (PLAYWRIGHT, [("shows › a row", 0, "failed", "a.spec.ts:3:1 shows")]),
        (XUNIT_LOGGER, [("Fails", 0, "failed", "Assert.Equal() Failure")]),
    ],
    ids=["nextest", "ctest", "googletest", "jest", "go", "bats", "gradle", "playwright", "dotnet"],
)  # fmt: skip
def test_a_report_as_its_producer_writes_it(document: str, rows: list[tuple[str, int, str, str | None]]) -> None:
    report = parse_bytes(document.encode())
    assert report.status == "complete"
    assert [(row.name, row.attempt, row.outcome, row.message) for row in report.rows] == rows
    assert not report.warnings & {"suite_error", "count_mismatch", "multiple_outcomes"}


def archive() -> bytes:
    """A compressed tar archive with a report in it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("report.xml")
        entry.size = 12
        tar.addfile(entry, io.BytesIO(b"<testsuite/>"))
    return packed.getvalue()


CTRF = {"reportFormat": "CTRF", "results": {"tool": {"name": "x"}, "tests": [{"name": "a", "status": "failed"}]}}
REFUSED = {
    "TAP 13": b"TAP version 13\n1..1\nnot ok 1 - a\n", "TAP": b"1..1\nok 1 - a\n", "subunit": b"\xb3)\x01@\x0b\x04abcd",
    "CTRF": json.dumps(CTRF).encode(), "CTRF, indented": json.dumps(CTRF, indent=2).encode(),
    "Allure": b'{"uuid":"u","id":"x","status":"failed"}', "lines with an id": b'{"id":"1","status":"failed"}\n{"id":2}\n',
    "Jest": json.dumps({"numFailedTests": 1, "testResults": []}, indent=1).encode(), "Mocha": b'{"stats":{},"tests":[]}',
    "libtest": b'{ "type": "suite", "event": "started", "test_count": 1 }\n{ "type": "test", "event": "failed" }\n',
    "go test": b'{"Time":"2031-01-01T00:00:00Z","Action":"fail","Package":"p"}\n',
    "other events": b'{"event":"fail","at":1}\n',
    "googletest": json.dumps({"tests": 1, "failures": 1, "testsuites": []}, indent=2).encode(), "SARIF": b'{"runs":[]}',
    "Cucumber": b'[{"id":"f","elements":[]}]', "pytest-json-report": b'{"created":1.0,"exitcode":1,"tests":[]}',
    "Check": b'<testsuites xmlns="http://check.sourceforge.net/ns"><suite><test result="failure"/></suite></testsuites>',
    "NUnit 3": b'<test-run id="2" result="Failed"/>', "NUnit 2": b"<test-results/>", "xunit.net": b"<assemblies/>",
    "TestNG": b'<testng-results failed="1"/>', "Boost": b"<TestLog/>", "Qt": b'<TestCase name="x"/>', "CDash": b"<Site/>",
    "open test reporting": b'<e:events xmlns:e="https://schemas.opentest4j.org/reporting/events/0.2.0"/>',
    "TRX": b'\xef\xbb\xbf<TestRun xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010"/>',
    "Jenkins": b"<result><suites/></result>", "coverage": b"<coverage/>", "YAML": b"- name: a\n", "CSV": b"name,outcome\n",
    "events as text": b"id {\n  started {\n  }\n}\n", "binary events": b"\x96\x05\x0a\x02\x12\x00",
    "zip": b"PK\3\4" + bytes(30), "bzip2": b"BZh91AY", "xz": b"\xfd7zXZ\0", "tar": archive(), "nothing": b"null",
}  # fmt: skip


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_a_format_that_is_not_read_is_rejected_with_a_reason(content: bytes) -> None:
    for data in (content, gzip.compress(content)):
        report = parse_bytes(data)
        assert (report.status, report.rows) == ("rejected", [])
        assert report.warnings & {"unknown_format", "not_junit_root"}
        if content.startswith(b"\x1f"):
            break
