"""The parts that all stages of a build share as assets: manifests, order, retries, clear failures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial, wraps
from pathlib import Path
from traceback import format_exception
from typing import Any

import dagster as dg

from accel_ci.config.executor_settings import KubernetesExecutor
from accel_ci.config.settings import Settings
from accel_ci.defs.liveness import end_dead_runs, is_over
from accel_ci.defs.outages import BEFORE_RETRY_S, is_outage, retrying_outages, try_again
from accel_ci.defs.partitions import build_of, build_of_run, builds, of_revision
from accel_ci.defs.run_tags import STRANGER_TAG
from accel_ci.defs.turn_at_build import RunRecord, at_work, pipelines_of_run, say_in_the_log
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.json_logs import about
from accel_ci.leftovers import clear_leftovers
from accel_ci.model import Build, Revision
from accel_ci.pipelines import DEVICELESS_RESULTS, LEDGER, REVISION, Pipeline
from accel_ci.preflight import require
from accel_ci.progress import Progress, Step
from accel_ci.pull_requests.strangers import as_for_strangers, require_isolation, stages_for_strangers
from accel_ci.redaction import redact
from accel_ci.resumption import begin_stage, complete_stage
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.manifests import ManifestStore
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
    group: str | None = None,
) -> dg.AssetsDefinition:
    """Make an asset of a pipeline from `work`, the function of its name; `checks` are the names of blocking checks.

    Its Dagster group is that of the pipeline's name, unless it has another one.
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
        group_name=group or pipeline.name,
        owners=list(settings.backend.owners),
        partitions_def=builds(settings),
        deps=[*([of_revision()] if stage in (pipeline.stages[0], pipeline.first) else []), *deps],
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


class Stages:
    """The stages of one Dagster run, which has the pipelines of its build to itself."""

    def __init__(
        self,
        workspace: Workspace,
        progress: Progress,
        records: Sequence[RunRecord] = (),
        begin: Callable[[Callable[[str], None]], None] = lambda say: None,
        retries: int = 0,
        *,
        is_stranger: bool = False,
    ) -> None:
        """`begin` is called once, before the first stage, which fails and changes nothing if it raises `AccelCiError`.

        A stage that a store leaves is tried again, `retries` times. The run of a stranger's pull request that no maintainer
        has allowed yet has the settings of such runs, and no stage that needs a card.
        """
        self.workspace = as_for_strangers(workspace) if is_stranger else workspace
        self.is_stranger = is_stranger
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
                apart = self._apart(name, build_of(context).variant)
                self.workspace.manifests.begin(name, build_of(context))
                for pipeline in self.workspace.pipelines:
                    if name in pipeline.stages:
                        begin_stage(self.workspace, pipeline, build_of(context), name)
                with (
                    apart,
                    about(build=build_of(context).name, run=context.run.run_id, stage=name),
                    self._progress.step(name) as step,
                ):
                    yield step
        except Exception as error:
            if self._retries and is_outage(error):
                raise try_again(error, self._retries, BEFORE_RETRY_S) from None
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

    def _apart(self, stage: str, variant: str) -> AbstractContextManager[object]:
        """Have strangers' code to itself, since it runs as one user. Raises `AccelCiError` where it may not run."""
        if not self.is_stranger:
            return nullcontext()
        project = self.workspace.project
        if not any(
            stage in stages_for_strangers(one) for one in self.workspace.pipelines if DEVICELESS_RESULTS in one.stages
        ):
            raise BuildError(f"{stage} needs a maintainer's label: this run is of a stranger's pull request")
        require_isolation(project.settings, project.settings.variant(variant))
        say = partial(say_in_the_log, self._progress, "other runs of strangers")
        return acquire_or_wait(project.home / "strangers.lock", say, "other strangers' pull requests")

    def _begin_once(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin(partial(say_in_the_log, self._progress, "before the run"))


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
        chosen = pipelines_of_run(workspace, context.run)
        records = [RunRecord(workspace.manifests, pipeline, build, run) for run, pipeline, build in chosen]
        return _stages(workspace, context, records, retries_of_steps(workspace.project.settings))

    return stages


def retries_of_steps(settings: Settings) -> int:
    """Return how many times a step is tried again that a store leaves: only a cluster's, whose runs can wait."""
    return settings.executor.retries if isinstance(settings.executor, KubernetesExecutor) else 0


def _stages(workspace: Workspace, context: dg.InitResourceContext, records: Sequence[RunRecord], retries: int = 0) -> Stages:
    chosen = [] if any(record.has_begun for record in records) else pipelines_of_run(workspace, context.run)
    pipelines, builds = [pipeline for _, pipeline, _ in chosen], [build for _, _, build in chosen]
    begin = partial(_begin, workspace, context.instance, pipelines, builds)
    is_stranger = context.run is not None and STRANGER_TAG in context.run.tags
    return Stages(workspace, context.resources.progress, records, begin, retries, is_stranger=is_stranger)


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


def _refuse_unresolved(workspace: Workspace, key: str) -> None:
    """Raise `Failure` for a partition key that a person has added, so that nobody knows its sources; nothing is written."""
    if workspace.manifests.revision(key) is None:
        raise dg.Failure(
            f"no sources were resolved for the revision {key!r}, so there is nothing to build. Launch the job `start`, or "
            f"use `accel-ci run`: both resolve the sources and make the key. Then delete the partition {key!r}",
            allow_retries=False,
        )
