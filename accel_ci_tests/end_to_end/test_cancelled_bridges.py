"""A job of another CI system that is cancelled while a real web server and daemon work for it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

SUITES = {"suites": ["smoke", "unit"]}
RUNS = "{ runsOrError { ... on Runs { results { jobName status } } } }"
WAITS = """
import pathlib
import time


def test_waits():
    pathlib.Path({begun!r}).touch()
    time.sleep(3000)
"""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    folder = tmp_path_factory.mktemp("cancelled")
    tests = {**TESTS, "backend/tests/unit/test_unit.py": WAITS.format(begun=str(folder / "begun"))}
    crons = {"nightly": {**SUITES, "cron": "0 2 * * *"}, "intraday": {**SUITES, "cron": "0 6 * * *"}}
    return make_toy_night(folder, tests, jobs={**crons, "main": SUITES, "pr": SUITES})


@pytest.fixture(scope="module")
def server(night: ToyNight) -> Iterator[Server]:
    port = free_port()
    server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
    yield server
    server.stop()


def statuses(server: Server) -> list[tuple[str, str]]:
    return sorted((run["jobName"], run["status"]) for run in server.ask(RUNS)["runsOrError"]["results"])


def start(night: ToyNight, server: Server) -> subprocess.Popen[str]:
    command = night.command("ci", "--url", server.url, "--trigger", "main")
    return subprocess.Popen(
        command, cwd=night.folder, env=night.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_its_build_ends_as_canceled_at_the_server(night: ToyNight, server: Server) -> None:
    begun = night.folder / "begun"
    for count, number in enumerate((signal.SIGTERM, signal.SIGINT), 1):
        with start(night, server) as job:
            server.wait_for(lambda: begun.exists() or job.poll() is not None)
            job.send_signal(number)
            log = job.communicate(timeout=120)[0]
        assert job.returncode == 130, log
        assert "they are ended" in log
        expected = sorted([("main", "CANCELED"), ("start", "SUCCESS")] * count)
        server.wait_for(partial(_has, server, expected), 120)
        assert not workers_of(night.folder)
        begun.unlink()


def _has(server: Server, expected: list[tuple[str, str]]) -> bool:
    return statuses(server) == expected


def test_one_that_is_cancelled_at_its_start_leaves_no_run(night: ToyNight, server: Server) -> None:
    before = len(statuses(server))
    with start(night, server) as job:
        server.wait_for(lambda: len(statuses(server)) > before)
        job.send_signal(signal.SIGTERM)
        log = job.communicate(timeout=120)[0]
    assert job.returncode == 130, log
    ended = ("SUCCESS", "CANCELED", "FAILURE")
    server.wait_for(lambda: all(status in ended for _, status in statuses(server)), 120)
    assert ("main", "SUCCESS") not in statuses(server)


def workers_of(folder: Path) -> list[str]:
    """The processes that run the test which waits."""
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in shown if str(folder) in line and "runner" in line]
