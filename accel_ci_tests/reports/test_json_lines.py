"""Line formats: pytest-reportlog, Bazel's events, the runner's own lines."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accel_ci.model import OUTCOMES
from accel_ci.reports.attempt_tables import read_attempts
from accel_ci.reports.fields import split_node_id
from accel_ci.reports.parse import parse_path
from accel_ci.reports.report import Report
from accel_ci.runner.events import EventFile, EventLog

from .comparison import end, parse_bytes


def lines(*objects: dict[str, Any]) -> bytes:
    """Objects as a file."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in objects)


# --- pytest-reportlog ---------------------------------------------------------------------------------------------


def record(when: str, outcome: str = "passed", node: str = "t/a.py::test", **fields: Any) -> dict[str, Any]:
    return {"$report_type": "TestReport", "nodeid": node, "when": when, "outcome": outcome, "duration": 0.5, **fields}


def log(*records: dict[str, Any], finished: bool = True) -> Report:
    return parse_bytes(lines(*records, *([{"$report_type": "SessionFinish"}] if finished else [])))


def shown(report: Report) -> list[tuple[Any, ...]]:
    return [(row.name, row.attempt, row.outcome, row.message, row.duration_s) for row in report.rows]


@pytest.mark.parametrize(
    ("node", "parts"),
    [
        ("a/b.py::T::t[x::y[z]]", ("a.b.T", "t[x::y[z]]", "a/b.py")),
        ("b.py::t", ("b", "t", "b.py")),
        ("a/b.py", ("", "a.b", "a/b.py")),
        ("", ("", "", "")),
    ],
)
def test_node_ids(node: str, parts: tuple[str, str, str]) -> None:
    assert split_node_id(node) == parts


def test_interleaved_workers_and_ordinals() -> None:
    a, b = {"worker_id": "gw0"}, {"worker_id": "gw1"}
    report = log(
        record("setup", **a),
        record("setup", **b),
        record("call", **a),
        record("teardown", "failed", longrepr="\n E \n", **b),
        record("teardown", **a),
    )
    assert shown(report) == [("test", 0, "passed", None, 1.5), ("test#2", 0, "error", "E", 1.0)]
    assert report.warnings == {"duplicate_identity"}


def test_a_crashed_worker() -> None:
    crash = "worker 'gw0' crashed while running 't/a.py::test'"
    report = log(record("setup", worker_id="gw0"), record("???", "failed", longrepr=crash), record("call", worker_id="gw0"))
    assert shown(report) == [("test", 0, "crashed", crash, 1.0), ("test#2", 0, "passed", None, 0.5)]
    alone = log(record("???", "failed", longrepr=crash, duration="x"))
    assert shown(alone) == [("test", 0, "crashed", crash, None)]
    assert alone.warnings == {"duration_missing"}


def test_reruns_of_a_key_are_attempts_and_others_are_not() -> None:
    report = log(
        record("call", "rerun", longrepr={"reprcrash": {"message": "m\n2"}}), record("setup"),
        record("teardown", "rerun", longrepr="t"),
        record("call"), record("teardown"), record("call"), record("teardown"),
    )  # fmt: skip
    assert shown(report) == [
        ("test", 0, "failed", "m\n2", 0.5), ("test", 1, "error", "t", 1.0), ("test", 2, "passed", None, 1.0),
        ("test#2", 0, "passed", None, 1.0),
    ]  # fmt: skip


def test_pytest_retry_goes_on_with_another_call() -> None:
    report = log(
        record("setup"), record("call", "retried", longrepr="1"), record("call", "failed", longrepr="2"), record("teardown"),
        record("setup", node="a::b"), record("call", "retried", node="a::b"), record("call", node="a::b"),
        record("teardown", node="a::b"),
    )  # fmt: skip
    assert shown(report) == [
        ("test", 0, "failed", "1", 1.0), ("test", 1, "failed", "2", 1.0), ("b", 0, "failed", None, 1.0),
        ("b", 1, "passed", None, 1.0),
    ]  # fmt: skip
    assert report.warnings == set()


