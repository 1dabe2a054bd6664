"""The counts of tests in scope, enabled and passing, and the fall of the share."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pyarrow as pa

from accel_ci.config.settings import Project
from accel_ci.defs.quality import quality_assets
from accel_ci.defs.stage import ManifestIOManager
from accel_ci.model import Build
from accel_ci.progress import LineProgress
from accel_ci.ramp.coverage import Counts, TrendPoint, add_to_trend, lost_share, measure_coverage
from accel_ci.ramp.current import COVERAGE, current_coverage, share_fault
from accel_ci.ramp.plot import draw_trend
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.scoped_builds import NOON, op_rows, ramp_sections, scope_row, scope_table, write_build

BUILD = Build("nightly-20261120", "py3")


def verdicts(**by_test: str) -> pa.Table:
    tests = [f"t.py::{name}" for name in by_test]
    return pa.table({"suite": ["upstream"] * len(by_test), "test": tests, "verdict": list(by_test.values())})


def test_every_collected_test_is_counted_once() -> None:
    scope = scope_table(
        [
            scope_row("t.py::a", op="add", dtypes=["float32", "int64"]),
            scope_row("t.py::b", op="add", dtypes=["float32"]),
            scope_row("t.py::c", op="mul", dtypes=["float32"]),
            scope_row("t.py::d", "not_enabled", op="mul", dtypes=["int64"]),
            scope_row("u.py::e", "out_of_scope", reason="training"),
            scope_row("t.py::z", suite="own"),
        ]
    )
    found = measure_coverage(BUILD, scope, verdicts(a="passed", b="flaky", c="failed", d="passed"), ["upstream"])
    assert found.total == Counts(collected=5, in_scope=4, enabled=3, passing=2)
    assert found.reasons == {"not_enabled": 1, "training": 1}
    assert found.total.collected == found.total.enabled + sum(found.reasons.values())
    assert found.ops == {"add": Counts(2, 2, 2, 2), "mul": Counts(2, 2, 1, 0)}
    assert found.dtypes == {"float32": Counts(3, 3, 3, 2), "int64": Counts(2, 2, 1, 1)}
    assert found.files == {"t.py": Counts(4, 4, 3, 2), "u.py": Counts(1, 0, 0, 0)}
    assert (found.total.share, found.total.passing_share, found.ops_enabled) == (0.75, 0.5, 2)
    assert measure_coverage(BUILD, scope, verdicts()).total == Counts(6, 5, 4, 0), "no suites are all"


def test_a_test_that_is_collected_and_not_enabled_any_more_lowers_the_share() -> None:
    before = [scope_row("t.py::a"), scope_row("t.py::b"), scope_row("t.py::c", "not_enabled")]
    excluded = [before[0], scope_row("t.py::b", "out_of_scope", reason="too_slow"), before[2]]
    lost, earlier, share = lost_share(scope_table(before), scope_table(excluded))
    assert (lost, earlier, share) == ({"upstream: t.py::b": "too_slow"}, 2 / 3, 1 / 2)
    grown = [*before, scope_row("t.py::new", "not_enabled")]
    assert lost_share(scope_table(before), scope_table(grown))[0] == {}, "new tests of upstream are nobody's fault"
    assert lost_share(scope_table(before), scope_table(before[:1]))[0] == {}, "tests that are gone have another check"


def test_a_report_has_the_newest_build_and_the_trend_of_those_before(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(**ramp_sections()))
    assert current_coverage(workspace).latest == ()
    rows = op_rows(["add", "mul"], ["float32", "int64"])
    for day in (18, 19):
        for row in rows[: day - 17]:
            row["status"] = "enabled"
        write_build(workspace, day, rows, {row["test"]: "passed" for row in rows if row["status"] == "enabled"})
    write_build(workspace, 20, rows, {}, trigger="pr")
    report = current_coverage(workspace)
    workspace.manifests.write(workspace.manifests.path(COVERAGE), report)
    assert [one.total.enabled for one in report.latest] == [2]
    assert [(point.build.revision, point.counts.enabled) for point in report.trend] == [
        ("nightly-20261118", 1),
        ("nightly-20261119", 2),
    ]
    write_build(workspace, 21, rows, {})
    assert [point.counts.passing for point in current_coverage(workspace).trend] == [1, 2, 0]
    svg = draw_trend(report.trend, workspace.project.settings.ramp.stages)
    assert "enabled 50.0%" in svg
    assert "2026-11-18 to 2026-11-19" in svg


def test_a_build_is_incomplete_when_the_share_falls_without_a_reason(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(**ramp_sections()))
    rows = op_rows(["add"], ["float32", "int64"], "enabled")
    write_build(workspace, 18, rows, {})
    build = write_build(workspace, 19, [rows[0], {**rows[1], "status": "not_enabled"}], {})
    revision = workspace.manifests.revision(build.revision)
    assert revision is not None
    fault = share_fault(workspace, revision, build)
    assert fault is not None
    assert "fell from 100.00% to 50.00%" in fault
    assert rows[1]["test"] in fault
    reasoned = Workspace(make_project(**ramp_sections(), ramp={"lower_share_reason": "card 3 is gone"}))
    assert share_fault(reasoned, revision, build) is None
    assert share_fault(workspace, replace(revision, trigger="pr"), build) is None


def test_a_trend_keeps_the_newest_points_in_the_order_of_time() -> None:
    points = [TrendPoint(Build(f"nightly-{day}", "py3"), NOON + timedelta(days=day), Counts(day)) for day in range(5)]
    again = replace(points[2], counts=Counts(9))
    assert add_to_trend(points[::-1], [again], kept=3) == (again, *points[3:])


def test_the_asset_shows_the_numbers_and_the_page_the_share(make_project: Callable[..., Project]) -> None:
    project = make_project(**ramp_sections())
    workspace = Workspace(project)
    rows = op_rows(["add", "mul<script>"], ["float32"])
    rows[0]["status"] = "enabled"
    write_build(workspace, 19, rows, {rows[0]["test"]: "passed"})
    assets = quality_assets(workspace)
    resources = {"workspace": workspace, "progress": LineProgress(), "io_manager": ManifestIOManager(workspace.manifests)}
    ran = dg.materialize(assets, resources=resources)
    assert ran.success
    [made] = ran.asset_materializations_for_node("coverage")
    shown = {name: value.value for name, value in made.metadata.items()}
    assert (shown["in_scope"], shown["enabled"], shown["enabled_share"], shown["ops_enabled"]) == (2, 1, 0.5, 1)
    assert str(shown["trend"]).startswith("![Shares of the tests in scope](data:image/svg+xml;base64,")
    page = (workspace.hud / "index.html").read_text()
    assert "<b>50.0 %</b> of 2 tests in scope are enabled" in page
    page = (workspace.hud / "coverage.html").read_text()
    assert "<svg xmlns" in page
    assert "mul<script>" not in page
