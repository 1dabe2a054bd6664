"""Commands about causes and quality: `causes`, `incidents`, `quality …`, `quarantine …`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import chosen_build, terminal, with_workspace
from accel_ci.cli.replayed import as_document, print_replay
from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.quality.causes import Blame
    from accel_ci.quality.incidents import Incident
    from accel_ci.quality.trends import Trends
    from accel_ci.workspace import Workspace

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
_DAY = click.DateTime(["%Y-%m-%d"])
_SHOWN_TESTS = 3


@click.command()
@click.argument("build", required=False)
@click.option("--test", help="Show all evidence on this test.")
@_AS_JSON
@with_workspace
def causes(workspace: Workspace, build: str | None, test: str | None, as_json: bool) -> None:
    """Show whose the failures of BUILD are: infrastructure, flaky test, upstream, backend, or unknown.

    BUILD is a build or a revision, by default the newest build. Failures of one cause are one line. Of a build that runs
    failures of another one again, those are shown.
    """
    from accel_ci.errors import AccelCiError
    from accel_ci.model import Build
    from accel_ci.quality.incidents import incidents_of
    from accel_ci.quality.judgement import judge_new_builds, read_causes
    from accel_ci.quality.owners import owners_of, with_owners
    from accel_ci.quality.triage import triage_verdict

    chosen = chosen_build(workspace, build)
    revision = workspace.manifests.revision(chosen.revision)
    if revision is not None and revision.confirms is not None:  # its attempts count with those of the failures
        chosen = Build(revision.confirms, chosen.variant)
    found = read_causes(workspace, chosen)
    if found is None:
        judge_new_builds(workspace, datetime.now(timezone.utc))
        found = read_causes(workspace, chosen)
    if found is None:
        raise AccelCiError(f"{chosen.name} has no ledger, or is older than quality.window_days: nobody has judged it")
    blames = [blame for blame in found.blames if test in (None, blame.test)]
    if test is not None and not blames:
        raise AccelCiError(f"{test} did not fail in {chosen.name}; `accel-ci causes {chosen.name}` lists the tests that did")
    today = datetime.now(timezone.utc).date()
    if as_json:
        keys = {(blame.cause, (chosen.variant, *blame.identity)) for blame in blames}
        owners = owners_of(workspace, keys, [chosen], today)
        verdicts = [
            {
                **asdict(blame),
                "owner": owners.get((blame.cause, (chosen.variant, *blame.identity))),
                "triage_verdict": triage_verdict(blame),
            }
            for blame in blames
        ]
        click.echo(json.dumps({"build": chosen.name, "counts": found.counts(), "failures": verdicts}, default=str))
        return
    console = terminal()[0]
    if test is not None:
        for blame in blames:
            _print_evidence(blame)
        return
    counts = ", ".join(f"{count} {cause}" for cause, count in sorted(found.counts().items()))
    console.print(f"\n{chosen.name}: {counts or 'nothing failed'}", markup=False, highlight=False)
    _print_incidents(with_owners(workspace, incidents_of(blames), [chosen], today))


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


@click.group(invoke_without_command=True)
@click.option("--builds", "figure", metavar="FIGURE", help="List the builds that a figure was computed from.")
@click.option("--trends", is_flag=True, help="List the tests that became slower or fail more often instead.")
@_AS_JSON
@click.pass_context
def quality(context: click.Context, figure: str | None, trends: bool, as_json: bool) -> None:
    """Show how the backend's CI stands against the criteria of PyTorch's levels and of its accelerator group.

    Each figure has a 95 % interval and its goal. Windows are fixed: 14 days for a promotion, 7 for a demotion. A figure
    without data is not met.
    """
    if context.invoked_subcommand is None:
        _print_quality(figure, trends, as_json)


@quality.command("replay")
@click.option("--rules", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The rules to compare.")
@click.option("--from", "first", type=_DAY, metavar="YYYY-MM-DD", required=True, help="The first day of the builds, in UTC.")
@click.option("--to", "last", type=_DAY, metavar="YYYY-MM-DD", required=True, help="The last day.")
@_AS_JSON
@with_workspace
def replay_quality(workspace: Workspace, rules: Path | None, first: datetime, last: datetime, as_json: bool) -> None:
    """Judge the stored builds of a period again, night by night, with today's rules and with those of a file.

    Nothing is kept or changed. The file names the rules that differ; a section 'quarantine' turns its rule on:

    \b
      causes: {certain: 0.99}
      places: {least_tests: 5}
      quarantine: {mute_above: 0.05, budget: 0.02}

    \b
      accel-ci quality replay --rules new-rules.yaml --from 2026-11-01 --to 2026-11-27

    Shown is what each of the two would have made of the builds, and what they see differently. A breakage is missed where
    one calls it flaky or infrastructure, or hides it in the quarantine, and the other does not.
    """  # noqa: D301 - click takes the control character
    from accel_ci.quality.replay import replay
    from accel_ci.quality.rules import read_rules, rules_of

    today = rules_of(workspace.project.settings)
    sets = {"today": today} if rules is None else {"today": today, "file": read_rules(rules, today)}
    with terminal(stderr=True)[1].step("replay") as step:
        found = replay(workspace, sets, first.date(), last.date(), step)
        step.note(f"{found.builds} builds of {found.revisions} revisions")
    if as_json:
        click.echo(json.dumps(as_document(found)))
    else:
        print_replay(found, rules.name if rules is not None else "")


@with_workspace
def _print_quality(workspace: Workspace, figure: str | None, trends: bool, as_json: bool) -> None:
    from accel_ci.errors import AccelCiError
    from accel_ci.quality.flakiness import measure
    from accel_ci.quality.levels import shown
    from accel_ci.quality.report import make_report, update_trends

    now = datetime.now(timezone.utc)
    if trends:
        _print_trends(update_trends(workspace, now), as_json)
        return
    flakiness = measure(workspace.trusted_results, now.date(), workspace.project.settings.quality.window_days)
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


def _print_trends(found: Trends, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    if not found.slower and not found.worse:
        click.echo("no test became slower or fails more often than in the older half of the window")
    slower = [[each.variant, each.suite, each.test, each.before_s, each.after_s, each.ratio] for each in found.slower]
    print_table(["variant", "suite", "slower", "seconds before", "after", "ratio"], slower)
    worse = [
        [each.variant, each.suite, each.test, f"{each.before:.1%}", f"{each.after:.1%}", each.since or "slowly"]
        for each in found.worse
    ]
    print_table(["variant", "suite", "fails more often", "before", "after", "since"], worse)


@click.group()
def quarantine() -> None:
    """Mute or disable flaky tests, by a file of decisions that is reviewed like code."""


@quarantine.command("list")
@_AS_JSON
@with_workspace
def list_quarantine(workspace: Workspace, as_json: bool) -> None:
    """List the tests in quarantine: people's decisions, and those of the rule."""
    from accel_ci.quality.current_quarantine import update_quarantine

    state = update_quarantine(workspace, datetime.now(timezone.utc))
    if as_json:
        click.echo(json.dumps(asdict(state), default=str))
        return
    if not state.entries:
        click.echo("no test is in quarantine")
    rows = [
        [each.state, each.suite, each.test, each.variant, each.by, each.expires, each.owner or "", each.reason]
        for each in state.entries
    ]
    print_table(["state", "suite", "test", "variant", "by", "expires", "owner", "reason"], rows)
    for words in state.over_budget:
        click.echo(words)
    for debt in state.debt:
        click.echo(f"debt: {debt.suite}: {debt.test} was broken in {', '.join(debt.builds)}")


