"""JUnit XML: identities, outcomes, messages, attempts, merging."""

from __future__ import annotations

from typing import Any

import pytest

from accel_ci.reports.report import Report, Row
from accel_ci.reports.times import parse_timestamp

from .comparison import parse_bytes

CASE = '<testcase classname="c" name="n" time="1"'


def read(inner: str, root: str = '<testsuite name="s">') -> Report:
    """The report of a suite with this content."""
    return parse_bytes(f"{root}{inner}</{root[1:].split()[0].rstrip('>')}>".encode())


def only(report: Report) -> Row:
    """Its only row."""
    (row,) = report.rows
    return row


@pytest.mark.parametrize(
    ("body", "outcome", "message", "warnings"),
    [
        ("", "passed", None, ""),
        ("<failure/>", "failed", None, ""),
        ('<failure message=" "> \n  first \n second</failure>', "failed", "first", ""),
        ('<failure message=" kept as is "/>', "failed", " kept as is ", ""),
        ("<failure>\n<b>one</b> two<![CDATA[ three]]>\nfour</failure>", "failed", "one two three", ""),
        ('<error type="UnexpectedSuccess"/>', "error", None, ""),
        ('<skipped type="XFAIL" message="m"/>', "xfailed", "m", ""),
        ('<skipped type="pytest.xfail" message=""/>', "xfailed", None, ""),
        (
            '<skipped message="xfail-marked test passes unexpectedly"/>',
            "xpassed",
            "xfail-marked test passes unexpectedly",
            "",
        ),
        ('<skipped message="x\x1b"/>', "skipped", "x\ufffd", "invalid_char"),
        ('<x:failure message="m"/>', "failed", "m", ""),
        ('<failure x:message="m" xmlns:type="java.util.concurrent.TimeoutException"/>', "failed", "m", ""),
        ("<skipped/><failure>f</failure>", "failed", "f", "multiple_outcomes"),
        ('<failure message="1"/><failure message="2"/>', "failed", "1", ""),
        ("<wrapper><failure/></wrapper>", "passed", None, ""),
        ('<failure message="exited with error code 139"/>', "crashed", "exited with error code 139", ""),
        ('<failure message="exited with error code 137"/>', "failed", "exited with error code 137", ""),
        ("<error>worker 'gw1' crashed while running 'x'</error>", "crashed", "worker 'gw1' crashed while running 'x'", ""),
        ("<error message='other'>worker 'gw1' crashed while running 'x'</error>", "error", "other", ""),
        ('<failure message="Timeout &gt;5.0s"/>', "timeout", "Timeout >5.0s", ""),
        (
            '<failure message="Failed: Timeout (&gt;60s) from pytest-timeout"/>',
            "timeout",
            "Failed: Timeout (>60s) from pytest-timeout",
            "",
        ),
        ('<error type="org.junit.runners.model.TestTimedOutException"/>', "timeout", None, ""),
        ('<error type="java.util.concurrent.TimeoutException.Sub"/>', "error", None, ""),
        ('<skipped message="Timeout &gt;5.0s"/>', "skipped", "Timeout >5.0s", ""),
    ],
)
def test_outcomes(body: str, outcome: str, message: str | None, warnings: str) -> None:
    for before in ("", CASE.replace('"n"', '"m"') + "/>", CASE.replace('"n"', '"m"') + f">{body}</testcase>"):
        report = read(f"{before}{CASE}>{body}</testcase>")
        assert (report.rows[-1].outcome, report.rows[-1].message) == (outcome, message)
        assert report.warnings == set(warnings.split())


@pytest.mark.parametrize(
    ("attributes", "outcome", "warned"),
    [
        ('status="notrun"', "not_run", False),
        ('status="NotRun"', "not_run", False),
        ('result="notrun"', "passed", False),
        ('result="suppressed"', "not_run", False),
        ('status="run" result="skipped"', "skipped", False),
        ('status="skipped" result="FAILED"', "failed", True),
        ('status="error"', "error", True),
        ('status="fail"', "failed", True),
        ('status="Failure"', "failed", True),
        ('status="ERRORED"', "error", True),
        ('result="ignored"', "skipped", False),
        ('status="PASSED"', "passed", False),
        ('status="run" result="completed"', "passed", False),
    ],
)
def test_outcomes_of_attributes(attributes: str, outcome: str, warned: bool) -> None:
    case = f'<testcase classname="c" name="n" time="1" {attributes}'
    report = read(f"{case.replace('n', 'm', 0)}/>{case.replace(chr(34) + 'n' + chr(34), chr(34) + 'o' + chr(34))}/>")
    assert {row.outcome for row in report.rows} == {outcome}
    assert report.warnings == ({"status_attribute_only"} if warned else set())
    report = read(f'{case}><skipped message="m"/></testcase>')
    assert (only(report).outcome, sorted(report.warnings)) == ("skipped", [])


