"""The executors of runs: where their steps have their processes, as the section `executor` says.

With a process or a pod for each step, the process of the run has the build to itself (`accel_ci.defs.turn_at_build`) and its
steps only work. A step whose pod is ended is tried again; one that fails by itself is not, since it would fail again.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.executor_definition import multiple_process_executor_requirements
from dagster._core.events import StepRetryData  # type: ignore[attr-defined]
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

from accel_ci.config.executor_settings import KubernetesExecutor, MultiprocessExecutor, StepPod
from accel_ci.defs.liveness import living
from accel_ci.defs.outages import is_canceling, is_outage
from accel_ci.defs.turn_at_build import at_work, was_interrupted
from accel_ci.pipelines import stages_of
from accel_ci.progress import LineProgress
from accel_ci.redaction import redact
from accel_ci.workspace import Workspace


def build_executor(workspace: Workspace, settings: MultiprocessExecutor | KubernetesExecutor) -> dg.ExecutorDefinition:
    """Make an executor whose steps do not share the process of their run."""
    if isinstance(settings, MultiprocessExecutor):
        return _with_own_steps(workspace, dg.multiprocess_executor, {"max_concurrent": settings.max_concurrent})
    from dagster_k8s import k8s_job_executor

    return _with_own_steps(workspace, k8s_job_executor, _in_pods(settings), settings.retries)


def _with_own_steps(
    workspace: Workspace, kind: dg.ExecutorDefinition, config: dict[str, Any], retries: int = 0
) -> dg.ExecutorDefinition:
    """Make an executor of a kind of Dagster's whose runs have their builds to themselves; a run's own config goes first."""

    def make(context: dg.InitExecutorContext) -> dg.Executor:
        given = context.executor_config
        ours = {name: value for name, value in config.items() if not given.get(name)}  # Dagster fills in empty defaults
        context = context._replace(executor_config={**given, **ours})
        executor: Any = kind.executor_creation_fn(context)  # type: ignore[misc]
        if retries:
            executor = _RetryingTheEnded(executor._step_handler, executor.retries, config["max_concurrent"], retries)
        return _AtWork(executor, workspace)

    name, schema = workspace.project.settings.executor.kind, cast(Any, kind.config_schema)
    own: Any = dg.executor(name=name, config_schema=schema, requirements=multiple_process_executor_requirements())
    made: dg.ExecutorDefinition = own(make)
    return made


def _in_pods(settings: KubernetesExecutor) -> dict[str, Any]:
    """Translate the settings into the configuration of `k8s_job_executor`.

    Jobs of steps are not owned by the pod of their run: they would go with it, and go on instead until it is resumed.
    """
    namespace = {"job_namespace": settings.namespace} if settings.namespace else {}
    return {
        "max_concurrent": settings.max_concurrent,
        "step_k8s_config": _pod(settings.pod),
        "per_step_k8s_config": {step: _pod(pod) for step, pod in settings.steps.items()},
        **namespace,
    }


def _pod(pod: StepPod) -> dict[str, Any]:
    memory = {"memory": pod.memory} if pod.memory else {}
    cpu = {"cpu": pod.cpu} if pod.cpu else {}
    resources = {"resources": {"requests": {**cpu, **memory}, "limits": memory}} if cpu or memory else {}
    container = {**resources, **pod.config.get("container_config", {})}
    return {**pod.config, "container_config": container} if container else dict(pod.config)


class _AtWork(dg.Executor):
    """Runs steps by another executor, while this process shows that the run lives and has its builds."""

    def __init__(self, steps: dg.Executor, workspace: Workspace) -> None:
        self._steps, self._workspace = steps, workspace

    @property
    def retries(self) -> RetryMode:
        """Those of the other executor."""
        return self._steps.retries

    @property
    def step_dependency_config(self) -> Any:
        """That of the other executor."""
        return self._steps.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        """Run the steps. Those that are no stages of a build, such as the HUD alone, need no turn at it."""
        run, instance, home = plan_context.dagster_run, plan_context.instance, self._workspace.project.home
        of_build = not set(stages_of(self._workspace.pipelines)).isdisjoint(execution_plan.step_keys_to_execute)
        turn = at_work(self._workspace, run if of_build else None, instance, LineProgress())
        _end_steps_of_cancelled_runs(instance)
        with _dying_of_outages(instance), living(home, run.run_id), turn, _dying_of_outages(instance):
            yield from self._steps.execute(plan_context, execution_plan)


def _end_steps_of_cancelled_runs(instance: dg.DagsterInstance) -> None:
    """Have the steps of a cancelled run ended too: Dagster would leave them, as for a run that is going to be resumed."""
    will_resume = instance.run_will_resume
    instance.run_will_resume = lambda run_id: not is_canceling(instance, run_id) and will_resume(run_id)  # type: ignore[method-assign]


@contextmanager
def _dying_of_outages(instance: dg.DagsterInstance) -> Iterator[None]:
    """End this process at once and without a word if a store is away, so that the daemon resumes the run in another one.

    A failure that this process reported would end the run, while its steps go on.
    """
    try:
        yield
    except Exception as error:
        if instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts and is_outage(error):
            sys.stderr.write(redact(f"a store is away, so that the run goes on in another process: {error}\n"))
            sys.stderr.flush()
            os._exit(os.EX_TEMPFAIL)
        raise


class _LookingTwice(StepHandler):
    """Believes that a worker is gone when it was so twice.

    The process that resumes a run looks for the first time at steps that may have died with the process before it. Dagster
    would start such a step under the name that the dead one still has; at the second look, it counts as another try.
    """

    def __init__(self, handler: StepHandler) -> None:
        self._handler = handler
        self._missed: set[tuple[str, int]] = set()

    @property
    def name(self) -> str:
        """That of the other handler."""
        return self._handler.name

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        """Launch the step."""
        return self._handler.launch_step(step_handler_context)

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        """Return bad news at the second time."""
        found = self._handler.check_step_health(step_handler_context)
        arguments = step_handler_context.execute_step_args
        [step] = arguments.step_keys_to_execute or [""]
        tried = arguments.known_state.get_retry_state().get_attempt_count(step) if arguments.known_state else 0
        if found.is_healthy or (step, tried) in self._missed:
            return found
        self._missed.add((step, tried))
        return CheckStepHealthResult.healthy()

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        """End the step."""
        return self._handler.terminate_step(step_handler_context)


class _RetryingTheEnded(StepDelegatingExecutor):
    """Starts a step again whose worker has died or was asked to end, as by a node that is drained, at most so many times."""

    def __init__(self, handler: StepHandler, retries: RetryMode, max_concurrent: int, times: int) -> None:
        super().__init__(_LookingTwice(handler), retries, max_concurrent=max_concurrent, should_verify_step=True)
        self._times = times
        self._ended: Counter[str] = Counter()

    def log_failure_or_retry_event_after_error(self, step_context: Any, err_info: Any, known_state: Any) -> dg.DagsterEvent:
        """Report the end of a worker that did not report it, as a retry or as a failure."""
        if known_state.get_retry_state().get_attempt_count(step_context.step.key) < self._times:
            return dg.DagsterEvent.step_retry_event(step_context, StepRetryData(err_info))  # type: ignore[no-untyped-call]
        return super().log_failure_or_retry_event_after_error(step_context, err_info, known_state)

    def _pop_events(self, instance: dg.DagsterInstance, run_id: str, seen_storage_ids: set[int]) -> list[dg.DagsterEvent]:
        """Take the failure of a worker that was asked to end for a retry. A cancelled run does not come to this point."""
        events = super()._pop_events(instance, run_id, seen_storage_ids)
        return [self._retry(event) if event.is_step_failure and was_interrupted(event) else event for event in events]

    def _retry(self, failure: dg.DagsterEvent) -> dg.DagsterEvent:
        step = str(failure.step_key)
        self._ended[step] += 1
        if self._ended[step] > self._times:
            return failure
        retry = StepRetryData(getattr(failure.event_specific_data, "error", None))  # type: ignore[no-untyped-call]
        return failure._replace(event_type_value=dg.DagsterEventType.STEP_UP_FOR_RETRY.value, event_specific_data=retry)
