"""What is green and what is not, and what the page lists."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from accel_ci.hud.page import (
    BuildRecord,
    BuildTests,
    RevisionRecord,
    State,
    build_state,
    latest_builds,
    make_page,
    verdict_bar,
)
from accel_ci.hud.render import render_hud
from accel_ci.model import Build, Ledger, Verdict
from accel_ci.pipelines import STAGES
from accel_ci.quality.flakiness import Flakiness
from accel_ci_tests.hud.samples import GREEN, NOW, VARIANTS, flakiness, ledger, results, verdicts


def record(account: Ledger | None, day: int = 27, variant: str = VARIANTS[0], **changes: Any) -> BuildRecord:
    present = STAGES if account else STAGES[:3]
    return replace(BuildRecord(Build(f"nightly-202611{day}", variant), present, changed_at=NOW, ledger=account), **changes)


def revision(day: int, *builds: BuildRecord) -> RevisionRecord:
    return RevisionRecord(f"nightly-202611{day}", NOW - timedelta(days=27 - day), None, builds)


@pytest.mark.parametrize(
    ("counts", "expected", "kind", "words"),
    [
        ({"passed": 700}, None, "passed", "all passed"),
        ({"passed": 690, "skipped": 10}, None, "passed", "none failed"),
        ({"passed": 1, "xfailed": 1, "xpassed": 1}, None, "passed", "none failed"),
        ({"passed": 697, "flaky": 3}, None, "flaky", "3 flaky"),
        ({"passed": 1687, "failed": 1012, "flaky": 3}, None, "failed", "1,012 failed"),
        ({"failed": 1, "infra": 2, "not_run": 3}, None, "failed", "1 failed"),
        ({"passed": 9, "infra": 1}, None, "incomplete", "1 infra"),
        ({"passed": 9, "not_run": 1}, None, "incomplete", "1 not run"),
        ({"passed": 9, "infra": 1, "not_run": 2}, None, "incomplete", "1 infra · 2 not run"),
        ({"not_run": 700}, None, "incomplete", "700 not run"),
        ({"skipped": 700}, None, "incomplete", "all skipped"),
        ({}, None, "incomplete", "no tests"),
        ({"passed": 5}, 0, "incomplete", "no tests"),
        ({"passed": 699}, 700, "incomplete", "does not balance"),
        ({"passed": 701}, 700, "incomplete", "does not balance"),
    ],
)
def test_the_state_of_a_build_with_a_ledger(counts: dict[Verdict, int], expected: int | None, kind: str, words: str) -> None:
    state = build_state(record(ledger(counts, expected)), NOW)
    assert (state.kind, state.words) == (kind, words)


def test_a_ledger_with_a_missing_suite_is_not_green() -> None:
    state = build_state(record(ledger({"passed": 7}, missing_suites=("integration", "pytorch"))), NOW)
    assert (state.kind, state.words) == ("incomplete", "no results from integration, pytorch")


def test_a_failure_that_belongs_to_no_expected_test_is_not_green() -> None:
    account = ledger({"passed": 7}, unexpected=("unit: (session)",), unexpected_failures=("unit: (session)",))
    state = build_state(record(account), NOW)
    assert (state.kind, state.words) == ("failed", "failed beside the expected tests: unit: (session)")


def test_a_ledger_that_lacks_verdicts_it_should_count_is_judged_by_what_it_has() -> None:
    assert build_state(record(replace(ledger({}), expected=3, counts={"passed": 3})), NOW).kind == "passed"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"changed_at": NOW - timedelta(hours=1)},
         State("stopped", "unfinished at test_selection", "after smoke_results, 1 h 00 m ago")),
        ({"changed_at": NOW - timedelta(hours=30)},
         State("stopped", "stopped at test_selection", "after smoke_results, 1 d 06 h ago")),
        ({"changed_at": None}, State("stopped", "stopped at test_selection", "after smoke_results")),
        ({"present": (), "changed_at": None}, State("stopped", "stopped at wheel", "no manifest yet")),
        ({"present": STAGES[:6], "changed_at": None}, State("stopped", "stopped at ledger", "after device_test_results")),
        ({"smoke_results": results((), 1.0, failed=2)},
         State("stopped", "stopped at test_selection", "2 smoke failed · after smoke_results, 0 ms ago")),
        ({"unreadable": ("smoke_results",), "changed_at": None},
         State("stopped", "stopped at test_selection", "smoke_results unreadable · after smoke_results")),
        ({"present": STAGES, "unreadable": ("ledger",)}, State("unreadable", "ledger unreadable", "the manifest is broken")),
    ],
)  # fmt: skip
def test_the_state_of_a_build_without_a_ledger(changes: dict[str, Any], state: State) -> None:
    found = build_state(record(None, **changes), NOW)
    assert found == state
    assert found.kind not in GREEN


def test_the_newest_build_of_each_variant_is_shown_in_full_and_the_last_finished_one_besides() -> None:
    good = ledger({"passed": 3})
    running, finished, other = record(None), record(good, 26), record(good, 26, VARIANTS[1])
    revisions = (revision(27, running), revision(26, finished, other), revision(25, record(good, 25)))
    assert latest_builds(revisions) == (running, finished, other)
    page = make_page("emu", revisions, {}, Flakiness(30, 0, ()), now=NOW)
    assert [(detail.record.build.name, detail.latest) for detail in page.builds] == [
        ("nightly-20261127~py311-torch2.13-emu", True),
        ("nightly-20261126~py311-torch2.13-emu", False),
        ("nightly-20261126~py312-torchmain-emu", True),
    ]
    assert [[cell.state.kind for cell in row.cells] for row in page.rows] == [
        ["stopped", "absent"], ["passed", "passed"], ["passed", "absent"],
    ]  # fmt: skip
    linked = [cell.anchor for row in page.rows for cell in row.cells if cell.anchor]
    assert linked == [detail.anchor for detail in page.builds]
    assert not any(detail.verdicts_known for detail in page.builds)


def test_new_failures_come_first_and_long_lists_are_counted() -> None:
    counts: dict[Verdict, int] = {"failed": 60, "passed": 40, "infra": 3}
    now, before = record(ledger(counts)), record(ledger({"failed": 20}), 25)
    new = frozenset((verdict.suite, verdict.test) for verdict in verdicts({"failed": 60})[20:])
    page = make_page(
        "emu",
        (revision(27, now), revision(26, record(None, 26)), revision(25, before)),
        {now.build: BuildTests(tuple(verdicts(counts)), new)},
        flakiness(),
        now=NOW,
        listed=45,
    )
    detail = page.builds[0]
    assert (detail.new_failures, detail.compared_with) == (40, "nightly-20261125")
    assert [(v.suite, v.test) in detail.newly_failing for v in detail.failed] == [True] * 40 + [False] * 20
    assert (len(detail.failed), len(detail.infra)) == (60, 3)
    html = render_hud(page)
    assert (html.count('<span class="badge">new</span>'), html.count('<details class="item"')) == (
        40,
        45 + 3 + len(page.flaky),
    )
    assert re.findall('<p class="more">(.*)</p>', html) == ["15 more"]
    slow = [verdict.duration_s or 0 for verdict in detail.slowest]
    assert len(slow) == 20
    assert slow == sorted(slow, reverse=True)
    assert detail.ratio == pytest.approx(342.0 / 301.5)


def test_nothing_is_new_when_there_is_nothing_to_compare_with() -> None:
    counts: dict[Verdict, int] = {"failed": 2}
    now = record(ledger(counts))
    detail = make_page(
        "emu", (revision(27, now),), {now.build: BuildTests(tuple(verdicts(counts)), None)}, flakiness(), now=NOW
    ).builds[0]
    assert (detail.new_failures, detail.compared_with) == (0, None)


def test_one_failure_among_thousands_is_seen_in_the_bar() -> None:
    bar = verdict_bar({"passed": 30_000, "failed": 1})
    assert list(bar) == ["failed", "passed"]
    assert bar["failed"][1] > 1.5
    assert bar["passed"][0] == bar["failed"][1]
    assert sum(width for _, width in bar.values()) == pytest.approx(100, abs=0.05)
    assert verdict_bar({"passed": 0}) == {}
