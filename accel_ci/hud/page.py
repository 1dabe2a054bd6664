"""The HUD's page as frozen dataclasses, and the pure function that makes it.

All decisions are made here: which builds are green, which are shown in full, and what their lists have. No file is read here
(`gather.py`), and no string is formatted for HTML (`text.py`, `render.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from accel_ci import model
from accel_ci.hud.text import duration, in_utc, number
from accel_ci.ledger.status import beside_the_ledger, shortcomings
from accel_ci.model import FAILING_OUTCOMES, VERDICTS, Build, Ledger, Revision, TestVerdict, Verdict
from accel_ci.pipelines import LEDGER, STAGES, next_stage
from accel_ci.quality.flakiness import Flakiness, FlakyTest

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
class BuildRecord:
    """The manifests of one build; one that is missing or unreadable is None.

    `begun` are the first stages of the pipelines that have begun, `activity` what those do that have not reported.
    """

    build: Build
    present: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    changed_at: datetime | None = None
    begun: tuple[str, ...] = ()
    activity: Mapping[str, str] = field(default_factory=dict)
    wheel: model.Wheel | None = None
    runtime_image: model.RuntimeImage | None = None
    smoke_results: model.DeviceTestResults | None = None
    test_selection: model.TestSelection | None = None
    device_test_results: model.DeviceTestResults | None = None
    source_build: model.SourceBuild | None = None
    bazel_test_results: model.BazelTestResults | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True)
class RevisionRecord:
    """The manifests of one revision. `revision` is None when its manifest is missing or unreadable."""

    key: str
    seen_at: datetime
    revision: Revision | None
    builds: tuple[BuildRecord, ...]


@dataclass(frozen=True)
class BuildTests:
    """The tests of a build that its section lists: those with a bad verdict, and the slowest.

    `newly_failing` are (suite, test) of those that failed and did not in the finished build before; None without one.
    """

    verdicts: tuple[TestVerdict, ...]
    newly_failing: frozenset[tuple[str, str]] | None


@dataclass(frozen=True)
class State:
    """The state of a build, with a short text for people."""

    kind: Kind
    words: str
    detail: str = ""


@dataclass(frozen=True)
class Cell:
    """One build in the grid; `anchor` names its section when it is shown in full."""

    build: Build
    state: State
    anchor: str | None
    bar: Bar


@dataclass(frozen=True)
class Row:
    """One revision in the grid."""

    key: str
    seen_at: datetime
    revision: Revision | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class BuildDetail:
    """One build in full. `compared_with` is the revision that tells new failures from known ones.

    `newly_failing` are (suite, test), `cards` (stage, card).
    """

    record: BuildRecord
    anchor: str
    state: State
    latest: bool
    bar: Bar
    ratio: float | None
    verdicts_known: bool
    compared_with: str | None
    new_failures: int
    newly_failing: frozenset[tuple[str, str]]
    failed: tuple[TestVerdict, ...]
    infra: tuple[TestVerdict, ...]
    not_run: tuple[TestVerdict, ...]
    slowest: tuple[TestVerdict, ...]
    cards: tuple[tuple[str, model.CardReport], ...]


@dataclass(frozen=True)
class HudPage:
    """The page. A list shows `listed` items and counts the rest.

    `torch` has the variants of the latest revision by the version and commit of their PyTorch.
    """

    project: str
    generated_at: datetime
    variants: tuple[str, ...]
    rows: tuple[Row, ...]
    torch: dict[tuple[str, str | None], list[str]]
    builds: tuple[BuildDetail, ...]
    flaky: tuple[FlakyTest, ...]
    flaky_window_days: int
    tests_seen: int
    listed: int


def build_state(record: BuildRecord, now: datetime) -> State:
    """Find the state of a build. It passes only if every expected test has a verdict, at least one ran, and none is bad."""
    if LEDGER in record.unreadable:
        return State("unreadable", "ledger unreadable", "the manifest is broken")
    if (ledger := record.ledger) is None:
        return _unfinished_state(record, now)
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    detail = _joined(*beside_the_ledger(record.activity), _in_words(counts, ("passed", "skipped", "xfailed", "xpassed")))
    bad = shortcomings(ledger)
    if counts["failed"] or ledger.unexpected_failures:
        return State("failed", bad[0], _joined(*bad[1:], _in_words(counts, ("flaky",)), detail))
    if bad:
        return State("incomplete", _joined(*bad), _joined(_in_words(counts, ("flaky",)), detail))
    if counts["flaky"]:
        return State("flaky", f"{number(counts['flaky'])} flaky", detail)
    return State("passed", "all passed" if counts["passed"] == ledger.expected else "none failed", detail)


def latest_builds(revisions: Sequence[RevisionRecord]) -> tuple[BuildRecord, ...]:
    """The builds to show in full: the newest of each variant, and its newest finished one if that is another."""
    chosen: list[BuildRecord] = []
    for variant in _variants(revisions):
        newest, *older = _of_variant(revisions, variant)
        finished = [record for record in older if record.ledger is not None]
        chosen += [newest] if newest.ledger is not None else [newest, *finished[:1]]
    return tuple(chosen)


def finished_before(revisions: Sequence[RevisionRecord], build: Build) -> BuildRecord | None:
    """The newest finished build of the same variant before `build`."""
    records = _of_variant(revisions, build.variant)
    older = records[[record.build for record in records].index(build) + 1 :]
    return next((record for record in older if record.ledger is not None), None)


def make_page(
    project: str,
    revisions: Sequence[RevisionRecord],
    tests: Mapping[Build, BuildTests],
    flakiness: Flakiness,
    *,
    now: datetime,
    listed: int = 50,
) -> HudPage:
    """The page of a project.

    `revisions` come newest first. `tests` holds those of `latest_builds`; a build with a ledger that is not in it has lost
    its attempts.
    """
    now = in_utc(now)
    detailed, variants = latest_builds(revisions), _variants(revisions)
    anchors = {record.build: _anchor(record.build) for record in detailed}
    return HudPage(
        project=project,
        generated_at=now,
        variants=variants,
        rows=tuple(_row(revision, variants, anchors, now) for revision in revisions),
        torch=_torch_seen(revisions[0].builds) if revisions else {},
        builds=tuple(_detail(record, revisions, tests.get(record.build), now) for record in detailed),
        flaky=flakiness.flaky,
        flaky_window_days=flakiness.window_days,
        tests_seen=flakiness.tests,
        listed=listed,
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


def _unfinished_state(record: BuildRecord, now: datetime) -> State:
    missing = next_stage(record.present, record.begun)
    last = next((stage for stage in reversed(STAGES) if stage in record.present), None)
    smoke = record.smoke_results
    failed = sum(smoke.counts.get(outcome, 0) for outcome in sorted(FAILING_OUTCOMES)) if smoke else 0
    reason = f"{number(failed)} smoke failed" if failed else ""
    broken = f"{', '.join(record.unreadable)} unreadable" if record.unreadable else ""
    age = now - in_utc(record.changed_at) if record.changed_at else None
    since = f", {duration(max(0.0, age.total_seconds()))} ago" if age is not None else ""
    running = age is not None and age < RECENT and not failed
    words = "; ".join(dict.fromkeys(record.activity.values())) or f"{'unfinished' if running else 'stopped'} at {missing}"
    return State(
        "stopped",
        words,
        _joined(reason, broken, f"{f'after {last}' if last else 'no manifest yet'}{since}"),
    )


def _row(revision: RevisionRecord, variants: Iterable[str], anchors: Mapping[Build, str], now: datetime) -> Row:
    records = {record.build.variant: record for record in revision.builds}
    cells = []
    for variant in variants:
        record, build = records.get(variant), Build(revision.key, variant)
        state = build_state(record, now) if record else State("absent", "no build")
        bar = verdict_bar(record.ledger.counts) if record and record.ledger else {}
        cells.append(Cell(build, state, anchors.get(build), bar))
    return Row(revision.key, revision.seen_at, revision.revision, tuple(cells))


def _detail(
    record: BuildRecord, revisions: Sequence[RevisionRecord], tests: BuildTests | None, now: datetime
) -> BuildDetail:
    before = finished_before(revisions, record.build)
    found = tests or BuildTests((), None)
    own = sorted(found.verdicts, key=lambda v: (v.suite, v.test))
    new = found.newly_failing or frozenset()
    failed = sorted((v for v in own if v.verdict == "failed"), key=lambda v: (v.suite, v.test) not in new)
    slowest = sorted((v for v in own if v.duration_s), key=lambda v: -(v.duration_s or 0))
    timed = record.ledger or record.device_test_results
    return BuildDetail(
        record=record,
        anchor=_anchor(record.build),
        state=build_state(record, now),
        latest=record is _of_variant(revisions, record.build.variant)[0],
        bar=verdict_bar(record.ledger.counts) if record.ledger else {},
        ratio=timed.makespan_s / timed.lower_bound_s if timed and timed.lower_bound_s > 0 else None,
        verdicts_known=tests is not None,
        compared_with=before.build.revision if before and found.newly_failing is not None else None,
        new_failures=sum((v.suite, v.test) in new for v in failed),
        newly_failing=new,
        failed=tuple(failed),
        infra=tuple(v for v in own if v.verdict == "infra"),
        not_run=tuple(v for v in own if v.verdict == "not_run"),
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


def _anchor(build: Build) -> str:
    return "build-" + re.sub(r"[^A-Za-z0-9._~-]", "-", build.name)


def _in_words(counts: Mapping[Verdict, int], verdicts: Iterable[Verdict]) -> str:
    return _joined(*(f"{number(counts[v])} {v.replace('_', ' ')}" for v in verdicts if counts[v]))


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