def test_messages_and_properties() -> None:
    report = log(
        record("call", "skipped", "a::1", longrepr=["f", 3, "Skipped: why\x1b"]),
        record("call", "skipped", "a::2", wasxfail="reason: r"),
        record("call", "passed", "a::3", wasxfail=""), record("teardown", "passed", "a::4", wasxfail="x"),
        record("call", "failed", "a::5\n", longrepr={"reprcrash": None}, user_properties=[["k", 1], ["l", [1]], "odd"]),
        record("call", "failed", "a::6", longrepr="Timeout (>1.0s) from pytest-timeout", user_properties=[["k", "\x01"]]),
        record("teardown", "passed", "a::6", user_properties=[]),
    )  # fmt: skip
    assert [(row.name, row.outcome, row.message) for row in report.rows] == [
        ("1", "skipped", "why\ufffd"), ("2", "xfailed", "r"), ("3", "xpassed", None), ("4", "passed", None),
        ("5\\u{A}", "failed", None),
        ("6", "timeout", "Timeout (>1.0s) from pytest-timeout"),
    ]  # fmt: skip
    assert report.rows[4].properties == (("k", "1"), ("l", "[1]"), ("", "odd"))
    assert report.rows[5].properties == (("k", "\ufffd"),)
    assert report.warnings == {"invalid_char", "name_escaped"}


def subtest(outcome: str = "failed", when: str = "call", **fields: Any) -> dict[str, Any]:
    return {
        **record(when, outcome, **fields),
        "$report_type": "SubTestReport",
        "_subtest.context": {"msg": "m", "kwargs": {}},
    }


def test_a_failed_subtest_fails_its_test() -> None:
    report = log(
        record("setup"), subtest("passed"), subtest(longrepr="first"), subtest(longrepr="second", duration=-1),
        subtest("skipped", longrepr=["f", 1, "Skipped: s"]), record("call"), record("teardown"),
    )  # fmt: skip
    assert shown(report) == [("test", 0, "failed", "first", 1.5)]
    assert report.warnings == set()


