"""Commands about builds: `run`, `status`, `accept`."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.context import chosen_build, terminal, with_workspace
from accel_ci.model import CONFIRM
from accel_ci.pipelines import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from accel_ci.config.settings import Project
    from accel_ci.ledger.status import BuildStatus
    from accel_ci.model import Build
    from accel_ci.pipelines import Job
    from accel_ci.progress import Progress
    from accel_ci.workspace import Workspace

_COMMANDS = commands()
_NAMED_TESTS = 10
_FOLLOWING = ", ".join(command for command, (pipeline, _) in _COMMANDS.items() if pipeline.follows)


@click.command()
@click.argument("trigger", type=click.Choice(list(_COMMANDS)))
@click.argument("build", required=False)
@click.option("--variant", "variants", multiple=True, help="Only this variant; may be given several times.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a test failed or was lost, or too little was tested.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and run nothing.")
@click.option("--number", type=click.IntRange(min=1), help="The number of the pull request (pr).")
@click.option("--backend-ref", help="The backend's ref instead of the configured one [pr: refs/pull/NUMBER/head].")
@click.option("--component", "components", multiple=True, metavar="NAME=REF", help="The ref of a component of the stack.")
@click.option("--name", help="A name for the revision (manual).")
@click.option("--revision", help=f"Build this revision, which exists [default: a new one; {_FOLLOWING}: tonight's].")
@click.option("--again", is_flag=True, help="Make all stages anew, also those that a run which stopped has completed.")
@with_workspace
def run(
    workspace: Workspace,
    trigger: Any,
    build: str | None,
    variants: tuple[str, ...],
    strict: bool,
    dry_run: bool,
    number: int | None,
    backend_ref: str | None,
    components: tuple[str, ...],
    name: str | None,
    revision: str | None,
    again: bool,
) -> None:
    """Build and test the revision of TRIGGER here and now.

    Runs a whole pipeline: build, install, test, judge, show. `nightly_rbe` runs the nightly's source build: patch, build and
    test with Bazel, judge, show. `confirm` runs failures of BUILD again where that tells most about their causes, by default
    of the newest finished build of nightly, intraday or main; --dry-run shows which, why, and what they cost.

    Exit status: 0 if the pipeline finished, even if tests failed (see --strict), 1 if it stopped, 2 for usage errors, 130 if
    it was interrupted. `accel-ci resume`, or the same command on the same sources, then takes it up where it stopped.
    """
    from accel_ci.config.extras import require_configured_extras
    from accel_ci.source.revision import component_refs

    asked_at, project = _process_started_at(), workspace.project
    pipeline, source = _COMMANDS[trigger]
    job = pipeline.job_for(source)
    if source == "pr" and number is None and revision is None:
        raise click.UsageError("a pull request needs --number")
    if revision is not None and (number is not None or backend_ref or components or name):
        others = "--number, --backend-ref, --component and --name"
        raise click.UsageError(f"--revision names a revision that exists: leave out {others}")
    for variant in variants:
        project.settings.variant(variant)
    if build is not None and (source != CONFIRM or revision is not None):
        raise click.UsageError("only `run confirm` takes a build, and without --revision")
    confirmed = _build_to_confirm(workspace, build, variants) if source == CONFIRM and revision is None else None
    if dry_run and confirmed is not None:
        _print_reruns(workspace, confirmed)
        return
    if dry_run:
        for variant in job.variants(project.settings):
            if not variants or variant in variants:
                click.echo(f"{trigger} on {variant}: {pipeline.outline(project.settings, source)}")
        return
    require_configured_extras(project.settings)
    console, progress = terminal()
    from accel_ci.defs.launch import plan_builds, plan_confirmation

    with progress.step("revision") as step:
        if confirmed is not None:
            builds = [plan_confirmation(project, confirmed)]
        else:
            how = {"backend_ref": backend_ref, "pull_request": number, "slug": name}
            refs = component_refs(components)
            builds = plan_builds(project, pipeline, source, revision, components=refs, **how)
        step.note(", ".join({each.revision: "" for each in builds}))
    chosen = [(each, job) for each in builds if not variants or each.variant in variants]
    _run_builds(workspace, chosen, console, progress, asked_at, strict=strict, again=again)


def _build_to_confirm(workspace: Workspace, name: str | None, variants: Sequence[str]) -> Build:
    """Return the build whose failures are to run again; it is judged by now, if it can be."""
    from accel_ci.ledger.status import find_build
    from accel_ci.quality.current_confirm import newest_on_the_line
    from accel_ci.quality.judgement import judge_new_builds, read_causes

    known = variants or [variant.name for variant in workspace.project.settings.variants]
    manifests = workspace.manifests
    build = newest_on_the_line(manifests, known) if name is None else find_build(manifests, name)
    if read_causes(workspace, build) is None:
        judge_new_builds(workspace, datetime.now(timezone.utc))
    return build


def _print_reruns(workspace: Workspace, build: Build) -> None:
    """Print the failures of a build that would run again."""
    from accel_ci.cli.results import print_table
    from accel_ci.hud.text import one_line
    from accel_ci.quality.current_confirm import plan_reruns

    plan = plan_reruns(workspace, build)
    rows = [
        [one_line(rerun.test), rerun.suite, rerun.times, f"{rerun.card_s:.1f}", f"{rerun.bits:.2f}", rerun.reason]
        for rerun in plan.reruns
    ]
    print_table(["test", "suite", "runs", "card-seconds", "bits", "why"], rows)
    click.echo(f"{build.name}: {plan.in_words()}")


@click.command()
@click.argument("build", required=False)
@click.option("--strict", is_flag=True, help="Exit with 1 when a test failed, was lost, or met bad infrastructure.")
@with_workspace
def resume(workspace: Workspace, build: str | None, strict: bool) -> None:
    """Take up a build whose run stopped, where it stopped.

    BUILD is <revision>~<variant>, or a revision with one variant [default: the one that was interrupted or killed last].
    Complete stages stay as they are, and so do the attempts of tests that have run. Exit status: that of `run`.
    """
    from accel_ci.config.extras import require_configured_extras
    from accel_ci.ledger.status import find_build
    from accel_ci.resumption import builds_to_resume

    asked_at = _process_started_at()
    require_configured_extras(workspace.project.settings)
    named = find_build(workspace.manifests, build) if build is not None else None
    console, progress = terminal()
    chosen = builds_to_resume(workspace, named)
    _run_builds(workspace, chosen, console, progress, asked_at, strict=strict, again=False)


def _run_builds(
    workspace: Workspace,
    builds: Sequence[tuple[Build, Job]],
    console: Console,
    progress: Progress,
    asked_at: datetime,
    *,
    strict: bool,
    again: bool,
) -> None:
    """Run builds one after the other, print what came of them, and exit."""
    from accel_ci.defs.launch import run_build

    project, stopped, passed = workspace.project, False, True
    for build, job in builds:
        console.print(f"\n[bold]{build.name}[/]", highlight=False)
        finished = run_build(project, job, build, progress, asked_at, again=again)
        for problem in finished.problems:
            console.print(f"stopped: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
        if finished.interrupted:
            sys.exit(130)
        stopped = stopped or bool(finished.problems)
        passed = passed and finished.status is not None and finished.status.passed
        if finished.status is not None:
            _print_summary(console, finished.status, workspace)
        asked_at = datetime.now(timezone.utc)
    console.print(f"\nHUD: {(workspace.hud / 'index.html').as_uri()}", highlight=False, soft_wrap=True)
    console.print(f"UI:  {_ui_command(project)}", highlight=False, soft_wrap=True)
    sys.exit(1 if stopped or (strict and not passed) else 0)


@click.command()
@click.argument("build", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@with_workspace
def status(workspace: Workspace, build: str | None, as_json: bool) -> None:
    """Show the status of a build.

    BUILD is <revision>~<variant>, or a revision with one variant [default: the newest]. Ingested builds count as well.
    """
    named = chosen_build(workspace, build)
    if workspace.manifests.folder(named).is_dir():
        from accel_ci.ledger.status import read_status

        found = read_status(workspace.manifests, named)
    else:
        from accel_ci.ledger.ingested import ingested_status

        found = ingested_status(workspace.results, named)
    if as_json:
        click.echo(found.as_json())
    else:
        _print_summary(terminal()[0], found, workspace)


@click.command()
@click.argument("build", required=False)
@click.option("--reason", required=True, help="The reason why the tests are gone; it is kept with the build.")
@with_workspace
def accept(workspace: Workspace, build: str | None, reason: str) -> None:
    """Accept that the tests that vanished from BUILD are gone [default: the newest build].

    They are not expected any more, neither of BUILD nor of later builds. What else keeps BUILD from passing stays.
    """
    from accel_ci.ledger.completeness import accept_vanished
    from accel_ci.ledger.status import read_status

    named = chosen_build(workspace, build)
    if not reason.strip():
        raise click.UsageError("--reason needs some words")
    count = accept_vanished(workspace, named, reason.strip())
    click.echo(f"{count:,} tests are not expected any more: {reason.strip()}")
    click.echo(f"{named.name}: {read_status(workspace.manifests, named).state}")


def _process_started_at() -> datetime:
    """When this process began, so that its own start counts in the wall time; now where /proc is not there."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        age = 0.0
    return datetime.fromtimestamp(datetime.now().timestamp() - age, timezone.utc)


