"""The grid of builds: revisions by variants, newest first, with the first page's head. Pure.

A cell tells a build's state in few bytes, so that a page of a thousand cells stays small; what it leaves out is on the
build's own page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from accel_ci.hud.addresses import build_address
from accel_ci.hud.changes import ChangeCounts
from accel_ci.hud.kept import KeptBuild
from accel_ci.hud.states import State
from accel_ci.hud.summary import BuildSummary, RevisionBuilds
from accel_ci.hud.text import number, web_link
from accel_ci.model import TRIGGERS, Build, Revision, Source, Trigger, Verdict
from accel_ci.ramp.coverage import Coverage, CoverageReport

MOST_CELLS = 600
"""The first page has so many cells at most, and at least `LEAST_ROWS` rows of each trigger."""

LEAST_ROWS, MOST_ROWS = 10, 30

SuiteKind = str
"""The state of a suite in a build: `failed`, `incomplete`, `flaky`, `passed`, or `absent`."""


@dataclass(frozen=True)
class SuiteState:
    """The state of a suite in a build, with the number of its bad tests."""

    suite: str
    kind: SuiteKind
    bad: int


@dataclass(frozen=True)
class Cell:
    """One build in the grid. `address` is that of its page, None where it has none.

    `marks` are what else is to be known, by kind: `new` failures, tests that passed when they were `retried`, failures
    of the `infra`, and `muted` ones of the quarantine. `has_changed` is true where the state differs from that of the build
    before.
    """

    build: Build
    state: State
    address: str | None
    marks: Mapping[str, int] = field(default_factory=dict)
    suites: tuple[SuiteState, ...] = ()
    has_changed: bool = False


@dataclass(frozen=True)
class Commits:
    """The step from one commit of a repository to another, with the address of the comparison where there is one."""

    name: str
    before: str
    after: str
    address: str | None


@dataclass(frozen=True)
class Row:
    """One revision in the grid. `commits` are the steps of the sources from the row below."""

    trigger: Trigger | None
    key: str
    seen_at: datetime
    revision: Revision | None
    cells: tuple[Cell, ...]
    commits: tuple[Commits, ...] = ()

    @property
    def steps(self) -> dict[str, Commits]:
        """The steps of the sources by their names."""
        return {step.name: step for step in self.commits}

    @property
    def has_changed(self) -> bool:
        """Return whether some build's state differs from that of the one before."""
        return any(cell.has_changed for cell in self.cells)


@dataclass(frozen=True)
class GridPage:
    """The first page. `rows` are in the order of triggers, `latest` the newest of each.

    `counts` are the numbers of revisions by trigger, shown or not. `torch` has the variants of the first row by the version
    and commit of their PyTorch. `changes` are those of the builds of `latest`.
    """

    project: str
    generated_at: datetime
    variants: tuple[str, ...]
    rows: tuple[Row, ...]
    latest: tuple[Row, ...]
    counts: Mapping[Trigger | None, int]
    torch: Mapping[tuple[str, str | None], Sequence[str]]
    changes: Mapping[str, ChangeCounts]
    coverage: tuple[Coverage, ...] = ()

    @cached_property
    def suites(self) -> dict[str, tuple[str, ...]]:
        """The suites of each variant."""
        found: dict[str, dict[str, None]] = {variant: {} for variant in self.variants}
        for row in self.rows:
            for cell in row.cells:
                found[cell.build.variant] |= dict.fromkeys(one.suite for one in cell.suites)
        return {variant: tuple(sorted(suites)) for variant, suites in found.items()}


def in_order(revisions: Iterable[RevisionBuilds]) -> list[RevisionBuilds]:
    """Order revisions by trigger, newest first."""
    known = list(revisions)
    return [one for trigger in (*TRIGGERS, None) for one in known if one.trigger == trigger]


