"""The turn of a run at its build: it has the pipelines that it works on to itself, and keeps a record that outlives Dagster.

The stages of a run, and what each of them needs, are in `accel_ci.defs.stage`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal

import dagster as dg

from accel_ci.defs.partitions import build_of_run
from accel_ci.defs.run_tags import AGAIN_TAG, NOT_YET, STRANGER_TAG, TRIGGERED_AT, VERDICT_TAG
from accel_ci.model import Build
from accel_ci.pipelines import Pipeline
from accel_ci.progress import Progress
from accel_ci.resumption import begin_again
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.manifests import ManifestStore, PipelineRun
from accel_ci.workspace import Workspace


class RunRecord:
    """The record of a run beside the manifests of a build, from which its state and wall time are known without Dagster.

    Processes of the same run continue it.
    """

    def __init__(self, manifests: ManifestStore, pipeline: Pipeline, build: Build, run: dg.DagsterRun) -> None:
        asked = None if run.parent_run_id else run.tags.get(TRIGGERED_AT)  # a run that is executed again inherits its tags
        self._manifests, self._path = manifests, manifests.run_file(pipeline, build)
        now = datetime.now(timezone.utc)
        asked_at, before_label = datetime.fromisoformat(asked) if asked else now, STRANGER_TAG in run.tags
        self._run = PipelineRun(run.run_id, asked_at, began=(), started_at=now, before_label=before_label)
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
    own, say = build_of_run(run) if run is not None else None, partial(say_in_the_log, progress, "other runs")
    if own is not None:
        workspace.manifests.bring(own)
    with ExitStack() as until_the_run_ends:
        records, is_resumed = [], False
        for of_run, pipeline, build in pipelines_of_run(workspace, run):
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


def say_in_the_log(progress: Progress, what: str, text: str) -> None:
    """Note something that is said before a stage begins."""
    with progress.step(what) as step:
        step.note(text)


def _ending(instance: dg.DagsterInstance | None, run: dg.DagsterRun | None) -> Literal["failed", "interrupted"] | None:
    """Return how a run ends, if not well. A step that failed and was tried again counts by its last try."""
    if instance is None or run is None:
        return None
    ends = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SUCCESS}
    events = [event for log in instance.all_logs(run.run_id, of_type=ends) if (event := log.dagster_event) is not None]
    failures = [event for event in {event.step_key: event for event in events}.values() if event.is_step_failure]
    if any(was_interrupted(event) for event in failures):
        return "interrupted"
    return "failed" if failures else None


def was_interrupted(event: dg.DagsterEvent) -> bool:
    """Return whether an event reports that a person or a signal ended its step or run."""
    error = getattr(event.event_specific_data, "error", None)
    return error is not None and error.cls_name == "DagsterExecutionInterruptedError"


def pipelines_of_run(workspace: Workspace, run: dg.DagsterRun | None) -> list[tuple[dg.DagsterRun, Pipeline, Build]]:
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