def test_defaults_of_identities() -> None:
    report = parse_bytes(b"""<testsuites name=" " file="top.py"><testsuite name="outer&#10;"><testsuite name="" file=" ">
        <testcase name="a" time="1"/><testcase classname=" " name=" " time="1" file=""/></testsuite>
        <testcase name="b" file="own.py" time="1"/></testsuite><testcase name="c" time="1"/></testsuites>""")
    assert [(row.classname, row.name, row.file) for row in report.rows] == [
        ("outer\\u{A}", "a", "top.py"), ("outer\\u{A}", "(unnamed)", "top.py"), ("outer\\u{A}", "b", "own.py"),
        ("", "c", "top.py"),
    ]  # fmt: skip
    assert report.warnings == {"missing_classname", "missing_name", "name_escaped"}


def test_ordinals() -> None:
    names = ["a", "a#2", "a", "a", "a#2", "b"]
    report = read("".join(CASE.replace('"n"', f'"{name}"') + "/>" for name in names))
    assert [row.name for row in report.rows] == ["a", "a#2", "a#3", "a#4", "a#2#2", "b"]
    assert {row.attempt for row in report.rows} == {0}
    assert report.warnings == {"duplicate_identity"}


def test_many_equal_cases_are_read_in_linear_time() -> None:
    report = read(f"{CASE}/>" * 20_000)
    assert report.rows[-1].name == "n#20000"


FAILED = f"{CASE}><failure/></testcase>"
SUITE = ("s", "(suite)")


@pytest.mark.parametrize(
    ("attributes", "body", "outcome", "message", "warnings"),
    [
        ("", "<error/>", "error", None, ""),
        ("", f"<failure message='m'/>{CASE}/>", "failed", "m", ""),
        ("", "<error>\n first \n second</error>", "error", "first", ""),
        ("", "<failure message='f'/><error message='e'/>", "error", "e", "multiple_outcomes"),
        ("", "<error message='The forked VM terminated without'/>", "crashed", "The forked VM terminated without", ""),
        ("", "<failure type='java.util.concurrent.TimeoutException'/>", "timeout", None, ""),
        ('errors="9" failures="9"', "<failure message='m'/><system-err>e</system-err>", "failed", "m", ""),
        ('errors="1"', "", "error", None, ""),
        ('failures="1"', "", "failed", None, ""),
        ('errors="1" failures="1"', "<system-err> \n one \n two</system-err>", "error", "one", ""),
        ('errors="1"', "<system-err> </system-err><system-out>o</system-out><system-err>e</system-err>", "error", "e", ""),
        ('errors="1"', "<system-err>x\x1b</system-err>", "error", "x\ufffd", "invalid_char"),
        ('errors="1"', f"{CASE}><system-err>of the case</system-err></testcase>", "error", None, ""),
        ('errors="1"', f"{FAILED}<testsuite name='t'><system-err>of the other</system-err></testsuite>", "error", None, ""),
        ('errors="1" failures="1"', f"{CASE}><error/></testcase>", "failed", None, ""),
        ('errors="1"', f"{CASE}><skipped/></testcase>", "error", None, ""),
        ('errors="1"', f'{CASE} status="failed"/>', "error", None, "status_attribute_only"),
        (f'errors="{"9" * 5000}"', "", "error", None, ""),
    ],
)  # fmt: skip
def test_a_suite_that_failed_itself_has_a_row(
    attributes: str, body: str, outcome: str, message: str | None, warnings: str
) -> None:
    report = read(body, root=f'<testsuite name="s" {attributes}>')
    own = report.rows[-1]
    assert (own.classname, own.name) == SUITE
    assert (own.outcome, own.message, own.duration_s, own.attempt) == (outcome, message, None, 0)
    assert report.status == "complete"
    assert report.warnings == {"suite_error", *warnings.split()}
    assert [(row.classname, row.name) for row in report.rows].count(SUITE) == 1


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ('errors="0" failures="000"', f"{CASE}/>"),
        ('errors="-1" failures="1.0"', f"{CASE}/>"),
        ('errors="١" failures=" 1"', f"{CASE}/>"),
        ('tests="0" skipped="1" failed="1"', f"{CASE}/>"),
        ('failures="3"', FAILED),
        ('failures="3"', FAILED * 3),
        ('failures="1"', f"<testsuite>{FAILED}</testsuite>"),
        ('failures="1"', f"{CASE}/>{CASE.replace('c', 'd', 1)}><failure message='1'>t</failure></testcase>"),
        ('failures="1"', f"{CASE}><rerun/></testcase>"),
        ('failures="1"', f"{CASE}><flakyFailure/></testcase>"),
        ('failures="1"', f"{CASE}><wrapper><failure/></wrapper></testcase>"),
        ('errors="1"', f"{CASE}><rerunError/></testcase>"),
        ('errors="1"', f'{CASE} status="ERROR"/>'),
        ('failures="1"', f'{CASE} result="failed"><error/></testcase>'),
        ("", "<skipped/><rerun/><system-err>noise</system-err>"),
    ],
)
def test_a_suite_whose_faults_are_in_its_cases_has_no_row(attributes: str, body: str) -> None:
    for wrapped in (body, f"<testsuite>{body}</testsuite>"):
        report = read(wrapped, root=f'<testsuite name="s" {attributes}>')
        assert "(suite)" not in {row.name for row in report.rows}
        assert "suite_error" not in report.warnings