@pytest.mark.parametrize(
    ("sub", "own", "expected"),
    [
        (subtest(), record("call", "skipped", wasxfail="reason: r"), ("failed", None)),
        (subtest(longrepr="Timeout (>1.0s) from x"), record("call"), ("timeout", "Timeout (>1.0s) from x")),
        (subtest(longrepr="s"), record("call", "failed", longrepr="f"), ("failed", "s")),
        (subtest(when="setup", longrepr="s"), record("call", "failed", longrepr="f"), ("error", "s")),
        (subtest(when="teardown", longrepr="s"), record("call"), ("error", "s")),
        (subtest("skipped"), record("call"), ("passed", None)),
        (subtest("passed"), record("call", "failed", longrepr="f"), ("failed", "f")),
    ],
)
def test_subtests_beside_the_record_of_their_test(
    sub: dict[str, Any], own: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    report = log(record("setup"), sub, own, record("teardown"))
    assert [(row.outcome, row.message) for row in report.rows] == [expected]


def test_subtests_of_attempts_and_of_workers() -> None:
    a, b = {"worker_id": "gw0"}, {"worker_id": "gw1"}
    report = log(
        subtest(longrepr="s", **a), subtest("passed", **b), record("call", "rerun", longrepr="r", **a), record("call", **b),
        record("teardown", **a), record("teardown", **b), record("call", **a), record("teardown", **a),
    )  # fmt: skip
    assert [(row.name, row.attempt, row.outcome, row.message) for row in report.rows] == [
        ("test", 0, "failed", "s"), ("test#2", 0, "passed", None), ("test", 1, "passed", None),
    ]  # fmt: skip
    died = log(record("setup"), subtest(), finished=False)
    assert shown(died) == [("test", 0, "crashed", "no teardown record", 0.5)]
    assert len(log(subtest("passed"), subtest("skipped")).rows) == 0


def test_the_subtests_of_pytest_itself(tmp_path: Path) -> None:
    """Records as pytest makes them, which name subtests in another field."""
    (tmp_path / "conftest.py").write_text(
        "import json, pathlib\n"
        "def pytest_configure(config):\n"
        "    class Log:\n"
        "        def pytest_runtest_logreport(self, report):\n"
        "            data = config.hook.pytest_report_to_serializable(config=config, report=report)\n"
        "            with (pathlib.Path(__file__).parent / 'log.jsonl').open('a') as out:\n"
        "                print(json.dumps(data), file=out)\n"
        "    config.pluginmanager.register(Log())\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_it(subtests):\n"
        "    for number in range(3):\n"
        "        with subtests.test(number=number):\n"
        "            assert number != 1\n"
        "def test_other(subtests):\n"
        "    with subtests.test('fine'):\n"
        "        pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    written = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    report = log({"$report_type": "SessionStart"}, *written)
    assert [(row.name, row.outcome, (row.message or "").split("\n")[0]) for row in report.rows] == [
        ("test_it", "failed", "assert 1 != 1"), ("test_other", "passed", ""),
    ]  # fmt: skip


def test_bad_and_torn_lines() -> None:
    data = (
        lines({"$report_type": "SessionStart"})
        + b"garbage\n\n  \n"
        + lines(record("teardown"), {"$report_type": "SessionFinish"})
    )
    assert parse_bytes(data).warnings == {"bad_json_line"}
    assert parse_bytes(data.replace(b"garbage\n", b"") + b'{"$rep').warnings == {"truncated"}
    assert parse_bytes(data.replace(b"garbage\n", b"") + b"[3]\n").warnings == {"bad_json_line"}
    assert parse_bytes(data.replace(b"garbage", b'{"a":"\xff"}')).warnings == {"invalid_encoding"}
    cut = log(record("call"), record("teardown"), record("setup", node="a::b"), finished=False)
    assert shown(cut) == [("test", 0, "passed", None, 1.0), ("b", 0, "crashed", "no teardown record", 0.5)]
    assert end(cut) == ("salvaged", {"reportlog_incomplete"})


@pytest.mark.parametrize(
    ("status", "records", "failed"),
    [
        (0, [record("call"), record("teardown")], False),
        (1, [record("call", "failed"), record("teardown")], False),
        (2, [record("call"), record("teardown", "failed")], False),
        (5, [], False),
        (None, [record("teardown")], False),
        (1, [record("call"), record("teardown")], True),
        (2, [record("call", "skipped"), record("teardown")], True),
        (3, [], True),
        (1, [record("call", "rerun"), record("teardown"), record("call"), record("teardown")], True),
    ],
)
def test_an_exit_status_that_no_test_explains(status: int | None, records: list[dict[str, Any]], failed: bool) -> None:
    report = log(*records, {"$report_type": "SessionFinish", "exitstatus": status}, finished=False)
    assert (report.status, "x_session_failed" in report.warnings) == (("salvaged" if failed else "complete"), failed)


def test_failed_collection() -> None:
    failed = {"$report_type": "CollectReport", "nodeid": "t/a.py", "outcome": "failed", "longrepr": ""}
    report = log(failed, {**failed, "outcome": "passed"}, failed)
    assert shown(report) == [("t.a", 0, "error", None, None), ("t.a#2", 0, "error", None, None)]
    assert report.warnings == {"missing_classname", "duplicate_identity"}


# --- Bazel's events -----------------------------------------------------------------------------------------------

LAST = {"id": {"progress": {}}, "lastMessage": True}
XML = '<testsuite name="s">{}</testsuite>'


def result(
    status: str | None = None, label: str = "//a/b:c", uri: str | None = "bytestream://x", **fields: Any
) -> dict[str, Any]:
    numbers = {name: fields.pop(name) for name in ("run", "shard", "attempt") if name in fields}
    payload = {"testActionOutput": [{"name": "test.xml", "uri": uri}] if uri else [], "testAttemptDuration": "1s", **fields}
    return {
        "id": {"testResult": {"label": label, **numbers}},
        "testResult": {**payload, **({"status": status} if status else {})},
    }


def summary(status: str, label: str = "//a/b:c", **fields: Any) -> dict[str, Any]:
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status, **fields}}