def make_grid(
    project: str,
    revisions: Sequence[RevisionBuilds],
    kept: Mapping[str, KeptBuild],
    coverage: CoverageReport | None = None,
    *,
    now: datetime,
    triggers: Collection[Trigger | None] | None = None,
    rows: int | None = None,
) -> GridPage:
    """Make the grid of some triggers, by default of all.

    `revisions` come newest first, and `kept` has what is known of builds that have a page. Each trigger has `rows` rows, by
    default as many as keep the page small.
    """
    ordered = [one for one in in_order(revisions) if triggers is None or one.trigger in triggers]
    by_trigger: dict[Trigger | None, list[RevisionBuilds]] = {}
    for one in ordered:
        by_trigger.setdefault(one.trigger, []).append(one)
    variants = tuple(sorted({summary.build.variant for one in ordered for summary in one.builds}))
    cells = max(1, len(by_trigger) * len(variants))
    rows = rows or max(LEAST_ROWS, min(MOST_ROWS, MOST_CELLS // cells))
    made = tuple(row for of_one in by_trigger.values() for row in _rows(of_one, variants, kept, rows))
    latest = tuple({row.trigger: row for row in reversed(made)}.values())[::-1]
    names = [cell.build.name for row in latest for cell in row.cells]
    return GridPage(
        project=project,
        generated_at=now,
        variants=variants,
        rows=made,
        latest=latest,
        counts={trigger: len(of_one) for trigger, of_one in by_trigger.items()},
        torch=_torch_seen(ordered[0].builds) if ordered else {},
        changes={name: known.changes for name in names if (known := kept.get(name)) and known.changes},
        coverage=coverage.latest if coverage else (),
    )


def _rows(
    revisions: Sequence[RevisionBuilds], variants: Sequence[str], kept: Mapping[str, KeptBuild], count: int
) -> list[Row]:
    last: dict[str, tuple[str, str]] = {}
    found: list[Row] = []
    for place, one in reversed(list(enumerate(revisions))):
        summaries = {summary.build.variant: summary for summary in one.builds}
        cells = []
        for variant in variants:
            summary = summaries.get(variant)
            if summary is None:
                cells.append(Cell(Build(one.key, variant), State("absent", "no build"), None))
                continue
            now = summary.state.kind, summary.state.words
            known = kept.get(summary.build.name)
            cells.append(_cell(summary, known, has_changed=last.get(variant, now) != now))
            last[variant] = now
        before = revisions[place + 1] if place + 1 < len(revisions) else None
        commits = _commits(one.revision, before.revision if before else None)
        found.append(Row(one.trigger, one.key, one.seen_at, one.revision, tuple(cells), commits))
    return found[::-1][:count]


def _cell(summary: BuildSummary, known: KeptBuild | None, *, has_changed: bool) -> Cell:
    changes = known.changes if known else None
    marks = {
        "new": changes.new + changes.returned if changes else 0,
        "retried": summary.counts.get("flaky", 0),
        "infra": summary.infra_attempts,
        "muted": summary.muted,
    }
    return Cell(
        summary.build,
        summary.state,
        build_address(summary.build) if known and known.page else None,
        {name: count for name, count in marks.items() if count},
        tuple(_suite_state(suite, counts) for suite, counts in summary.suites.items()),
        has_changed,
    )


def _suite_state(suite: str, counts: Mapping[Verdict, int]) -> SuiteState:
    failed, lost = counts.get("failed", 0), counts.get("infra", 0) + counts.get("not_run", 0)
    kind = "failed" if failed else "incomplete" if lost else "flaky" if counts.get("flaky") else "passed"
    return SuiteState(suite, kind if sum(counts.values()) else "absent", failed + lost)


def _commits(after: Revision | None, before: Revision | None) -> tuple[Commits, ...]:
    """The sources whose commit changed from one revision to the next."""
    if after is None or before is None:
        return ()
    pairs = (("backend", before.backend, after.backend), ("upstream", before.upstream, after.upstream))
    return tuple(
        Commits(name, old.sha[:9], new.sha[:9], _comparison(old, new))
        for name, old, new in pairs
        if old.sha and new.sha and old.sha != new.sha
    )


def _comparison(before: Source, after: Source) -> str | None:
    """The address of the comparison of two commits, as GitHub, GitLab and Gitea have it."""
    url = web_link(after.repository)
    if url is None or before.repository != after.repository:
        return None
    return f"{url.removesuffix('/').removesuffix('.git')}/compare/{before.sha}...{after.sha}"


def _torch_seen(builds: Iterable[BuildSummary]) -> dict[tuple[str, str | None], list[str]]:
    variants: dict[tuple[str, str | None], list[str]] = {}
    for summary in builds:
        if summary.torch is not None:
            variants.setdefault(summary.torch, []).append(summary.build.variant)
    return variants


def words_of(marks: Mapping[str, int]) -> str:
    """The marks of a cell in words."""
    names = {"new": "new", "retried": "passed when retried", "infra": "infra attempts", "muted": "in quarantine"}
    return ", ".join(f"{number(count)} {names[kind]}" for kind, count in marks.items())