def test_faults_of_suites_in_each_other() -> None:
    """The counts of an outer suite include those of its inner ones; its own faults are beyond them."""
    inner = '<testsuite name="in" errors="1" failures="1"><system-err>why</system-err></testsuite>'
    report = read(f"{inner}<testsuite name='in' errors='1'/>", root='<testsuites errors="2" failures="1">')
    assert [(row.classname, row.name, row.outcome, row.message) for row in report.rows] == [
        ("in", "(suite)", "error", "why"), ("in", "(suite)#2", "error", None),
    ]  # fmt: skip
    assert report.warnings == {"suite_error", "duplicate_identity"}
    outer = read(
        '<testsuite name="in" file="f.py"><error message="e"/></testsuite>', root='<testsuites errors="1" failures="1">'
    )
    assert [(row.classname, row.name, row.file, row.outcome) for row in outer.rows] == [
        ("in", "(suite)", "f.py", "error"), ("", "(suite)", None, "failed"),
    ]  # fmt: skip
    assert outer.warnings == {"suite_error", "missing_classname"}
    named = read('<testsuite name=" "><testsuite name="\\u{1}"><error/></testsuite><error/></testsuite>')
    assert [(row.classname, row.name) for row in named.rows] == [("\\u{5C}u{1}", "(suite)"), ("", "(suite)")]


def test_a_suite_that_is_not_closed_has_no_row_of_its_own() -> None:
    report = parse_bytes(b'<testsuites><testsuite name="a" errors="1"/><testsuite name="b" errors="1"><error/>')
    assert [row.classname for row in report.rows] == ["a"]
    assert report.warnings == {"truncated", "suite_error"}
    assert parse_bytes(b'<testsuite errors="1"/>').rows[0].outcome == "error"


TEARDOWN = '<error message="failed on teardown with &quot;E&quot;"/>'


def test_teardown_errors_are_merged() -> None:
    report = read(
        f'{CASE}><properties><property name="k" value="1"/></properties><rerun/><failure message="f"/></testcase>'
        f"{CASE.replace('n', 'o', 0).replace(chr(34) + 'n' + chr(34), chr(34) + 'o' + chr(34))}/>"
        f'{CASE}><properties><property name="k">2</property></properties>{TEARDOWN}</testcase>'
        f"{CASE}>{TEARDOWN}</testcase>"
    )
    assert [(row.name, row.attempt, row.outcome, row.duration_s) for row in report.rows] == [
        ("n", 0, "failed", None), ("n", 1, "error", 2.0), ("o", 0, "passed", 1.0), ("n#2", 0, "error", 1.0),
    ]  # fmt: skip
    assert report.rows[1].properties == (("k", "1"), ("k", "2"))
    assert report.rows[1].message == 'failed on teardown with "E"'
    assert report.warnings == {"merged_teardown_error", "duplicate_identity"}


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (f"{CASE}/>", f"{CASE}>{TEARDOWN}</testcase>", ["n error"]),
        (f"{CASE}/>", f"{CASE}>{TEARDOWN}<skipped/></testcase>", ["n passed", "n#2 error"]),
        (f"{CASE}/>", f"{CASE}>{TEARDOWN.replace('error', 'failure')}</testcase>", ["n passed", "n#2 failed"]),
        (f"{CASE}/>", f'{CASE}><error message="test teardown failure"/></testcase>', ["n error"]),
        (f"{CASE}/>", f'{CASE}><error message="test teardown failure!"/></testcase>', ["n passed", "n#2 error"]),
        (f"{CASE}/>", f"<testsuite>{CASE}>{TEARDOWN}</testcase></testsuite>", ["n passed", "n#2 error"]),
        (f"{CASE}/><testsuite>{CASE}/></testsuite>", f"{CASE}>{TEARDOWN}</testcase>", ["n error", "n#2 passed"]),
        (
            f"{CASE}><error message=\"worker 'a' crashed while running\"/></testcase>",
            f"{CASE}>{TEARDOWN}</testcase>",
            ["n crashed"],
        ),
        (f"{CASE} file='f'/>", f"{CASE}>{TEARDOWN}</testcase>", ["n passed", "n error"]),
        ("", f"{CASE}>{TEARDOWN}</testcase>" * 2, ["n error"]),
    ],
)
def test_which_teardown_errors_are_merged(first: str, second: str, rows: list[str]) -> None:
    assert [f"{row.name} {row.outcome}" for row in read(first + second).rows] == rows


