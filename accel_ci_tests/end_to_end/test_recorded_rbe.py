"""The source build on the command line, with a script that plays a recorded run of Bazel."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci.rbe.results import read_targets
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bazel import assert_absent, bazel_results
from accel_ci_tests.fixtures.bench import Bench, make_bench
from accel_ci_tests.recorded import player

SECRET = "s3cr3t-of-the-test"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A separate project, for a script that plays a recorded run of Bazel."""
    monkeypatch.setenv("TEST_API_KEY", SECRET)
    monkeypatch.delenv("ACCEL_CI_BAZEL", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    return make_bench(folder)


def play(bench: Bench, folder: Path, case: str, **rbe: object) -> None:
    section = {"targets": ["//..."], "bazel": str(player(folder, case)), "headers": {"x-key": "TEST_API_KEY"}, **rbe}
    bench.configure(rbe=section)


def only_build(home: Path) -> Build:
    [build] = ManifestStore(home).list_builds()
    return build


def test_a_missing_bazel_is_an_error_with_advice(recorded: Bench) -> None:
    recorded.configure(rbe={"targets": ["//..."], "bazel": "no-such-bazel"})
    output = recorded.accel_ci("run", "nightly_rbe", status=1)
    assert "source_build: Bazel: no-such-bazel is not installed; install bazelisk" in output
    assert "stopped after source_build failed" in output, "before anything was made"
    assert "no-such-bazel is not installed" in recorded.accel_ci("doctor")


def test_the_ledger_tells_faults_apart(recorded: Bench, tmp_path: Path) -> None:
    play(recorded, tmp_path, "faults")
    output = recorded.accel_ci("run", "nightly_rbe", "--strict", status=1)
    assert "bazel_test_results: 10 passed, 3 error, 2 timeout; 0 cached; 22 actions ran" in output
    assert "ledger: 9 passed, 2 failed, 1 flaky; no results from smoke, integration, pytorch" in output
    home = recorded.project.home
    build = only_build(home)
    targets = read_targets(bazel_results(home, build), ArtifactStore(home / "artifacts"))
    assert [bool(target.logs) for target in targets] == [True] * 8
    page = (home / "hud" / "builds" / f"{build.name}.html").read_text()
    assert "//shim:" in page
    assert "AssertionError" not in output
    assert_absent(SECRET, home)


def test_remote_execution_that_is_down_is_infra_with_one_message(recorded: Bench, tmp_path: Path) -> None:
    play(recorded, tmp_path, "down", executor="grpc://127.0.0.1:50999")
    output = recorded.accel_ci("run", "nightly_rbe", "--strict", status=1)
    assert output.count("Bazel could not work on grpc://127.0.0.1:50999: Failed to query remote execution") == 2
    assert "5 infra: Bazel could not work on" in output, "the summary has one cause for all tests"
    assert "ledger: 5 infra" in output
    assert "5 infra" in (recorded.project.home / "hud" / "index.html").read_text()
    recorded.accel_ci("run", "nightly_rbe")  # the pipeline worked


def test_a_patch_that_does_not_apply_stops_before_bazel(recorded: Bench, tmp_path: Path) -> None:
    patches = recorded.folder / "backend" / "patches"
    patches.mkdir()
    (patches / "1.patch").write_text("--- a/shim/shim.cc\n+++ b/shim/shim.cc\n@@ -1 +1 @@\n-neither\n+other\n")
    play(recorded, tmp_path, "cached", patches="patches")
    output = recorded.accel_ci("run", "nightly_rbe", status=1)
    assert "source_build: 1.patch does not apply to shim/shim.cc: hunk 1, @@ -1 +1 @@" in output
    assert "stopped after source_build failed" in output


def test_an_unknown_revision_is_an_error(recorded: Bench, tmp_path: Path) -> None:
    play(recorded, tmp_path, "cached")
    assert "there is no revision 'nightly-2020'" in recorded.accel_ci(
        "run", "nightly_rbe", "--revision", "nightly-2020", status=2
    )
    assert "nightly_rbe on py311-torch2.13-emu: bazel test //..." in recorded.accel_ci("run", "nightly_rbe", "--dry-run")
