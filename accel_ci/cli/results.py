"""Commands for reports and results: `parse`, `ingest`, `results …`, `export`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date, datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.context import chosen_build, terminal, with_workspace
from accel_ci.storage.atomic_file import whole_file

if TYPE_CHECKING:
    from accel_ci.model import Build
    from accel_ci.quality.flakiness import FlakyTest
    from accel_ci.results.questions import Change, DayCounts, FailureCluster, SlowTest, TestInBuild
    from accel_ci.workspace import Workspace

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_BUILD = click.argument("build", required=False)
_EXISTING = click.Path(path_type=Path, exists=True)
_SHOWN_ROWS = 50
_CUT = ("message", "signature", "why")
_UNLIMITED = 1_000_000


@click.command()
@click.argument("path", type=_EXISTING)
@_AS_JSON
def parse(path: Path, as_json: bool) -> None:
    """Show the contents of the report PATH.

    A folder is read as the reports of one test job.

    Exit status: 0 if the report is complete, 1 if it was salvaged, has no tests or shows less than it claims, 2 if it was
    rejected or is empty.
    """
    from accel_ci.model import OUTCOMES
    from accel_ci.reports.parse import parse_path
    from accel_ci.reports.report import to_json
    from accel_ci.reports.warning_codes import doubts, meaning

    report = parse_path(path)
    doubtful = doubts(report.warnings)
    if as_json:
        click.echo(json.dumps(to_json(report)))
    else:
        warnings = ", ".join(sorted(report.warnings)) or "none"
        click.echo(f"{path}: {report.status}, {len(report.rows)} rows, warnings: {warnings}")
        print_table(["warning", "meaning"], [[code, meaning(code)] for code in sorted(report.warnings)])
        if report.files:
            files = [[name, file.status, ", ".join(sorted(file.warnings))] for name, file in report.files.items()]
            print_table(["file", "status", "warnings"], [file for file in files if file[1] != "complete" or file[2]])
        rows = [[r.outcome, r.classname, r.name, r.attempt, r.duration_s, r.message or ""] for r in report.rows]
        print_table(["outcome", "class", "name", "attempt", "seconds", "message"], rows)
        counts = Counter(row.outcome for row in report.rows)
        click.echo(f"total: {', '.join(f'{counts[one]:,} {one}' for one in OUTCOMES if counts[one]) or 'no tests'}")
    for sentence in doubtful:
        click.echo(f"{path} proves nothing by itself: {sentence}", err=True)
    sys.exit({"complete": int(bool(doubtful)), "salvaged": 1}.get(report.status, 2))


@click.command()
@click.argument("paths", nargs=-1, required=True, type=_EXISTING)
@click.option("--revision", required=True, help="The revision that was tested.")
@click.option("--variant", required=True, help="The variant that was tested.")
@click.option("--suite", required=True, help="The suite of the reports; its earlier rows are replaced.")
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="The day of the revision [default: today, UTC].")
@click.option("--expected", type=_EXISTING, help="A file with the ids of the tests that should have run, one per line.")
@_AS_JSON
@with_workspace
def ingest(
    workspace: Workspace,
    paths: tuple[Path, ...],
    revision: str,
    variant: str,
    suite: str,
    day: datetime | None,
    expected: Path | None,
    as_json: bool,
) -> None:
    """Store reports as the results of one suite of a build.

    PATHS are report files, or folders with report files. Formats may be mixed: JUnit XML, Bazel's event stream,
    pytest-reportlog and the runner's own lines, plain or gzip.

    With --expected, each expected test gets one verdict: not_run if no report has it. Unexpected tests are listed.

    Exit status: 0 if all reports were complete, 1 if some were salvaged or an expected test did not run, 2 if some were
    rejected or had no rows.
    """
    from accel_ci.ledger.account import account_of, read_expected
    from accel_ci.model import Build
    from accel_ci.results.ingest import ingest as store_reports

    wanted = None if expected is None else read_expected(expected)
    store, on_day = workspace.results, day.date() if day else _today()
    with terminal(stderr=True)[1].step("ingest") as step:
        report = store_reports(paths, Build(revision, variant), suite, on_day, store, step=step)
        step.note(f"{report.rows:,} rows of {len(report.files):,} files")
    troubled = [[file.path, file.status, file.rows, file.reason] for file in report.troubled]
    summary = {"rows": report.rows, "verdicts": report.counts, "troubled": troubled}
    counts, missing, unexpected = report.counts, list[str](), tuple[str, ...]()
    if wanted is not None:
        account = account_of(wanted, store.judged(report.stored))
        counts, missing, unexpected = account.counts, account.missing, account.unexpected
        summary |= {"verdicts": counts, "not_run": missing, "unexpected": unexpected}
    if as_json:
        click.echo(json.dumps(summary, default=str))
    else:
        print_table(["file", "status", "rows", "why"], troubled)
        print_table(["expected, but not run"], [[test] for test in missing])
        print_table(["run, but not expected"], [[test] for test in unexpected])
        click.echo(", ".join(f"{count:,} {verdict}" for verdict, count in counts.items() if count) or "nothing was stored")
    sys.exit(max(report.exit_code, int(bool(missing))))


def _prints(*columns: str, empty: str, status: int = 0) -> Callable[[Callable[..., Sequence[Any]]], Callable[..., None]]:
    """Print the dataclasses that a command returns: as JSON with all fields, or as a table of `columns`.

    Without any, it prints the text `empty` and exits with `status`.
    """

    def decorate(command: Callable[..., Sequence[Any]]) -> Callable[..., None]:
        @_AS_JSON
        @with_workspace
        @wraps(command)
        def wrapped(workspace: Workspace, as_json: bool, **options: Any) -> None:
            found = command(workspace, **options)
            if as_json:
                click.echo(json.dumps([dataclasses.asdict(row) for row in found], default=str))
            else:
                print_table(columns, [[getattr(row, column) for column in columns] for row in found])
            if not found:
                click.echo(empty.format(**options), err=as_json)
                sys.exit(status)

        return wrapped

    return decorate


@click.group()
def results() -> None:
    """Query the results store."""


_SUITE = click.option("--suite", help="Only this suite.")
_VARIANT = click.option("--variant", help="Only this variant.")
_PAIR = click.argument("builds", nargs=-1, metavar="[[BEFORE] AFTER]")
_LIMIT = click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="The most rows to show.")


@results.command()
@click.argument("test")
@click.option("--days", default=90, show_default=True, type=click.IntRange(min=1), help="The number of days.")
@_VARIANT
@_SUITE
@_prints(
    "day",
    "build",
    "suite",
    "verdict",
    "attempts",
    "failures",
    "duration_s",
    "message",
    empty="no build of the last {days} days has a test {test!r}; write its whole id",
    status=1,
)
def history(workspace: Workspace, test: str, days: int, variant: str | None, suite: str | None) -> Sequence[TestInBuild]:
    """Show the verdicts of TEST in the builds of the last days."""
    from accel_ci.results.questions import history as ask

    return ask(workspace.results, test, _today(), days, variant, suite)


@results.command()
@_BUILD
@_SUITE
@_prints("suite", "tests", "attempts", "infra", "cards", "signature", "some_tests", empty="no attempt failed")
def failures(workspace: Workspace, build: str | None, suite: str | None) -> Sequence[FailureCluster]:
    """Show the failures of BUILD, grouped by signature."""
    from accel_ci.results.questions import failures as ask

    return ask(workspace.results, chosen_build(workspace, build), suite)


@results.command()
@_BUILD
@_SUITE
@_LIMIT
@_prints("suite", "test", "total_s", "longest_s", "attempts", empty="no test has a duration")
def slowest(workspace: Workspace, build: str | None, suite: str | None, limit: int) -> Sequence[SlowTest]:
    """List the slowest tests of BUILD."""
    from accel_ci.results.questions import slowest as ask

    return ask(workspace.results, chosen_build(workspace, build), suite, limit)


@results.command()
@_LIMIT
@_prints("variant", "suite", "test", "flaky_builds", "builds", "rate", "rate_low", "rate_high", empty="no test is flaky")
def flaky(workspace: Workspace, limit: int) -> Sequence[FlakyTest]:
    """List tests that passed and failed in the same build, with their rate over the builds that ran them."""
    from accel_ci.quality.flakiness import measure

    return measure(workspace.trusted_results, _today(), workspace.project.settings.quality.window_days).flaky[:limit]


def _pair(workspace: Workspace, names: Sequence[str]) -> tuple[Build, Build]:
    """Return the two builds to compare, of which up to two are named, and say which they are where one was not."""
    from accel_ci.ledger.comparison import builds_to_compare

    named = [chosen_build(workspace, name) for name in names]
    if len(named) > 2:
        raise click.UsageError("two builds can be compared: BEFORE and AFTER")
    if len(named) == 2:
        return named[0], named[1]
    before, after = builds_to_compare(workspace.manifests, *named)
    click.echo(f"{after.name} after {before.name}", err=True)
    return before, after


@results.command("newly-failing")
@_PAIR
@_prints("suite", "test", "before", "after", "message", empty="no test fails in the second build that did not in the first")
def newly_failing(workspace: Workspace, builds: tuple[str, ...]) -> Sequence[Change]:
    """List tests that fail in AFTER but not in BEFORE.

    AFTER is a build [default: the newest finished one], and so is BEFORE [default: the last finished one before AFTER, of
    the same trigger, variant and suites].
    """
    from accel_ci.results.questions import newly_failing as ask

    return ask(workspace.results, *_pair(workspace, builds))


@results.command("newly-passing")
@_PAIR
@_prints("suite", "test", "before", "after", empty="no test passes in the second build that failed in the first")
def newly_passing(workspace: Workspace, builds: tuple[str, ...]) -> Sequence[Change]:
    """List tests that pass in AFTER but failed in BEFORE.

    AFTER is a build [default: the newest finished one], and so is BEFORE [default: the last finished one before AFTER, of
    the same trigger, variant and suites].
    """
    from accel_ci.results.questions import newly_passing as ask

    return ask(workspace.results, *_pair(workspace, builds))


@results.command("per-day")
@click.option("--days", default=30, show_default=True, type=click.IntRange(min=1), help="The number of days.")
@_VARIANT
@_prints("day", "variant", "suite", "builds", "attempts", "counts", empty="no results of the last {days} days are stored")
def per_day(workspace: Workspace, days: int, variant: str | None) -> Sequence[DayCounts]:
    """Count the verdicts of each day."""
    from accel_ci.results.questions import counts_per_day

    return counts_per_day(workspace.results, _today(), days, variant)


@results.command("to-sql")
@_BUILD
@click.option(
    "--url",
    envvar="ACCEL_CI_SQL_URL",
    required=True,
    help="The SQLAlchemy URL of the database [default: $ACCEL_CI_SQL_URL].",
)
@_SUITE
@with_workspace
def to_sql(workspace: Workspace, build: str | None, url: str, suite: str | None) -> None:
    """Copy the rows of BUILD to a SQL database.

    Rows from an earlier copy are replaced.
    """
    from accel_ci.results.questions import stored_suites
    from accel_ci.results.sql_sink import open_sink, sink

    store = workspace.results
    suites = stored_suites(store, chosen_build(workspace, build), suite)
    engine = open_sink(url)
    with terminal(stderr=True)[1].step("to-sql") as step:
        step.total(len(suites))
        for stored in suites:
            step.advance(f"{stored.suite}: {sink(engine, store, stored):,} rows")


@click.command()
@_BUILD
@click.option("--format", "form", type=click.Choice(["junit", "csv", "parquet"]), default="junit", show_default=True)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="The file to write [default: standard output]."
)
@_SUITE
@with_workspace
def export(workspace: Workspace, build: str | None, form: Any, output: Path | None, suite: str | None) -> None:
    """Write the attempts of BUILD as JUnit XML, CSV or Parquet."""
    from accel_ci.results import export as exports

    with nullcontext(sys.stdout.buffer) if output is None else whole_file(output) as target:
        rows = exports.export(workspace.results, chosen_build(workspace, build), target, form, suite)
    if output is not None:
        click.echo(f"{output}: {rows:,} attempts")


def _today() -> date:
    return datetime.now(timezone.utc).date()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, at most its first rows; nothing if it has none."""
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    console = terminal()[0]
    if not console.is_terminal:
        console.width = _UNLIMITED
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:_SHOWN_ROWS]:
        table.add_row(*(escape(_shown(column, value)) for column, value in zip(columns, row, strict=True)))
    console.print(table)
    if len(rows) > _SHOWN_ROWS:
        console.print(f"… and {len(rows) - _SHOWN_ROWS:,} more; --json shows all")


def _shown(column: str, value: Any) -> str:
    """Format a table cell: control characters in hostile names are spelled out; messages are cut, and ids are not."""
    from accel_ci.hud.text import one_line
    from accel_ci.model import Build

    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {name}" for name, count in value.items() if count)
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return one_line(value.name if isinstance(value, Build) else str(value), 200 if column in _CUT else _UNLIMITED)