def test_reruns_are_attempts() -> None:
    report = read(
        f'{CASE}><flakyFailure message="1" time="0,5"/><flakyError time="x">2<stackTrace>trace</stackTrace></flakyError>'
        f"<rerunFailure/><rerunError/><rerun message='Timeout &gt;1s'/></testcase>"
    )
    assert [(row.attempt, row.outcome, row.message, row.duration_s) for row in report.rows] == [
        (0, "failed", "1", 0.5), (1, "error", "2trace", None), (2, "failed", None, None), (3, "error", None, None),
        (4, "timeout", "Timeout >1s", None), (5, "passed", None, 1.0),
    ]  # fmt: skip
    assert report.warnings == {"duration_invalid"}


def test_properties() -> None:
    report = read(
        '<properties><property name="a" value="\x01"/><property>text<b>s</b></property>'
        '<other name="c" value="d"/></properties>'
        f'{CASE}><properties><property name="a" value=""/></properties><property name="no" value="no"/></testcase>',
        root="<testsuite>",
    )
    assert report.properties == [(None, "a", "\ufffd"), (None, "", "texts")]
    assert only(report).properties == (("a", ""),)


@pytest.mark.parametrize(
    ("tests", "mismatch"),
    [
        ("1", False),
        ("0", False),
        ("2", True),
        ("002", True),
        ("9" * 5000, True),
        ("-2", False),
        ("2.0", False),
        (" 2", False),
        ("²", False),
    ],
)
def test_counts(tests: str, mismatch: bool) -> None:
    report = read(f"<testsuite>{CASE}/></testsuite>", root=f'<testsuites tests="{tests}">')
    assert report.warnings == ({"count_mismatch"} if mismatch else set())
    cut = parse_bytes(f'<testsuites tests="9"><testsuite tests="1">{CASE}/></testsuite>'.encode())
    assert cut.warnings == {"truncated"}


@pytest.mark.parametrize(
    ("text", "status", "warning"),
    [
        ("<testsuite/>", "complete", "no_test_cases"),
        ("<testsuites><x><testcase/></x></testsuites>", "complete", "no_test_cases"),
        ("<testsuites><", "salvaged", "truncated"),
        ("<failsafe-summary", "rejected", "unparseable"),
        ("<failsafe-summary><x", "rejected", "failsafe_summary"),
        ("<x:testsuites xmlns:x='y'/>", "complete", "no_test_cases"),
        ("<TestSuites/>", "rejected", "not_junit_root"),
    ],
)
def test_roots(text: str, status: str, warning: str) -> None:
    report = parse_bytes(text.encode())
    assert report.status == status
    assert warning in report.warnings


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2031-01-01T00:00:00", "2031-01-01T00:00:01Z"),
        ("2031-01-01T01:00:00+02:00", "2031-01-01T00:00:00"),
        ("2031-01-01", "2031-01-01 00:00:00.000000001"),
        ("20310101T000000Z", "2031-01-01T00:00:00,5-0100"),
        ("2030-12-31T23:59", "2031-01-01T00:00:00.9999999999999"),
    ],
)
def test_timestamps(earlier: str, later: str) -> None:
    first, second = parse_timestamp(earlier), parse_timestamp(later)
    assert first is not None
    assert second is not None
    assert first < second


@pytest.mark.parametrize(
    "text", [None, "", "yesterday", "2031-13-01", "2031-01-01T25:00:00", "Thu, 01 Jan 2031", "0001-01-01T00:00+23:59"]
)
def test_no_timestamps(text: Any) -> None:
    stamp = parse_timestamp(text)
    assert stamp is None or stamp < 0
