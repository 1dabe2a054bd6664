"""Running a job from the command line: in this process, on the instance that the UI shows."""

import io
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run  # the public function makes a run without an origin
from dagster._core.execution.stats import StepEventStatus
from dagster._core.storage.tags import MAX_RETRIES_TAG
from dagster._core.utils import make_new_run_id  # the lock of a run is there before the run

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import open_instance
from accel_ci.defs.liveness import living
from accel_ci.defs.metadata import plain_rows
from accel_ci.defs.quality import (
    QUALITY,
    assets_after,
    coverage,
    current_flakiness,
    flakiness,
    hud,
    incidents,
    quality_gate,
    quality_report,
    quarantine,
    refresh_hud,
)
from accel_ci.defs.run_tags import AGAIN_TAG, TRIGGERED_AT
from accel_ci.defs.runs import create_run
from accel_ci.defs.stage import stages_of_a_run
from accel_ci.defs.triggers import builds_of, choose_revision, start_confirmation
from accel_ci.defs.turn_at_build import was_interrupted
from accel_ci.errors import AccelCiError, ConfigError
from accel_ci.ledger.status import BuildStatus, read_status
from accel_ci.model import Build, Trigger
from accel_ci.pipelines import LEDGER, Job, Pipeline
from accel_ci.progress import Progress
from accel_ci.resumption import has_ended, take_up
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a build; `problems` has a text for each cause that stopped it, an interruption included.

    `status` is that of the build when the run ended, before another run could begin on it; None where it never had it.
    """

    problems: tuple[str, ...]
    interrupted: bool
    status: BuildStatus | None = None


def plan_builds(
    project: Project, pipeline: Pipeline, trigger: Trigger, revision_key: str | None = None, **how: Any
) -> list[Build]:
    """Resolve the revision and make it known; return the builds to run.

    See `choose_revision`. Raises `ConfigError`, also when the pipeline is not configured, and `SourceError`.
    """
    workspace, job = Workspace(project), pipeline.job_for(trigger)
    if not pipeline.configured(project.settings):
        raise ConfigError(
            f"{project.config_path.name} has no section {pipeline.name!r}; `accel-ci init` writes a starter that shows one"
        )
    with open_instance(project) as instance:
        revision = choose_revision(instance, workspace, pipeline, trigger, revision_key, **how)
    if revision.trigger != trigger and not pipeline.follows:
        raise ConfigError(
            f"the revision {revision.key!r} is built by `accel-ci run {revision.trigger} --revision {revision.key}`"
        )
    return builds_of(workspace, job, revision)


def plan_confirmation(project: Project, build: Build) -> Build:
    """Make the build that runs failures of a build again, and make its revision known. Raises `AccelCiError`."""
    with open_instance(project) as instance:
        return start_confirmation(instance, Workspace(project), build)


def run_build(
    project: Project, job: Job, build: Build, progress: Progress, triggered_at: datetime, *, again: bool = False
) -> FinishedRun:
    """Run a job for one build: what is left of a run that stopped, or all of it where there is none, or `again` is set.

    However it ends, the HUD shows it afterwards, unless the disk does not let it. A run that has the build is waited for.
    """
    workspace = Workspace(project)
    pipeline = _pipeline_of(workspace, job)
    lock_file = workspace.manifests.pipeline_lock_file(pipeline, build)
    say = partial(_say, progress, "other runs")
    try:
        with redirect_stderr(_BriefErrors(sys.stderr)), acquire_or_wait(lock_file, say, build.name):
            finished = _run_build(workspace, pipeline, job, build, progress, triggered_at, again)
            return replace(finished, status=read_status(workspace.manifests, build))
    except KeyboardInterrupt:
        hint = f"`accel-ci resume {build.name}` begins it"
        return FinishedRun((f"interrupted before its first step; {hint}",), interrupted=True)
    except Exception as error:
        if (fault := describe_disk_fault(texts_of(error), project.home)) is None:
            raise
        return FinishedRun((fault,), interrupted=False)


class _BriefErrors(io.TextIOBase):
    """Standard error without the rows that Dagster could not write to its event log: the run tells why it stopped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, unless it is about a row of the event log."""
        if not text.startswith("Exception while writing logger call to event log"):
            self._stream.write(text)
        return len(text)

    def __getattribute__(self, name: str) -> Any:
        own = name in ("write", "_stream") or name.startswith("__")
        return object.__getattribute__(self, name) if own else getattr(self._stream, name)


def _run_build(
    workspace: Workspace, pipeline: Pipeline, job: Job, build: Build, progress: Progress, triggered_at: datetime, again: bool
) -> FinishedRun:
    project, run_id = workspace.project, make_new_run_id()
    resources = {"progress": progress, "stages": stages_of_a_run(Workspace(project, patient=True), locked=True)}
    definition = build_definitions(project, resource_overrides=resources, in_process=True).resolve_job_def(job.name)
    tags = {TRIGGERED_AT: triggered_at.isoformat(), MAX_RETRIES_TAG: "0"}  # a person runs the command again
    tags |= {AGAIN_TAG: "true"} if again else {}
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with open_instance(project) as instance, living(project.home, run_id):
        rest = () if again else _rest_of_a_run(instance, workspace, pipeline, build)
        if rest:
            with progress.step("carried over") as step:
                step.note(f"the complete stages of the run before; this one takes the build up at {rest[0]}")
        location = project.settings.location
        run = create_run(instance, location, definition, build, tags, run_config=quiet, run_id=run_id, assets=rest)
        result = execute_run(InMemoryJob(definition), run, instance)
        interrupted = any(was_interrupted(event) for event in result.all_events)
        problems = () if result.success else tuple(_problems(result, interrupted, project.home, build))
        if rest and LEDGER not in rest:  # no asset of this run is a stage, which would keep the record
            ended = PipelineRun(run_id, triggered_at, datetime.now(timezone.utc), LEDGER, reported=True, began=())
            ending: Literal["interrupted", "failed"] = "interrupted" if interrupted else "failed"
            kept = ended if result.success else replace(ended, ending=ending)
            workspace.manifests.write(workspace.manifests.run_file(pipeline, build), kept)
    if not result.success:
        try:
            refresh_hud(workspace, current_flakiness(workspace))
        except AccelCiError as error:
            problems = (*problems, f"hud: {error}")
        except Exception as error:
            if describe_disk_fault(texts_of(error), project.home) is None:
                raise
    return FinishedRun(problems, interrupted)


def _rest_of_a_run(instance: dg.DagsterInstance, workspace: Workspace, pipeline: Pipeline, build: Build) -> tuple[str, ...]:
    """The assets that are left of a run that stopped; none where there is none, or nothing of it is complete.

    A run that `quality_gate` failed has done all of its work.
    """
    manifests = workspace.manifests
    last, ledger = manifests.last_run(pipeline, build), manifests.path(LEDGER, build.revision, build.variant)
    if last is None or has_ended(last):
        return ()
    failed = {step.step_key for step in instance.get_run_step_stats(last.run) if step.status == StepEventStatus.FAILURE}
    if quality_gate.__name__ in failed:
        return ()
    left = take_up(workspace, pipeline, build)
    if left == pipeline.stages:
        return ()
    measured = [manifests.path(asset.__name__) for asset in (flakiness, coverage, incidents, quarantine, quality_report)]
    if left or not last.reported or LEDGER in failed or not ledger.is_file():
        return assets_after(workspace.project.settings, left)
    if all(each.is_file() and each.stat().st_mtime_ns > ledger.stat().st_mtime_ns for each in measured):
        rest: tuple[str, ...] = (hud.__name__,)
    else:
        rest = QUALITY
    return (*rest, quality_gate.__name__) if workspace.project.settings.fail_run_on else rest


def _pipeline_of(workspace: Workspace, job: Job) -> Pipeline:
    [pipeline] = [pipeline for pipeline in workspace.pipelines if job in pipeline.jobs]
    return pipeline


def _say(progress: Progress, what: str, text: str) -> None:
    with progress.step(what) as step:
        step.note(text)


def _problems(result: dg.JobExecutionResult, interrupted: bool, home: Path, build: Build) -> list[str]:
    checks = [
        f"{event.asset_key.path[-1]}: the check {event.check_name} failed: "
        + "\n".join([str(event.description), *plain_rows(event.metadata.get("findings"))])
        for event in result.get_asset_check_evaluations()
        if not event.passed and event.blocking and event.severity == dg.AssetCheckSeverity.ERROR
    ]
    steps = []
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        if was_interrupted(event):
            steps.append(f"{event.step_key}: interrupted; `accel-ci resume {build.name}` takes the run up where it stopped")
        elif data.user_failure_data is not None:
            steps.append(f"{event.step_key}: {data.user_failure_data.description}")
        elif data.error is not None and not checks:
            cause = data.error.cause or data.error
            if (fault := describe_disk_fault(data.error.to_string(), home)) is not None:
                steps.append(f"{event.step_key}: {fault}")
                continue
            steps.append(f"{event.step_key}: {cause.message.strip()}\n{''.join(cause.stack[-2:]).rstrip()}")
    if interrupted and not checks and not steps:
        return ["interrupted before its first step"]
    return [*checks, *steps] or ["the run failed outside its steps; its page in the UI has the details"]
