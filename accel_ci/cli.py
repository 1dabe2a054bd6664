"""`accel-ci …`: thin; every command calls what an asset calls. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accel_ci.errors import AccelCiError

if TYPE_CHECKING:
    from rich.console import Console

    from accel_ci.config import Project
    from accel_ci.model import Build
    from accel_ci.progress import Progress
    from accel_ci.results.status import BuildStatus


def _process_started_at() -> datetime:
    """When this process began, so that its own start counts in the wall time; now where /proc is not there."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        age = 0.0
    return datetime.fromtimestamp(datetime.now().timestamp() - age, timezone.utc)


class _MendableErrors(click.Group):
    """Prints errors that the user can mend as their message alone and exits with 2."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except AccelCiError as error:
            click.echo(f"accel-ci: {error}", err=True)
            sys.exit(2)


@click.group(cls=_MendableErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file [default: $ACCEL_CI_CONFIG, else accel_ci.yaml here or in a parent folder].",
)
@click.version_option(package_name="accel-ci")
@click.pass_context
def main(context: click.Context, config: Path | None) -> None:
    """CI/CD for PyTorch's out-of-tree accelerator backends."""
    # A shell starts its background jobs with SIGINT ignored, and Dagster has SIGTERM do what SIGINT does.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    context.obj = config


def _with_project(command: Callable[..., Any]) -> Callable[..., Any]:
    @click.pass_context
    @wraps(command)
    def wrapped(context: click.Context, /, *arguments: Any, **options: Any) -> Any:
        from accel_ci.config import load_project

        return command(load_project(context.obj), *arguments, **options)

    return wrapped


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(folder: Path) -> None:
    """Write a commented starter accel_ci.yaml into FOLDER."""
    from importlib.resources import files

    from accel_ci.config import CONFIG_NAME

    target = folder / CONFIG_NAME
    if target.exists():
        raise AccelCiError(f"{target} is there already; move it away first")
    folder.mkdir(parents=True, exist_ok=True)
    target.write_bytes((files("accel_ci") / "starter.yaml").read_bytes())
    click.echo(f"{target} is written. Fill it in, then: accel-ci validate && accel-ci run nightly")


@main.command()
@_with_project
def validate(project: Project) -> None:
    """Check the configuration: one line for each mistake."""
    settings = project.settings
    click.echo(
        f"{project.config_path} is valid: backend {settings.backend.name}, {len(settings.variants)} variant(s), "
        f"{len(settings.suites)} suite(s), {settings.pool.cards} card(s) in the {settings.pool.kind} pool"
    )


