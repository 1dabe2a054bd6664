"""The sensors of the backend's pull requests: one starts and ends their builds, the other one answers at GitHub."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from time import monotonic

import dagster as dg
from dagster._core.storage.tags import PRIORITY_TAG

from accel_ci.config.github_settings import PullRequests
from accel_ci.defs.instance import UNFINISHED
from accel_ci.defs.location import asset_key, runs_of
from accel_ci.defs.partitions import build_of_run
from accel_ci.defs.quality import assets_after
from accel_ci.defs.run_tags import STRANGER_TAG
from accel_ci.defs.ticks import PREVIEW, fail_if_all_failed, failing_tick, is_preview
from accel_ci.defs.triggers import builds_of, run_request, start_revision
from accel_ci.errors import AccelCiError, SourceChangedError
from accel_ci.github.answers import is_paused
from accel_ci.model import Build
from accel_ci.pipelines import INTEGRATION
from accel_ci.pull_requests.strangers import stages_for_strangers
from accel_ci.pull_requests.watched import (
    Head,
    Watched,
    keep_watched,
    look_at_github,
    look_at_refs,
    pause,
    read_watched,
)
from accel_ci.redaction import redact
from accel_ci.resumption import stages_left
from accel_ci.source.git import local_path
from accel_ci.workspace import Workspace

PULL_REQUEST_TAG = "accel_ci/pull_request"
"""The number of the pull request that a run was asked for by."""

HEAD_TAG = "accel_ci/pull_request_head"
"""The commit of the pull request that a run tests."""

_TICK_S = 30.0
"""After so long, a tick takes up no further pull request: Dagster allows it 60 seconds."""

_TO_END = [status for status in UNFINISHED if status != dg.DagsterRunStatus.CANCELING]


def pull_request_sensors(workspace: Workspace) -> list[dg.SensorDefinition]:
    """Make the sensors, if the project has a section `pull_requests`."""
    settings = workspace.project.settings.pull_requests
    if settings is None:
        return []
    builds = _builds_sensor(workspace, settings)
    return [builds] if settings.refs is not None else [builds, _answers_sensor(workspace, settings)]


def _status(settings: PullRequests) -> dg.DefaultSensorStatus:
    return dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED


def _builds_sensor(workspace: Workspace, settings: PullRequests) -> dg.SensorDefinition:
    job = INTEGRATION.job_for("pr")

    @dg.sensor(
        name="pull_requests_sensor",
        job_name=job.name,
        minimum_interval_seconds=settings.check_every_seconds,
        description="Has open pull requests of the backend built as the policy allows, and ends builds of older commits.",
        default_status=_status(settings),
    )
    def pull_requests_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        now, began = datetime.now(timezone.utc), monotonic()
        with failing_tick("the pull requests cannot be listed"):
            watched = read_watched(workspace)
            if is_preview(context):
                waiting = [str(number) for number, head in watched.heads.items() if head.state == "allowed"]
                return dg.SkipReason(
                    f"{PREVIEW}: a tick starts {job.name} for the pull requests {', '.join(waiting) or 'none'}"
                )
            if is_paused(watched.paused_until, now):
                return dg.SkipReason(f"GitHub's rate limit is used up until {watched.paused_until:%H:%M:%S}")
            watched = _look(workspace, settings, watched, now)
            keep_watched(workspace, watched)
        pauses = is_paused(watched.paused_until, now)
        reasons = [f"GitHub's rate limit is used up until {watched.paused_until:%H:%M:%S}"] if pauses else []
        reasons += list(_end_obsolete(context.instance, workspace, watched))
        requests, errors, tried = list[dg.RunRequest](), list[str](), 0
        for number in sorted(watched.heads):
            if monotonic() - began > _TICK_S:
                reasons.append("the other pull requests wait for the next tick")
                break
            head = watched.heads[number]
            tried += head.state in ("allowed", "asked") or _is_to_screen(head, settings)
            try:
                after, made = _handle(context.instance, workspace, number, head)
            except SourceChangedError as error:  # the next look decides on what was pushed
                reasons.append(redact(f"{number}: {error}"))
                continue
            except AccelCiError as error:
                errors.append(redact(f"{number}: {error}"))
                continue
            if after != head:
                watched = replace(watched, heads={**watched.heads, number: after})
                keep_watched(workspace, watched)
            requests += made
            reasons += [f"{number}: {after.reason}"] if after.reason and after.state in ("waiting", "passed over") else []
        fail_if_all_failed("no pull request can be built", errors, tried)
        if not requests:
            return dg.SkipReason("; ".join([*reasons, *errors]) or "nothing new")
        return dg.SensorResult(run_requests=requests)

    return pull_requests_sensor


def _look(workspace: Workspace, settings: PullRequests, watched: Watched, now: datetime) -> Watched:
    """Look which pull requests are open. A rate limit of GitHub only begins a pause. Raises `AccelCiError`."""
    project = workspace.project
    if settings.refs is not None:
        limit = min(project.settings.limits.git_seconds, 30)
        repository = project.settings.backend.repository
        address = str(local_path(repository, project.root) or repository)
        return look_at_refs(address, settings.refs, watched, limit, now)
    github = project.settings.github
    if github is None:
        raise AccelCiError("pull_requests needs the section github")
    from accel_ci.github.client import RateLimitError, open_github

    with open_github(github, project.root) as requests:
        try:
            return look_at_github(requests, github.repository, watched, settings, now)
        except RateLimitError as error:
            return pause(watched, error.wait_s, now)


def _handle(instance: dg.DagsterInstance, workspace: Workspace, number: int, head: Head) -> tuple[Head, list[dg.RunRequest]]:
    """Do what a pull request needs now: return what became of its head, and the runs to ask for. Raises `SourceError`."""
    settings, job = workspace.project.settings, INTEGRATION.job_for("pr")
    pulls = settings.pull_requests
    is_stranger = head.state == "waiting"
    if head.state not in ("allowed", "asked") and (pulls is None or not _is_to_screen(head, pulls)):
        return head, []
    records = list(runs_of(instance, settings.location, job=job.name, tags=_tags(number, head)))
    screening = [one for one in records if STRANGER_TAG in one.dagster_run.tags]
    if head.state == "allowed":
        if any(not one.dagster_run.is_finished for one in screening):
            return head, []
        head = replace(_ask(instance, workspace, number, head), state="asked")
    elif is_stranger and head.revision is None:
        head = _ask(instance, workspace, number, head)
    started, ended = set[str](), Counter[str]()
    for record in screening if is_stranger else [one for one in records if one not in screening]:
        made = build_of_run(record.dagster_run)
        variant = made.variant if made is not None else ""
        if _ended_before(record, head):
            ended[variant] += 1
        else:
            started.add(variant)
    missing = [variant for variant in head.variants if variant not in started]
    if not missing:
        return (replace(head, screened=True) if is_stranger else replace(head, state="started")), []
    # The daemon may have been killed before it started them; a run with a key that was used is not started again.
    requests = []
    for variant in missing:
        build, key = Build(head.revision or "", variant), f"pull:{number}:{head.sha}:{variant}"
        key += (":deviceless" if is_stranger else "") + (f":{ended[variant]}" if ended[variant] else "")
        request = run_request(job, build, key)
        own = {STRANGER_TAG: "true", PRIORITY_TAG: "-1"} if is_stranger else {}
        names = _assets(workspace, build, is_stranger=is_stranger) if screening or is_stranger else ()
        assets = [asset_key(settings.location, name) for name in names]
        tags = {**request.tags, **_tags(number, head), **own}
        requests.append(request._replace(tags=tags, asset_selection=assets or None))
    return head, requests


def _is_to_screen(head: Head, settings: PullRequests) -> bool:
    """Return whether the deviceless suites of a stranger's pull request are still to be started."""
    return head.state == "waiting" and settings.strangers == "deviceless" and not head.screened


