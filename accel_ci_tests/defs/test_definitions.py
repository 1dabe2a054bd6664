from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import dagster as dg
import tomli
import yaml

from accel_ci.config import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci_tests.conftest import ROOT


def test_definitions_load(make_project: Callable[..., Project]) -> None:
    definitions = build_definitions(make_project())
    dg.Definitions.validate_loadable(definitions)
    assert {job.name for job in definitions.resolve_all_job_defs()} == {
        "__ASSET_JOB", "nightly_integration", "intraday", "main", "pr",
    }  # fmt: skip


def test_a_source_build_has_assets_and_a_job_of_its_own(make_project: Callable[..., Project]) -> None:
    jobs = {**make_project().settings.model_dump()["jobs"], "nightly_rbe": {"cron": "30 2 * * *", "enabled": True}}
    definitions = build_definitions(make_project(rbe={"targets": ["//..."]}, jobs=jobs))
    dg.Definitions.validate_loadable(definitions)

    def assets(job: str) -> set[str]:
        keys = definitions.resolve_job_def(job).asset_layer.executable_asset_keys
        return {key.to_user_string() for key in keys}

    shared = {"ledger", "flakiness", "hud"}
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
        "stopped_build_sensor": "RUNNING",
    }


def test_a_pool_of_pods_has_a_janitor(make_project: Callable[..., Project]) -> None:
    pool = {"kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel", "bucket": {"bucket": "rounds"}}
    definitions = build_definitions(make_project(pool=pool))
    dg.Definitions.validate_loadable(definitions)
    [schedule] = [one for one in definitions.schedules or () if one.name == "janitor_schedule"]
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.default_status.value, schedule.job_name) == ("RUNNING", "janitor")


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
