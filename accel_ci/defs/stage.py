"""The parts that all stages of a build share as assets: partitions, manifests, turns at the build, clear failures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial, wraps
from pathlib import Path
from traceback import format_exception
from typing import Any, Literal

import dagster as dg

from accel_ci.config.executor_settings import KubernetesExecutor
from accel_ci.config.settings import Settings
from accel_ci.defs.liveness import end_dead_runs, is_over
from accel_ci.defs.outages import is_canceling, is_outage, retrying_outages, try_again
from accel_ci.defs.partitions import build_of, build_of_run, builds, of_revision
from accel_ci.defs.run_tags import AGAIN_TAG, NOT_YET, TRIGGERED_AT, VERDICT_TAG
from accel_ci.errors import AccelCiError
from accel_ci.json_logs import about
from accel_ci.leftovers import clear_leftovers
from accel_ci.model import Build, Revision
from accel_ci.pipelines import LEDGER, REVISION, Pipeline
from accel_ci.preflight import require
from accel_ci.progress import Progress, Step
from accel_ci.redaction import redact
from accel_ci.resumption import begin_again, begin_stage, complete_stage
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.manifests import ManifestStore, PipelineRun
from accel_ci.workspace import Workspace


def stage_asset(
    pipeline: Pipeline,
    workspace: Workspace,
    work: Callable[..., dg.MaterializeResult],
    manifest: type,
    *,
    kinds: set[str],
    checks: Sequence[str] = (),
    deps: Sequence[str] = (),
) -> dg.AssetsDefinition:
    """Make an asset of a pipeline from `work`, the function of its name; `checks` are the names of blocking checks.

    Its manifest is there, and its stage complete, when `work` has ended: a kill before Dagster notes it repeats nothing.
    """
    settings, stage = workspace.project.settings, work.__name__

    @wraps(work)
    def made(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        result = work(context, **inputs)
        well = all(check.passed or check.severity != dg.AssetCheckSeverity.ERROR for check in result.check_results or ())
        with retrying_outages(retries_of_steps(settings)):
            complete_stage(workspace, pipeline, build_of(context), stage, result.value, well=well)
        return result

    make = dg.asset(
        group_name=pipeline.name,
        owners=list(settings.backend.owners),
        partitions_def=builds(settings),
        deps=[of_revision()] if stage == pipeline.stages[0] else deps,
        kinds=kinds,
        dagster_type=manifest_type(manifest),
        check_specs=[dg.AssetCheckSpec(name, asset=stage, blocking=True) for name in checks],
    )
    return make(made)


@cache
def manifest_type(value_type: type) -> dg.DagsterType:
    """Return Dagster's type of a manifest: it reads no annotation of an asset with checks, and wants each name once."""
    return dg.PythonObjectDagsterType(value_type, name=f"{value_type.__name__}Manifest")


class ManifestIOManager(dg.IOManager):
    """Writes what assets return as JSON manifests, and reads them as the type that the reader names."""

    def __init__(self, manifests: ManifestStore, retries: int = 0) -> None:
        """A step whose manifests are away is tried again, `retries` times."""
        self._manifests, self._retries = manifests, retries

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write the manifest of the asset."""
        if obj is not None:
            path = self._path(context)
            with retrying_outages(self._retries):
                self._manifests.write(path, obj)
            context.add_output_metadata({"manifest": dg.MetadataValue.path(self._manifests.share.location(path))})

    def load_input(self, context: dg.InputContext) -> Any:
        """Read the manifest of an upstream asset as the type of the asset's parameter."""
        with retrying_outages(self._retries):
            return self._manifests.read(self._path(context), context.dagster_type.typing_type)

    def _path(self, context: dg.OutputContext | dg.InputContext) -> Path:
        name = context.asset_key.path[-1]
        if not context.has_asset_partitions:
            return self._manifests.path(name)
        key = context.asset_partition_key
        dimensions = key.keys_by_dimension if isinstance(key, dg.MultiPartitionKey) else {REVISION: key}
        return self._manifests.path(name, dimensions[REVISION], dimensions.get("variant"))


class RunRecord:
    """The record of a run beside the manifests of a build, from which its state and wall time are known without Dagster.

    Processes of the same run continue it.
    """

    def __init__(self, manifests: ManifestStore, pipeline: Pipeline, build: Build, run: dg.DagsterRun) -> None:
        asked = None if run.parent_run_id else run.tags.get(TRIGGERED_AT)  # a run that is executed again inherits its tags
        self._manifests, self._path = manifests, manifests.run_file(pipeline, build)
        now = datetime.now(timezone.utc)
        self._run = PipelineRun(run.run_id, datetime.fromisoformat(asked) if asked else now, began=(), started_at=now)
        last = manifests.last_run(pipeline, build)
        if last is None or last.run != run.run_id:
            self.note()
        elif last.ended_at is None:
            self._run = last
        else:  # its process was ended, and another one goes on
            self._run = last
            self.note(ended_at=None, ending=None)

    @property
    def has_begun(self) -> bool:
        """True if a stage of the run has begun."""
        return bool(self._run.began)

    def end(self, ending: Literal["failed", "interrupted"] | None) -> None:
        """Note the end of the run, after all that its other processes have noted."""
        last = self._manifests.read_history(self._path, PipelineRun)
        self._run = last if last is not None and last.run == self._run.run else self._run
        self.note(ended_at=datetime.now(timezone.utc), ending=ending)

    def begin(self, stage: str) -> None:
        """Note that a stage begins."""
        self.note(stage=stage, began=(*(self._run.began or ()), stage))

    def note(self, **changes: Any) -> None:
        """Write the record with some fields changed."""
        self._run = replace(self._run, **changes)
        self._manifests.write(self._path, self._run)