def bazel(folder: Path, *events: dict[str, Any], **files: str) -> Report:
    """A group with files below `testlogs/a/b/c`, named with `__` for `/`."""
    (folder / "bep.ndjson").write_bytes(lines(*events, LAST))
    for name, text in files.items():
        path = folder / "testlogs" / "a" / "b" / "c" / (name.replace("__", "/") + ".xml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return parse_path(folder)


def of(report: Report) -> list[tuple[Any, ...]]:
    return [(row.name, row.attempt, row.outcome, row.message) for row in report.rows]


PASSED = XML.format('<testcase name="x" time="1"/>')


def test_bazel_overrides_and_disagrees(tmp_path: Path) -> None:
    report = bazel(tmp_path, result("TIMEOUT"), test=PASSED)
    assert of(report) == [("x", 0, "passed", None), ("a/b/c", 0, "timeout", "TIMEOUT")]
    assert {row.classname for row in report.rows} == {row.target for row in report.rows} == {"//a/b:c"}
    assert report.warnings == {"bep_overrides_xml"}
    own = XML.format('<testcase classname="//a/b:c" name="a/b/c" time="1"/>')
    assert of(bazel(tmp_path, result("FAILED"), test=own)) == [("a/b/c", 0, "failed", None)]
    report = bazel(tmp_path, result("PASSED"), test=PASSED.replace("/>", "><failure/></testcase>", 1))
    assert (of(report), set(report.warnings)) == ([("x", 0, "failed", None)], {"bep_xml_disagree"})


def test_bazel_runs_shards_and_attempts(tmp_path: Path) -> None:
    report = bazel(
        tmp_path, result("PASSED", run=2, shard=1), result("FAILED", run=2, shard=2),
        result("FLAKY", run=2, shard=2, attempt="2"),
        result("PASSED", run=1, shard=1, cachedLocally=True), result("PASSED", run=1, shard=2, uri=None),
        summary("FLAKY", runCount=2),
        shard_1_of_2_run_1_of_2__test=PASSED, shard_1_of_2_run_2_of_2__test=PASSED, shard_2_of_2_run_2_of_2__test=PASSED,
        shard_2_of_2_run_2_of_2__test_attempts__attempt_1="<testsuite>",
    )  # fmt: skip
    assert of(report) == [
        ("a/b/c_shard_2/2 [run 2]", 0, "failed", "FAILED"), ("x [run 1]", 0, "passed", None),
        ("a/b/c_shard_2/2 [run 1]", 0, "passed", None),
        ("x [run 2]", 0, "passed", None), ("x [run 2]", 1, "passed", None),
    ]  # fmt: skip
    assert [row.cached for row in report.rows] == [False, True, False, False, False]
    assert end(report) == ("salvaged", {"test_xml_missing", "truncated", "no_test_cases"})


def test_bazel_equal_cases_of_two_shards(tmp_path: Path) -> None:
    report = bazel(
        tmp_path, result("PASSED", shard=1), result("PASSED", shard=2), shard_1_of_2__test=PASSED, shard_2_of_2__test=PASSED
    )
    assert of(report) == [("x", 0, "passed", None), ("x#2", 0, "passed", None)]


def test_bazel_summary_worse_than_all(tmp_path: Path) -> None:
    report = bazel(tmp_path, result("PASSED", shard=1), result("PASSED", shard=2), summary("INCOMPLETE", shardCount="3"))
    assert of(report)[-1] == ("a/b/c", 0, "error", "INCOMPLETE")
    assert report.warnings == {"test_xml_missing", "bep_overrides_xml"}
    assert of(bazel(tmp_path, summary("WEIRD"))) == [("a/b/c", 0, "not_run", "WEIRD")]
    assert of(bazel(tmp_path, result("FAILED"), result("PASSED"))) == [("a/b/c", 0, "passed", None)]


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("file:///home/x/bazel-testlogs/a/b/c/te%73t.xml", True),
        ("file:///home/testlogs/old/testlogs/a/b/c/test.xml", True),
        ("file:///home/x/a/b/c/test.xml", False),
        ("file:///x/testlogs/../../secret.xml", False),
        ("file:///x/testlogs/%00", False),
        ("file:///x/testlogs//etc/passwd", False),
        ("file:///x/testlogs/a", False),
    ],
)
def test_bazel_files_stay_below_testlogs(tmp_path: Path, uri: str, found: bool) -> None:
    (tmp_path / "secret.xml").write_text(PASSED.replace('"x"', '"secret"'))
    folder = tmp_path / "group"
    folder.mkdir()
    report = bazel(folder, result("PASSED", uri=uri), test=PASSED)
    assert [row.name for row in report.rows] == ["x" if found else "a/b/c"]
    link = folder / "testlogs" / "a" / "b" / "c" / "test.xml"
    link.unlink()
    link.symlink_to(tmp_path / "secret.xml")
    assert [row.name for row in parse_path(folder).rows] == ["a/b/c"]


