"""The tests that a sweep runs, and that its failures make no build red."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timezone

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import SelectionError
from accel_ci.hud.records import BuildRecord
from accel_ci.hud.states import build_state
from accel_ci.ledger.status import shortcomings
from accel_ci.model import Ledger, TestSelection
from accel_ci.pipelines import LEDGER, TEST_SELECTION
from accel_ci.ramp.current import sweep_selection
from accel_ci.ramp.sweep import choose_sweep
from accel_ci.scope.selection import read_selection
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.scoped_builds import op_rows, ramp_sections, write_build
from accel_ci_tests.ramp.ramp_tests import names, ramp_test


def test_what_never_ran_comes_first_then_what_ran_longest_ago_then_the_cheapest() -> None:
    first, second = date(2026, 11, 1), date(2026, 11, 8)
    tests = [
        ramp_test("on", enabled=True),
        ramp_test("late", last_day=second, cost_s=0.1),
        ramp_test("dear", cost_s=3),
        ramp_test("cheap", cost_s=2),
        ramp_test("early", last_day=first, doubtful=True),
        ramp_test("huge", cost_s=99),
    ]
    assert [names(choose_sweep(tests, card_s)) for card_s in (2, 5, 6, 7)] == [
        ["cheap"],
        ["cheap", "dear"],
        ["cheap", "dear", "early"],
        ["cheap", "dear", "early", "late"],
    ]


def test_a_selection_is_what_a_budget_is_enough_for(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(**ramp_sections(), ramp={"sweep": {"card_hours": 0.001}}))
    rows = op_rows(["add", "mul"], ["float32", "int64", "bool"])
    rows[0]["status"], rows[5]["status"] = "enabled", "out_of_scope"
    rows[2]["group"] = rows[3]["group"] = "one card"
    build = write_build(workspace, 19, rows, {rows[1]["test"]: "passed"})
    selection = workspace.manifests.find(TEST_SELECTION, build, TestSelection)
    assert selection is not None
    swept = sweep_selection(workspace, selection, "py3", date(2026, 11, 20))
    chosen = {test.test: test.group for test in read_selection(swept.tests, workspace.artifacts)}
    assert chosen == {row["test"]: row.get("group") for row in rows[2:5]}, "the test of the day before waits"
    assert [suite.selected for suite in swept.suites] == [3]
    enabled = write_build(workspace, 18, [{**row, "status": "enabled"} for row in rows], {})
    everything = workspace.manifests.find(TEST_SELECTION, enabled, TestSelection)
    assert everything is not None
    with pytest.raises(SelectionError, match="every test in scope is enabled"):
        sweep_selection(workspace, everything, "py3", date(2026, 11, 20))


def test_failures_of_a_sweep_make_it_not_red_but_lost_tests_are_told(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(**ramp_sections()))
    rows = op_rows(["add"], ["float32", "int64"], "not_enabled")
    build = write_build(workspace, 19, rows, {rows[0]["test"]: "passed", rows[1]["test"]: "crashed"}, trigger="sweep")
    found = workspace.manifests.find(LEDGER, build, Ledger)
    assert found is not None
    ledger = replace(found, informative=True, unexpected_failures=("upstream: (session)",))
    assert shortcomings(ledger) == ()
    assert shortcomings(replace(ledger, informative=False)) != ()
    now = datetime.now(timezone.utc)
    state = build_state(BuildRecord(build, present=(LEDGER,), ledger=ledger), now)
    assert (state.kind, state.words) == ("passed", "1 of 2 pass")
    lost = replace(ledger, counts={**ledger.counts, "failed": 0, "infra": 1})
    assert shortcomings(lost) == ("1 infra",)
    assert build_state(BuildRecord(build, present=(LEDGER,), ledger=lost), now).kind == "incomplete"


def test_only_a_project_with_a_file_of_enabled_tests_has_a_sweep(make_project: Callable[..., Project]) -> None:
    settings = make_project(**ramp_sections()).settings
    assert settings.has_sweep
    assert list(settings.suites_of("sweep", "smoke")) == ["smoke"]
    assert list(settings.suites_of("sweep", "device")) == ["upstream"]
    assert not make_project().settings.has_sweep
