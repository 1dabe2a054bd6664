"""Commands about the ramp: `stage`, `ramp status`, `ramp propose`, `ramp missed`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.context import terminal, with_workspace
from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.ramp.current import RampState
    from accel_ci.ramp.proposal import Proposal
    from accel_ci.ramp.stages import StageNeeds
    from accel_ci.workspace import Workspace

_SHOWN_OPS = 12
_SHOWN_TREND = 10
_SHOWN_TESTS = 20

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
_VARIANT = click.option("--variant", help="The variant whose builds count [default: the first].")
_SUITES = click.option("--suite", "suites", multiple=True, help="Only this suite; may be given several times.")


class _Percent(click.ParamType["float"]):
    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        """Convert `25%`."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(value))
        if found is None or float(found[1]) > 100:
            self.fail(f"{value!r} is no share; write one such as 25%", param, context)
        return float(found[1]) / 100


@click.group()
def ramp() -> None:
    """Show how much of the tests in scope is enabled, and propose the next tests."""


@ramp.command()
@_VARIANT
@_SUITES
@_AS_JSON
@with_workspace
def status(workspace: Workspace, variant: str | None, suites: tuple[str, ...], as_json: bool) -> None:
    """Show the enabled share, its trend, and what the next stage needs."""
    from accel_ci.ramp.current import RampState, current_coverage
    from accel_ci.ramp.stages import next_stage_needs, reached

    state = RampState(workspace, variant, suites)
    stages = workspace.project.settings.ramp.stages
    coverage, trend = state.coverage, current_coverage(workspace).of_variant(state.variant)
    total = coverage.total
    needs = next_stage_needs(stages, state.tests(datetime.now(timezone.utc).date()))
    stage = reached(stages, total.share)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "build": state.newest.build.name,
                    "suites": state.suites,
                    **asdict(total),
                    "share": round(total.share, 6),
                    "passing_share": round(total.passing_share, 6),
                    "ops": len(coverage.ops),
                    "ops_enabled": coverage.ops_enabled,
                    "reasons": coverage.reasons,
                    "stage": stage.name if stage else None,
                    "next": needs and _needs_numbers(needs),
                    "trend": [
                        {"build": point.build.name, "at": point.at.isoformat(), **asdict(point.counts)} for point in trend
                    ],
                }
            )
        )
        return
    console = terminal()[0]
    console.print(f"\n{state.newest.build.name}: {', '.join(state.suites)}", markup=False, highlight=False)
    _print(
        [
            ("collected", f"{total.collected:,}"),
            ("in scope", f"{total.in_scope:,}"),
            ("enabled", f"{total.enabled:,} ({total.share:.2%} of those in scope)"),
            ("passing", f"{total.passing:,} ({total.passing_share:.2%})"),
            ("ops with an enabled test", f"{coverage.ops_enabled:,} of {len(coverage.ops):,}"),
            ("stage", f"{stage.name}: {stage.cards:,} cards, {stage.frequency}" if stage else "none yet"),
        ]
    )
    if needs:
        _print(_needs_rows(needs))
    if len(trend) > 1:
        _print(
            [
                (point.build.revision, f"{point.counts.share:.2%} enabled, {point.counts.passing_share:.2%} passing")
                for point in trend[-_SHOWN_TREND:]
            ]
        )


