"""The sensors of the relay: they start the builds of deliveries, end those that are obsolete, and report the results."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from time import monotonic

import dagster as dg

from accel_ci.defs.instance import UNFINISHED
from accel_ci.defs.location import is_of, location_tags
from accel_ci.defs.ticks import PREVIEW, fail_if_all_failed, failing_tick, is_preview
from accel_ci.defs.triggers import builds_of, run_request, start_revision
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Trigger
from accel_ci.pipelines import INTEGRATION
from accel_ci.redaction import redact
from accel_ci.relay.downstream.deliveries import (
    Deliveries,
    Delivery,
    KeptDelivery,
    deliveries_of,
    found_otherwise,
    obsolete_since,
)
from accel_ci.relay.downstream.relayed_builds import relay_settings, relay_variants
from accel_ci.workspace import Workspace

DELIVERY_TAG = "accel_ci/delivery"
"""The delivery that a run was asked for by."""

_TICK_S = 30.0
"""After so long, a tick takes up no further delivery: Dagster allows it 60 seconds, which include the start of its runs."""

_ENDING = timedelta(days=1)
"""For so long, runs of an obsolete delivery are looked for."""

_TO_END = [status for status in UNFINISHED if status != dg.DagsterRunStatus.CANCELING]


def relay_sensors(workspace: Workspace) -> list[dg.SensorDefinition]:
    """Make the sensors, if the project has a section `relay`.

    A pull request of upstream is built by the job `pr`: like one of the backend, it is a stranger's, so that its tests are
    isolated and its results stay out of the history. A commit of upstream's main is built by the job `main`.
    """
    if workspace.project.settings.relay is None:
        return []
    sensors = [_builds_sensor(workspace, "pr"), _builds_sensor(workspace, "main"), _report_sensor(workspace)]
    return [*sensors, _poll_sensor(workspace)] if relay_settings(workspace).poll.enabled else sensors


def _builds_sensor(workspace: Workspace, trigger: Trigger) -> dg.SensorDefinition:
    settings, job = relay_settings(workspace), INTEGRATION.job_for(trigger)
    what = {"pr": "pull requests", "main": "commits"}[trigger]

    @dg.sensor(
        name=f"relay_{trigger}_sensor",
        job_name=job.name,
        minimum_interval_seconds=settings.check_every_seconds,
        description=f"Has the {what} of {settings.repository} built that the relay dispatches, once for each delivery.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def relay_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        deliveries = deliveries_of(workspace)
        with failing_tick("the deliveries cannot be read"):
            known = deliveries.summaries()
        own = [kept for kept in known if (kept.delivery.change.pull_request is not None) == (trigger == "pr")]
        if is_preview(context):
            waiting = [kept.delivery.id for kept in own if kept.outcome.state == "new"]
            return dg.SkipReason(f"{PREVIEW}: a tick starts {job.name} for the deliveries {', '.join(waiting) or 'none'}")
        of_change: dict[int | None, list[Delivery]] = defaultdict(list)
        for kept in own:
            of_change[kept.delivery.change.pull_request].append(kept.delivery)
        requests, reasons, errors, tried, began = [], [], [], 0, monotonic()
        for kept in own:
            if monotonic() - began > _TICK_S:
                reasons.append("the other deliveries wait for the next tick")
                break
            tried += kept.outcome.state in ("new", "asked")
            try:
                made, reason = _handle(
                    context.instance, workspace, deliveries, kept, of_change[kept.delivery.change.pull_request]
                )
            except AccelCiError as error:
                errors.append(redact(f"{kept.delivery.id}: {error}"))
                continue
            requests += made
            reasons += [f"{kept.delivery.id}: {reason}"] if reason else []
        deliveries.forget_old(own, datetime.now(timezone.utc))
        fail_if_all_failed("no delivery can be built", errors, tried)
        if not requests:
            return dg.SkipReason("; ".join([*reasons, *errors]) or "nothing new was dispatched")
        return dg.SensorResult(run_requests=requests)

    return relay_sensor


def _handle(
    instance: dg.DagsterInstance,
    workspace: Workspace,
    deliveries: Deliveries,
    kept: KeptDelivery,
    others: Sequence[Delivery],
) -> tuple[list[dg.RunRequest], str]:
    """Do what a delivery needs now: return the runs to ask for, and a reason where something else was done.

    `others` are the deliveries of the same pull request.
    """
    settings, delivery = relay_settings(workspace), kept.delivery
    if kept.outcome.state == "obsolete":  # a run that was about to start could not be ended then
        is_recent = datetime.now(timezone.utc) - delivery.received_at < _ENDING
        ended = _end_runs(instance, workspace, delivery) if is_recent and kept.outcome.asked_at is not None else 0
        return [], f"{ended} runs were ended" if ended else ""
    if kept.outcome.state not in ("new", "asked", "started"):
        return [], ""
    if (reason := obsolete_since(delivery, others, supersede=settings.supersede)) is not None:
        ended = _end_runs(instance, workspace, delivery)
        deliveries.note(kept, state="obsolete", reason=reason)
        return [], f"{reason}{f'; {ended} runs were ended' if ended else ''}"
    if kept.outcome.state == "new":
        if (refusal := _refusal(workspace, delivery)) is not None:
            deliveries.note(kept, state="refused", reason=refusal)
            return [], refusal
        if (other := found_otherwise(delivery, deliveries.summaries())) is not None:
            same = other.outcome
            deliveries.note(kept, state="started", asked_at=same.asked_at, revision=same.revision, variants=same.variants)
            return [], f"the runs of {other.delivery.id} test the same change"
        kept = _ask(instance, workspace, deliveries, kept)
    elif kept.outcome.state == "started":
        return [], ""
    elif len(_runs(instance, workspace, delivery)) >= len(kept.outcome.variants):
        deliveries.note(kept, state="started")
        return [], ""
    # The daemon may have been killed before it started them; a run with a key that was used is not started again.
    return _requests(workspace, kept), ""


def _refusal(workspace: Workspace, delivery: Delivery) -> str | None:
    """Say why a delivery has nothing to build; None if it has."""
    change, upstream = delivery.change, workspace.project.settings.upstream
    if change.closes:
        return "a pull request that is closed needs no build"
    if change.pull_request is None and change.ref != upstream.ref:
        return f"{change.ref} is not the branch that is followed, {upstream.ref}"
    if not relay_variants(workspace):
        return "no variant is built with PyTorch from main, so none would test the change; see relay.variants"
    return None


def _ask(instance: dg.DagsterInstance, workspace: Workspace, deliveries: Deliveries, kept: KeptDelivery) -> KeptDelivery:
    """Make the revision of a delivery, and note what is asked for. Raises `SourceError`."""
    change, now = kept.delivery.change, datetime.now(timezone.utc)
    if change.pull_request is None:
        revision = start_revision(instance, workspace, "main", now=now, upstream_sha=change.sha)
    else:
        revision = start_revision(
            instance, workspace, "pr", now=now, upstream_sha=change.sha, upstream_ref=change.ref,
            pull_request=change.pull_request, backend_ref=workspace.project.settings.backend.ref,
        )  # fmt: skip
    job, wanted = INTEGRATION.job_for(revision.trigger), relay_variants(workspace)
    variants = tuple(each.variant for each in builds_of(workspace, job, revision) if each.variant in wanted)
    if not variants:
        return deliveries.note(kept, state="refused", reason=f"the job {job.name} has none of {', '.join(wanted)}")
    return deliveries.note(kept, state="asked", asked_at=now, revision=revision.key, variants=variants)


def _requests(workspace: Workspace, kept: KeptDelivery) -> list[dg.RunRequest]:
    """Ask for one run for each build of a delivery."""
    outcome, delivery = kept.outcome, kept.delivery
    job = INTEGRATION.job_for("main" if delivery.change.pull_request is None else "pr")
    requests = []
    for variant in outcome.variants:
        request = run_request(job, Build(outcome.revision or "", variant), f"relay:{delivery.id}:{variant}")
        requests.append(request._replace(tags={**request.tags, DELIVERY_TAG: delivery.id}))
    return requests


def _runs(
    instance: dg.DagsterInstance, workspace: Workspace, delivery: Delivery, *, unfinished: bool = False
) -> list[dg.DagsterRun]:
    location = workspace.project.settings.location
    wanted = dg.RunsFilter(
        tags={DELIVERY_TAG: delivery.id, **location_tags(location)}, statuses=_TO_END if unfinished else None
    )
    return [run for run in instance.get_runs(wanted) if is_of(run, location)]


def _end_runs(instance: dg.DagsterInstance, workspace: Workspace, delivery: Delivery) -> int:
    """End the queued and the running runs of a delivery; return how many."""
    return sum(
        instance.run_coordinator.cancel_run(run.run_id) for run in _runs(instance, workspace, delivery, unfinished=True)
    )


def _report_sensor(workspace: Workspace) -> dg.SensorDefinition:
    settings = relay_settings(workspace)

    @dg.sensor(
        name="relay_report_sensor",
        minimum_interval_seconds=settings.check_every_seconds,
        description="Reports builds to the relay: that they are in progress, and their results. It delays no build.",
        default_status=(
            dg.DefaultSensorStatus.RUNNING
            if settings.enabled and settings.callbacks and settings.identity == "file"
            else dg.DefaultSensorStatus.STOPPED
        ),
    )
    def relay_report_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from accel_ci.relay.downstream.report import report_all

        if not settings.callbacks:
            return dg.SkipReason("relay.callbacks names no place to report to")
        if is_preview(context):
            return dg.SkipReason(f"{PREVIEW}: a tick sends the callbacks that are due")
        with failing_tick("nothing can be reported"):
            lines = report_all(workspace, datetime.now(timezone.utc))
        return dg.SkipReason("; ".join(lines) or "nothing is due")

    return relay_report_sensor


def _poll_sensor(workspace: Workspace) -> dg.SensorDefinition:
    settings = relay_settings(workspace)

    @dg.sensor(
        name="relay_poll_sensor",
        minimum_interval_seconds=settings.poll.every_seconds,
        description=f"Asks GitHub for changes of {settings.repository}, for a CI that no dispatch can reach.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def relay_poll_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from accel_ci.relay.downstream.poll import poll_upstream

        if is_preview(context):
            return dg.SkipReason(f"{PREVIEW}: a tick asks GitHub, and keeps a delivery for each change")
        with failing_tick("upstream cannot be polled"):
            lines = poll_upstream(workspace, datetime.now(timezone.utc))
        return dg.SkipReason("; ".join(lines) or "nothing has changed")

    return relay_poll_sensor
