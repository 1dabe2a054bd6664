"""Bazel in a container of a real engine; a script takes its place, so that any image with Python can be used."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.config.settings import Rbe
from accel_ci.docker.container import LABEL, OWNER_LABEL, remove_ownerless
from accel_ci.errors import BuildError
from accel_ci.model import SourceBuild
from accel_ci.rbe.bazel import BazelContext
from accel_ci.reports.bep_build import read_build
from accel_ci_tests.fixtures.bazel import rbe_settings, run_passes, source_build, start_driver
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.recorded import RECORDED, player

_WAITING = "import time; time.sleep(600)"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def make_sources(folder: Path, case: str, extra: str = "") -> SourceBuild:
    """A tree of sources with the script that takes the place of Bazel."""
    tree = folder / "tree"
    workspace = tree / "native"
    workspace.mkdir(parents=True)
    shutil.copytree(RECORDED / case, tree / case)
    player(tree, case, extra, python="/usr/bin/env python3", recorded=tree)
    return source_build(workspace)


def settings(image: str, case: str, sources: SourceBuild) -> Rbe:
    bazel = Path(sources.workspace).parent / f"bazel-{case}"
    return rbe_settings(bazel, image=image, headers={"x-key": "SOME_KEY"}, multi_card={})


def run(image: str, case: str, sources: SourceBuild, context: BazelContext) -> list[int | None]:
    return run_passes(settings(image, case, sources), sources, context)


def containers(context: BazelContext) -> list[str]:
    return docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}={context.folder}").split()


def test_one_container_runs_all_passes_and_keeps_the_build_outputs(
    tmp_path: Path, base: str, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cr3t")
    seen = 'import os; print("seen", os.uname().nodename, "SOME_KEY" in os.environ)'
    wheel = 'pathlib.Path(options["--output_base"], "backend.whl").write_text("wheel")'
    sources = make_sources(tmp_path, "broken", f"{wheel}; {seen}")
    assert run(base, "broken", sources, context) == [1, 1]
    lines = [line for line in (context.results / "bazel.log").read_text().splitlines() if line.startswith("seen")]
    assert len(lines) == 2
    assert len(set(lines)) == 1, "one container for both passes"
    assert lines[0].endswith("False")
    targets = read_build(context.results / "tests").targets
    assert "error: expected ';'" in (targets["//shim:parity_test"].message or "")
    assert not list(tmp_path.rglob("*.whl"))
    assert not containers(context)
    assert not context.private.exists()


def test_logs_and_reports_are_copied_from_the_container(
    tmp_path: Path, base: str, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cr3t")
    run(base, "cached", make_sources(tmp_path, "cached"), context)
    assert (context.results / "tests" / "testlogs" / "shim" / "parity_test" / "test.xml").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_container_ends_with_its_driver(
    tmp_path: Path, base: str, context: BazelContext, number: signal.Signals
) -> None:
    sources = make_sources(tmp_path, "cached", _WAITING)
    driver = start_driver(settings(base, "cached", sources), sources, context, {"SOME_KEY": "s3cr3t"})
    try:
        events = context.results / "tests" / "bep.ndjson"
        wait_for(lambda: events.is_file() and events.stat().st_size > 0)
        assert containers(context)
        driver.send_signal(number)
        driver.wait(60)
        wait_for(lambda: not containers(context))
    finally:
        driver.kill()
        driver.wait()
    held = [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert not held


_BUILDER = """
import sys
from accel_ci.docker.container import run_in_container
run_in_container(sys.argv[1], ["sleep", "600"], [], {}, "/", 600)
"""


def test_a_container_whose_owner_was_killed_is_found_and_removed(base: str) -> None:
    """A builder's container runs on after its client."""
    owner = subprocess.Popen([sys.executable, "-c", _BUILDER, base])

    def mine() -> set[str]:
        label = f"label={OWNER_LABEL}"
        listed = docker("ps", "--filter", label, "--filter", f"ancestor={base}", "--format", "{{.Names}}")
        return {name for name in listed.split() if name.startswith("accel-ci-builder-")}

    before = mine()
    try:
        wait_for(lambda: mine() - before)
        [name] = mine() - before
        assert name not in remove_ownerless(dry_run=True)
    finally:
        owner.kill()
        owner.wait()
    assert name in remove_ownerless(dry_run=True)
    assert name in mine()
    assert name in remove_ownerless()
    wait_for(lambda: name not in mine())
    assert name not in remove_ownerless()


@pytest.mark.usefixtures("base")
def test_an_image_that_cannot_be_pulled_is_named(
    tmp_path: Path, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cr3t")
    nowhere = f"127.0.0.1:9/nothing@sha256:{'0' * 64}"
    with pytest.raises(BuildError, match=r"could not pull 127\.0\.0\.1:9/nothing@sha256:0+: .*; see that the registry"):
        run(nowhere, "cached", make_sources(tmp_path, "cached"), context)


def test_an_engine_that_does_not_answer_is_reported(
    tmp_path: Path, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cr3t")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    if shutil.which("docker") is None:
        pytest.skip("there is no Docker client")
    with pytest.raises(BuildError, match=r"rbe\.image needs a Docker engine, and none answers; start it"):
        run(f"toy@sha256:{'0' * 64}", "cached", make_sources(tmp_path, "cached"), context)
