from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pkgutil import resolve_name

import dagster as dg
import pytest
import tomli
import yaml

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.pipelines import PIPELINES
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT


def test_definitions_load(make_project: Callable[..., Project]) -> None:
    definitions = build_definitions(make_project())
    dg.Definitions.validate_loadable(definitions)
    assert {job.name for job in definitions.resolve_all_job_defs()} == {
        "__ASSET_JOB", "nightly_integration", "intraday", "main", "pr", "prune", "start", "sweep", "confirm",
    }  # fmt: skip


def test_the_assets_of_a_pipeline_are_its_stages_in_their_order(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project())
    for pipeline in PIPELINES:
        assets = resolve_name(pipeline.assets)(workspace)
        assert tuple(asset.key.to_user_string() for asset in assets) == pipeline.stages
        assert {asset.group_names_by_key[asset.key] for asset in assets} == {pipeline.name}


def test_a_source_build_has_assets_and_a_job_of_its_own(make_project: Callable[..., Project]) -> None:
    jobs = {**make_project().settings.model_dump()["jobs"], "nightly_rbe": {"cron": "30 2 * * *", "enabled": True}}
    definitions = build_definitions(make_project(rbe={"targets": ["//..."]}, jobs=jobs))
    dg.Definitions.validate_loadable(definitions)

    def assets(job: str) -> set[str]:
        keys = definitions.resolve_job_def(job).asset_layer.executable_asset_keys
        return {key.to_user_string() for key in keys}

    shared = {"ledger", "flakiness", "coverage", "incidents", "quarantine", "quality_report", "hud"}
    assert assets("nightly_rbe") == {"source_build", "bazel_test_results"} | shared
    assert assets("nightly_rbe") & assets("nightly_integration") == shared
    [schedule] = [one for one in definitions.schedules or () if one.name == "nightly_rbe_schedule"]
    assert schedule.default_status.value == "RUNNING"


def test_schedules_and_sensors_start_as_configured(make_project: Callable[..., Project]) -> None:
    project = make_project()
    jobs = project.settings.model_dump()["jobs"]
    jobs["nightly"]["enabled"] = jobs["main"]["enabled"] = True
    definitions = build_definitions(make_project(jobs=jobs))
    status = {one.name: one.default_status.value for one in (*definitions.schedules, *definitions.sensors)}  # type: ignore[misc]
    assert status == {
        "nightly_schedule": "RUNNING",
        "intraday_schedule": "STOPPED",
        "upstream_main_sensor": "RUNNING",
        "confirm_sensor": "STOPPED",
        "stopped_build_sensor": "RUNNING",
        "dead_runs_sensor": "RUNNING",
        "prune_schedule": "STOPPED",
    }


def test_failures_run_again_by_themselves_where_that_is_enabled(make_project: Callable[..., Project]) -> None:
    definitions = build_definitions(make_project(quality={"confirm": {"enabled": True, "check_every_seconds": 90}}))
    [sensor] = [one for one in definitions.sensors or () if one.name == "confirm_sensor"]
    assert (sensor.default_status.value, sensor.minimum_interval_seconds, sensor.job_name) == ("RUNNING", 90, "confirm")


def test_a_project_with_keep_rules_is_pruned_on_schedule(make_project: Callable[..., Project]) -> None:
    definitions = build_definitions(make_project(retention={"days": 14, "cron": "15 4 * * *"}))
    dg.Definitions.validate_loadable(definitions)
    [schedule] = [one for one in definitions.schedules or () if one.name == "prune_schedule"]
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.default_status.value, schedule.job_name, schedule.cron_schedule) == ("RUNNING", "prune", "15 4 * * *")


POOLS_THAT_LEAVE_SOMETHING = {
    "kubernetes": {"kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel", "bucket": {"bucket": "rounds"}},
    "docker": {"kind": "docker", "image": "toy:1", "card_environment": "TOY_CARD"},
    "an instance": {"card_environment": "TOY_CARD", "instance": {"start": ["true"], "pause": ["true"]}},
}


@pytest.mark.parametrize("pool", POOLS_THAT_LEAVE_SOMETHING.values(), ids=POOLS_THAT_LEAVE_SOMETHING)
def test_a_pool_that_can_leave_something_behind_has_a_janitor(
    make_project: Callable[..., Project], pool: dict[str, object]
) -> None:
    definitions = build_definitions(make_project(pool=pool))
    dg.Definitions.validate_loadable(definitions)
    [schedule] = [one for one in definitions.schedules or () if one.name == "janitor_schedule"]
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.default_status.value, schedule.job_name) == ("RUNNING", "janitor")


def test_the_janitor_fails_when_something_stays_behind(make_project: Callable[..., Project]) -> None:
    project = make_project(pool=POOLS_THAT_LEAVE_SOMETHING["an instance"])
    job = build_definitions(project).resolve_job_def("janitor")
    assert job.execute_in_process().success
    (project.home / "leases").mkdir(parents=True)
    (project.home / "leases" / "cloud.json").write_text("no lease")
    with pytest.raises(dg.Failure, match=r"cloud\.json: .* it cannot be read"):
        job.execute_in_process()


def test_the_installed_releases_of_dagster_pair_up() -> None:
    """An integration package of another release train installs without a word and breaks at run time."""
    for name in ("dagster", "dagster-webserver", "dagster-graphql", "dagster-pipes", "dagster-shared"):
        assert importlib.metadata.version(name) == "1.13.27"
    for name in ("dagster-k8s", "dagster-docker", "dagster-postgres", "dagster-aws"):
        assert importlib.metadata.version(name) == "0.29.27"


def test_the_places_where_dagster_looks_agree() -> None:
    pyproject = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]
    [location] = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    module = location["python_module"]
    assert module["module_name"] == pyproject["dagster"]["module_name"]
    assert module["module_name"] == pyproject["dg"]["project"]["code_location_target_module"]
    assert module["location_name"] == pyproject["dg"]["project"]["code_location_name"]
    assert (ROOT / "setup.py").read_text().rstrip().endswith("from setuptools import setup\n\nsetup()")