class Stages:
    """The stages of one Dagster run, which has the pipelines of its build to itself."""

    def __init__(
        self,
        workspace: Workspace,
        progress: Progress,
        records: Sequence[RunRecord] = (),
        begin: Callable[[Callable[[str], None]], None] = lambda say: None,
        retries: int = 0,
    ) -> None:
        """`begin` is called once, before the first stage, which fails and changes nothing if it raises `AccelCiError`.

        A stage that an outage or the end of its machine stops is tried again, `retries` times.
        """
        self.workspace = workspace
        self._progress = progress
        self._records = records
        self._begin: Callable[[Callable[[str], None]], None] | None = begin
        self._retries = retries

    @contextmanager
    def stage(self, context: dg.AssetExecutionContext) -> Iterator[Step]:
        """Announce the asset's step; an `AccelCiError` fails it with the message as the whole description.

        Manifests of an earlier run stay until this run has made its own; the record of the run tells the two apart. A
        failure by `AccelCiError` is not retried, since it would come again.
        """
        name = context.asset_key.path[-1]
        _refuse_unresolved(self.workspace, build_of(context).revision)
        for record in self._records:
            record.begin(name)
        try:
            with self.workspace.manifests.noting_failure(name, build_of(context)):
                self._begin_once()
                self.workspace.manifests.begin(name, build_of(context))
                for pipeline in self.workspace.pipelines:
                    if name in pipeline.stages:
                        begin_stage(self.workspace, pipeline, build_of(context), name)
                with (
                    about(build=build_of(context).name, run=context.run.run_id, stage=name),
                    self._progress.step(name) as step,
                ):
                    yield step
        except dg.DagsterExecutionInterruptedError as error:
            if self._retries and not is_canceling(context.instance, context.run_id):
                raise try_again(error, self._retries) from None
            raise
        except Exception as error:
            if self._retries and is_outage(error):
                raise try_again(error, self._retries) from None
            if isinstance(error, AccelCiError):
                raise _failure(str(error)) from _unless_secret(error)
            if (fault := describe_disk_fault(texts_of(error), self.workspace.project.home)) is not None:
                raise _failure(fault) from _unless_secret(error)
            if _unless_secret(error) is None:
                raise _failure("".join(format_exception(error))) from None
            raise
        if name == LEDGER:
            for record in self._records:
                record.note(reported=True)

    def revision(self, context: dg.AssetExecutionContext) -> Revision:
        """Read the revision of the asset's build. Raises `AccelCiError`."""
        manifests = self.workspace.manifests
        return manifests.read(manifests.path(REVISION, build_of(context).revision), Revision)

    def _begin_once(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin(partial(_say, self._progress, "before the run"))


def _failure(description: str) -> dg.Failure:
    """Make the failure of a step, whose description Dagster stores and shows, without secrets."""
    return dg.Failure(description=redact(description), allow_retries=False)


def _unless_secret(error: Exception) -> Exception | None:
    """The error as the cause of a failure, whose traceback Dagster stores; None if that would show a secret."""
    text = "".join(format_exception(error))
    return error if redact(text) == text else None


def stages_of_a_run(workspace: Workspace, *, locked: bool = False) -> dg.ResourceDefinition:
    """Make the resource `stages`, which locks the run's pipelines of its build until the run ends, or has them `locked`.

    Runs that Dagster's queue starts do not meet here, since the queue holds them apart by the tag `accel_ci/build`. Runs of
    the command line and of single assets do: two at once would take each other's manifests, so that the second waits.
    """

    @dg.resource(required_resource_keys={"progress"})
    def stages(context: dg.InitResourceContext) -> Iterator[Stages]:
        progress: Progress = context.resources.progress
        with at_work(workspace, context.run, context.instance, progress, locked=locked) as records:
            yield _stages(workspace, context, records)

    return stages


def stages_of_a_step(workspace: Workspace) -> dg.ResourceDefinition:
    """Make the resource `stages` of a step that does not share the process of its run, which has the build (`at_work`)."""

    @dg.resource(required_resource_keys={"progress"})
    def stages(context: dg.InitResourceContext) -> Stages:
        if context.run is not None and (build := build_of_run(context.run)) is not None:
            workspace.manifests.bring(build)
        chosen = _pipelines(workspace, context.run)
        records = [RunRecord(workspace.manifests, pipeline, build, run) for run, pipeline, build in chosen]
        return _stages(workspace, context, records, retries_of_steps(workspace.project.settings))

    return stages


def retries_of_steps(settings: Settings) -> int:
    """Return how many times a step that is stopped from outside is tried again: such a run is only worth it on a cluster."""
    return settings.executor.retries if isinstance(settings.executor, KubernetesExecutor) else 0


def _stages(workspace: Workspace, context: dg.InitResourceContext, records: Sequence[RunRecord], retries: int = 0) -> Stages:
    chosen = [] if any(record.has_begun for record in records) else _pipelines(workspace, context.run)
    pipelines, builds = [pipeline for _, pipeline, _ in chosen], [build for _, _, build in chosen]
    begin = partial(_begin, workspace, context.instance, pipelines, builds)
    return Stages(workspace, context.resources.progress, records, begin, retries)


@contextmanager
def at_work(
    workspace: Workspace,
    run: dg.DagsterRun | None,
    instance: dg.DagsterInstance | None,
    progress: Progress,
    *,
    locked: bool = False,
) -> Iterator[list[RunRecord]]:
    """Have a run's pipelines of its build for the run alone in the context, and keep the records of the run.

    They are locked here, unless the caller has them `locked`.
    """
    own, say = build_of_run(run) if run is not None else None, partial(_say, progress, "other runs")
    if own is not None:
        workspace.manifests.bring(own)
    with ExitStack() as until_the_run_ends:
        records, is_resumed = [], False
        for of_run, pipeline, build in _pipelines(workspace, run):
            if not locked:
                lock_file = workspace.manifests.pipeline_lock_file(pipeline, build)
                until_the_run_ends.enter_context(acquire_or_wait(lock_file, say, build.name))
            last = workspace.manifests.last_run(pipeline, build)
            is_resumed = last is not None and last.run == of_run.run_id  # its process died, and another one goes on
            if AGAIN_TAG in of_run.tags and of_run.parent_run_id is None and not is_resumed:
                begin_again(workspace, pipeline, build)
            records.append(RunRecord(workspace.manifests, pipeline, build, of_run))
        if instance is not None and run is not None and VERDICT_TAG in run.tags and not is_resumed:
            instance.add_run_tags(run.run_id, NOT_YET)
        try:
            yield records
        finally:
            ending = _ending(instance, run)
            if own is not None:
                workspace.manifests.bring(own)
            for record in records:
                record.end(ending)


def _begin(
    workspace: Workspace,
    instance: dg.DagsterInstance | None,
    pipelines: Sequence[Pipeline],
    builds: Sequence[Build],
    say: Callable[[str], None],
) -> None:
    """Check what a run needs from outside, and clear away what dead runs left. Raises `AccelCiError`."""
    project = workspace.project
    require(project.settings, pipelines, say)
    if instance is not None and builds:
        end_dead_runs(instance, project.home)
        for leftover in clear_leftovers(project, is_over(instance), builds[0]):
            say(leftover.describe())


def _say(progress: Progress, what: str, text: str) -> None:
    with progress.step(what) as step:
        step.note(text)


def _refuse_unresolved(workspace: Workspace, key: str) -> None:
    """Raise `Failure` for a partition key that a person has added, so that nobody knows its sources; nothing is written."""
    if workspace.manifests.revision(key) is None:
        raise dg.Failure(
            f"no sources were resolved for the revision {key!r}, so there is nothing to build. Launch the job `start`, or "
            f"use `accel-ci run`: both resolve the sources and make the key. Then delete the partition {key!r}",
            allow_retries=False,
        )


def _ending(instance: dg.DagsterInstance | None, run: dg.DagsterRun | None) -> Literal["failed", "interrupted"] | None:
    """Return how a run ends, if not well."""
    if instance is None or run is None:
        return None
    logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    events = [event for log in logs if (event := log.dagster_event) is not None]
    if any(was_interrupted(event) for event in events):
        return "interrupted"
    return "failed" if events else None


def was_interrupted(event: dg.DagsterEvent) -> bool:
    """Return whether an event reports that a person or a signal ended its step or run."""
    error = getattr(event.event_specific_data, "error", None)
    return error is not None and error.cls_name == "DagsterExecutionInterruptedError"


def _pipelines(workspace: Workspace, run: dg.DagsterRun | None) -> list[tuple[dg.DagsterRun, Pipeline, Build]]:
    """Return the pipelines that a run has stages of, always in the same order, with the run and its build.

    Of a run that names no steps of a pipeline, these are the pipelines that have its job; of one without steps and job, all.
    There are none where nobody resolved the revision: such a run fails at its first stage and leaves nothing behind.
    """
    build = build_of_run(run) if run is not None else None
    if run is None or build is None or workspace.manifests.revision(build.revision) is None:
        return []
    of_job = [one for one in workspace.pipelines if any(job.name == run.job_name for job in one.jobs)]
    if steps := run.step_keys_to_execute:
        chosen = [one for one in workspace.pipelines if not set(one.stages).isdisjoint(steps)] or of_job
    else:
        chosen = of_job or list(workspace.pipelines)
    return [(run, pipeline, build) for pipeline in chosen]