@main.command()
@click.argument("trigger", type=click.Choice(["nightly", "intraday", "main", "pr", "manual"]))
@click.option("--variant", "variants", multiple=True, help="Only this variant; may be given several times.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a test failed, was lost, or met bad infrastructure.")
@click.option("--dry-run", is_flag=True, help="Say what would run, and run nothing.")
@click.option("--number", type=click.IntRange(min=1), help="The number of the pull request (pr).")
@click.option("--backend-ref", help="The backend's ref instead of the configured one [pr: refs/pull/NUMBER/head].")
@click.option("--name", help="A name for the revision (manual).")
@_with_project
def run(
    project: Project,
    trigger: Any,
    variants: tuple[str, ...],
    strict: bool,
    dry_run: bool,
    number: int | None,
    backend_ref: str | None,
    name: str | None,
) -> None:
    """Run the whole story of TRIGGER here and now: build, install, test, judge, show.

    Exit status: 0 when the pipeline worked, whatever the tests said (see --strict); 1 when it stopped; 2 for mistakes in the
    configuration or on the command line; 130 when it was interrupted, and then the same command goes on where it stopped.
    """
    asked_at = _process_started_at()
    if trigger == "pr" and number is None:
        raise click.UsageError("a pull request needs --number")
    for variant in variants:
        project.settings.variant(variant)
    if dry_run:
        _say_what_would_run(project, trigger, variants)
        return
    console, progress = _console()
    from accel_ci.defs.launch import plan_builds, run_build

    with progress.step("revision") as step:
        builds = plan_builds(project, trigger, backend_ref=backend_ref, pull_request=number, slug=name)
        step.note(builds[0].revision)
    stopped = False
    passed = True
    for build in builds:
        if variants and build.variant not in variants:
            continue
        console.print(f"\n[bold]{build.name}[/]", highlight=False)
        finished = run_build(project, trigger, build, progress, asked_at)
        for problem in finished.problems:
            console.print(f"stopped: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
        if finished.interrupted:
            sys.exit(130)
        stopped = stopped or bool(finished.problems)
        status = _status(project, build)
        passed = passed and status.passed
        _print_summary(console, status)
        asked_at = datetime.now(timezone.utc)
    console.print(f"\nHUD: {(project.home / 'hud' / 'index.html').as_uri()}", highlight=False, soft_wrap=True)
    console.print(f"UI:  {_ui_command(project)}", highlight=False, soft_wrap=True)
    sys.exit(1 if stopped or (strict and not passed) else 0)


@main.command()
@click.argument("build", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@_with_project
def status(project: Project, build: str | None, as_json: bool) -> None:
    """How BUILD stands (<revision>~<variant>, or a revision with one variant) [default: the newest]."""
    from accel_ci.manifests import ManifestStore
    from accel_ci.results.status import find_build

    found = _status(project, find_build(ManifestStore(project.home), build))
    if as_json:
        click.echo(found.as_json())
    else:
        _print_summary(_console()[0], found)


@main.command()
@click.option("--port", default=3000, show_default=True, help="The port of the UI.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of the UI.")
@_with_project
def dev(project: Project, port: int, host: str) -> None:
    """Start the Dagster UI with schedules and sensors on the project's data."""
    from importlib.resources import as_file, files

    from accel_ci.config import CONFIG_ENVIRONMENT, HOME_ENVIRONMENT
    from accel_ci.defs.instance import prepare_dagster_home

    environment = os.environ | {
        "DAGSTER_HOME": str(prepare_dagster_home(project)),
        CONFIG_ENVIRONMENT: str(project.config_path),
        HOME_ENVIRONMENT: str(project.home),
    }
    with as_file(files("accel_ci") / "workspace.yaml") as workspace:
        command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "--host", host, "--port", str(port)]
    os.execve(sys.executable, command, environment)  # noqa: S606


@main.command()
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """What is installed and reachable, what each missing piece would enable, and how to get it."""
    import json
    from dataclasses import asdict

    from rich.table import Table

    from accel_ci.doctor import examine

    found = list(examine(context.obj))
    if as_json:
        click.echo(json.dumps([asdict(piece) for piece in found]))
    else:
        table = Table("piece", "state", "what it is for", "how to get it", box=None)
        for piece in found:
            table.add_row(
                piece.name, f"{'✓' if piece.usable else '✗'} {piece.state}", piece.enables, "" if piece.usable else piece.how
            )
        _console()[0].print(table)
    sys.exit(0 if all(piece.usable for piece in found if piece.needed) else 1)


def _console() -> tuple[Console, Progress]:
    from rich.console import Console

    from accel_ci.progress import BarProgress, LineProgress

    console = Console(width=None if sys.stdout.isatty() else 140)
    return console, BarProgress(console) if console.is_terminal else LineProgress(click.echo)


def _status(project: Project, build: Build) -> BuildStatus:
    from accel_ci.defs.launch import wall_seconds
    from accel_ci.manifests import ManifestStore
    from accel_ci.results.status import read_status

    return read_status(ManifestStore(project.home), build, wall_seconds(project, build))


def _say_what_would_run(project: Project, trigger: Any, variants: tuple[str, ...]) -> None:
    settings = project.settings
    for variant in settings.variants_of(trigger):
        if not variants or variant in variants:
            smoke, device = (", ".join(settings.suites_of(trigger, stage)) for stage in ("smoke", "device"))
            click.echo(f"{trigger} on {variant}: smoke [{smoke}], then [{device}] on {settings.pool.cards} card(s)")


def _print_summary(console: Console, status: BuildStatus) -> None:
    from rich.table import Table

    def seconds(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f} s"

    console.print(f"\n{status.build.name}: {status.state}", markup=False, highlight=False, soft_wrap=True)
    table = Table(show_header=False)
    if status.expected is not None:
        table.add_row("tests expected", f"{status.expected:,}")
        for verdict, count in status.counts.items():
            table.add_row(f"  {verdict}", f"{count:,}")
        table.add_row("attempts lost to infra", f"{status.infra_attempts:,}")
        table.add_row("cards", ", ".join(status.cards))
        table.add_row("unhealthy cards", ", ".join(status.unhealthy_cards) or "none")
        table.add_row("makespan", seconds(status.makespan_s))
        table.add_row("lower bound", seconds(status.lower_bound_s))
    table.add_row("wall", seconds(status.wall_s))
    table.add_row("build, install and tests", seconds(status.work_s))
    table.add_row("own overhead", seconds(status.overhead_s))
    console.print(table)


def _ui_command(project: Project) -> str:
    if (project.root / "Makefile").is_file() and Path.cwd() == project.root:
        return "make dev   (then http://127.0.0.1:3000)"
    return f"accel-ci --config {project.config_path} dev   (then http://127.0.0.1:3000)"


if __name__ == "__main__":
    main()
