"""A job of another CI system on a real project: at a real web server, then here, with reports of its own tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

SUITES = {"suites": ["smoke", "unit"]}
PASSES = '<testsuite name="own" tests="1"><testcase classname="own.Test" name="test_a" time="1"/></testsuite>'
FAILS = PASSES.replace("/></testsuite>", '><failure message="::error::x"/></testcase></testsuite>')


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    """A project in the workspace of a job of Jenkins."""
    crons = {"nightly": {**SUITES, "cron": "0 2 * * *"}, "intraday": {**SUITES, "cron": "0 6 * * *"}}
    made = make_toy_night(tmp_path_factory.mktemp("bridges"), jobs={**crons, "main": SUITES, "pr": SUITES})
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=made.folder / "repository", capture_output=True, text=True, check=True).stdout.strip()
    jenkins = {"JENKINS_URL": "https://jenkins.example.org/", "GIT_COMMIT": commit}
    return replace(made, environment={**made.environment, **jenkins})


@pytest.fixture(scope="module")
def server(night: ToyNight) -> Iterator[Server]:
    port = free_port()
    server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
    yield server
    server.stop()


def test_a_build_at_the_web_server_and_then_here(night: ToyNight, server: Server) -> None:
    folder, reports = night.folder / "accel-ci", ("--report", "own*.xml", "--suite", "own")
    (night.folder / "own.xml").write_text(PASSES)
    log = night.accel_ci("ci", "--url", server.url, *reports, status=1)
    assert "~py3 (integration / py3): failure: 2 not known yet" in log
    assert "~py3 (reports / own): success: 1 tests passed or were excused" in log
    assert "tests/unit/test_unit.py::test_n[3]" in (folder / "summary.md").read_text()
    assert (folder / "conclusion.txt").read_text() == "failure\n"
    (night.folder / "own.xml").write_text(FAILS)
    log = night.accel_ci("ci", *reports, status=1)
    assert "~py3 (integration / py3): failure: 2 " in log
    assert "~py3 (reports / own): failure: 1 failed" in log
    [junit] = folder.glob("*.xml")
    assert f"{junit.stem} (integration / py3)" in log
    assert junit.read_text().count("<testcase") == 8, "those of the build, and that of the job"