@quarantine.command()
@click.argument("test")
@click.option("--suite", required=True, help="The suite of the test.")
@click.option(
    "--state",
    type=click.Choice(["muted", "disabled", "active"]),
    default="muted",
    show_default=True,
    help="muted: it runs, and gates nothing; disabled: it does not run; active: no rule may quarantine it.",
)
@click.option("--reason", required=True, help="Why, for those who read it later.")
@click.option("--owner", help="Who looks after it.")
@click.option("--issue", help="The address of an issue.")
@click.option("--variant", help="Only in this variant.")
@click.option("--days", type=click.IntRange(1, 365), default=30, show_default=True, help="Until it expires.")
@with_workspace
def add(workspace: Workspace, test: str, days: int, **given: str | None) -> None:  # fmt: skip
    """Write a decision on TEST into the file of decisions; one that is there is replaced."""
    from pydantic import ValidationError

    from accel_ci.config.settings import QuarantinedTest
    from accel_ci.errors import ConfigError
    from accel_ci.quality.quarantine_file import file_of, read_decisions, write_decisions

    if given["suite"] not in workspace.project.settings.suites:
        known = ", ".join(workspace.project.settings.suites)
        raise ConfigError(f"there is no suite {given['suite']!r}; known: {known}")
    path, today = file_of(workspace.project), datetime.now(timezone.utc).date()
    try:
        entry = QuarantinedTest.model_validate({**given, "test": test, "since": today, "expires": today + timedelta(days)})
    except ValidationError as error:
        raise ConfigError(
            "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        ) from None
    key = (entry.suite, entry.test, entry.variant)
    others = [each for each in read_decisions(workspace.project) if (each.suite, each.test, each.variant) != key]
    write_decisions(path, (*others, entry))
    click.echo(f"{path}: {test} is {entry.state} until {entry.expires}; commit the file")


@quarantine.command()
@click.argument("test")
@click.option("--suite", help="Only of this suite.")
@with_workspace
def remove(workspace: Workspace, test: str, suite: str | None) -> None:
    """Remove the decisions on TEST from the file of decisions."""
    from accel_ci.errors import AccelCiError
    from accel_ci.quality.quarantine_file import file_of, read_decisions, write_decisions

    path, decisions = file_of(workspace.project), read_decisions(workspace.project)
    kept = tuple(each for each in decisions if each.test != test or suite not in (None, each.suite))
    if len(kept) == len(decisions):
        raise AccelCiError(f"{path} has no decision on {test}; `accel-ci quarantine list` shows those that hold")
    write_decisions(path, kept)
    click.echo(f"{path}: {len(decisions) - len(kept)} removed; commit the file")


def _print_incidents(found: list[Incident]) -> None:
    rows = []
    for incident in found:
        names = sorted({test for _, _, test in incident.now})
        shown = ", ".join(names[:_SHOWN_TESTS])
        shown += f" and {len(names) - _SHOWN_TESTS} more" if len(names) > _SHOWN_TESTS else ""
        since = f"{incident.state} since {incident.first}"
        sure, owner = f"{incident.probability:.0%}", incident.owner or ""
        rows.append([incident.cause, sure, len(incident.now), since, owner, incident.sentence, shown])
    print_table(["cause", "probability", "failures", "state", "owner", "why", "tests"], rows)


def _print_evidence(blame: Blame) -> None:
    from accel_ci.hud.text import one_line

    click.echo(f"{blame.suite}: {one_line(blame.test)}")
    interval = f"95 % interval {blame.low:.1%} to {blame.high:.1%}"
    click.echo(f"  {blame.cause}, {blame.probability:.1%} ({interval}): {one_line(blame.sentence)}")
    for evidence in blame.evidence:
        click.echo(f"  - {one_line(evidence.text)}")
        for build, _, _, of_round, attempt in evidence.rows:
            click.echo(f"      {build}, round {of_round}, attempt {attempt}")