def _print_summary(console: Console, status: BuildStatus, workspace: Workspace) -> None:
    from rich.table import Table

    from accel_ci.hud.text import one_line

    def seconds(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f} s"

    console.print(f"\n{status.build.name}: {status.state}", markup=False, highlight=False, soft_wrap=True)
    if status.subset is not None:
        console.print(f"device tests: {one_line(status.subset, 2000)}", markup=False, highlight=False, soft_wrap=True)
    table = Table(show_header=False)
    if status.expected is not None:
        table.add_row("tests expected", f"{status.expected:,}")
        for verdict, count in status.counts.items():
            muted = f", {len(status.muted):,} of them in quarantine" if verdict == "failed" and status.muted else ""
            table.add_row(f"  {verdict}", f"{count:,}{muted}")
        table.add_row("attempts lost to infra", f"{status.infra_attempts:,}")
        table.add_row("cards", ", ".join(status.cards))
        table.add_row("unhealthy cards", ", ".join(status.unhealthy_cards) or "none")
        table.add_row("makespan", seconds(status.makespan_s))
        table.add_row("  set-up: imports, collection", seconds(status.setup_s))
        table.add_row("  lower bound of the tests", seconds(status.lower_bound_s))
        ratio = "unknown" if status.ratio is None else f"{status.ratio:.2f} (1 is the best)"
        table.add_row("  makespan without set-up / lower bound", ratio)
    table.add_row("wall", seconds(status.wall_s))
    table.add_row("build, install and tests", seconds(status.work_s))
    table.add_row("own overhead", seconds(status.overhead_s))
    console.print(table)
    _print_failing(console, status, workspace)


