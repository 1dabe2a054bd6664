"""The source build on the command line: with a recorded Bazel always, with a real one where there is one.

A run of the real Bazel takes half a minute, most of it to start its server, so `make test` has only two. More of them are in
`make test-nightly`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from accel_ci.model import BazelTestResults, Build
from accel_ci.process.tree import with_argument
from accel_ci.rbe.results import read_targets
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import Bench, assert_balanced, make_bench
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.recorded import player

SECRET = "s3cr3t-of-the-test"
VARIANT = "py311-torch2.13-emu"

ENDPOINT = os.environ.get("ACCEL_CI_RBE_ENDPOINT", "")
missing = [name for name in ("ACCEL_CI_BAZEL", "ACCEL_CI_RBE_ENDPOINT") if not os.environ.get(name)]
needs_bazel = pytest.mark.skipif(bool(missing), reason=f"no Bazel with remote execution: {', '.join(missing)} not set")
long = pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", SECRET)


@pytest.fixture(scope="module")
def source_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A project without any build."""
    return make_bench(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A separate project, for a script that plays a recorded run of Bazel."""
    monkeypatch.delenv("ACCEL_CI_BAZEL", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    return make_bench(folder)


def play(bench: Bench, folder: Path, case: str, **rbe: object) -> None:
    section = {"targets": ["//..."], "bazel": str(player(folder, case)), "headers": {"x-key": "TEST_API_KEY"}, **rbe}
    bench.configure(rbe=section)


def bazel_results(home: Path, build: Build) -> BazelTestResults:
    manifests = ManifestStore(home)
    return manifests.read(manifests.path("bazel_test_results", build.revision, build.variant), BazelTestResults)


def assert_no_secret(folder: Path) -> None:
    found = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not found


def only_build(home: Path) -> Build:
    [build] = ManifestStore(home).list_builds()
    return build


def test_a_missing_bazel_is_an_error_with_advice(recorded: Bench) -> None:
    recorded.configure(rbe={"targets": ["//..."], "bazel": "no-such-bazel"})
    output = recorded.accel_ci("run", "nightly_rbe", status=1)
    assert "bazel_test_results: no-such-bazel is not installed; install bazelisk" in output
    assert "stopped at bazel_test_results" in output
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
    page = (home / "hud" / "index.html").read_text()
    assert "//shim:" in page
    assert "AssertionError" not in output
    assert_no_secret(home)


def test_remote_execution_that_is_down_is_infra_with_one_message(recorded: Bench, tmp_path: Path) -> None:
    play(recorded, tmp_path, "down", executor="grpc://127.0.0.1:50999")
    output = recorded.accel_ci("run", "nightly_rbe", "--strict", status=1)
    assert output.count("Bazel could not work on grpc://127.0.0.1:50999: Failed to query remote execution") == 1
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
    assert "stopped at source_build" in output


def test_an_unknown_revision_is_an_error(recorded: Bench, tmp_path: Path) -> None:
    play(recorded, tmp_path, "cached")
    assert "there is no revision 'nightly-2020'" in recorded.accel_ci(
        "run", "nightly_rbe", "--revision", "nightly-2020", status=2
    )
    assert "nightly_rbe on py311-torch2.13-emu: bazel test //..." in recorded.accel_ci("run", "nightly_rbe", "--dry-run")


# --- the real Bazel ---------------------------------------------------------------------------------------------------


def configure(bench: Bench, **changes: Any) -> None:
    section = {
        "targets": ["//..."],
        "configs": ["checked"],
        "test_tag_filters": ["-fault"],
        "executor": ENDPOINT,
        "headers": {"x-key": "TEST_API_KEY"},
        **changes,
    }
    bench.configure(rbe=section)


@needs_bazel
def test_both_pipelines_meet_in_one_ledger_and_the_second_run_rebuilds_nothing(bench: Bench, faulty_nightly: Build) -> None:
    configure(bench)
    home = bench.project.home
    try:
        suites_before = set(bench.ledger(faulty_nightly).suites)
        bench.accel_ci("run", "nightly_rbe", "--revision", faulty_nightly.revision)
        ledger = bench.ledger(faulty_nightly)
        assert set(ledger.suites) == suites_before | {"bazel"}
        assert (ledger.suites["bazel"]["passed"], ledger.missing_suites) == (9, ())
        assert_balanced(bench, faulty_nightly)
        output = bench.accel_ci("run", "nightly_rbe", "--revision", faulty_nightly.revision)
        results = bazel_results(home, faulty_nightly)
        assert (results.cached, results.actions.executed) == (9, 0), output
        assert results.actions.local_cache_hits + results.actions.remote_cache_hits > 10
        assert_no_secret(home)
        assert not list((home / "rbe").rglob("*.bazelrc.*")) + list((home / "rbe").rglob("credentials*"))
        assert not with_argument(f"--output_base={home / 'rbe' / VARIANT / 'output'}")
    finally:
        bench.configure()


@needs_bazel
@long
def test_real_remote_execution_that_is_down_is_infra(source_bench: Bench) -> None:
    configure(source_bench, executor="grpc://127.0.0.1:9")
    try:
        output = source_bench.accel_ci("run", "nightly_rbe")
    finally:
        source_bench.configure()
    assert "Bazel could not work on grpc://127.0.0.1:9" in output
    assert "ledger: 5 infra" in output


@needs_bazel
@long
def test_a_regression_that_smoke_misses_fails_only_the_source_build(source_bench: Bench) -> None:
    configure(source_bench)
    shim = source_bench.folder / "backend" / "shim" / "shim.cc"
    sound = shim.read_text()
    shim.write_text(sound.replace("y[i] += a * x[i]", "y[i] = a * x[i]"))
    try:
        output = source_bench.accel_ci("run", "nightly_rbe")
        assert "4 failed" in output, "every length but 0 is wrong"
        shim.write_text(sound.replace("y[i] += a * x[i];", "y[i] += a * x[i]"))
        output = source_bench.accel_ci("run", "nightly_rbe")
        assert "5 failed" in output
        assert "expected ';' before" in (source_bench.project.home / "hud" / "index.html").read_text().replace("&#39;", "'")
    finally:
        shim.write_text(sound)
        source_bench.configure()


WITHOUT_A_FILE = """
from setuptools.command.build_py import build_py


class WithoutTensor(build_py):
    def find_package_modules(self, package, folder):
        return [module for module in super().find_package_modules(package, folder) if module[1] != "tensor"]


setup(version=version(), cmdclass={"build_py": WithoutTensor})
"""


@needs_bazel
@long
def test_a_wheel_that_lacks_a_file_fails_only_the_integration(source_bench: Bench) -> None:
    configure(source_bench)
    setup = source_bench.folder / "backend" / "setup.py"
    sound = setup.read_text()
    setup.write_text(sound.replace("setup(version=version())", WITHOUT_A_FILE))
    try:
        output = source_bench.accel_ci("run", "nightly", status=1)
        assert "wheel: the check check_wheel_contents failed" in output
        assert "tensor.py" in output
        assert "9 passed" in source_bench.accel_ci("run", "nightly_rbe")
    finally:
        setup.write_text(sound)
        source_bench.configure()


@needs_bazel
@long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_server_and_no_credentials(source_bench: Bench, number: signal.Signals) -> None:
    """This includes SIGKILL while a test runs, which the server would not notice."""
    configure(source_bench, test_tag_filters=[], flags=["--test_timeout=200"])
    base = source_bench.project.home / "rbe" / VARIANT
    argument = f"--output_base={base / 'output'}"
    command = source_bench.start("run", "nightly_rbe")
    try:
        wait_for(
            lambda: with_argument(argument) and not list(base.glob("private/*.bazelrc")) and (base / "private").is_dir()
        )
        time.sleep(5)
        command.send_signal(number)
        command.wait(60)
        wait_for(lambda: not with_argument(argument))
        assert not list(base.rglob("credentials*"))
        if number == signal.SIGKILL:  # the next run removes what was left
            configure(source_bench, test_tag_filters=["-fault"])
            source_bench.accel_ci("run", "nightly_rbe")
        assert not (base / "private").exists()
        assert_no_secret(source_bench.project.home)
    finally:
        command.kill()
        command.wait()
        source_bench.configure()