@click.command()
@_VARIANT
@_SUITES
@_AS_JSON
@with_workspace
def stage(workspace: Workspace, variant: str | None, suites: tuple[str, ...], as_json: bool) -> None:
    """Show which stages of the ramp are reached, and what the next one still needs.

    A stage needs its share of the tests in scope and its cards. That builds go as often as it says is for people to see to.
    """
    from rich.markup import escape
    from rich.table import Table

    from accel_ci.ramp.current import RampState
    from accel_ci.ramp.stages import stage_needs, standings

    state, settings = RampState(workspace, variant, suites), workspace.project.settings
    share, cards = state.coverage.total.share, settings.pool.cards
    found = standings(settings.ramp.stages, share, cards)
    following = next((each for each in found if not each.reached), None)
    needs = following and stage_needs(following.stage, state.tests(datetime.now(timezone.utc).date()))
    missing = max(0, needs.stage.cards - cards) if needs else 0
    if as_json:
        stages = [{**each.stage.model_dump(), "has_share": each.has_share, "has_cards": each.has_cards} for each in found]
        whole = {"build": state.newest.build.name, "share": round(share, 6), "cards": cards, "stages": stages}
        click.echo(json.dumps({**whole, "next": needs and {**_needs_numbers(needs), "more_cards": missing}}))
        return
    console = terminal()[0]
    has = f"{share:.2%} of the tests in scope are enabled, {cards:,} card(s)"
    console.print(f"\n{state.newest.build.name}: {has}", markup=False, highlight=False)
    table = Table("stage", "share", "cards", "frequency", "state")
    for each in found:
        lacks = [what for what, there in (("share", each.has_share), ("cards", each.has_cards)) if not there]
        shown = [each.stage.name, f"{each.stage.share:.0%}", f"{each.stage.cards:,}", each.stage.frequency]
        table.add_row(*map(escape, [*shown, f"needs {' and '.join(lacks)}" if lacks else "reached"]))
    console.print(table)
    if needs:
        _print([*_needs_rows(needs), ("more cards", f"{missing:,} (pool.cards)" if missing else "none")])


@ramp.command()
@click.option("--to", "share", type=_Percent(), required=True, help="The share of the tests in scope to enable, as 25%.")
@click.option("--card-hours", type=click.FloatRange(min=0, min_open=True), help="The most that they may add to a build.")
@_SUITES
@_VARIANT
@click.option("--apply", is_flag=True, help="Write them to the enabled files of their suites, for review.")
@_AS_JSON
@with_workspace
def propose(
    workspace: Workspace,
    share: float,
    card_hours: float | None,
    suites: tuple[str, ...],
    variant: str | None,
    apply: bool,
    as_json: bool,
) -> None:
    """Propose the next tests to enable, at the least card-seconds and risk.

    Each op of the backend gets a test first. Tests that did not pass when they last ran are left out.
    """
    from accel_ci.hud.text import one_line
    from accel_ci.ramp.current import RampState
    from accel_ci.ramp.proposal import propose as choose

    state = RampState(workspace, variant, suites)
    tests = state.tests(datetime.now(timezone.utc).date())
    proposal = choose(tests, share, card_hours * 3600 if card_hours else math.inf)
    written = _apply(state, proposal) if apply else {}
    if as_json:
        chosen = [
            {"suite": test.suite, "test": test.test, "chance": round(test.chance, 4), "card_s": round(test.cost_s, 4)}
            for test in proposal.tests
        ]
        click.echo(json.dumps({**_numbers(proposal), "tests": chosen, "written": written}))
        return
    console = terminal()[0]
    _print(_described(proposal))
    for test in proposal.tests[:_SHOWN_TESTS]:
        line = f"  {test.chance:4.0%} {test.cost_s:8.2f} s  {one_line(test.test, 2000)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(proposal.tests) > _SHOWN_TESTS:
        console.print(f"… and {len(proposal.tests) - _SHOWN_TESTS:,} more; --json shows all", highlight=False)
    for path, (new, gone) in written.items():
        console.print(f"{path}: {new:,} new lines, {gone:,} gone; review the change and commit it", highlight=False)
    if proposal.tests and not apply:
        console.print("--apply writes them to the enabled files", highlight=False)


@ramp.command()
@click.option("--variant", help="Only builds of this variant.")
@_AS_JSON
@with_workspace
def missed(workspace: Workspace, variant: str | None, as_json: bool) -> None:
    """Show which new failures the tests chosen by changes would have missed.

    Each nightly, intraday or main build of the window is held against the tests that `jobs.pr.tests: changed` would have
    chosen for the backend's commits since the build before, by what was known then. Builds that were not judged yet are.
    """
    from accel_ci.quality.current_missed import of_variant, update_missed
    from accel_ci.quality.judgement import judge_new_builds

    now = datetime.now(timezone.utc)
    judge_new_builds(workspace, now)
    with terminal(stderr=True)[1].step("missed") as step:
        report = update_missed(workspace, now, step, most=None)
        step.note(f"{len(report.builds):,} builds")
    if variant is not None:
        report = of_variant(report, workspace.project.settings.variant(variant).name)
    if as_json:
        builds = [
            {
                **asdict(one),
                "build": one.build.name,
                "before": one.before and one.before.name,
                "failures": one.failures,
            }
            for one in report.builds
        ]
        whole = {"window_days": report.window_days, "rate": report.words, "pulls": report.pull_words}
        click.echo(json.dumps({**whole, **asdict(report.sums), "builds": builds}, default=str))
        return
    console = terminal()[0]
    for words in filter(None, (report.words, report.pull_words)):
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    print_table(
        ["build", "commits", "chosen", "new failures", "missed"],
        [
            [one.build.name, f"{one.count:,}: {'..'.join(one.commits)}", one.problem or one.words, one.failures,
             len(one.missed)]
            for one in report.builds
        ],
    )  # fmt: skip
    print_table(
        ["missed in", "test", "op", "why"],
        [
            [one.build.name, f"{test.suite}: {test.test}", test.op or "", test.why]
            for one in report.builds
            for test in one.missed
        ],
    )


