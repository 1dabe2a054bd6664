"""`reproduce` and `replay`: run a build's failing tests elsewhere, or a worker's tests again in the same order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import terminal, with_workspace

_DOCKER = ("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")

if TYPE_CHECKING:
    from accel_ci.config.settings import Settings
    from accel_ci.model import Build
    from accel_ci.reproduce.replay import WorkerSession
    from accel_ci.reproduce.script import Reproduction
    from accel_ci.rounds.driver import PoolRun
    from accel_ci.workspace import Workspace


@click.command()
@click.argument("build")
@click.argument("test", required=False)
@click.option("--run", "run_it", is_flag=True, help="Run the script instead of printing it.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="The folder for --run [default: a temporary one]."
)
@with_workspace
def reproduce(workspace: Workspace, build: str, test: str | None, run_it: bool, folder: Path | None) -> None:
    """Print a script that reproduces failures of BUILD.

    On any machine, the script runs TEST (or all tests that did not pass) in the same image. With --run, run the script here
    and exit with its status, which is pytest's if it gets that far.
    """
    from accel_ci.ledger.status import find_build
    from accel_ci.reproduce.script import reproduction

    chosen = find_build(workspace.manifests, build)
    found = reproduction(workspace, chosen, test)
    if not run_it:
        click.echo(found.script, nl=False)
        return
    sys.exit(_run_script(found, workspace.project.settings, chosen.variant, folder))


def _run_script(found: Reproduction, settings: Settings, variant: str, folder: Path | None) -> int:
    """Run a script with what installing needs; the script itself gives the tests less."""
    import os
    import subprocess
    import tempfile
    from contextlib import nullcontext

    import uv

    from accel_ci.docker.client import docker_client
    from accel_ci.source.git_credentials import config_environment, git_credentials, logins_of
    from accel_ci.wheels.package_source import packages_of
    from accel_ci.wheels.uv_environment import login_file, uv_environment

    first = [str(Path(uv.find_uv_bin()).parent)]
    if found.in_container:
        first.insert(0, str(Path(docker_client()).parent))
    packages = packages_of(settings, settings.variant(variant))
    login = git_credentials({**logins_of([settings.backend.repository]), **packages.logins})
    environment = uv_environment(keep=(*settings.pool.pass_environment, *_DOCKER))
    environment |= {**config_environment(login.settings), **login.variables}
    environment["PATH"] = os.pathsep.join([*first, environment.get("PATH", os.defpath)])
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix="accel-ci-reproduce-")
    with login_file(packages) as logins, nullcontext(folder) if folder is not None else temporary as place:
        file = Path(place) / "reproduce.sh"
        file.write_text(found.script)
        return subprocess.run(["sh", str(file)], cwd=place, env={**environment, **logins}, check=False).returncode


@click.command()
@click.argument("build", required=False)
@click.option("--worker", help="The worker, such as w0-1; --dry-run without other options lists all.")
@click.option("--round", "number", type=click.IntRange(min=1), help="The round that it ran in.")
@click.option("--stage", type=click.Choice(["smoke", "device"]), help="The stage that it ran in.")
@click.option("--test", help="Choose the worker on which this test failed (else ran), and stop after the test.")
@click.option("--dry-run", is_flag=True, help="Show the order and run nothing.")
@with_workspace
def replay(
    workspace: Workspace,
    build: str | None,
    worker: str | None,
    number: int | None,
    stage: str | None,
    test: str | None,
    dry_run: bool,
) -> None:
    """Run the tests of a worker again in the same order.

    Repeats what one worker ran in BUILD [default: the newest], in one session. Use it for failures that depend on earlier
    tests. Results are not stored.

    Exit status: 0 if all tests ran and none failed, 1 if not, 2 for usage errors.
    """
    from accel_ci.ledger.status import find_build
    from accel_ci.model import FAILING_OUTCOMES
    from accel_ci.reproduce.replay import choose_session, worker_sessions

    found = find_build(workspace.manifests, build)
    stages = {name: suite.stage for name, suite in workspace.project.settings.suites.items()}
    sessions = worker_sessions(workspace.results, found, stages)
    if dry_run and not any((worker, number, stage, test)):
        for each in sessions:
            title = f"--stage {each.stage} --round {each.round} --worker {each.worker} (card {each.card})"
            failing = sum(outcome in FAILING_OUTCOMES for outcome in each.outcomes)
            click.echo(f"{title}: {len(each.tests)} tests, {failing} failed")
        return
    session = choose_session(sessions, worker=worker, number=number, stage=stage, test=test)
    if dry_run:
        for selected, outcome in zip(session.tests, session.outcomes, strict=True):
            click.echo(f"{outcome}\t{selected.suite}\t{_shown(selected.test)}")
        return
    run = _run_session(workspace, found, session)
    now = {(attempt.suite, attempt.test): attempt for attempt in run.attempts}
    for selected, before in zip(session.tests, session.outcomes, strict=True):
        attempt = now.get((selected.suite, selected.test))
        outcome = attempt.outcome if attempt is not None else "not_run"
        if outcome != before:
            click.echo(f"{_shown(selected.test)}: {before} in the build, {outcome} now")
    failed = [attempt for attempt in run.attempts if attempt.outcome in FAILING_OUTCOMES]
    for attempt in failed:
        click.echo(f"{attempt.outcome}: {_shown(attempt.test)}: {_shown((attempt.message or '').partition(chr(10))[0])}")
    click.echo(f"{len(run.attempts)} of {len(session.tests)} tests ran again, {len(failed)} failed")
    sys.exit(1 if failed or len(run.attempts) < len(session.tests) else 0)


def _shown(text: str) -> str:
    from accel_ci.hud.text import one_line

    return one_line(text, 400)


def _run_session(workspace: Workspace, build: Build, session: WorkerSession) -> PoolRun:
    """Run a session's tests with the build's image and sources. Raises `AccelCiError` if these no longer exist."""
    from accel_ci.errors import AccelCiError
    from accel_ci.model import RuntimeImage, TestSelection, Wheel
    from accel_ci.pipelines import RUNTIME_IMAGE, TEST_SELECTION, WHEEL
    from accel_ci.pool.choose_pool import worker_spec_for
    from accel_ci.scope.modes import with_modes
    from accel_ci.steps.device_tests import run_in_order
    from accel_ci.steps.test_sources import sources_for_tests

    project, manifests = workspace.project, workspace.manifests
    revision = manifests.revision(build.revision)
    if revision is None:
        raise AccelCiError(f"the revision {build.revision} is not in {project.home}; replay it on the machine that built it")
    image = manifests.read(manifests.path(RUNTIME_IMAGE, build.revision, build.variant), RuntimeImage)
    built = manifests.find(WHEEL, build, Wheel)
    wheels = [workspace.artifacts.path(each) for each in built.wheels] if built is not None else []
    settings, named = project.settings, {test.suite for test in session.tests}
    suites = [settings.suites[name] for name in named if name in settings.suites]
    sources = sources_for_tests(project, revision, settings.variant(build.variant), image, wheels, suites)
    spec = worker_spec_for(settings, image, sources.folder, revision.tested_as)
    if selection := manifests.find(TEST_SELECTION, build, TestSelection):
        spec = with_modes(spec, selection.scope, workspace.artifacts)
    context = workspace.stage_context(revision, build.variant, "replay")
    with terminal()[1].step("replay") as step:
        return run_in_order(project.settings, session.tests, session.card, spec, context, step)
