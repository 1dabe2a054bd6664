"""The plan of a build as a manifest: the batches in the artifact store, and the numbers that a person wants to see."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter

from accel_ci.errors import SelectionError
from accel_ci.model import Artifact, TestPlan, TestSelection
from accel_ci.plan.guided import Plan, make_plan
from accel_ci.plan.prediction import predicted_makespan
from accel_ci.scope.selection import read_selection
from accel_ci.storage.artifacts import ArtifactStore

_PLAN = TypeAdapter(Plan)


def plan_device_tests(
    selection: TestSelection,
    durations: Mapping[tuple[str, str], float],
    cards: int,
    artifacts: ArtifactStore,
    widths: Mapping[str, int] | None = None,
    setup_s: float | None = None,
) -> TestPlan:
    """Plan the selected tests for `cards` cards from recorded `durations` (seconds by suite and test).

    `widths` says for a suite how many cards its tests hold, one by default; `setup_s` what a card spent on set-up and
    collection in an earlier build.

    Raises `SelectionError` when nothing is selected.
    """
    tests = read_selection(selection.tests, artifacts)
    if not tests:
        raise SelectionError("nothing is selected, so there is nothing to plan; look at the suites of the job")
    plan = make_plan(tests, durations, cards, widths=widths)
    return TestPlan(
        artifacts.put_bytes(_PLAN.dump_json(plan), "plan.json"),
        len(plan.batches),
        len(tests),
        plan.unknown,
        cards,
        round(plan.estimated_s, 3),
        round(plan.lower_bound_s, 3),
        round(predicted_makespan(plan, cards, setup_s), 3),
    )


def read_plan(artifact: Artifact, artifacts: ArtifactStore) -> Plan:
    """The plan behind a manifest."""
    return _PLAN.validate_json(artifacts.path(artifact).read_bytes())
