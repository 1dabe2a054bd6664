"""The job `start`: a build that a person starts in the UI. Its launchpad has the options of `accel-ci run`."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import dagster as dg

from accel_ci.bridges.build_answer import STARTED_BY
from accel_ci.config.settings import Settings
from accel_ci.defs.location import location_tags
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.defs.runs import create_run
from accel_ci.defs.triggers import asked_now, builds_of, choose_revision, start_confirmation
from accel_ci.errors import AccelCiError, ConfigError
from accel_ci.ledger.status import find_build
from accel_ci.model import CONFIRM
from accel_ci.pipelines import Pipeline, commands
from accel_ci.redaction import redact
from accel_ci.source.revision import component_refs
from accel_ci.workspace import Workspace

HOW_TO_START = (
    "To start one, open the Launchpad of the job `start`: it resolves the sources of a new revision and queues a run for "
    "each variant. *Materialize* on this page runs a revision that was resolved before."
)
"""A text for the page of each job that makes builds."""


def start_job(workspace: Workspace, executor: dg.ExecutorDefinition) -> dg.JobDefinition:
    """Make the job."""
    settings = workspace.project.settings
    known = {name: at for name, at in commands(workspace.pipelines).items() if at[0].configured(settings)}

    @dg.op(
        name="start_builds",
        description="Resolves the revision, then queues a run for each of its builds.",
        config_schema=_launchpad(settings, known),
    )
    def start(context: dg.OpExecutionContext) -> None:
        chosen = context.op_config
        try:
            runs = _start(context, workspace, *known[chosen["trigger"]], chosen)
        except AccelCiError as error:
            raise dg.Failure(redact(str(error)), allow_retries=False) from None
        queued = {build: dg.MetadataValue.dagster_run(run) for build, run in runs.items()}
        context.add_output_metadata(queued)
        context.log.info(f"queued: {', '.join(queued)}")

    description = (
        "Starts a build, as `accel-ci run` does. Open the Launchpad; as it stands there, it starts a nightly of all "
        f"variants. `trigger` is one of {', '.join(f'`{name}`' for name in known)}; the other fields narrow it down."
    )
    graph = dg.GraphDefinition("start", description=description, node_defs=[start])
    return graph.to_job(executor_def=executor, tags=location_tags(settings.location))


def _launchpad(settings: Settings, triggers: Sequence[str] | dict[str, Any]) -> dict[str, dg.Field]:
    def one_of(name: str, values: Sequence[str]) -> dg.Enum:
        # Dagster keeps a configuration type for the life of the process by its name, whatever its values.
        digest = sha256("\n".join(values).encode()).hexdigest()[:8]
        return dg.Enum(f"{name}_{digest}", [dg.EnumValue(value) for value in values])

    def field(kind: Any, default: Any, description: str) -> dg.Field:
        return dg.Field(kind, default_value=default, is_required=False, description=description)

    text, variants = dg.Noneable(str), [variant.name for variant in settings.variants]
    return {
        "trigger": field(one_of("Trigger", list(triggers)), next(iter(triggers)), "The kind of build."),
        "variants": field([one_of("Variant", variants)], [], "Only these variants [default: those of the job]."),
        "suites": field([one_of("Suite", list(settings.suites))], [], "Only these suites [default: those of the job]."),
        "backend_ref": field(text, None, "The backend's ref instead of the configured one."),
        "upstream_ref": field(text, None, "Upstream's ref instead of the configured one."),
        "components": field([str], [], "Refs of the stack's components instead of the configured ones, as NAME=REF."),
        "pull_request": field(dg.Noneable(int), None, "The number of the pull request (pr)."),
        "name": field(text, None, "A name for the revision (manual)."),
        "revision": field(text, None, "Build this revision, which exists already, instead of a new one."),
        "build": field(text, None, "The build whose failures run again, `<revision>~<variant>` (confirm)."),
    }


def _start(
    context: dg.OpExecutionContext, workspace: Workspace, pipeline: Pipeline, trigger: Any, chosen: dict[str, Any]
) -> dict[str, str]:
    """Resolve the revision and queue its runs; return their ids by the names of the builds. Raises `AccelCiError`."""
    settings, job = workspace.project.settings, pipeline.job_for(trigger)
    if trigger == "pr" and chosen["pull_request"] is None and chosen["revision"] is None:
        raise ConfigError("a pull request needs its number: set 'pull_request'")
    suites = {name: settings.suites[name] for name in chosen["suites"]}
    if suites and all(suite.stage == "smoke" for suite in suites.values()):
        raise ConfigError(f"{', '.join(suites)}: no suite of the stage 'device', so nothing would be tested; add one")
    how = {key: chosen[key] for key in ("backend_ref", "upstream_ref", "pull_request", "suites")}
    how["components"] = component_refs(chosen["components"])
    instance = context.instance
    if trigger == CONFIRM and chosen["revision"] is None:
        if chosen["build"] is None:
            raise ConfigError("the failures of which build are to run again? Set 'build'")
        builds = [start_confirmation(instance, workspace, find_build(workspace.manifests, chosen["build"]))]
    else:
        revision = choose_revision(instance, workspace, pipeline, trigger, chosen["revision"], slug=chosen["name"], **how)
        trigger, builds = revision.trigger, builds_of(workspace, job, revision)
        builds = [build for build in builds if not chosen["variants"] or build.variant in chosen["variants"]]
    if not builds:
        raise ConfigError(f"the job {job.name} has none of the variants {', '.join(chosen['variants'])}")
    definition, queued = context.repository_def.get_job(job.name), {}
    for build in builds:
        tags = {TRIGGER_TAG: trigger, STARTED_BY: context.run_id, **asked_now()}
        run = create_run(instance, settings.location, definition, build, tags, asked_by=context.run)
        instance.submit_run(run.run_id, None)  # type: ignore[arg-type]  # the queue needs no workspace
        queued[build.name] = run.run_id
    return queued