def test_bazel_targets_without_results(tmp_path: Path) -> None:
    def completed(label: str, **payload: Any) -> dict[str, Any]:
        return {"id": {"targetCompleted": {"label": label}}, **payload}

    configured = [
        {"id": {"targetConfigured": {"label": f"//:t{number}"}}, "configured": {"targetKind": "cc_test rule"}}
        for number in range(5)
    ]
    report = bazel(
        tmp_path, *configured, completed("//:t0", completed={}),
        completed("//:t1", completed={"failureDetail": {"message": "no\x1b"}}),
        completed("//:t2", completed={}), completed("//:t2", completed={"success": True}), completed("//:t3", aborted={}),
        {"id": {"targetConfigured": {"label": "//:lib"}}, "configured": {"targetKind": "cc_library rule"}},
    )  # fmt: skip
    assert of(report) == [
        ("t0", 0, "error", "FAILED_TO_BUILD"), ("t1", 0, "error", "no\ufffd"), ("t2", 0, "not_run", None),
        ("t3", 0, "not_run", "aborted"),
        ("t4", 0, "not_run", None),
    ]  # fmt: skip
    assert report.warnings == {"target_failed_to_build", "target_missing_result", "target_aborted", "invalid_char"}


def finished(code: int) -> dict[str, Any]:
    return {"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": "X", "code": code}}}


def test_bazel_exit_codes_that_no_test_explains(tmp_path: Path) -> None:
    passed, failed = result("PASSED", uri=None), result("FAILED", uri=None)
    for code, events, lost in ((0, [passed], False), (3, [failed], False), (3, [passed], True), (1, [], True)):
        report = bazel(tmp_path, *events, finished(code))
        assert (report.status, "x_build_failed" in report.warnings) == (("salvaged" if lost else "complete"), lost)


@pytest.mark.parametrize(
    ("event_id", "lost"),
    [
        ({"pattern": {"pattern": ["//gone/..."]}}, True),
        ({"unconfiguredLabel": {"label": "//gone:test"}}, True),
        ({"targetCompleted": {"label": "//gone:test", "configuration": {"id": "1"}}}, True),
        ({"targetCompleted": {"label": "//a:lib"}}, False),
        ({"targetCompleted": {"label": "//a:test"}}, False),
    ],
)
def test_bazel_targets_that_could_not_be_loaded_are_not_overlooked(
    tmp_path: Path, event_id: dict[str, Any], lost: bool
) -> None:
    known = [
        {"id": {"targetConfigured": {"label": f"//a:{name}"}}, "configured": {"targetKind": kind}}
        for name, kind in (("lib", "cc_library rule"), ("test", "cc_test rule"))
    ]
    aborted = {"id": event_id, "aborted": {"reason": "ANALYSIS_FAILURE", "description": "no such package"}}
    report = bazel(tmp_path, *known, aborted, result("FAILED", uri=None), finished(1))
    assert (report.status, "x_build_failed" in report.warnings) == (("salvaged" if lost else "complete"), lost)
    assert [row.outcome for row in report.rows if row.target == "//a:test"] == ["not_run"]


def configured(event: dict[str, Any], configuration: str) -> dict[str, Any]:
    """An event whose id has a configuration."""
    [(kind, its_id)] = event["id"].items()
    return {**event, "id": {kind: {**its_id, "configuration": {"id": configuration}}}}


def completed(**payload: Any) -> dict[str, Any]:
    return {"id": {"targetCompleted": {"label": "//a/b:c"}}, **payload}


def mnemonic(configuration: str, name: str) -> dict[str, Any]:
    return {"id": {"configuration": {"id": configuration}}, "configuration": {"mnemonic": name}}


IN_TWO = (configured(result("FAILED", uri=None), "1"), configured(result("PASSED", uri=None), "2"))


@pytest.mark.parametrize(
    ("events", "suffixes"),
    [
        ((), (" [config 1]", " [config 2]")),
        ((mnemonic("1", "opt"), mnemonic("2", "dbg")), (" [config opt]", " [config dbg]")),
        ((mnemonic("1", "opt"), mnemonic("2", "opt")), (" [config 1]", " [config 2]")),
        ((mnemonic("1", "2"),), (" [config 1]", " [config 2]")),
        ((mnemonic("1", "opt"), mnemonic("2", " ")), (" [config opt]", " [config 2]")),
        ((mnemonic("1", "a\n"), mnemonic("2", "b")), (" [config a\\u{A}]", " [config b]")),
    ],
)
def test_bazel_configurations_are_told_apart(
    tmp_path: Path, events: tuple[dict[str, Any], ...], suffixes: tuple[str, str]
) -> None:
    for order in ((*events, *IN_TWO), (*IN_TWO, *events)):
        report = bazel(tmp_path, *order)
        assert of(report) == [(f"a/b/c{suffixes[0]}", 0, "failed", "FAILED"), (f"a/b/c{suffixes[1]}", 0, "passed", None)]
        assert report.warnings - {"name_escaped"} == {"test_xml_missing"}


