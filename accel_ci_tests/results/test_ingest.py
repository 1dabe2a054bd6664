from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.results.ingest import IngestReport, find_reports, ingest
from accel_ci.results.questions import failures, history
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import AttemptsReplacedError
from accel_ci_tests.fixtures.stored_attempts import root_of

BUILD, DAY = Build("nightly-20261127", "py3"), date(2026, 11, 27)
KILLS = int(os.environ.get("ACCEL_CI_KILLS", "8"))

JUNIT = """<testsuites><testsuite name="pytest" timestamp="2026-11-27T0{hour}:00:00">
<testcase classname="tests.test_a" name="test_one" file="tests/test_a.py" time="0.5">{one}</testcase>
<testcase classname="tests.test_a" name="test_{two}" file="tests/test_a.py" time="0.25"/>
</testsuite></testsuites>"""
FAILURE = '<failure message="off by 3"/>'


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results")


def run(store: ResultsStore, *paths: Path) -> IngestReport:
    return ingest(paths, BUILD, "unit", DAY, store)


def rows(store: ResultsStore) -> list[tuple[str, int, int, str]]:
    return [
        (row["test"], row["round"], row["attempt"], row["outcome"])
        for stored in store.suites()
        for row in store.read(stored).to_pylist()
    ]


def test_any_mixture_of_formats_becomes_one_suite(store: ResultsStore, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "second.xml").write_text(JUNIT.format(hour=2, one="", two="two"))
    (folder / "deep" / "first.xml.gz").write_bytes(gzip.compress(JUNIT.format(hour=1, one=FAILURE, two="three").encode()))
    report = [
        {
            "$report_type": "TestReport",
            "nodeid": "tests/test_a.py::test_four",
            "when": when,
            "outcome": "passed",
            "duration": 1.0,
        }
        for when in ("setup", "call", "teardown")
    ]
    lines = [*report, {"$report_type": "SessionFinish", "exitstatus": 0}]
    (folder / "deep" / "er" / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / ".hidden").write_text("no report")
    found = run(store, folder, folder / "second.xml")
    assert (found.exit_code, found.rows, len(found.files), found.troubled) == (0, 5, 3, ())
    assert rows(store) == [
        ("tests/test_a.py::test_four", 1, 0, "passed"),
        ("tests/test_a.py::test_one", 1, 0, "failed"),
        ("tests/test_a.py::test_one", 1, 1, "passed"),
        ("tests/test_a.py::test_three", 1, 0, "passed"),
        ("tests/test_a.py::test_two", 1, 0, "passed"),
    ]
    [flaky] = history(store, "tests/test_a.py::test_one", DAY)
    assert (flaky.verdict, flaky.started_at) == ("flaky", datetime(2026, 11, 27, 1, tzinfo=timezone.utc))
    assert found.counts == {**dict.fromkeys(found.counts, 0), "passed": 3, "flaky": 1}
    assert [cluster.signature for cluster in failures(store, BUILD)] == ["off by <n>"]


def test_the_runners_own_lines_keep_what_they_say(store: ResultsStore, tmp_path: Path) -> None:
    def line(outcome: str, round: int = 1, message: str | None = None) -> dict[str, object]:
        said = {"event": "attempt", "at": "2026-11-27T03:00:01+00:00", "suite": "unit", "test": test, "round": round}
        said |= {"outcome": outcome, "started_at": "2026-11-27T03:00:00.250+00:00", "duration_s": 0.5, "message": message}
        return said | {"output_tail": None, "card": "3", "host": "h", "worker": "w7"}

    test = "tests/test_a.py::T::test[::]"
    started = {"event": "worker_started", "at": "2026-11-27T03:00:00+00:00"}
    lines = [started, line("failed", message="m"), line("passed"), line("passed", 2)]
    for name, packed in (("events.jsonl", False), ("events.jsonl.gz", True)):
        text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    found = run(store, tmp_path / "events.jsonl")
    assert (found.exit_code, found.rows) == (0, 3)
    assert rows(store) == [(test, 1, 0, "failed"), (test, 1, 1, "passed"), (test, 2, 0, "passed")]
    [stored] = store.suites()
    first = store.read(stored).to_pylist()[0]
    assert (first["card"], first["host"], first["worker"], first["message"]) == ("3", "h", "w7", "m")
    assert first["started_at"] == datetime(2026, 11, 27, 3, 0, 0, 250000, timezone.utc)
    run(store, tmp_path / "events.jsonl.gz")
    assert rows(store) == [(test, 1, 0, "failed"), (test, 1, 1, "passed"), (test, 2, 0, "passed")]


