"""The HUD's page as frozen dataclasses, and the pure function that makes it.

All decisions are made here: which builds are green, which are shown in full, and what their lists have. No file is read here
(`gather.py`), and no string is formatted for HTML (`text.py`, `render.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from accel_ci import model
from accel_ci.config.settings import RampStage
from accel_ci.hud.addresses import build_anchor
from accel_ci.hud.groups import TestGroup, group_tests
from accel_ci.hud.records import BuildRecord, BuildTests, RevisionRecord
from accel_ci.hud.stops import Stop, find_stop, smoke_failures
from accel_ci.hud.text import first_line, in_utc, number
from accel_ci.ledger.status import beside_the_ledger, shortcomings
from accel_ci.model import TRIGGERS, VERDICTS, Build, Revision, TestVerdict, Trigger, Verdict
from accel_ci.pipelines import LEDGER, STAGES
from accel_ci.quality.flakiness import Flakiness, FlakyTest
from accel_ci.ramp.coverage import Coverage, CoverageReport
from accel_ci.ramp.plot import draw_trend

Kind = Literal["passed", "flaky", "failed", "incomplete", "stopped", "unreadable", "absent"]
"""The state of a build. Only `passed` and `flaky` pass."""

Bar = dict[Verdict, tuple[float, float]]
"""The parts of the bar of verdicts, worst first: where each starts and how wide it is, in percent of the bar."""

SLOWEST = 20
"""The number of tests that are listed as the slowest of a build."""

RECENT = timedelta(hours=6)
"""A build without a ledger may still be running while its newest manifest is younger than this."""

_WORST_FIRST: tuple[Verdict, ...] = ("failed", "infra", "not_run", "flaky", "xpassed", "xfailed", "skipped", "passed")


@dataclass(frozen=True)
class State:
    """The state of a build, with a short text for people. `since` is there for one that stopped: its last change."""

    kind: Kind
    words: str
    detail: str = ""
    since: datetime | None = None


@dataclass(frozen=True)
class Cell:
    """One build in the grid; `anchor` names its section, None where there is no build."""

    build: Build
    state: State
    anchor: str | None
    bar: Bar


@dataclass(frozen=True)
class Row:
    """One revision in the grid."""

    trigger: Trigger | None
    key: str
    seen_at: datetime
    revision: Revision | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class BuildDetail:
    """One build. `compared_with` is the revision that tells new failures from known ones; `stop` is None with a ledger.

    `newly_failing` are (suite, test), `cards` (stage, card).
    """

    record: BuildRecord
    anchor: str
    trigger: Trigger | None
    state: State
    stop: Stop | None
    latest: bool
    bar: Bar
    verdicts_known: bool
    compared_with: str | None
    new_failures: int
    newly_failing: frozenset[tuple[str, str]]
    failed: tuple[TestVerdict, ...]
    infra: tuple[TestVerdict, ...]
    not_run: tuple[TestVerdict, ...]
    groups: Mapping[Verdict, tuple[TestGroup, ...]]
    slowest: tuple[TestVerdict, ...]
    cards: tuple[tuple[str, model.CardReport], ...]


@dataclass(frozen=True)
class HudPage:
    """The page. A list shows `listed` items in full and counts the rest, or has no more than its names.

    `rows` are in the order of triggers, `latest` the newest of each. `builds` are shown in full, `earlier` ones in brief.
    `torch` has the variants of the first row by the version and commit of their PyTorch. `trend` is an SVG of the shares of
    the variant whose `coverage` is first.
    """

    project: str
    generated_at: datetime
    variants: tuple[str, ...]
    rows: tuple[Row, ...]
    latest: tuple[Row, ...]
    torch: dict[tuple[str, str | None], list[str]]
    builds: tuple[BuildDetail, ...]
    earlier: tuple[BuildDetail, ...]
    flaky: tuple[FlakyTest, ...]
    flaky_window_days: int
    tests_seen: int
    listed: int
    coverage: tuple[Coverage, ...] = ()
    trend: str = ""


def build_state(record: BuildRecord, now: datetime, tests: BuildTests | None = None) -> State:
    """Find the state of a build. It passes only if every expected test has a verdict, at least one ran, and none is bad.

    `tests` name the reason why a build stopped in its smoke stage.
    """
    if LEDGER in record.unreadable:
        return State("unreadable", "ledger unreadable", "the manifest is broken")
    if (ledger := record.ledger) is None:
        return _unfinished_state(record, now, find_stop(record, tests.verdicts if tests else ()))
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    detail = _joined(*beside_the_ledger(record.activity), _in_words(counts, ("passed", "skipped", "xfailed", "xpassed")))
    bad = shortcomings(ledger)
    if ledger.informative and not bad:
        return State("passed", f"{number(counts['passed'] + counts['xpassed'])} of {number(ledger.expected)} pass", detail)
    if (counts["failed"] > len(ledger.muted) or ledger.unexpected_failures) and not ledger.informative:
        return State("failed", bad[0], _joined(*bad[1:], _in_words(counts, ("flaky",)), detail))
    if bad:
        return State("incomplete", _joined(*bad), _joined(_in_words(counts, ("flaky",)), detail))
    if counts["flaky"] or ledger.muted:
        muted = f"{number(len(ledger.muted))} failed in quarantine" if ledger.muted else ""
        return State("flaky", _joined(_in_words(counts, ("flaky",)), muted), detail)
    return State("passed", "all passed" if counts["passed"] == ledger.expected else "none failed", detail)


def latest_builds(revisions: Sequence[RevisionRecord]) -> tuple[BuildRecord, ...]:
    """The builds to show in full, nightlies first.

    They are the newest of each trigger and variant, and its newest finished one if that is another.
    """
    chosen: list[BuildRecord] = []
    for trigger in (*TRIGGERS, None):
        of_trigger = [revision for revision in revisions if revision.trigger == trigger]
        for variant in _variants(of_trigger):
            newest, *older = _of_variant(of_trigger, variant)
            finished = [record for record in older if record.ledger is not None]
            chosen += [newest] if newest.ledger is not None else [newest, *finished[:1]]
    return tuple(chosen)


def make_page(
    project: str,
    revisions: Sequence[RevisionRecord],
    tests: Mapping[Build, BuildTests],
    flakiness: Flakiness,
    coverage: CoverageReport | None = None,
    stages: Sequence[RampStage] = (),
    *,
    now: datetime,
    listed: int = 50,
) -> HudPage:
    """The page of a project.

    `revisions` come newest first. `tests` holds those of the builds with bad tests and of `latest_builds`; a build with a
    ledger that should be in it and is not has lost its attempts. `stages` are those of the ramp.
    """
    now = in_utc(now)
    covered = coverage.latest if coverage else ()
    ordered = [one for trigger in (*TRIGGERS, None) for one in revisions if one.trigger == trigger]
    variants = _variants(ordered)
    rows = tuple(_row(revision, variants, tests, now) for revision in ordered)
    detailed = latest_builds(ordered)
    full = {record.build for record in detailed}
    newest = {(one.trigger, record.build.variant): record.build for one in reversed(ordered) for record in one.builds}
    triggers = {record.build: one.trigger for one in ordered for record in one.builds}

    def detail(record: BuildRecord) -> BuildDetail:
        trigger = triggers[record.build]
        latest = newest[trigger, record.build.variant] == record.build
        return _detail(record, trigger, latest, tests.get(record.build), now)

    return HudPage(
        project=project,
        generated_at=now,
        variants=variants,
        rows=rows,
        latest=tuple({row.trigger: row for row in reversed(rows)}.values())[::-1],
        torch=_torch_seen(ordered[0].builds) if ordered else {},
        builds=tuple(map(detail, detailed)),
        earlier=tuple(detail(record) for one in ordered for record in one.builds if record.build not in full),
        flaky=flakiness.flaky,
        flaky_window_days=flakiness.window_days,
        tests_seen=flakiness.tests,
        listed=listed,
        coverage=covered,
        trend=draw_trend(coverage.of_variant(covered[0].build.variant), stages) if coverage and covered else "",
    )


def verdict_bar(counts: Mapping[Verdict, int]) -> Bar:
    """The verdicts as parts of a bar; a single bad test among thousands stays wide enough to be seen."""
    total = sum(counts.values())
    widths = {v: max(2.0, 100 * counts[v] / total) for v in _WORST_FIRST if counts.get(v, 0) > 0}
    start, bar = 0.0, {}
    for verdict, width in widths.items():
        share = width * 100 / sum(widths.values())
        bar[verdict] = (round(start, 2), round(share, 2))
        start += share
    return bar


def _unfinished_state(record: BuildRecord, now: datetime, stop: Stop) -> State:
    last = next((stage for stage in reversed(STAGES) if stage in record.present), None)
    smoke = number(failed) if (failed := smoke_failures(record.smoke_results)) else ""
    first = f"{stop.faults[0].subject}: {first_line(stop.faults[0].message)}" if stop.faults else ""
    more = f"{number(len(stop.faults) - 1)} more" if len(stop.faults) > 1 else ""
    broken = f"{', '.join(record.unreadable)} unreadable" if record.unreadable else ""
    after = "" if stop.by_itself else f"after {last}" if last else "no manifest yet"
    changed = in_utc(record.changed_at) if record.changed_at else None
    running = changed is not None and now - changed < RECENT and not stop.by_itself
    words = "; ".join(dict.fromkeys(record.activity.values()))
    words = words or f"{'unfinished' if running else 'stopped'} at {stop.stage}"
    return State(
        "stopped",
        words,
        _joined(f"{smoke} smoke failed" if smoke else "", first, more, broken, after),
        changed,
    )


def _row(revision: RevisionRecord, variants: Iterable[str], tests: Mapping[Build, BuildTests], now: datetime) -> Row:
    records = {record.build.variant: record for record in revision.builds}
    cells = []
    for variant in variants:
        record, build = records.get(variant), Build(revision.key, variant)
        state = build_state(record, now, tests.get(build)) if record else State("absent", "no build")
        bar = verdict_bar(record.ledger.counts) if record and record.ledger else {}
        cells.append(Cell(build, state, build_anchor(build) if record else None, bar))
    return Row(revision.trigger, revision.key, revision.seen_at, revision.revision, tuple(cells))


def _detail(
    record: BuildRecord, trigger: Trigger | None, latest: bool, tests: BuildTests | None, now: datetime
) -> BuildDetail:
    found = tests or BuildTests(())
    own = sorted(found.verdicts, key=lambda v: (v.suite, v.test))
    new = found.newly_failing or frozenset()
    failed = sorted((v for v in own if v.verdict == "failed"), key=lambda v: (v.suite, v.test) not in new)
    bad: dict[Verdict, list[TestVerdict]] = {
        "failed": failed,
        "infra": [v for v in own if v.verdict == "infra"],
        "not_run": [v for v in own if v.verdict == "not_run"],
    }
    slowest = sorted((v for v in own if v.duration_s), key=lambda v: -(v.duration_s or 0))
    return BuildDetail(
        record=record,
        anchor=build_anchor(record.build),
        trigger=trigger,
        state=build_state(record, now, tests),
        stop=None if LEDGER in record.present else find_stop(record, found.verdicts),
        latest=latest,
        bar=verdict_bar(record.ledger.counts) if record.ledger else {},
        verdicts_known=tests is not None,
        compared_with=found.compared_with if found.newly_failing is not None else None,
        new_failures=sum((v.suite, v.test) in new for v in failed),
        newly_failing=new,
        failed=tuple(failed),
        infra=tuple(bad["infra"]),
        not_run=tuple(bad["not_run"]),
        groups={verdict: group_tests(of_verdict, new) for verdict, of_verdict in bad.items()},
        slowest=tuple(slowest[:SLOWEST]),
        cards=_cards(record),
    )


def _cards(record: BuildRecord) -> tuple[tuple[str, model.CardReport], ...]:
    stages = {"smoke": record.smoke_results, "device": record.device_test_results}
    cards = [(stage, card) for stage, results in stages.items() if results for card in results.cards]
    return tuple(sorted(cards, key=lambda pair: (pair[1].healthy, pair[0], pair[1].card)))


def _torch_seen(builds: Iterable[BuildRecord]) -> dict[tuple[str, str | None], list[str]]:
    variants: dict[tuple[str, str | None], list[str]] = {}
    for record in builds:
        if image := record.runtime_image:
            variants.setdefault((image.torch_version, image.torch_sha), []).append(record.build.variant)
    return variants


def _variants(revisions: Iterable[RevisionRecord]) -> tuple[str, ...]:
    return tuple(sorted({record.build.variant for revision in revisions for record in revision.builds}))


def _of_variant(revisions: Iterable[RevisionRecord], variant: str) -> list[BuildRecord]:
    return [record for revision in revisions for record in revision.builds if record.build.variant == variant]


def _in_words(counts: Mapping[Verdict, int], verdicts: Iterable[Verdict]) -> str:
    return _joined(*(f"{number(counts[v])} {v.replace('_', ' ')}" for v in verdicts if counts[v]))


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
