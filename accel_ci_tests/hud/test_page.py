"""What is green and what is not, and what the page lists."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from accel_ci.hud.page import (
    State,
    build_state,
    latest_builds,
    make_page,
    verdict_bar,
)
from accel_ci.hud.records import BuildRecord, BuildTests, RevisionRecord
from accel_ci.hud.render import render_hud
from accel_ci.hud.stops import find_stop
from accel_ci.hud.text import one_line
from accel_ci.model import Artifact, Build, CheckResult, Ledger, TestVerdict, Verdict, Wheel
from accel_ci.pipelines import STAGES
from accel_ci.quality.flakiness import Flakiness
from accel_ci_tests.hud.samples import GREEN, NOW, VARIANTS, flakiness, ledger, results, verdicts


def record(account: Ledger | None, day: int = 27, variant: str = VARIANTS[0], **changes: Any) -> BuildRecord:
    present = STAGES if account else STAGES[:3]
    return replace(BuildRecord(Build(f"nightly-202611{day}", variant), present, changed_at=NOW, ledger=account), **changes)


def wheel(*checks: CheckResult) -> Wheel:
    nothing = Artifact("0" * 64, "none.whl", 2)
    return Wheel("torch_emu", "1.0", nothing, nothing, checks, False, 1.0)


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


@pytest.mark.parametrize(
    ("counts", "muted", "kind", "words"),
    [
        ({"passed": 5, "failed": 2}, 2, "flaky", "2 failed in quarantine"),
        ({"passed": 5, "failed": 2, "flaky": 1}, 2, "flaky", "1 flaky · 2 failed in quarantine"),
        ({"passed": 5, "failed": 3}, 2, "failed", "1 failed"),
    ],
)
def test_failures_that_are_muted_make_no_build_red(counts: dict[Verdict, int], muted: int, kind: str, words: str) -> None:
    account = ledger(counts, muted=tuple(f"unit: test_{number}" for number in range(muted)))
    state = build_state(record(account), NOW)
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
         State("stopped", "unfinished at test_selection", "after smoke_results", NOW - timedelta(hours=1))),
        ({"changed_at": NOW - timedelta(hours=30)},
         State("stopped", "stopped at test_selection", "after smoke_results", NOW - timedelta(hours=30))),
        ({"changed_at": None}, State("stopped", "stopped at test_selection", "after smoke_results")),
        ({"present": (), "changed_at": None}, State("stopped", "stopped at wheel", "no manifest yet")),
        ({"present": STAGES[:6], "changed_at": None}, State("stopped", "stopped at ledger", "after device_test_results")),
        ({"smoke_results": results((), 1.0, failed=2)},
         State("stopped", "stopped at smoke_results",
               "2 smoke failed · smoke_results: 2 smoke attempts failed; their tests are unreadable", NOW)),
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
    assert [detail.record.build.name for detail in page.earlier] == ["nightly-20261125~py311-torch2.13-emu"]
    linked = [cell.anchor for row in page.rows for cell in row.cells if cell.anchor]
    assert linked == [detail.anchor for detail in (*page.builds, *page.earlier)]
    assert set(linked) <= set(re.findall('<section id="([^"]*)"', render_hud(page)))
    assert not any(detail.verdicts_known for detail in page.builds)


def test_new_failures_come_first_and_every_test_is_on_the_page() -> None:
    counts: dict[Verdict, int] = {"failed": 60, "passed": 40, "infra": 3}
    now = record(ledger(counts))
    found = tuple(verdicts(counts))
    new = frozenset((verdict.suite, verdict.test) for verdict in found[20:60])
    page = make_page(
        "emu",
        (revision(27, now), revision(26, record(None, 26))),
        {now.build: BuildTests(found, new, "nightly-20261125")},
        flakiness(),
        now=NOW,
        listed=5,
    )
    detail = page.builds[0]
    assert (detail.new_failures, detail.compared_with) == (40, "nightly-20261125")
    assert [(v.suite, v.test) in detail.newly_failing for v in detail.failed] == [True] * 40 + [False] * 20
    assert (len(detail.failed), len(detail.infra)) == (60, 3)
    html = render_hud(page)
    assert html.count('<span class="badge">new</span>') == 40
    shown = {unescape(re.sub("<[^>]*>", "", name)) for name in re.findall('<code class="test">(.*?)</code>', html)}
    missing = [
        v.test for v in found[:63] if (f"{v.test.partition('::')[0]}::{one_line(v.test.partition('::')[2])}") not in shown
    ]
    assert missing == []
    slow = [verdict.duration_s or 0 for verdict in detail.slowest]
    assert len(slow) == 20
    assert slow == sorted(slow, reverse=True)
    assert re.findall("<td>(.*?)</td>", html.partition("Makespan")[2])[:4] == ["5 m 42 s", "9.2 s", "5 m 02 s", "1.10"]


def test_failures_of_one_cause_are_one_group() -> None:
    counts: dict[Verdict, int] = {"failed": 121}
    now = record(ledger(counts))
    one = [
        TestVerdict(
            "unit", f"test_a.py::test_{n}", "failed", ("failed",), 0.1, ("0",), f"RuntimeError: no kernel at 0x{n:08x}"
        )
        for n in range(120)
    ]
    other = TestVerdict("unit", "test_b.py::test_new", "failed", ("failed",), 0.1, ("0",), "ValueError: another cause")
    tests = BuildTests((*one, other), frozenset({("unit", other.test)}), "nightly-20261126")
    page = make_page("emu", (revision(27, now),), {now.build: tests}, flakiness(), now=NOW)
    assert [(len(group.tests), group.new) for group in page.builds[0].groups["failed"]] == [(1, 1), (120, 0)]
    html = render_hud(page)
    assert html.count('<details class="item group"') == 1
    assert "<b>120 tests</b>" in html
    assert all(f"::</span>test_{n}</code>" in html for n in range(120))


def test_each_trigger_has_its_newest_build_in_full_nightlies_first() -> None:
    bad = ledger({"passed": 30, "failed": 5})
    night = RevisionRecord("nightly-20261127", NOW - timedelta(hours=8), None, (record(bad),))
    before = RevisionRecord("nightly-20261126", NOW - timedelta(hours=32), None, (record(bad, 26),))
    commits = [
        RevisionRecord(
            f"main-{n}",
            NOW - timedelta(hours=n),
            None,
            (BuildRecord(Build(f"main-{n}", VARIANTS[0]), STAGES, ledger=ledger({"passed": 32})),),
        )
        for n in (1, 2)
    ]
    page = make_page("emu", (*commits, night, before), {}, Flakiness(30, 0, ()), now=NOW)
    assert [row.key for row in page.rows] == ["nightly-20261127", "nightly-20261126", "main-1", "main-2"]
    assert [row.key for row in page.latest] == ["nightly-20261127", "main-1"]
    assert [(one.record.build.revision, one.latest) for one in page.builds] == [("nightly-20261127", True), ("main-1", True)]
    assert [one.record.build.revision for one in page.earlier] == ["nightly-20261126", "main-2"]
    html = render_hud(page)
    assert re.findall('<tbody data-trigger="(.*)">', html) == ["nightly", "main"]
    assert re.findall('id="show-([a-z]+)"', html) == ["nightly", "main", "all"]
    assert "Latest</span>" not in html
    assert "Latest nightly" in html
    assert "Latest main" in html


@pytest.mark.parametrize(
    ("changes", "words", "detail"),
    [
        ({"present": STAGES[:1], "wheel": wheel(CheckResult("tags", False, "1 wrong tag", ("cp39 <b> against cp311",)))},
         "stopped at wheel", "tags: 1 wrong tag"),
        ({"present": (), "failures": {"wheel": "the build of torch_emu failed\ngcc: <error>"}},
         "stopped at wheel", "wheel: the build of torch_emu failed"),
        ({"smoke_results": results((), 1.0, failed=2)}, "stopped at smoke_results",
         "2 smoke failed · tests/test_smoke.py::test_a: RuntimeError: no <device> · 1 more"),
    ],
)  # fmt: skip
def test_a_build_that_stopped_names_the_stage_the_reason_and_the_message(
    changes: dict[str, Any], words: str, detail: str
) -> None:
    smoke = [
        TestVerdict(
            "smoke", f"tests/test_smoke.py::test_{name}", "failed", ("failed",), 0.1, ("0",), "RuntimeError: no <device>"
        )
        for name in "ab"
    ]
    stopped = record(None, **changes)
    page = make_page("emu", (revision(27, stopped),), {stopped.build: BuildTests(tuple(smoke))}, flakiness(), now=NOW)
    state = page.rows[0].cells[0].state
    assert (state.kind, state.words, state.detail) == ("stopped", words, detail)
    assert (html := render_hud(page)).count(f"<h4>{words.capitalize()} ") == 1
    for fault in find_stop(stopped, smoke).faults:
        assert fault.message.splitlines()[-1].replace("<", "&lt;").replace(">", "&gt;") in html


def test_a_stage_that_ran_on_after_a_failed_check_is_where_the_build_stopped() -> None:
    faulty = wheel(CheckResult("tags", False, "1 wrong tag"))
    assert find_stop(record(None, present=STAGES[:2], wheel=faulty)).stage == STAGES[2]


@pytest.mark.parametrize(
    ("activity", "words", "faults"),
    [
        ("stopped after smoke_results failed", "stopped after smoke_results failed", 1),
        ("running at wheel", "running at wheel", 0),
        ("running at smoke_results", "running at smoke_results", 0),
        ("stopped at wheel", "stopped at wheel", 0),
    ],
)
def test_faults_of_an_earlier_run_are_not_those_of_the_last(activity: str, words: str, faults: int) -> None:
    again = record(None, present=STAGES[:4], smoke_results=results((), 1.0, failed=1), activity={"integration": activity})
    assert build_state(again, NOW).words == words
    assert len(find_stop(again).faults) == faults


def test_times_are_absolute_and_no_age_is_written_down() -> None:
    html = render_hud(make_page("emu", (revision(27, record(None)),), {}, flakiness(), now=NOW))
    body = html[html.index("</svg>") : html.index("<script>")]
    assert " ago" not in body
    assert f'<time datetime="{NOW.isoformat()}" data-age>2026-11-27 08:30 UTC</time>' in body


def test_nothing_is_new_when_there_is_nothing_to_compare_with() -> None:
    counts: dict[Verdict, int] = {"failed": 2}
    now = record(ledger(counts))
    detail = make_page(
        "emu", (revision(27, now),), {now.build: BuildTests(tuple(verdicts(counts)))}, flakiness(), now=NOW
    ).builds[0]
    assert (detail.new_failures, detail.compared_with) == (0, None)


def test_one_failure_among_thousands_is_seen_in_the_bar() -> None:
    bar = verdict_bar({"passed": 30_000, "failed": 1})
    assert list(bar) == ["failed", "passed"]
    assert bar["failed"][1] > 1.5
    assert bar["passed"][0] == bar["failed"][1]
    assert sum(width for _, width in bar.values()) == pytest.approx(100, abs=0.05)
    assert verdict_bar({"passed": 0}) == {}