def _ended_before(record: dg.RunRecord, head: Head) -> bool:
    """Return whether a run was ended before its commit came back, when the branch was reset or the pull request reopened."""
    is_ended = record.dagster_run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
    return is_ended and head.asked_at is not None and record.create_timestamp < head.asked_at


def _assets(workspace: Workspace, build: Build, *, is_stranger: bool) -> tuple[str, ...]:
    """Return the assets that a run makes: of a stranger's, what needs no card; none for all of them.

    Once a maintainer has allowed it, the other run makes what is left.
    """
    pipeline = INTEGRATION.as_configured(workspace.project.settings)
    if is_stranger:
        return stages_for_strangers(pipeline)
    workspace.manifests.bring(build)
    left = stages_left(workspace, pipeline, build)
    return () if left == pipeline.stages else assets_after(workspace.project.settings, left)


def _ask(instance: dg.DagsterInstance, workspace: Workspace, number: int, head: Head) -> Head:
    """Make the revision of a pull request, unless there is one; none where somebody has pushed since the decision."""
    settings, now = workspace.project.settings.pull_requests, datetime.now(timezone.utc)
    if head.revision is not None:
        return replace(head, asked_at=now)
    refs = settings.refs if settings is not None else None
    ref = refs.pattern.replace("*", str(number)) if refs is not None else f"refs/pull/{number}/head"
    revision = start_revision(instance, workspace, "pr", now=now, pull_request=number, backend_ref=ref, backend_sha=head.sha)
    variants = tuple(build.variant for build in builds_of(workspace, INTEGRATION.job_for("pr"), revision))
    return replace(head, revision=revision.key, variants=variants, asked_at=now)


def _tags(number: int, head: Head) -> dict[str, str]:
    return {PULL_REQUEST_TAG: str(number), HEAD_TAG: head.sha}


def _end_obsolete(instance: dg.DagsterInstance, workspace: Workspace, watched: Watched) -> Iterator[str]:
    """End the runs of pull requests that are closed, and of commits that are not their newest. Say which."""
    current = {str(number): head.sha for number, head in watched.heads.items()}
    job = INTEGRATION.job_for("pr").name
    for record in runs_of(instance, workspace.project.settings.location, job=job, statuses=_TO_END):
        run = record.dagster_run
        number = run.tags.get(PULL_REQUEST_TAG)
        if number is None or current.get(number) == run.tags.get(HEAD_TAG):
            continue
        if instance.run_coordinator.cancel_run(run.run_id):
            why = "has a newer commit" if number in current else "is closed"
            yield f"{number}: {why}; its run {run.run_id[:8]} was ended"


def _answers_sensor(workspace: Workspace, settings: PullRequests) -> dg.SensorDefinition:
    @dg.sensor(
        name="pull_request_answers_sensor",
        minimum_interval_seconds=settings.check_every_seconds,
        description="Keeps check runs and one comment of each pull request up to date. It delays no build.",
        default_status=_status(settings),
    )
    def pull_request_answers_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from accel_ci.pull_requests.publish import publish_answers

        if is_preview(context):
            return dg.SkipReason(f"{PREVIEW}: a tick sends the answers that have changed")
        with failing_tick("nothing can be answered"):
            lines = publish_answers(workspace, datetime.now(timezone.utc), _TICK_S)
        return dg.SkipReason("; ".join(lines) or "no answer has changed")

    return pull_request_answers_sensor
