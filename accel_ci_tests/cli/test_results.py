"""The commands for reports and results, from files to answers, in real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.model import Build
from accel_ci_tests.fixtures.project import Run, run_command_line, write_project
from accel_ci_tests.hud.samples import lay_build, lay_revision

NIGHTS = {"25": {"a": "passed", "b": "failed", "c": "passed"}, "26": {"a": "failed", "b": "passed", "c": "passed"}}


def junit(outcomes: dict[str, str]) -> str:
    cases = [
        f'<testcase classname="t.T" name="{name}" time="0.{index}"'
        + ("/>" if outcome == "passed" else '><failure message="0x1f off by 3"/></testcase>')
        for index, (name, outcome) in enumerate(outcomes.items(), 1)
    ]
    return f'<testsuite name="s" tests="{len(cases)}">{"".join(cases)}</testsuite>'


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the results of two nights."""
    folder = tmp_path_factory.mktemp("two-nights")
    write_project(folder)
    for day, outcomes in NIGHTS.items():
        (folder / f"{day}.xml").write_text(junit(outcomes))
        done = run_command_line(
            folder, "ingest", f"{day}.xml", "--revision", f"nightly-202611{day}", "--variant", "py3", "--suite", "unit",
            "--day", f"2026-11-{day}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "2 passed, 1 failed" in done.stdout
    return folder


@pytest.fixture
def stored(accel_ci: Run, two_nights: Path, tmp_path: Path) -> Run:
    """The command line in a copy of the project with the results of two nights."""
    shutil.copytree(two_nights, tmp_path, dirs_exist_ok=True)
    return accel_ci


def ask(run: Run, *arguments: str) -> list[dict[str, object]]:
    done: subprocess.CompletedProcess[str] = run("results", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: list[dict[str, object]] = json.loads(done.stdout)
    return answer


def test_what_changed_between_two_builds(stored: Run) -> None:
    builds = ("nightly-20261125~py3", "nightly-20261126~py3")
    [failing] = ask(stored, "newly-failing", *builds)
    [passing] = ask(stored, "newly-passing", *builds)
    assert (failing["test"], failing["before"], failing["after"]) == ("t.T::a", "passed", "failed")
    assert (passing["test"], passing["before"], passing["after"]) == ("t.T::b", "failed", "passed")


def test_the_build_before_is_found(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    home = make_project().home
    for day, failed in ((0, 3), (1, 0)):
        lay_build(home, Build(lay_revision(home, day).key, "py3"), {"failed": failed, "passed": 30 - failed})
    for names in ([], ["nightly-20261127"], ["nightly-20261126", "nightly-20261127"]):
        done = accel_ci("results", "newly-failing", *names, "--json")
        assert len(json.loads(done.stdout)) == 3
        assert ("nightly-20261127~py3 after nightly-20261126~py3" in done.stderr) == (len(names) < 2)
    alone = accel_ci("results", "newly-passing", "nightly-20261126")
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "nightly-20261126~py3 has all of its suites; name the two builds" in alone.stderr


def test_every_expected_test_has_one_verdict(stored: Run, tmp_path: Path) -> None:
    (tmp_path / "expected.txt").write_text("# of the selection\nt.T::a\nt.T::b\n\nt.T::gone\n")
    build = ("--revision", "nightly-20261126", "--variant", "py3", "--suite", "unit", "--day", "2026-11-26")
    done = stored("ingest", "26.xml", *build, "--expected", "expected.txt", "--json")
    summary = json.loads(done.stdout)
    assert {verdict: count for verdict, count in summary["verdicts"].items() if count} == {
        "failed": 1,
        "passed": 1,
        "not_run": 1,
    }
    assert (summary["not_run"], summary["unexpected"], done.returncode) == (["t.T::gone"], ["t.T::c"], 1)
    shown = stored("ingest", "26.xml", *build, "--expected", "expected.txt").stdout
    assert "t.T::gone" in shown
    assert "t.T::c" in shown
    for text, message in (("t.T::a\nt.T::a\n", "t.T::a is expected twice"), ("\n# none\n", "names no test")):
        (tmp_path / "expected.txt").write_text(text)
        refused = stored("ingest", "26.xml", *build, "--expected", "expected.txt")
        assert refused.returncode != 0
        assert message in refused.stderr


def test_questions_about_one_build(stored: Run) -> None:
    [cluster] = ask(stored, "failures", "nightly-20261126~py3")
    assert (cluster["tests"], cluster["message"], cluster["some_tests"]) == (1, "0x1f off by 3", ["t.T::a"])
    assert "0x1f" not in str(cluster["signature"])
    slow = ask(stored, "slowest", "nightly-20261126~py3", "--limit", "1")
    assert [(row["test"], row["total_s"]) for row in slow] == [("t.T::c", 0.3)]


def test_history_and_days(stored: Run) -> None:
    history = ask(stored, "history", "t.T::b", "--days", "3650")
    assert [row["verdict"] for row in history] == ["failed", "passed"]
    days = ask(stored, "per-day", "--days", "3650")
    assert [row["day"] for row in days] == ["2026-11-25", "2026-11-26"]


def test_tables_for_people(stored: Run) -> None:
    done = stored("results", "failures", "nightly-20261126~py3")
    assert "t.T::a" in done.stdout
    assert stored("results", "flaky").returncode == 0


@pytest.mark.parametrize(("form", "marker"), [("junit", b"<testcase"), ("csv", b'"revision"'), ("parquet", b"PAR1")])
def test_a_build_is_exported_in_other_formats(stored: Run, tmp_path: Path, form: str, marker: bytes) -> None:
    done = stored("export", "nightly-20261126~py3", "--format", form, "--output", "out")
    assert done.stdout.strip() == "out: 3 attempts"
    assert marker in (tmp_path / "out").read_bytes()
    if form == "junit":
        assert stored("parse", "out").returncode == 0


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [(junit({"a": "passed"}), 0, "complete"), (junit({"a": "passed"})[:-12], 1, "truncated"), ("", 2, "empty_file")],
)
def test_the_exit_status_reflects_the_status_of_a_report(
    accel_ci: Run,
    make_project: Callable[..., Project],
    tmp_path: Path,
    content: str,
    status: int,
    word: str,
) -> None:
    make_project()
    (tmp_path / "r.xml").write_text(content)
    done = accel_ci("parse", "r.xml")
    assert (done.returncode, word in done.stdout) == (status, True), done.stdout
    done = accel_ci("ingest", "r.xml", "--revision", "r", "--variant", "v", "--suite", "s")
    assert done.returncode == status, done.stdout


CLAIMS = '<testsuite name="s" tests="1" failures="3"><testcase classname="c" name="a" time="1"/></testsuite>'
MORE = '<testsuite name="s" tests="5"><testcase classname="c" name="a" time="1"/></testsuite>'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("<testsuites/>", "The report has no rows."),
        (CLAIMS, "A suite failed itself, or counts failures that none of its test cases has"),
        (MORE, "A suite has fewer test cases than its `tests` attribute declares."),
    ],
)
def test_a_report_that_proves_nothing_is_told_apart(
    accel_ci: Run, make_project: Callable[..., Project], tmp_path: Path, content: str, sentence: str
) -> None:
    make_project()
    (tmp_path / "r.xml").write_text(content)
    done = accel_ci("parse", "r.xml")
    assert (done.returncode, f"r.xml proves nothing by itself: {sentence}" in done.stderr) == (1, True), done.stderr
    assert accel_ci("ingest", "r.xml", "--revision", "r", "--variant", "v", "--suite", "s").returncode > 0


