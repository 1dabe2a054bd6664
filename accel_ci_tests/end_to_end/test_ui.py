"""A person works in the UI of `accel-ci dev`: verdicts, runs of the command line, a start, a preview, a refused key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from accel_ci.defs.instance import open_instance
from accel_ci.ledger.status import read_status
from accel_ci.model import Build
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

AT = {"repositoryLocationName": "accel_ci", "repositoryName": "__repository__"}
_RUNS = """query ($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results {
  runId status jobName tags { key value } } } } }"""
_OF_JOB = """query ($job: PipelineSelector!) { pipelineOrError(params: $job) { ... on Pipeline {
  description runs { runId } } } }"""
_LAUNCH = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_AGAIN = """mutation ($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_FAILURES = """query ($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  ... on ExecutionStepFailureEvent { stepKey error { message } failureMetadata { description } } } } } }"""
_CHECKS = """{ assetCheckExecutions(assetKey: {path: ["ledger"]}, checkName: "all_passed", limit: 10) {
  evaluation { success metadataEntries { label ... on TextMetadataEntry { text } } } } }"""
_PREVIEW = """mutation ($at: ScheduleSelector!, $time: Float) { scheduleDryRun(selectorData: $at, timestamp: $time) {
  ... on DryRunInstigationTick { evaluationResult { skipReason runRequests { runKey } error { message } } } } }"""
_ADD_KEY = """mutation ($at: RepositorySelector!, $key: String!) { addDynamicPartition(
  repositorySelector: $at, partitionsDefName: "revision", partitionKey: $key) { __typename } }"""
_KEYS = """{ assetNodeOrError(assetKey: {path: ["wheel"]}) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys } } } }"""
_DEFAULTS = """query ($job: PipelineSelector!) { runConfigSchemaOrError(selector: $job) {
  ... on RunConfigSchema { rootDefaultYaml } } }"""


class Person:
    """Somebody in front of the UI."""

    def __init__(self, server: Server) -> None:
        self.ask, self.url, self.wait_for = server.ask, server.url, server.wait_for

    def runs(self, **chosen: Any) -> list[dict[str, Any]]:
        found = self.ask(_RUNS, filter=chosen)["runsOrError"]["results"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def launch(self, job: str, config: dict[str, Any] | None = None, **tags: str) -> str:
        """Launch a job; return the id of the run once it has ended."""
        metadata = {"tags": [{"key": key.replace("__", "/"), "value": value} for key, value in tags.items()]}
        params = {"selector": {**AT, "pipelineName": job}, "runConfigData": config or {}, "executionMetadata": metadata}
        return self._ended(self.ask(_LAUNCH, params=params)["launchRun"])

    def run_again(self, run: str, strategy: str) -> str:
        """Execute a run again, as the button on its page does; return the id of the new run once it has ended."""
        params = {"parentRunId": run, "strategy": strategy, "useParentRunTags": True}
        return self._ended(self.ask(_AGAIN, params=params)["launchRunReexecution"])

    def run(self, run: str) -> dict[str, Any]:
        [found] = self.runs(runIds=[run])
        return found

    def has_ended(self, run: str) -> bool:
        return self.run(run)["status"] in ("SUCCESS", "FAILURE", "CANCELED")

    def _ended(self, answer: dict[str, Any]) -> str:
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run: str = answer["run"]["runId"]
        self.wait_for(lambda: self.has_ended(run))
        return run


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    """A project with a nightly that has ended and a source build that stopped, both from the command line."""
    jobs = {"cron": "0 2 * * *", "suites": ["smoke", "unit"]}
    sections = {
        "nightly": jobs, "intraday": jobs, "main": {"suites": ["smoke", "unit"]}, "pr": {"suites": ["smoke", "unit"]},
        "nightly_rbe": {"cron": "30 2 * * *", "enabled": True},
    }  # fmt: skip
    made = make_toy_night(tmp_path_factory.mktemp("ui"), jobs=sections, rbe={"targets": ["//..."], "bazel": "no-such-bazel"})
    made.accel_ci("run", "nightly")
    output = made.accel_ci("run", "nightly_rbe", status=1)
    assert ": 2 failed, no results from bazel; rbe stopped after source_build failed" in output, "the account stays"
    return made


@pytest.fixture(scope="module")
def person(night: ToyNight) -> Iterator[Person]:
    port = free_port()
    server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
    yield Person(server)
    server.stop()


@pytest.fixture
def build(night: ToyNight) -> Build:
    manifests = ManifestStore(night.project.home)
    revision = manifests.newest_revision("nightly", "")
    assert revision is not None
    return Build(revision.key, "py3")


def test_the_list_of_runs_tells_red_from_green(person: Person, build: Build) -> None:
    [run] = person.runs(tags=[{"key": "accel_ci/verdict", "value": "2 failed, no results from bazel"}])
    assert (run["jobName"], run["status"]) == ("nightly_integration", "SUCCESS")
    assert {key: value for key, value in run["tags"].items() if key.startswith("accel_ci/")}.items() >= {
        "accel_ci/result": "red",
        "accel_ci/new": "no earlier build",
        "accel_ci/suites": "smoke, unit",
        "accel_ci/build": f"{build.name}/integration",
        "accel_ci/trigger": "nightly",
    }.items()
    assert person.runs(tags=[{"key": "accel_ci/result", "value": "green"}]) == []


def test_a_check_names_its_build_in_its_history(person: Person, build: Build) -> None:
    newest = person.ask(_CHECKS)["assetCheckExecutions"][-1]["evaluation"]
    assert {"label": "build", "text": build.name} in newest["metadataEntries"]
    assert not newest["success"]


def test_a_run_of_the_command_line_is_on_the_page_of_its_job(person: Person) -> None:
    for job in ("nightly_integration", "nightly_rbe"):
        listed = {run["runId"] for run in person.ask(_OF_JOB, job={**AT, "pipelineName": job})["pipelineOrError"]["runs"]}
        assert {run["runId"] for run in person.runs(pipelineName=job)} == listed != set()


def test_a_run_of_the_command_line_is_executed_again(person: Person, build: Build, night: ToyNight) -> None:
    [stopped] = person.runs(pipelineName="nightly_rbe")
    again = person.run(person.run_again(stopped["runId"], "FROM_FAILURE"))
    assert (again["status"], again["tags"]["dagster/partition/revision"]) == ("FAILURE", build.revision)
    [finished] = person.runs(pipelineName="nightly_integration")
    again = person.run(person.run_again(finished["runId"], "ALL_STEPS"))
    assert (again["status"], again["tags"]["accel_ci/result"]) == ("SUCCESS", "red")
    assert read_status(ManifestStore(night.project.home), build).counts["failed"] == 2


def test_a_person_starts_a_build(person: Person, night: ToyNight) -> None:
    page = person.ask(_OF_JOB, job={**AT, "pipelineName": "nightly_integration"})["pipelineOrError"]
    assert "open the Launchpad of the job `start`" in page["description"]
    defaults = person.ask(_DEFAULTS, job={**AT, "pipelineName": "start"})["runConfigSchemaOrError"]["rootDefaultYaml"]
    assert "trigger: nightly" in defaults
    chosen = {"trigger": "manual", "name": "from the UI", "suites": ["unit"], "variants": ["py3"]}
    started = person.launch("start", {"ops": {"start_builds": {"config": chosen}}})
    assert person.run(started)["status"] == "SUCCESS"
    [run] = person.runs(tags=[{"key": "dagster/partition/revision", "value": "manual-from-the-ui"}])
    person.wait_for(lambda: person.has_ended(run["runId"]))
    ended = person.run(run["runId"])
    assert (ended["status"], ended["tags"]["accel_ci/suites"]) == ("SUCCESS", "unit")
    status = read_status(ManifestStore(night.project.home), Build("manual-from-the-ui", "py3"))
    assert (status.expected, status.state) == (6, "2 failed")


def test_a_key_that_nobody_resolved_is_refused_and_shown_nowhere(person: Person, night: ToyNight) -> None:
    assert person.ask(_ADD_KEY, at=AT, key="nightly-20991231")["addDynamicPartition"]["__typename"].endswith("Success")
    run = person.launch(
        "nightly_integration",
        dagster__partition="nightly-20991231|py3",
        dagster__partition__revision="nightly-20991231",
        dagster__partition__variant="py3",
    )
    [failure] = [event for event in person.ask(_FAILURES, run=run)["logsForRun"]["events"] if event]
    assert failure["stepKey"] == "wheel"
    assert "Launch the job `start`" in failure["failureMetadata"]["description"]
    assert "nightly-20991231" not in (night.project.home / "hud" / "index.html").read_text()
    assert "names 0 builds" in night.accel_ci("status", "nightly-20991231", status=2)


def test_a_preview_of_a_tick_writes_nothing(person: Person, night: ToyNight) -> None:
    def written() -> set[Path]:
        return {path for path in night.project.home.rglob("*") if not path.is_relative_to(night.project.home / "dagster")}

    keys, files = person.ask(_KEYS), written()
    at = {**AT, "scheduleName": "nightly_schedule"}
    seen = person.ask(_PREVIEW, at=at, time=4_000_000_000.0)["scheduleDryRun"]["evaluationResult"]
    assert seen["error"] is None
    assert "this is a preview, which writes nothing" in seen["skipReason"]
    assert (person.ask(_KEYS), written()) == (keys, files)


def test_chosen_verdicts_make_a_run_fail_after_everything_is_stored(tmp_path: Path) -> None:
    night = make_toy_night(tmp_path, fail_run_on=["infra", "failed"])
    output = night.accel_ci("run", "nightly", status=1)
    assert "stopped: quality_gate: 2 failed: the setting 'fail_run_on' makes the run fail" in output
    assert "~py3: 2 failed\n" in output
    assert "2 failed: " in output
    assert "  tests/unit/test_unit.py::test_n[0]\n  tests/unit/test_unit.py::test_n[3]\n" in output
    assert "2 failed" in (night.project.home / "hud" / "index.html").read_text()
    with open_instance(night.project) as instance:
        [run] = instance.get_runs()
    assert (run.status.value, run.tags["accel_ci/verdict"]) == ("FAILURE", "2 failed")


def test_the_pages_show_it(person: Person, tmp_path: Path) -> None:
    """The list of runs has the verdict, and the lineage is a chain. `ACCEL_CI_SCREENSHOTS` keeps the pictures."""
    chromium = os.environ.get("ACCEL_CI_CHROMIUM")
    if not chromium:
        pytest.skip("no browser: set ACCEL_CI_CHROMIUM to a Chromium")
    pictures = Path(os.environ.get("ACCEL_CI_SCREENSHOTS") or tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.goto(f"{person.url}/runs")
        page.get_by_text("accel_ci/verdict: 2 failed").first.wait_for(timeout=120_000)
        page.screenshot(path=pictures / "runs.png")
        page.goto(f"{person.url}/locations/__repository__@accel_ci/jobs/nightly_integration/runs")
        page.get_by_text("accel_ci/verdict: 2 failed").first.wait_for(timeout=120_000)
        page.screenshot(path=pictures / "job.png")
        page.goto(f"{person.url}/assets/hud?view=lineage&lineageScope=upstream&lineageDepth=12")
        page.get_by_text("bazel_test_results").first.wait_for(timeout=120_000)
        page.wait_for_timeout(3000)
        page.screenshot(path=pictures / "lineage.png")
        browser.close()