def test_bazel_configurations_are_targets_of_their_own(tmp_path: Path) -> None:
    """Each has its own attempts, shards, runs and summary; that of one never hides that of another."""
    report = bazel(
        tmp_path, configured(result("FAILED"), "1"), configured(result("PASSED", attempt=2), "1"),
        configured(summary("FLAKY"), "1"), configured(result("PASSED", run=1), "2"),
        configured(result("PASSED", run=2), "2"), configured(summary("TIMEOUT", runCount=2), "2"),
        configured(summary("NO_STATUS"), "3"),
        test=PASSED, test_attempts__attempt_1=PASSED, run_2_of_2__test=PASSED,
    )  # fmt: skip
    assert of(report) == [
        ("x [config 1]", 0, "passed", None), ("a/b/c [config 1]", 0, "failed", "FAILED"),
        ("x [config 1]", 1, "passed", None),
        ("a/b/c [run 1] [config 2]", 0, "passed", None), ("x [run 2] [config 2]", 0, "passed", None),
        ("a/b/c [config 2]", 0, "timeout", "TIMEOUT"), ("a/b/c [config 3]", 0, "not_run", "NO_STATUS"),
    ]  # fmt: skip
    assert {row.target for row in report.rows} == {"//a/b:c"}


def test_bazel_configurations_without_a_result(tmp_path: Path) -> None:
    broken, built, gone = completed(completed={}), completed(completed={"success": True}), completed(aborted={"reason": "R"})
    passed = configured(result("PASSED", uri=None), "1")
    report = bazel(tmp_path, configured(built, "1"), configured(broken, "2"), configured(gone, "3"), passed)
    assert of(report) == [
        ("a/b/c [config 1]", 0, "passed", None), ("a/b/c [config 2]", 0, "error", "FAILED_TO_BUILD"),
        ("a/b/c [config 3]", 0, "not_run", "R"),
    ]  # fmt: skip


def test_bazel_events_without_a_configuration_count_for_each(tmp_path: Path) -> None:
    test = {"id": {"targetConfigured": {"label": "//a/b:c"}}, "configured": {"testSize": "SMALL"}}
    one = configured(result("PASSED", uri=None), "1")
    assert of(bazel(tmp_path, test, completed(completed={}), one)) == [("a/b/c", 0, "passed", None)]
    action = {"id": {"actionCompleted": {"label": "//a/b:c", "configuration": {"id": "exec"}}}, "action": {}}
    assert of(bazel(tmp_path, action, one, summary("TIMEOUT"))) == [("a/b/c", 0, "timeout", None)]
    assert of(bazel(tmp_path, *IN_TWO, completed(aborted={}))) == of(bazel(tmp_path, *IN_TWO))


# --- the runner's own lines ---------------------------------------------------------------------------------------


def test_the_runners_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(EventFile(path).append)
    events.write("worker_started", worker="w", card="0", host="h", pid=1, round=2)
    for outcome, fields in (("failed", {"message": "E\x1b"}), ("passed", {})):
        events.write("attempt", suite="unit", test="t/a.py::T::t[1]", outcome=outcome, duration_s=0.5, **fields)
    events.write("worker_finished", reason="done")
    report = parse_bytes(path.read_bytes())
    assert [(row.classname, row.name, row.file, row.attempt, row.outcome, row.message) for row in report.rows] == [
        ("t.a.T", "t[1]", "t/a.py", 0, "failed", "E\ufffd"), ("t.a.T", "t[1]", "t/a.py", 1, "passed", None),
    ]  # fmt: skip
    assert report.rows[0].properties == (("suite", "unit"), ("round", "2"), ("card", "0"), ("host", "h"), ("worker", "w"))
    assert end(report) == ("complete", {"invalid_char"})
    torn = parse_bytes(path.read_bytes()[:-70])
    assert (torn.status, len(torn.rows)) == ("salvaged", 2)
    assert "truncated" in torn.warnings
    [attempts] = read_attempts([path])
    rows = attempts.table.to_pylist()
    assert [(row["test"], row["message"]) for row in rows] == [("t/a.py::T::t[1]", "E\x1b"), ("t/a.py::T::t[1]", None)]
    assert {(row["card"], row["host"], row["worker"], row["round"]) for row in rows} == {("0", "h", "w", 2)}
    assert (attempts.status, attempts.warnings) == ("complete", frozenset())


