"""Running a job from the command line: in this process, on the instance that the UI shows."""

import io
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

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
from accel_ci.defs.quality import QUALITY, current_flakiness, quality_gate, refresh_hud
from accel_ci.defs.run_tags import TRIGGERED_AT
from accel_ci.defs.runs import create_run
from accel_ci.defs.stage import was_interrupted
from accel_ci.defs.triggers import builds_of, choose_revision
from accel_ci.errors import AccelCiError, ConfigError
from accel_ci.model import Build, Trigger
from accel_ci.pipelines import LEDGER, Job, Pipeline
from accel_ci.progress import Progress
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of
from accel_ci.workspace import Workspace


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a build; `problems` has a text for each cause that stopped it, an interruption included."""

    problems: tuple[str, ...]
    interrupted: bool


def plan_builds(
    project: Project, pipeline: Pipeline, trigger: Trigger, revision_key: str | None = None, **how: Any
) -> list[Build]:
    """Resolve the revision and make it known; return the builds to run.

    See `choose_revision`. Raises `ConfigError`, also when the pipeline is not configured, and `SourceError`.
    """
    workspace, settings, job = Workspace(project), project.settings, pipeline.job_for(trigger)
    if not pipeline.configured(settings):
        raise ConfigError(
            f"{project.config_path.name} has no section {pipeline.name!r}; `accel-ci init` writes a starter that shows one"
        )
    with open_instance(project) as instance:
        revision = choose_revision(instance, workspace, pipeline, trigger, revision_key, **how)
    return builds_of(settings, job, revision)


_CLOCK_TICK_S = 0.1  # a process may seem to have started this much before a file that was written first


def run_build(project: Project, job: Job, build: Build, progress: Progress, triggered_at: datetime) -> FinishedRun:
    """Run a job for one build. However it ends, the HUD shows it afterwards, unless the disk does not let it."""
    try:
        with redirect_stderr(_BriefErrors(sys.stderr)):
            return _run_build(project, job, build, progress, triggered_at)
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


def _run_build(project: Project, job: Job, build: Build, progress: Progress, triggered_at: datetime) -> FinishedRun:
    definition = build_definitions(project, resource_overrides={"progress": progress}).resolve_job_def(job.name)
    run_id, workspace = make_new_run_id(), Workspace(project)
    tags = {TRIGGERED_AT: triggered_at.isoformat(), MAX_RETRIES_TAG: "0"}  # a person runs the command again
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with open_instance(project) as instance, living(project.home, run_id):
        rest = _rest_of_a_run(instance, workspace, job, build)
        if rest:
            with progress.step("carried over") as step:
                step.note(f"all stages of the run before; this one takes the build up at {rest[0]}")
        run = create_run(instance, definition, build, tags, run_config=quiet, run_id=run_id, assets=rest)
        result = execute_run(InMemoryJob(definition), run, instance)
        interrupted = any(was_interrupted(event) for event in result.all_events)
        problems = () if result.success else tuple(_problems(result, interrupted, project.home))
    if not result.success:
        try:
            refresh_hud(workspace, current_flakiness(workspace))
        except AccelCiError as error:
            problems = (*problems, f"hud: {error}")
        except Exception as error:
            if describe_disk_fault(texts_of(error), project.home) is None:
                raise
    return FinishedRun(problems, interrupted)


def _rest_of_a_run(instance: dg.DagsterInstance, workspace: Workspace, job: Job, build: Build) -> tuple[str, ...]:
    """The assets that are left of a run that stopped after the last stage of its pipeline; none of any other run.

    The configuration must be older than that run, whose stages are then the same as now.
    """
    manifests = workspace.manifests
    [pipeline] = [pipeline for pipeline in workspace.pipelines if job in pipeline.jobs]
    last, ledger = manifests.last_run(pipeline, build), manifests.path(LEDGER, build.revision, build.variant)
    made = [manifests.path(stage, build.revision, build.variant) for stage in pipeline.stages]
    if last is None or not all(path.is_file() for path in made):
        return ()
    if workspace.project.config_path.stat().st_mtime > last.asked_at.timestamp() + _CLOCK_TICK_S:
        return ()
    if ledger.is_file() and ledger.stat().st_mtime >= max(path.stat().st_mtime for path in made):
        return ()
    ended_well = StepEventStatus.SUCCESS
    done = {step.step_key for step in instance.get_run_step_stats(last.run) if step.status == ended_well}
    gate = (quality_gate.__name__,) if workspace.project.settings.fail_run_on else ()
    return (LEDGER, *QUALITY, *gate) if done.issuperset(pipeline.stages) else ()


def _problems(result: dg.JobExecutionResult, interrupted: bool, home: Path) -> list[str]:
    checks = [
        f"{event.asset_key.to_user_string()}: the check {event.check_name} failed: "
        + "\n".join([str(event.description), *plain_rows(event.metadata.get("findings"))])
        for event in result.get_asset_check_evaluations()
        if not event.passed and event.blocking and event.severity == dg.AssetCheckSeverity.ERROR
    ]
    steps = []
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        if was_interrupted(event):
            steps.append(f"{event.step_key}: interrupted; the same command resumes the run where it stopped")
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