def _apply(state: RampState, proposal: Proposal) -> dict[str, tuple[int, int]]:
    """Write a proposal to the files of its suites; return the new lines and those gone of each."""
    from accel_ci.errors import ConfigError
    from accel_ci.ramp.enabled_file import write_enabled
    from accel_ci.results.columns import kernels

    project, written = state.workspace.project, {}
    for suite in dict.fromkeys(sorted(test.suite for test in proposal.tests)):
        name = project.settings.suites[suite].scope.enabled_file
        if name is None:
            raise ConfigError(f"suite {suite!r} has no file of enabled tests; name one in suites.{suite}.scope.enabled_file")
        tests = {test.test for test in proposal.tests if test.suite == suite}
        scope = state.scope.filter(kernels.equal(state.scope["suite"], suite))
        written[name] = write_enabled(project.root / name, tests, scope)
    return written


def _needs_rows(needs: StageNeeds) -> list[tuple[str, str]]:
    stage = needs.stage
    return [
        ("next stage", f"{stage.name}: {stage.share:.0%}, {stage.cards:,} cards, {stage.frequency}"),
        *_described(needs.proposal),
        ("a build by then", f"{needs.card_s / 3600:,.2f} card-hours, at least {needs.hours * 60:,.1f} minutes"),
        ("to propose them", f"accel-ci ramp propose --to {stage.share:.0%}"),
    ]


def _needs_numbers(needs: StageNeeds) -> dict[str, Any]:
    proposal = _numbers(needs.proposal)
    return {**needs.stage.model_dump(), **proposal, "card_hours_per_build": round(needs.card_s / 3600, 3)}


def _described(proposal: Proposal) -> list[tuple[str, str]]:
    left = ", ".join(proposal.ops_left[:_SHOWN_OPS])
    more = f" and {len(proposal.ops_left) - _SHOWN_OPS:,} more" if len(proposal.ops_left) > _SHOWN_OPS else ""
    ops = proposal.ops - len(proposal.ops_left)
    return [
        ("tests to enable", f"{len(proposal.tests):,} ({proposal.share_after:.2%} of {proposal.in_scope:,} by then)"),
        ("short of the target", f"{proposal.missing:,}" if proposal.missing else "none"),
        ("card-hours that they add", f"{proposal.card_s / 3600:,.2f}"),
        ("expected to fail", f"{proposal.failures:,.1f}; {proposal.unproven:,} never ran"),
        ("left out", f"{proposal.doubtful:,} that did not pass when they last ran"),
        ("held by rules", f"{proposal.held:,}, of which {proposal.passing_held:,} pass"),
        ("ops", f"{proposal.ops_before:,} before, {ops:,} of {proposal.ops:,} by then"),
        ("ops left", f"{left}{more}" if left else "none"),
    ]


def _numbers(proposal: Proposal) -> dict[str, Any]:
    return {
        "tests_to_enable": len(proposal.tests),
        "target": proposal.target,
        "missing": proposal.missing,
        "share_after": round(proposal.share_after, 6),
        "card_hours": round(proposal.card_s / 3600, 4),
        "expected_failures": round(proposal.failures, 2),
        "never_ran": proposal.unproven,
        "left_out": proposal.doubtful,
        "held": proposal.held,
        "passing_held": proposal.passing_held,
        "ops_before": proposal.ops_before,
        "ops_after": proposal.ops - len(proposal.ops_left),
        "ops": proposal.ops,
        "ops_left": proposal.ops_left,
    }


def _print(rows: list[tuple[str, str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    terminal()[0].print(table)