@pytest.mark.parametrize("number", [1 << 31, -1 << 63])
def test_a_round_that_no_column_can_hold_is_the_first(store: ResultsStore, tmp_path: Path, number: int) -> None:
    line = {"event": "attempt", "at": "", "suite": "unit", "test": "t", "round": number, "outcome": "passed"}
    (tmp_path / "events.jsonl").write_text(json.dumps(line, separators=(",", ":")) + "\n")
    assert run(store, tmp_path / "events.jsonl").rows == 1
    assert rows(store) == [("t", 1, 0, "passed")]


def test_a_bazel_group_is_its_events_with_their_test_logs(store: ResultsStore, tmp_path: Path) -> None:
    group = tmp_path / "build" / "bep"
    logs = group / "testlogs" / "a" / "b"
    logs.mkdir(parents=True)
    (logs / "test.xml").write_text(
        '<testsuites><testsuite name="s"><testcase classname="C" name="x" time="1"/></testsuite></testsuites>'
    )
    label = {"label": "//a:b", "run": 1, "shard": 1, "attempt": 1}
    output = [{"name": "test.xml", "uri": "file:///x/testlogs/a/b/test.xml"}]
    events = [
        {"id": {"started": {}}, "started": {}},
        {"id": {"testResult": label}, "testResult": {"status": "PASSED", "testActionOutput": output}},
        {"id": {"buildFinished": {}}, "lastMessage": True},
    ]
    (group / "bep.ndjson").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert find_reports([tmp_path / "build"]) == [group / "bep.ndjson"]
    assert run(store, tmp_path / "build").exit_code == 0
    assert rows(store) == [("//a:b::C::x", 1, 0, "passed")]


GOOD, CUT = JUNIT.format(hour=1, one="", two="two"), JUNIT.format(hour=1, one=FAILURE, two="two")[:-60]


@pytest.mark.parametrize(
    ("contents", "code", "reasons"),
    [
        ([GOOD], 0, []),
        ([GOOD, CUT], 1, ["truncated"]),
        ([GOOD, "no report"], 2, ["unknown_format"]),
        ([CUT, ""], 2, ["truncated", "empty_file"]),
        ([GOOD, "<testsuites/>"], 2, ["no_test_cases"]),
        ([GOOD, "<failsafe-summary/>"], 0, ["failsafe_summary"]),
        (["<!DOCTYPE a><testsuites/>"], 2, ["dtd_forbidden"]),
        ([], 2, []),
    ],
)
def test_what_is_not_whole_is_told(
    store: ResultsStore, tmp_path: Path, contents: list[str], code: int, reasons: list[str]
) -> None:
    (tmp_path / "in").mkdir()
    for number, content in enumerate(contents):
        (tmp_path / "in" / f"{number}.xml").write_text(content)
    found = run(store, tmp_path / "in")
    assert found.exit_code == code
    assert [file.reason for file in found.troubled] == reasons
    assert (found.stored is None) == (found.rows == 0)


def test_nothing_to_store_leaves_what_was_stored(store: ResultsStore, tmp_path: Path) -> None:
    (tmp_path / "good.xml").write_text(GOOD)
    (tmp_path / "bad.xml").write_text("")
    run(store, tmp_path / "good.xml")
    before = rows(store)
    assert run(store, tmp_path / "bad.xml").exit_code == 2
    assert rows(store) == before
    with pytest.raises(AccelCiError, match=r"gone\.xml does not exist"):
        run(store, tmp_path / "gone.xml")