def test_fields_of_a_workers_start_hold_for_the_attempts_after_it(tmp_path: Path) -> None:
    """Also in a file with the lines of several workers, and unless an attempt has its own; read fast or by line."""
    started = '{"event":"worker_started","at":"x","card":"%s","worker":"w%s","round":1}\n'
    attempt = '{"event":"attempt","at":"x","test":"t%s","outcome":"passed"%s}\n'
    lines = [started % (0, 0), attempt % (0, ""), attempt % (1, ',"card":"own"'), started % (1, 1), attempt % (2, "")]
    plain, packed = tmp_path / "[a]*.jsonl", tmp_path / "b.jsonl"
    plain.write_text("".join(lines))
    packed.write_bytes(gzip.compress("".join(lines).encode()))
    (tmp_path / "none.jsonl").write_text(attempt % (0, ""))
    for paths in ([plain, tmp_path / "none.jsonl"], [packed, tmp_path / "none.jsonl"]):
        first, second = read_attempts(paths)
        rows = first.table.to_pylist()
        assert [(row["test"], row["card"], row["worker"]) for row in rows] == [
            ("t0", "0", "w0"), ("t1", "own", "w0"), ("t2", "1", "w1"),
        ]  # fmt: skip
        assert second.table.to_pylist()[0]["card"] is None
    parsed = parse_path(plain)
    assert [dict(row.properties).get("card") for row in parsed.rows] == ["0", "own", "1"]


def test_a_bad_file_does_not_affect_the_others(tmp_path: Path) -> None:
    good = '{"event":"attempt","at":"x","test":"t","outcome":"passed","duration_s":0.5}\n'
    odd = (
        good.replace("passed", "odd"),
        good.replace("0.5", "-1"),
        good.replace("0.5", "1e999"),
        good + '{"ev',
        good + "[]\n",
    )
    paths = [tmp_path / f"{number}.jsonl" for number in range(2 * len(odd))]
    for number, path in enumerate(paths):
        path.write_text(odd[number // 2] if number % 2 else good)
    read = list(read_attempts(paths))
    assert [len(one.table) for one in read] == [1] * len(paths)
    assert [one.warnings for one in read[::2]] == [frozenset()] * len(odd)
    assert [set(one.warnings) for one in read[1::2]] == [
        {"x_unknown_outcome"}, {"duration_invalid"}, {"duration_invalid"}, {"truncated"}, {"bad_json_line"},
    ]  # fmt: skip
    [gone] = read_attempts([tmp_path / "gone.jsonl"])
    assert gone.status == "rejected"


_value = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just("attempt"), st.just([1])
)
_event = st.fixed_dictionaries(
    {"event": st.sampled_from(["attempt", "attempt", "attempt", "started"]), "at": st.just("2031-01-01T00:00:00+00:00")},
    optional={
        "suite": st.sampled_from(["a", "b"]), "test": st.text(max_size=5), "round": st.integers(1, 3),
        "outcome": st.sampled_from(OUTCOMES),
        "duration_s": st.one_of(st.none(), st.floats(0, 10)), "message": st.one_of(st.none(), st.text(max_size=5)),
        "extra": _value,
    },
)  # fmt: skip
_odd_event = st.dictionaries(st.sampled_from(["event", "suite", "test", "round", "outcome", "message", "x"]), _value)
_line = st.one_of(
    _event.map(json.dumps),
    _event.map(json.dumps),
    _odd_event.map(json.dumps),
    st.sampled_from(["", " ", "{", "{}{}", "[]", "\\"]),
)


@example(texts=["", "{}{}"], end="\n")
@given(st.lists(_line, max_size=6), st.sampled_from(["\n", "", '\n{"event":"att']))
def test_tables_hold_the_same_as_rows(tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str) -> None:
    """Reading many files at a time has the same result as reading line by line."""
    path = tmp_path_factory.mktemp("lines") / "events.jsonl"
    first = json.dumps({"event": "worker_started", "at": "x"})
    path.write_text("\n".join([first, *texts]) + end)
    [attempts] = read_attempts([path])
    rows = attempts.table.to_pylist()
    report = parse_bytes(path.read_bytes())
    assert [row["outcome"] for row in rows] == [row.outcome for row in report.rows]
    assert [row["duration_s"] for row in rows] == [row.duration_s for row in report.rows]
    assert attempts.status == report.status
