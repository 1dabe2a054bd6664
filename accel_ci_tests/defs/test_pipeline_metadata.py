"""The metadata of the pipelines' assets: what a person reads in the UI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.defs import integration, rbe
from accel_ci.defs.metadata import plain_rows
from accel_ci.model import (
    Artifact,
    Attempt,
    BazelActions,
    BazelTarget,
    BazelTestResults,
    CardReport,
    CheckResult,
    ContainerImage,
    DeviceTestResults,
    ImageLayer,
    RoundReport,
    RuntimeImage,
    Source,
    SourceBuild,
    SuiteSelection,
    TestPlan,
    TestSelection,
    Wheel,
)
from accel_ci_tests.hud.samples import workspace_of

FILE = Artifact("0" * 64, "a.whl", 1234)
LOG = Artifact("1" * 64, "test.log", 9)
WORKSPACE = workspace_of(Path("/store"))
STORE = WORKSPACE.artifacts
VENV = RuntimeImage("venv", "/venv/bin/python", "d" * 64, "3.11.9", "2.13.0", None, ("a==1", "b==2"), False, 4.5)
BAZEL = BazelTestResults(
    FILE, FILE, FILE, 3, {"passed": 2, "failed": 1}, 1, {"PASSED": 1}, BazelActions(9, 4, 2, 3), None, 8.0, 9.0
)


def test_a_wheel_says_what_it_was_built_from_and_how_its_checks_ended() -> None:
    wheel = Wheel("toy", "1.0", FILE, FILE, (CheckResult("twine", True, "fine"),), False, 2.5, (FILE,))
    shown = integration.wheel_metadata(wheel, Source("https://example.com/toy.git", "HEAD", "a" * 40), WORKSPACE)
    assert shown["source"] == f"https://example.com/toy.git at g{'a' * 12}"
    assert (shown["size"], shown["work_seconds"], shown["reused"], shown["built_in"]) == (1234, 2.5, False, "host")
    assert plain_rows(shown["checks"]) == ["twine | True | fine"]
    assert plain_rows(shown["companions"]) == ["a.whl | 1234"]
    assert shown["wheel"].value == str(STORE.location(FILE))


def test_an_image_shows_its_containers_or_its_bill_of_materials() -> None:
    shown = integration.image_metadata(replace(VENV, sbom=FILE), WORKSPACE)
    assert shown["sbom"].value == str(STORE.location(FILE))
    assert (shown["upstream_sha"], plain_rows(shown["packages"])) == ("unknown", ["a==1", "b==2"])
    assert "runtime" not in shown
    layers = (ImageLayer("RUN a", 60), ImageLayer("COPY b", 40))
    containers = tuple(
        ContainerImage(target, "id", f"toy:{target}", size, layers)  # type: ignore[arg-type]
        for target, size in (("development", 400), ("runtime", 100))
    )
    shown = integration.image_metadata(
        replace(VENV, kind="docker", containers=containers, cached_steps=3, steps=8), WORKSPACE
    )
    assert (shown["runtime"], shown["runtime_bytes"], shown["runtime_over_development"]) == ("toy:runtime", 100, 0.25)
    assert shown["cached_steps"] == "3 of 8"
    assert plain_rows(shown["development_layers"]) == ["60 | RUN a", "40 | COPY b"]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, "torch 2.13.0"),
        ({"reused": True}, "torch 2.13.0 (reused)"),
        ({"kind": "docker", "cached_steps": 3, "steps": 8}, "torch 2.13.0 (3 of 8 steps cached)"),
        ({"kind": "docker", "cached_steps": 3, "steps": 8, "reused": True}, "torch 2.13.0 (reused, 8 of 8 steps cached)"),
    ],
)
def test_the_note_of_an_image_says_what_was_reused(changes: dict[str, object], note: str) -> None:
    assert integration.image_note(replace(VENV, **changes)) == note  # type: ignore[arg-type]


def test_a_selection_says_what_is_out_of_scope_and_what_cannot_be_collected() -> None:
    suites = (SuiteSelection("ops", 10, 7, {"CUDA only": 3}, ("tests/broken.py",)), SuiteSelection("unit", 2, 2, {}))
    shown = integration.selection_metadata(TestSelection(FILE, suites, 1.5))
    assert (shown["collected"], shown["selected"]) == (12, 9)
    assert plain_rows(shown["suites"]) == ["ops | 10 | 7 | 1", "unit | 2 | 2 | 0"]
    assert plain_rows(shown["out_of_scope"]) == ["ops | 3 | CUDA only"]
    assert plain_rows(shown["collection_errors"]) == ["tests/broken.py"]


def test_a_plan_has_its_bound_beside_its_prediction() -> None:
    shown = integration.plan_metadata(TestPlan(FILE, 5, 40, 2, 4, 100.0, 25.0, 27.5))
    assert (shown["tests"], shown["batches"], shown["never_seen"], shown["cards"]) == (40, 5, 2, 4)
    assert (shown["estimated_seconds"], shown["lower_bound_seconds"], shown["predicted_makespan_seconds"]) == (100, 25, 27.5)


def test_a_plan_without_history_expects_nothing() -> None:
    cold, new = TestPlan(FILE, 5, 40, 40, 4, 100.0, 25.0, 371.0), TestPlan(FILE, 5, 40, 2, 4, 100.0, 25.0, 27.5)
    assert integration.outlook(cold) == "no history yet"
    assert integration.outlook(replace(cold, unknown=21)) == "no history yet"
    assert integration.outlook(new) == "lower bound 25.0 s, 27.5 s are expected (2 tests are new)"
    assert integration.outlook(replace(new, unknown=0)) == "lower bound 25.0 s, 27.5 s are expected"
    shown = integration.plan_metadata(cold)
    assert {shown[name] for name in ("estimated_seconds", "lower_bound_seconds", "predicted_makespan_seconds")} == {
        "no history yet"
    }


def test_results_show_their_rounds_and_cards_and_how_far_they_are_from_the_bound() -> None:
    cards = (CardReport("0", True, None, 20, 9.0, 1.5), CardReport("1", False, "bad sum", 3, 2.0, 1.0))
    results = DeviceTestResults(
        expected=FILE,
        suites=("ops",),
        counts={"passed": 22, "failed": 1},
        rounds=(RoundReport(1, 23, 2, 9.5, 8.0),),
        cards=cards,
        makespan_s=10.0,
        lower_bound_s=8.0,
        work_s=12.0,
    )
    failed = Attempt("ops", "t.py::a", 1, "failed", None, 0.5, "assert 1 | 2", None, "0", None, None)
    shown = integration.results_metadata(results, [failed], WORKSPACE)
    assert "pods" not in shown
    assert (shown["attempts_passed"], shown["attempts_failed"], shown["makespan_without_setup_over_lower_bound"]) == (
        22,
        1,
        1.094,
    )
    assert (shown["makespan_seconds"], shown["setup_seconds"], shown["lower_bound_seconds"]) == (10.0, 1.25, 8.0)
    assert plain_rows(shown["rounds"]) == ["1 | 23 | 2 | 9.5 | 8.0"]
    assert plain_rows(shown["cards"]) == ["0 | True |  | 20 | 9.0 | 1.5", "1 | False | bad sum | 3 | 2.0 | 1.0"]
    assert plain_rows(shown["failures"]) == ["t.py::a | 1 | failed | 0 |  | assert 1 | 2"]
    assert replace(results, lower_bound_s=0.0).ratio is None
    assert replace(results, makespan_s=8.0).ratio == 1.0, "set-up beside the tests takes nothing away from the makespan"


def test_a_source_tree_tells_patches_that_were_there_already() -> None:
    shown = rbe.sources_metadata(
        SourceBuild("/tree", "d" * 64, "g1", None, ("one.patch", "two.patch"), ("two.patch",), False, 3.0)
    )
    assert plain_rows(shown["patches"]) == ["one.patch | applied", "two.patch | was there already"]
    assert shown["upstream_sha"] == "not used"


def test_targets_of_bazel_that_failed_come_first_with_their_logs() -> None:
    targets = [BazelTarget("//:a", "PASSED", True, (LOG,)), BazelTarget("//:b", "FAILED", False, (LOG,), "boom")]
    shown = rbe.results_metadata(BAZEL, targets, WORKSPACE)
    assert plain_rows(shown["targets"]) == [
        f"//:b | FAILED | False | boom | {STORE.location(LOG)}",
        f"//:a | PASSED | True |  | {STORE.location(LOG)}",
    ]
    assert [key for key in shown if key.startswith("log ")] == ["log //:b"]
    assert (shown["attempts_failed"], shown["remote_cache_hits"], shown["infra"]) == (1, 3, "none")


def test_the_note_of_bazel_is_what_was_out_of_reach_else_the_counts() -> None:
    assert rbe.results_note(BAZEL) == "2 passed, 1 failed; 1 cached; 4 actions ran, 2 local and 3 remote cache hits"
    assert rbe.results_note(replace(BAZEL, infra="the executor did not answer")) == "the executor did not answer"