def test_mistakes_are_explained(stored: Run) -> None:
    for command in (["results", "failures"], ["export"], ["status"]):
        done = stored(*command, "nightly-20261127~py3")
        assert done.returncode == 2
        known = "nightly-20261125~py3, nightly-20261126~py3"
        assert f"'nightly-20261127~py3' names 0 builds; the newest are: {known}" in done.stderr
    done = stored("results", "history", "t.T::nobody")
    assert done.returncode == 1
    assert done.stdout == "no build of the last 90 days has a test 't.T::nobody'; write its whole id\n"
    assert stored("results", "newly-failing", "nightly-20261126", "nightly-20261126").stdout.startswith("no test fails in")


def test_a_build_is_named_by_its_revision_or_is_the_newest(stored: Run) -> None:
    named = [ask(stored, "failures", *name) for name in (["nightly-20261126~py3"], ["nightly-20261126"], [])]
    assert named[0] == named[1] == named[2] != ask(stored, "failures", "nightly-20261125")


def test_the_status_of_an_ingested_build_names_its_failing_tests(stored: Run) -> None:
    shown = stored("status", "nightly-20261126").stdout
    assert shown.startswith("\nnightly-20261126~py3: ingested: 1 failed\n")
    assert "1 failed: 0x1f off by 3\n  t.T::a\n" in shown
    assert "accel-ci results failures nightly-20261126~py3" in shown
    assert json.loads(stored("status", "--json").stdout)["verdicts"]["passed"] == 2


def test_ids_are_whole_where_no_person_reads(stored: Run, tmp_path: Path) -> None:
    long = "test_" + "x" * 300
    (tmp_path / "long.xml").write_text(junit({long: "failed", "b": "passed"}))
    assert f" {long} " in stored("parse", "long.xml").stdout
    assert stored("parse", "long.xml").stdout.endswith("total: 1 passed, 1 failed\n")
    stored("ingest", "long.xml", "--revision", "nightly-20261128", "--variant", "py3", "--suite", "unit")
    assert f"t.T::{long}" in stored("results", "failures", "nightly-20261128").stdout
