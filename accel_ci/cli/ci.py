"""The command for jobs of other CI systems: `ci`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.context import terminal
from accel_ci.model import CONFIRM
from accel_ci.pipelines import commands

if TYPE_CHECKING:
    from accel_ci.bridges.build_answer import BuildAnswer
    from accel_ci.bridges.calling_job import CallingJob
    from accel_ci.workspace import Workspace

_COMMANDS = {name: at for name, at in commands().items() if at[1] != CONFIRM}
_write = partial(click.echo, nl=True)


@dataclass(frozen=True)
class _Wanted:
    """The options of the command, completed by what the calling job says."""

    trigger: str
    commit: str | None
    pull_request: int | None
    variants: tuple[str, ...]
    name: str | None
    reports: tuple[str, ...]
    suite: str | None


def _option(name: str, *names: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that a variable can also set, so that an example for a CI system needs no script around values."""
    variable = f"ACCEL_CI_BUILD_{(names[0] if names else name).strip('-').replace('-', '_').upper()}"
    return click.option(name, *names, envvar=variable, show_envvar=True, **how)


@click.command()
@_option(
    "--trigger", type=click.Choice(list(_COMMANDS)), help="The kind of build [default: pr, or main without a pull request]."
)
@_option("--commit", metavar="SHA", help="The backend's commit [default: that of the calling job].")
@_option("--pull-request", type=click.IntRange(min=1), help="Its number [default: that of the calling job].")
@_option("--variant", "variants", multiple=True, help="Only this variant; may be given several times.")
@_option("--name", help="A name for the revision (manual).")
@_option("--url", help="Build at the Dagster web server of this address [default: here and now].")
@_option("--location", help="The project's code location, where the server has several.")
@_option("--hours", type=click.FloatRange(0.01, 72), default=12.0, show_default=True, help="The longest wait (--url).")
@_option("--report", "reports", multiple=True, metavar="GLOB", help="Reports of the job's own tests, to be ingested.")
@_option("--suite", help="The suite that the reports become.")
@_option("--strict", is_flag=True, help="Exit with 1 also for failures that are not the backend's.")
@_option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the answer as files [Jenkins: accel-ci].",
)
@click.pass_context
def ci(
    context: click.Context,
    trigger: str | None,
    commit: str | None,
    pull_request: int | None,
    variants: tuple[str, ...],
    name: str | None,
    url: str | None,
    location: str | None,
    hours: float,
    reports: tuple[str, ...],
    suite: str | None,
    strict: bool,
    output: Path | None,
) -> None:
    """Have the calling job's commit built and tested, and show the answer in its CI: GitHub Actions, Jenkins or Buildkite.

    The commit and the pull request come from the variables of that CI. With --url, the builds are started at a running web
    server and waited for; $ACCEL_CI_DAGSTER_TOKEN is sent to it as a bearer token.

    Exit status: 0 if all is green, or only upstream, flaky tests or the infrastructure failed (see --strict); 1 if the
    backend failed, a run stopped, or no test passed; 2 for mistakes; 130 if it was interrupted, which ends the runs.
    """
    from accel_ci.bridges.build_answer import exit_status
    from accel_ci.bridges.calling_job import calling_job

    job = calling_job(os.environ)
    number = pull_request or job.pull_request
    wanted = _Wanted(
        trigger or ("pr" if number is not None else "main"), commit or job.commit, number, variants, name, reports, suite
    )  # fmt: skip
    with _errors_of(job):
        with _quiet(job):
            if job.is_unsafe and not (commit and pull_request):
                raise _unsafe_job()
            workspace = _workspace(context.obj) if url is None or reports else None
            _check(wanted, workspace, is_remote=url is not None)
            answers = _answers(wanted, workspace, url, location, hours)
        folder = output or (Path("accel-ci") if job.system == "jenkins" else None)
        _show(job, workspace, answers, folder, strict=strict)
    sys.exit(exit_status(answers, strict=strict))


@contextmanager
def _errors_of(job: CallingJob) -> Iterator[None]:
    """Show an error as GitHub's annotation there, where its text could otherwise be a command."""
    from accel_ci.bridges.outputs import github_error
    from accel_ci.errors import AccelCiError

    try:
        yield
    except AccelCiError as error:
        if job.system != "github":
            raise
        click.echo(github_error(str(error)))
        sys.exit(2)


@contextmanager
def _quiet(job: CallingJob) -> Iterator[None]:
    """Let no output be taken for a command of the CI system."""
    from accel_ci.bridges.outputs import no_workflow_commands

    with ExitStack() as stack:
        if job.system == "github":
            stack.enter_context(no_workflow_commands(_write))
        yield


def _unsafe_job() -> Exception:
    from accel_ci.errors import ConfigError

    return ConfigError(
        "a fork's code would be built with this repository's secrets: build no forks here (in GitHub Actions, run this "
        "on the event pull_request), or give --commit and --pull-request once a maintainer has decided on that commit"
    )


def _workspace(config: Path | None) -> Workspace:
    from accel_ci.config.loading import load_project
    from accel_ci.workspace import Workspace

    return Workspace(load_project(config))


