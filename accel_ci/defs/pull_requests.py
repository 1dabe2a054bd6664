"""The sensors of the backend's pull requests: one starts and ends their builds, the other one answers at GitHub."""

from datetime import datetime, timezone
from time import monotonic

import dagster as dg

from accel_ci.config.github_settings import PullRequests
from accel_ci.defs.heads import Heads
from accel_ci.defs.ticks import PREVIEW, fail_if_all_failed, failing_tick, is_preview
from accel_ci.errors import AccelCiError
from accel_ci.github.answers import is_paused
from accel_ci.pipelines import INTEGRATION
from accel_ci.pull_requests.watched import Watched, keep_watched, look_at_github, look_at_refs, pause, read_watched
from accel_ci.source.git import local_path
from accel_ci.workspace import Workspace

_TICK_S = 30.0
"""After so long, a tick takes up no further pull request: Dagster allows it 60 seconds."""


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
            before, heads = watched, Heads(context.instance, workspace)
            watched = _look(workspace, settings, before, now)
            heads.note_obsolete(before, watched)
            keep_watched(workspace, watched)
        pauses = is_paused(watched.paused_until, now)
        reasons = [f"GitHub's rate limit is used up until {watched.paused_until:%H:%M:%S}"] if pauses else []
        reasons += heads.end_obsolete(watched)
        taken = heads.take_up(watched, began + _TICK_S)
        fail_if_all_failed("no pull request can be built", taken.errors, taken.tried)
        if not taken.requests:
            return dg.SkipReason("; ".join([*reasons, *taken.reasons, *taken.errors]) or "nothing new")
        return dg.SensorResult(run_requests=taken.requests)

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