def test_a_file_that_cannot_be_read_is_told(store: ResultsStore, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.xml").write_text(GOOD)
    (tmp_path / "in" / "loop.xml").symlink_to("loop.xml")
    (tmp_path / "in" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "in" / "pipe.xml")
    found = run(store, tmp_path / "in")
    assert (found.exit_code, found.rows) == (2, 2)
    assert [(file.path.name, file.status, file.reason) for file in found.troubled] == [
        (name, "rejected", "x_not_a_file") for name in ("loop.xml", "pipe.xml", "up")
    ]


class Steps:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.parts = 0

    def total(self, count: int) -> None:
        self.parts = count

    def advance(self, note: str = "", count: int = 1) -> None:
        self.said += [note] * count

    def say(self, text: str) -> None:
        raise AssertionError("an ingest waits for nobody")

    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_processes_give_the_same_bytes_as_one(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", 70, 500)
    (tmp_path / "in" / "zz.xml").write_text("")
    stored = []
    for processes in (1, 2):
        store, steps = ResultsStore(tmp_path / f"results{processes}"), Steps()
        found = ingest([tmp_path / "in"], BUILD, "unit", DAY, store, step=steps, processes=processes)
        assert (found.rows, found.exit_code, steps.parts, len(steps.said)) == (35_000, 2, 71, 71)
        assert [said for said in steps.said if said] == ["zz.xml: empty"]
        stored.append([path.read_bytes() for path in sorted(root_of(store).glob("day=*/*"))])
    assert stored[0] == stored[1]


def write_shards(folder: Path, shards: int, cases: int) -> None:
    folder.mkdir()
    for shard in range(shards):
        lines = [f'<testcase classname="s{shard}" name="test_{"x" * 60}_{case}" time="0.{case}"/>' for case in range(cases)]
        text = f'<testsuite name="s" timestamp="2026-11-27T00:00:{shard % 60:02}">{"".join(lines)}</testsuite>'
        (folder / f"{shard}.xml").write_text(text)


# --- real processes that are killed or write at the same time ------------------------------------------------------

WRITER = """
import sys
from datetime import date
from pathlib import Path
from accel_ci.model import Build
from accel_ci.results.ingest import ingest
from accel_ci.results.store import ResultsStore

def main():
    store, *folders = sys.argv[1:]
    print("ready", flush=True)
    while not Path(store, "stop").exists():
        for folder in folders:
            found = ingest([Path(folder)], Build("r", "v"), "unit", date(2026, 11, 27), ResultsStore(Path(store)))
            assert found.exit_code == 0
            print("stored", flush=True)

if __name__ == "__main__":
    main()
"""


@contextmanager
def writer(script: Path, store: Path, *folders: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ingests one folder after the other until there is a file `stop` in the store."""
    script.write_text(WRITER)
    argv = [sys.executable, str(script), str(store), *map(str, folders)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def contents(folder: Path, word: str, tests: int) -> Path:
    """A folder of reports of some tests whose outcomes are all the same."""
    folder.mkdir()
    body = "<failure/>" if word == "failed" else ""
    cases = "".join(f'<testcase classname="c" name="t{number}" time="1">{body}</testcase>' for number in range(tests))
    (folder / "report.xml").write_text(f'<testsuite name="s">{cases}</testsuite>')
    return folder


def assert_whole(store: ResultsStore, at_rest: bool = True) -> None:
    """What is stored is one ingest or the other; at rest, the attempts and the rollup are of the same one."""
    for stored in store.suites():
        outcomes = Counter(store.read(stored, ["outcome"])["outcome"].to_pylist())
        [rollup] = store.rollups([stored])
        counts = Counter({word: count for word, count in rollup.origin.counts.items() if count})
        assert outcomes in ({"passed": 300}, {"failed": 500})
        assert counts in ({"passed": 300}, {"failed": 500})
        assert outcomes == counts or not at_rest


def test_an_ingest_that_is_killed_leaves_the_store_whole(tmp_path: Path) -> None:
    seed = int(os.environ.get("ACCEL_CI_SEED", "20261127"))
    rng = random.Random(seed)
    store = ResultsStore(tmp_path / "results")
    one, two = contents(tmp_path / "one", "passed", 300), contents(tmp_path / "two", "failed", 500)
    for kill in range(KILLS):
        with writer(tmp_path / "writer.py", root_of(store), one, two) as process:
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        print(f"kill {kill} of seed {seed}")
        assert_whole(store)
    assert run(store, one).exit_code == 0
    assert [path for path in root_of(store).rglob(".put-*") if path.stat().st_size] == []
    assert_whole(store)


def test_writers_at_the_same_time_do_not_tear_each_other(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "results")
    one, two = contents(tmp_path / "one", "passed", 300), contents(tmp_path / "two", "failed", 500)
    with (
        writer(tmp_path / "writer1.py", root_of(store), one, two) as first,
        writer(tmp_path / "writer2.py", root_of(store), two, one) as second,
    ):
        for _ in range(40):
            with suppress(AttemptsReplacedError):  # replaced whenever it was looked at
                assert_whole(store, at_rest=False)
        (root_of(store) / "stop").touch()
        assert (first.wait(60), second.wait(60)) == (0, 0)
    assert_whole(store)
    assert len(store.suites()) == 1


def test_the_readers_of_an_ingest_that_is_killed_end(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", 200, 500)
    with writer(tmp_path / "writer.py", tmp_path / "results", tmp_path / "in") as process:
        group = process.pid
        deadline = time.monotonic() + 60
        while len(members(group)) < 3:
            assert time.monotonic() < deadline, "no readers were started"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    while members(group):
        assert time.monotonic() < deadline, "readers live on"
        time.sleep(0.05)


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state != "Z":
                found.append(int(entry.name))
    return found