def _check(wanted: _Wanted, workspace: Workspace | None, *, is_remote: bool) -> None:
    """Refuse what cannot work before anything is built."""
    from accel_ci.errors import ConfigError

    if wanted.trigger == "pr" and wanted.pull_request is None:
        raise ConfigError("this job is for no pull request: give --pull-request, or another --trigger")
    if bool(wanted.reports) != (wanted.suite is not None):
        raise ConfigError("--report and --suite belong together: the reports become that suite")
    if workspace is None:
        return
    settings = workspace.project.settings
    for variant in wanted.variants:
        settings.variant(variant)
    if wanted.suite in settings.suites:
        raise ConfigError(f"--suite {wanted.suite}: the build itself reports this suite; choose another name")
    pipeline, source = _COMMANDS[wanted.trigger]
    known = pipeline.job_for(source).variants(settings)
    if missing := [variant for variant in wanted.variants if variant not in known]:
        raise ConfigError(f"the builds of {wanted.trigger} have no variant {', '.join(missing)}, only {', '.join(known)}")
    if wanted.reports and len(wanted.variants or known) != 1:
        raise ConfigError("--report needs exactly one --variant: the one that the reports are of")


def _answers(
    wanted: _Wanted, workspace: Workspace | None, url: str | None, location: str | None, hours: float
) -> list[BuildAnswer]:
    """Have the builds made at the web server, or here without one, ingest the reports, and return all answers."""
    from accel_ci.bridges.outputs import plain_lines

    answers = _build_remotely(wanted, url, location, hours) if url is not None else []
    if workspace is not None:
        answers = answers if url is not None else _build_here(wanted, workspace)
        answers += _ingest(wanted, wanted.suite, workspace, answers) if wanted.suite is not None else []
    for line in plain_lines(answers):
        click.echo(line)
    return answers


def _build_remotely(wanted: _Wanted, url: str, location: str | None, hours: float) -> list[BuildAnswer]:
    from accel_ci.config.extras import require_extra

    require_extra("github", "accel-ci ci --url")
    from accel_ci.bridges.remote_project import TOKEN, RemoteProject, build_remotely

    chosen: dict[str, Any] = {
        "trigger": wanted.trigger, "variants": list(wanted.variants), "backend_ref": wanted.commit,
        "pull_request": wanted.pull_request if wanted.trigger == "pr" else None, "name": wanted.name,
    }  # fmt: skip
    with RemoteProject(url, os.environ.get(TOKEN), location) as project:
        return build_remotely(project, chosen, hours * 3600, terminal()[1])


def _build_here(wanted: _Wanted, workspace: Workspace) -> list[BuildAnswer]:
    from accel_ci.bridges.build_answer import answer_of
    from accel_ci.config.extras import require_configured_extras
    from accel_ci.defs.launch import plan_builds, run_build
    from accel_ci.pull_requests.progress import look_at_build

    project, asked_at, progress = workspace.project, datetime.now(timezone.utc), terminal()[1]
    require_configured_extras(project.settings)
    pipeline, source = _COMMANDS[wanted.trigger]
    how: dict[str, Any] = {"backend_ref": wanted.commit, "slug": wanted.name}
    if source == "pr":
        how["pull_request"] = wanted.pull_request
    with progress.step("revision") as step:
        builds = plan_builds(project, pipeline, source, **how)
        step.note(", ".join({each.revision: "" for each in builds}))
    answers = []
    for build in builds:
        if wanted.variants and build.variant not in wanted.variants:
            continue
        finished = run_build(project, pipeline.job_for(source), build, progress, asked_at)
        if finished.interrupted:
            raise KeyboardInterrupt
        answers.append(answer_of(look_at_build(workspace, pipeline, build, is_over=True), finished.problems))
        asked_at = datetime.now(timezone.utc)
    return answers


def _ingest(wanted: _Wanted, suite: str, workspace: Workspace, answers: Sequence[BuildAnswer]) -> list[BuildAnswer]:
    """Store the reports of the calling job as a suite of the build, which has one variant here."""
    from accel_ci.bridges.build_answer import answer_of_reports, stopped
    from accel_ci.model import Build
    from accel_ci.results.ingest import ingest
    from accel_ci.results.questions import bad_tests

    revision, _, variant = answers[0].build.rpartition("~")
    build = Build(revision, variant)
    paths = [Path(path) for pattern in wanted.reports for path in sorted(glob(pattern, recursive=True))]  # noqa: PTH207
    if not paths:
        return [stopped(build.name, f"reports / {suite}", f"no report matches {', '.join(wanted.reports)}")]
    known = workspace.manifests.revision(revision)
    day = (known.created_at if known is not None else datetime.now(timezone.utc)).date()
    with terminal()[1].step("reports") as step:
        report = ingest(paths, build, suite, day, workspace.results, step=step)
        step.note(f"{report.rows:,} rows of {len(report.files):,} files")
    bad = bad_tests(workspace.results, build, [suite]) if report.stored is not None else []
    return [answer_of_reports(build, suite, report, bad)]


def _show(
    job: CallingJob, workspace: Workspace | None, answers: Sequence[BuildAnswer], folder: Path | None, *, strict: bool
) -> None:
    """Show the answers where the CI system has a place for them."""
    from accel_ci.bridges.outputs import show_in_buildkite, show_in_github, write_files

    if job.system == "github":
        show_in_github(answers, os.environ, _write, strict=strict)
    if job.system == "buildkite" and (problem := show_in_buildkite(answers, os.environ, strict=strict)):
        click.echo(f"accel-ci: {problem}", err=True)
    if folder is not None:
        write_files(answers, folder, strict=strict)
        if workspace is not None:
            _write_junit(workspace, answers, folder)


def _write_junit(workspace: Workspace, answers: Sequence[BuildAnswer], folder: Path) -> None:
    """Write the tests of the builds as JUnit XML, where this machine has their results."""
    from accel_ci.model import Build
    from accel_ci.results.export import export
    from accel_ci.storage.atomic_file import whole_file

    for name in dict.fromkeys(one.build for one in answers):
        revision, _, variant = name.rpartition("~")
        build = Build(revision, variant)
        if workspace.results.suites(build=build):
            with whole_file(folder / f"{name}.xml") as target:
                export(workspace.results, build, target, "junit")