def _print_failing(console: Console, status: BuildStatus, workspace: Workspace) -> None:
    """Print the first tests that do not pass, by their common cause, and how to go on."""
    if not any(status.counts.get(verdict) for verdict in ("failed", "infra", "not_run")):
        return
    from accel_ci.errors import AccelCiError
    from accel_ci.hud.text import first_line, one_line
    from accel_ci.results.failing import failing_groups
    from accel_ci.results.questions import stored_suites

    show = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    try:
        suites = [stored.suite for stored in stored_suites(workspace.results, status.build)]
        groups = failing_groups(workspace.results, status.build, suites)
    except AccelCiError as error:
        show(f"The failing tests cannot be listed: {error}")
        return
    left, total = _NAMED_TESTS, sum(len(group.tests) for group in groups)
    for group in groups:
        if left > 0:
            show(f"\n{len(group.tests):,} {group.tests[0].verdict}: {first_line(group.message or 'no message')}")
            for test in group.tests[:left]:
                show(f"  {one_line(test.test, 2000)}")
            left -= len(group.tests)
    if total > _NAMED_TESTS:
        show(f"\n… and {total - _NAMED_TESTS:,} more")
    first, name = groups[0].tests[0].test if groups else "", status.build.name
    show(f"\nAll failures, by cause:  accel-ci results failures {name}")
    if workspace.manifests.folder(status.build).is_dir():  # it ran here
        show(f"Run one again:           accel-ci reproduce {name} {shlex.quote(one_line(first, 2000))} --run")


def _ui_command(project: Project) -> str:
    if (project.root / "Makefile").is_file() and Path.cwd() == project.root:
        return "make dev   (then http://127.0.0.1:3000)"
    return f"accel-ci --config {project.config_path} dev   (then http://127.0.0.1:3000)"
