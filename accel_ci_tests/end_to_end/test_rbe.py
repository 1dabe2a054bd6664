"""The source build by a real Bazel, where there is one.

A run takes half a minute, most of it to start Bazel's server, so `make test` has only two. More of them are in
`make test-nightly`.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from accel_ci.model import Build
from accel_ci.process.tree import with_argument
from accel_ci_tests.fixtures.bazel import assert_absent, bazel_results
from accel_ci_tests.fixtures.bench import Bench, assert_balanced, make_bench
from accel_ci_tests.fixtures.processes import wait_for

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
        assert_absent(SECRET, home)
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
        pages = [page.read_text() for page in (source_bench.project.home / "hud" / "builds").glob("*.html")]
        assert any("expected &#39;;&#39; before" in page for page in pages)
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
@pytest.mark.parametrize(
    ("number", "by"),
    [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGKILL, "the janitor"), (signal.SIGKILL, "the next run")],
)
def test_a_killed_run_leaves_no_server_and_no_credentials(
    source_bench: Bench, number: signal.Signals, by: str | None
) -> None:
    """This includes SIGKILL while a test runs, which the server would not notice. The files of such a run go later."""
    configure(source_bench, test_tag_filters=[], flags=["--test_timeout=200"])
    base = source_bench.project.home / "rbe" / VARIANT
    argument = f"--output_base={base / 'output'}"
    command = source_bench.start("run", "nightly_rbe")
    try:
        wait_for(lambda: with_argument(argument) and (base / "private").is_dir())
        assert_absent(SECRET, source_bench.project.home)  # Bazel is about to read it, or has
        time.sleep(5)
        command.send_signal(number)
        command.wait(60)
        wait_for(lambda: not with_argument(argument))
        assert not [path for path in base.rglob("credentials*") if path.is_file()]
        if by == "the janitor":
            assert f"Bazel in {base}: its run is gone: ended" in source_bench.accel_ci("janitor")
        if by == "the next run":
            configure(source_bench, test_tag_filters=["-fault"])
            source_bench.accel_ci("run", "nightly_rbe")
        assert not (base / "private").exists()
        assert_absent(SECRET, source_bench.project.home)
    finally:
        command.kill()
        command.wait()
        source_bench.configure()
