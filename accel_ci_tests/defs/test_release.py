"""The assets of releases in Dagster: refused builds have the gate's criteria as a check, and nothing is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.partitions import partition_key, revisions_name
from accel_ci.model import Build, Wheel
from accel_ci.pipelines import WHEEL
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import write_night
from accel_ci_tests.fixtures.stand_in_torch import write_package

RELEASE: dict[str, Any] = {
    "gate": {"suites": ["unit"]},
    "channel": {},
    "test_index": {"upload": "http://127.0.0.1:9/", "simple": "http://127.0.0.1:9/simple/"},
}


def run(workspace: Workspace, build: Build, asset: str) -> tuple[dg.ExecuteInProcessResult, dg.AssetCheckEvaluation]:
    definitions = build_definitions(workspace.project, in_process=True)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(revisions_name(None), [build.revision])
        done = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(asset)], partition_key=partition_key(build)
        )
    [check] = done.get_asset_check_evaluations()
    return done, check


@pytest.fixture
def workspace(make_project: Callable[..., Project]) -> Workspace:
    return Workspace(make_project(release=RELEASE))


def test_a_refused_build_is_named_by_the_check_and_not_published(workspace: Workspace) -> None:
    build = write_night(workspace, 13, {}, backend=1)
    done, check = run(workspace, build, "nightly_channel")
    assert done.success
    assert not done.asset_materializations_for_node("nightly_channel")
    assert not check.passed
    assert "wheel: is missing" in str(check.description)
    assert not (workspace.project.home / "channel").exists()


def test_a_build_that_passed_is_published_with_its_criteria(workspace: Workspace) -> None:
    build = write_night(workspace, 13, {}, backend=1)
    file = workspace.artifacts.put(write_package(workspace.project.root, "toy_backend-1.0", {"toy_backend.py": ""}))
    wheel = Wheel("toy-backend", "1.0", file, file, (), False, 1.0)
    workspace.manifests.write(workspace.manifests.path(WHEEL, build.revision, build.variant), wheel)
    done, check = run(workspace, build, "nightly_channel")
    [made] = done.asset_materializations_for_node("nightly_channel")
    assert made.metadata["latest"].value == build.name
    assert check.passed
    assert "suite unit" in str(check.metadata["criteria"].value)
    assert (workspace.project.home / "channel" / "py3" / "simple" / "toy-backend" / "index.html").is_file()


def test_a_nightly_is_not_tried_out_on_an_index(workspace: Workspace) -> None:
    build = write_night(workspace, 13, {}, backend=1)
    done, check = run(workspace, build, "release")
    assert done.success
    assert not done.asset_materializations_for_node("release")
    assert check.passed
    assert "not asked" in str(check.description)
