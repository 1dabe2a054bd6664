"""Runs whose results store goes away: they wait for it, and lose nothing when it stays away.

A real S3 server behind one that refuses requests, and a script that plays a recorded run of Bazel and counts its runs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci_tests.fixtures.bench import Bench, make_bench
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3
from accel_ci_tests.pool.flaky_server import FlakyServer, flaky_server
from accel_ci_tests.recorded import player

pytestmark = real_s3


@pytest.fixture
def server() -> Iterator[FlakyServer]:
    with flaky_server(os.environ[NEEDED[0]]) as server:
        yield server


@pytest.fixture
def stored(tmp_path: Path, server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A project with a source build, and its results in a bucket for which runs wait five seconds."""
    monkeypatch.delenv("ACCEL_CI_BAZEL", raising=False)
    counts = f"with open({str(tmp_path / 'ran')!r}, 'a') as ran:\n    ran.write('x')"
    folder = tmp_path / "project"
    folder.mkdir()
    made = make_bench(folder)
    place = {"bucket": os.environ[NEEDED[1]], "prefix": f"test-{uuid.uuid4().hex}", "endpoint": server.url}
    bazel = str(player(tmp_path, "cached", counts))
    made.configure(rbe={"targets": ["//..."], "bazel": bazel}, results={**place, "patience_seconds": 5})
    return made


def runs_of_bazel(tmp_path: Path) -> int:
    return len((tmp_path / "ran").read_text())


def made(stored: Bench, name: str) -> bool:
    return bool(list(stored.project.home.glob(f"builds/*/*/{name}.json")))


def test_a_store_that_is_away_for_a_moment_is_waited_for(stored: Bench, server: FlakyServer, tmp_path: Path) -> None:
    server.away_while = lambda: made(stored, "bazel_test_results") and server.refused < 3
    output = stored.accel_ci("run", "nightly_rbe")
    assert "is away (" in output
    assert "giving up in" in output
    assert "ledger: 9 passed" in output
    assert runs_of_bazel(tmp_path) == 1


def test_a_build_is_taken_up_at_its_ledger(stored: Bench, server: FlakyServer, tmp_path: Path) -> None:
    server.away_while = lambda: made(stored, "bazel_test_results")
    output = stored.accel_ci("run", "nightly_rbe", status=1)
    assert "stopped: ledger: bucket " in output
    assert "check its endpoint, credentials and policy" in output
    server.away_while = lambda: False
    output = stored.accel_ci("run", "nightly_rbe")
    assert "this one takes the build up at ledger" in output
    assert "ledger: 9 passed" in output
    assert "source_build" not in output
    assert runs_of_bazel(tmp_path) == 1
    assert "this one takes the build up" not in stored.accel_ci("run", "nightly_rbe"), "nothing of it was left"
    assert runs_of_bazel(tmp_path) == 2


def test_results_are_kept_until_they_are_stored(stored: Bench, server: FlakyServer, tmp_path: Path) -> None:
    home = stored.project.home
    server.away_while = lambda: bool(list(home.glob("runs/*/*/bazel/unstored.json")))
    output = stored.accel_ci("run", "nightly_rbe", status=1)
    assert "stopped: bazel_test_results: bucket " in output
    server.away_while = lambda: False
    output = stored.accel_ci("run", "nightly_rbe")
    assert "Bazel has run already" in output
    assert "ledger: 9 passed" in output
    assert runs_of_bazel(tmp_path) == 1
    [variant] = stored.project.settings.variants
    [folder] = home.glob("builds/nightly-*")
    assert stored.status(Build(folder.name, variant.name))["state"].startswith("no results from smoke")
