"""Commands about causes and quality: `causes`, `incidents`, `quality`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import chosen_build, terminal, with_workspace
from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.quality.causes import Blame
    from accel_ci.quality.incidents import Incident
    from accel_ci.workspace import Workspace

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
_SHOWN_TESTS = 3


@click.command()
@click.argument("build", required=False)
@click.option("--test", help="Show all evidence on this test.")
@_AS_JSON
@with_workspace
def causes(workspace: Workspace, build: str | None, test: str | None, as_json: bool) -> None:
    """Show whose the failures of BUILD are: infrastructure, flaky test, upstream, backend, or unknown.

    BUILD is a build or a revision, by default the newest build. Failures of one cause are one line.
    """
    from accel_ci.errors import AccelCiError
    from accel_ci.quality.incidents import incidents_of
    from accel_ci.quality.judgement import judge_new_builds, read_causes
    from accel_ci.quality.triage import triage_verdict

    chosen = chosen_build(workspace, build)
    found = read_causes(workspace, chosen)
    if found is None:
        judge_new_builds(workspace, datetime.now(timezone.utc))
        found = read_causes(workspace, chosen)
    if found is None:
        raise AccelCiError(f"{chosen.name} has no ledger, or is older than quality.window_days: nobody has judged it")
    blames = [blame for blame in found.blames if test in (None, blame.test)]
    if test is not None and not blames:
        raise AccelCiError(f"{test} did not fail in {chosen.name}; `accel-ci causes {chosen.name}` lists the tests that did")
    if as_json:
        verdicts = [{**asdict(blame), "triage_verdict": triage_verdict(blame)} for blame in blames]
        click.echo(json.dumps({"build": chosen.name, "counts": found.counts(), "failures": verdicts}, default=str))
        return
    console = terminal()[0]
    if test is not None:
        for blame in blames:
            _print_evidence(blame)
        return
    counts = ", ".join(f"{count} {cause}" for cause, count in sorted(found.counts().items()))
    console.print(f"\n{chosen.name}: {counts or 'nothing failed'}", markup=False, highlight=False)
    _print_incidents(incidents_of(blames))


@click.command()
@click.option("--all", "everything", is_flag=True, help="Those that are fixed, too.")
@_AS_JSON
@with_workspace
def incidents(workspace: Workspace, everything: bool, as_json: bool) -> None:
    """List the incidents of the last weeks: failures of one cause, followed from build to build."""
    from accel_ci.quality.judgement import judge_new_builds

    found = judge_new_builds(workspace, datetime.now(timezone.utc))
    chosen = [incident for incident in found.incidents if everything or incident.state != "fixed"]
    if as_json:
        shown = [{**asdict(each), "tests": sorted(each.tests), "now": sorted(each.now)} for each in chosen]
        click.echo(json.dumps(shown, default=list))
        return
    if not chosen:
        click.echo("no incident is open" if not everything else "no failure was seen")
        return
    _print_incidents(chosen)


@click.command()
@click.option("--builds", "figure", metavar="FIGURE", help="List the builds that a figure was computed from.")
@_AS_JSON
@with_workspace
def quality(workspace: Workspace, figure: str | None, as_json: bool) -> None:
    """Show how the backend's CI stands against the criteria of PyTorch's levels and of its accelerator group.

    Each figure has a 95 % interval and its goal. Windows are fixed: 14 days for a promotion, 7 for a demotion. A figure
    without data is not met.
    """
    from accel_ci.errors import AccelCiError
    from accel_ci.quality.flakiness import measure
    from accel_ci.quality.levels import shown
    from accel_ci.quality.report import make_report

    now = datetime.now(timezone.utc)
    flakiness = measure(workspace.results, now.date(), workspace.project.settings.quality.window_days)
    report = make_report(workspace, flakiness, now)
    if figure is not None:
        found = next((each for each in report.figures if each.name == figure), None)
        if found is None:
            raise AccelCiError(f"there is no figure {figure!r}; `accel-ci quality` lists them")
        click.echo("\n".join(found.builds) or "no build")
        return
    if as_json:
        click.echo(json.dumps(asdict(report), default=str))
        return
    states = {True: "met", False: "not met", None: "no data"}
    for title, figures in (("promotion", report.promotion), ("demotion", report.demotion), ("group", report.group)):
        rows = [[each.name, shown(each), each.goal, states[each.met], len(each.builds)] for each in figures]
        print_table([title, "value and 95 % interval", "goal", "state", "builds"], rows)
    click.echo(report.advice)


def _print_incidents(found: list[Incident]) -> None:
    rows = []
    for incident in found:
        names = sorted({test for _, _, test in incident.now})
        shown = ", ".join(names[:_SHOWN_TESTS])
        shown += f" and {len(names) - _SHOWN_TESTS} more" if len(names) > _SHOWN_TESTS else ""
        since = f"{incident.state} since {incident.first}"
        rows.append([incident.cause, f"{incident.probability:.0%}", len(incident.now), since, incident.sentence, shown])
    print_table(["cause", "probability", "failures", "state", "why", "tests"], rows)


def _print_evidence(blame: Blame) -> None:
    from accel_ci.hud.text import one_line

    click.echo(f"{blame.suite}: {one_line(blame.test)}")
    interval = f"95 % interval {blame.low:.1%} to {blame.high:.1%}"
    click.echo(f"  {blame.cause}, {blame.probability:.1%} ({interval}): {one_line(blame.sentence)}")
    for evidence in blame.evidence:
        click.echo(f"  - {one_line(evidence.text)}")
        for build, _, _, of_round, attempt in evidence.rows:
            click.echo(f"      {build}, round {of_round}, attempt {attempt}")
