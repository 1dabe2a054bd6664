"""Check what was published: install it from the index in a clean environment, and run the smoke suites there again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from accel_ci.config.release_settings import Index
from accel_ci.config.settings import Suite
from accel_ci.errors import BuildError
from accel_ci.model import Build, Revision, RuntimeImage, Wheel
from accel_ci.pool.choose_pool import pool_for, worker_spec_for
from accel_ci.process.own_user import OwnUser
from accel_ci.process.run import run_tool
from accel_ci.release.index import install_from
from accel_ci.reports.parse import read_file
from accel_ci.steps.test_sources import sources_for_tests
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.workspace import Workspace


def verify(workspace: Workspace, build: Build, revision: Revision, wheel: Wheel, image: RuntimeImage, index: Index) -> str:
    """Install a build's wheels from an index and run its smoke suites there; return what was found, in words.

    The suites run on this machine's first card; where the pool is elsewhere, what is installed is imported only. Raises
    `BuildError` if it cannot be installed, a test fails or none passes.
    """
    project = workspace.project
    settings, variant = project.settings, project.settings.variant(build.variant)
    with scratch_folder("release") as scratch:
        folder = Path(scratch)
        python = install_from(index, project, variant, wheel, image, folder)
        suites = settings.suites_of(revision.trigger, "smoke", revision.suites, build.variant)
        if settings.pool.kind != "local" or not suites:
            return f"installed from {index.simple} and imported"
        lock, _ = pool_for(settings).run_lock(folder, workspace.cards_lock)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            passed = [_run(workspace, build, revision, wheel, image, python, name, suite) for name, suite in suites.items()]
    return f"installed from {index.simple}, {sum(passed)} tests of {', '.join(suites)} passed"


def _run(
    workspace: Workspace,
    build: Build,
    revision: Revision,
    wheel: Wheel,
    image: RuntimeImage,
    python: Path,
    name: str,
    suite: Suite,
) -> int:
    """Run a suite by pytest, and return how many of its tests passed."""
    project, own = workspace.project, replace(image, kind="venv", python=str(python), containers=())
    wheels = [workspace.artifacts.path(each) for each in wheel.wheels]
    variant = project.settings.variant(build.variant)
    sources = sources_for_tests(project, revision, variant, own, wheels, [suite]).folder
    spec = worker_spec_for(project.settings, own, sources, revision.tested_as)
    session, user = spec.sessions[name], OwnUser.named(project.settings.code_user)
    with scratch_folder("smoke") as scratch:
        report = Path(scratch) / "report.xml"
        if user is not None:
            user.give(Path(scratch))
        command = [str(python.with_name("pytest")), *session.pytest_args, f"--junit-xml={report}", *session.paths]
        environment = {**spec.environment, **session.environment, spec.card_environment: "0"}
        limit = project.settings.limits.build_seconds
        done = run_tool(command, timeout_s=limit, environment=environment, folder=sources, user=user)
        passed = sum(outcome == "passed" for outcome in read_file(report).columns.outcome) if report.is_file() else 0
    if done.status != 0 or not passed:
        raise BuildError(f"{name} does not pass with what the index has ({passed} tests passed):\n{done.tail}")
    return passed
