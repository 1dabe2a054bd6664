"""The software stack of a build, if one is configured: its components, built in order before the wheel, and their tests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any

import dagster as dg

from accel_ci.config.stack_settings import Component, Stack
from accel_ci.defs.heads import Heads
from accel_ci.defs.location import runs_of
from accel_ci.defs.metadata import link, stage_result, table
from accel_ci.defs.partitions import build_of
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.defs.ticks import PREVIEW, fail_if_all_failed, failing_tick, is_preview
from accel_ci.defs.triggers import choose_revision, run_requests, start_revision
from accel_ci.errors import AccelCiError, SourceChangedError, SourceError
from accel_ci.model import Build, DeviceTestResults, Revision, SoftwareStack
from accel_ci.pipelines import INTEGRATION, STACK
from accel_ci.pull_requests.watched import Watched, keep_watched, look_at_refs, read_watched
from accel_ci.quality.confirm_selection import manifest_of_confirmed
from accel_ci.redaction import redact
from accel_ci.release.tags import new_and_moved, release_tags, releasing_components
from accel_ci.results.questions import failed_attempts
from accel_ci.source.git import local_path
from accel_ci.source.revision import manual_key, resolve_stack
from accel_ci.source.watch import reason_to_wait
from accel_ci.stack.build import bring_stack, build_stack
from accel_ci.stack.unit_tests import run_unit_tests
from accel_ci.wheels.package_source import packages_of
from accel_ci.workspace import Workspace

_TICK_S = 30.0
"""After so long, a tick starts no further tag: Dagster allows it 60 seconds."""

GROUP = "stack"
"""The Dagster group of the stack's assets. Their runs, locks and records are those of the integration pipeline."""


def stack_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets; none without a section `stack`."""
    if workspace.project.settings.stack is None:
        return []
    pipeline = INTEGRATION.as_configured(workspace.project.settings)
    return [
        stage_asset(pipeline, workspace, stack, SoftwareStack, kinds={"git"}, group=GROUP),
        stage_asset(pipeline, workspace, stack_test_results, DeviceTestResults, kinds={"junit"}, group=GROUP),
    ]


def stack(context: dg.AssetExecutionContext, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The internal components that the backend runs on, built in order and installed together."""
    workspace, build = stages.workspace, build_of(context)
    project, section = workspace.project, _section(workspace)
    with stages.stage(context) as step:
        revision = stages.revision(context)
        if revision.confirms is not None:
            made = manifest_of_confirmed(workspace, STACK, revision, build.variant, SoftwareStack)
            made = replace(made, components=tuple(replace(each, reused=True, work_s=0.0) for each in made.components))
        else:
            packages = packages_of(project.settings, project.settings.variant(build.variant))
            made = build_stack(project, section, revision.stack, packages, workspace.artifacts, workspace.stack_cache, step)
        reused = sum(component.reused for component in made.components)
        step.note(f"{len(made.components)} components, {reused} of them reused; {made.archive.size_bytes:,} bytes")
    return stage_result(made, build, made.digest, stack_metadata(made, workspace))


def stack_test_results(
    context: dg.AssetExecutionContext, stack: SoftwareStack, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The unit tests of each component, in the tree that it was built in: suites of the ledger, which gate no other test."""
    workspace, build = stages.workspace, build_of(context)
    settings, section = workspace.project.settings, _section(workspace)
    with stages.stage(context) as step:
        revision = stages.revision(context)
        if revision.confirms is not None:  # the failures that run again are those of tests on cards
            section = section.model_copy(update={"components": ()})
        results = run_unit_tests(
            section, stack, packages_of(settings, settings.variant(build.variant)), workspace.stack_cache, build,
            revision.created_at.date(), workspace.artifacts, workspace.results, step,
        )  # fmt: skip
        step.note(", ".join(f"{count} {outcome}" for outcome, count in results.counts.items()) or "nothing to test")
    failures = failed_attempts(workspace.results, build, results.suites)
    return stage_result(results, build, results.digest, {
        **{f"attempts_{outcome}": count for outcome, count in results.counts.items()},
        "work_seconds": results.work_s,
        "failures": table(
            ["suite", "test", "outcome", "message"], [[f.suite, f.test, f.outcome, f.message or ""] for f in failures]
        ),
    })  # fmt: skip


def stack_metadata(made: SoftwareStack, workspace: Workspace) -> dict[str, Any]:
    """Describe a stack: its components with their states, and the archive of what they have installed."""
    rows = [
        [each.name, each.source.repository, each.source.ref, each.source.label, each.reused, f"{each.work_s:.1f}"]
        for each in made.components
    ]
    return {
        "components": table(["component", "repository", "ref", "state", "reused", "seconds"], rows),
        "archive": link(workspace, made.archive),
        "prefix": dg.MetadataValue.path(made.prefix),
        "environment": table(["variable", "value"], sorted(made.environment.items())),
        "work_seconds": made.work_s,
    }


def stack_sensors(workspace: Workspace) -> list[dg.SensorDefinition]:
    """Make the sensors: for components that move, their release tags and their changes; none without a section `stack`."""
    section = workspace.project.settings.stack
    if section is None:
        return []
    tags = [_stack_tags_sensor(workspace, section)] if releasing_components(workspace.project) else []
    changing = [each for each in section.components if each.changes is not None]
    changes = [_stack_changes_sensor(workspace, section, changing)] if changing else []
    answered = [each for each in changing if each.github is not None]
    answers = [_stack_answers_sensor(workspace, section, answered)] if answered else []
    return [_stack_sensor(workspace, section), *tags, *changes, *answers]


def _stack_sensor(workspace: Workspace, section: Stack) -> dg.SensorDefinition:
    project, job = workspace.project, INTEGRATION.job_for("main")
    interval = timedelta(minutes=project.settings.jobs.main.minimum_interval_minutes)

    @dg.sensor(
        name="stack_sensor",
        job_name=job.name,
        minimum_interval_seconds=section.check_every_seconds,
        description="Builds main when a component of the stack has moved, whichever it is; the cursor has their commits. "
        "The first look only notes them.",
        default_status=dg.DefaultSensorStatus.RUNNING if section.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def stack_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        now = datetime.now(timezone.utc)
        with failing_tick("the stack cannot be asked"):
            found = {name: source.label for name, source in resolve_stack(project, {}).items()}
            known: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
            moved = changed_components(known, found)
            if not moved:
                if not is_preview(context):
                    context.update_cursor(json.dumps(found))
                return dg.SkipReason("no component has moved" if known else f"noted {', '.join(found)}")
            last = next(runs_of(context.instance, project.settings.location, job=job.name), None)
            which = ", ".join(f"{name} {found[name]}" for name in moved)
            if (wait := reason_to_wait(None, which, last.create_timestamp if last else None, now, interval)) is not None:
                return dg.SkipReason(wait)
            if is_preview(context):
                return dg.SkipReason(f"{PREVIEW}: a tick resolves a revision with {which} and starts {job.name}")
            revision = start_revision(context.instance, workspace, "main", now=now)
        requests = list(run_requests(workspace, job, revision, f"{job.command}:{revision.key}"))
        return dg.SensorResult(run_requests=requests, cursor=json.dumps(found))

    return stack_sensor


def _stack_tags_sensor(workspace: Workspace, section: Stack) -> dg.SensorDefinition:
    project, job = workspace.project, INTEGRATION.job_for("manual")
    components = releasing_components(project)

    @dg.sensor(
        name="stack_tags_sensor",
        job_name=job.name,
        minimum_interval_seconds=section.check_every_seconds,
        description="Builds a new release tag of a component, with the others as configured: the image of a build that "
        "passes the gate is released. The cursor has the tags. The first look at a repository only notes them.",
        default_status=dg.DefaultSensorStatus.RUNNING if section.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def stack_tags_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        began, limit = monotonic(), min(project.settings.limits.git_seconds, _TICK_S / len(components))
        known: dict[str, dict[str, str]] = json.loads(context.cursor) if context.cursor else {}
        requests, reasons, errors, tried = list[dg.RunRequest](), list[str](), list[str](), 0
        for component in components:
            tried += 1
            try:
                found = release_tags(project, component, limit)
            except SourceError as error:
                errors.append(redact(f"{component.name} cannot be asked: {error}"))
                continue
            seen = known.get(component.name)
            new, moved = new_and_moved(seen, found)
            if seen is None:
                known[component.name] = found
                reasons.append(f"noted {len(found)} tags of {component.name}")
            reasons += [_moved(component, tag, (seen or {})[tag], found[tag]) for tag in moved]
            for tag in new:
                if is_preview(context):
                    reasons.append(f"{PREVIEW}: a tick starts {job.name} for {component.name} {tag}")
                    continue
                if monotonic() - began > _TICK_S:
                    reasons.append(f"{component.name} {tag} waits for the next tick")
                    break
                try:
                    revision = _revision_of_tag(context.instance, workspace, component, tag, found[tag])
                except SourceError as error:
                    reasons.append(redact(f"{component.name} {tag}: {error}"))
                    continue
                known[component.name][tag] = found[tag]
                for request in run_requests(workspace, job, revision, f"stack_tag:{component.name}:{tag}"):
                    requests.append(request._replace(tags={**request.tags, TRIGGER_TAG: "manual"}))
        fail_if_all_failed("no component can be asked for its tags", errors, tried)
        reasons += errors
        if requests:
            for reason in reasons:
                context.log.warning(reason)
            return dg.SensorResult(run_requests=requests, cursor=json.dumps(known))
        if not is_preview(context):
            context.update_cursor(json.dumps(known))
        return dg.SkipReason("; ".join(reasons) or "no component has a new release tag")

    return stack_tags_sensor


def _moved(component: Component, tag: str, before: str, now: str) -> str:
    return (
        f"{component.name} {tag} was moved from {before[:12]} to {now[:12]} and releases nothing: a version never moves; "
        "give the new commit another one"
    )


def _revision_of_tag(
    instance: dg.DagsterInstance, workspace: Workspace, component: Component, tag: str, sha: str
) -> Revision:
    """Return the revision of a component's tag: the one that a tick which was killed has made, else a new one.

    Raises `SourceError`, also if the tag has just been moved.
    """
    name, ref = f"{component.name}-{tag}", f"refs/tags/{tag}"
    made = workspace.manifests.revision(manual_key(name))
    if made is not None and (there := made.stack.get(component.name)) is not None and (there.ref, there.sha) == (ref, sha):
        return choose_revision(instance, workspace, INTEGRATION, "manual", made.key)
    revision = start_revision(instance, workspace, "manual", slug=name, components={component.name: ref})
    if revision.stack[component.name].sha != sha:
        raise SourceChangedError(f"{ref} is not at {sha} any more")
    return revision


def _stack_changes_sensor(workspace: Workspace, section: Stack, components: Sequence[Component]) -> dg.SensorDefinition:
    job = INTEGRATION.job_for("pr")

    @dg.sensor(
        name="stack_changes_sensor",
        job_name=job.name,
        minimum_interval_seconds=section.check_every_seconds,
        description="Builds the newest commit of each change request of a component, with the others as configured, and "
        "ends builds of older commits. The first look at a repository only notes what is there.",
        default_status=dg.DefaultSensorStatus.RUNNING if section.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def stack_changes_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        until, now = monotonic() + _TICK_S, datetime.now(timezone.utc)
        requests, reasons, errors, failed, tried = list[dg.RunRequest](), list[str](), list[str](), list[str](), 0
        for component in components:
            if is_preview(context):
                heads_now = read_watched(workspace, component.name).heads
                waiting = ", ".join(str(number) for number, head in heads_now.items() if head.state == "allowed")
                reasons.append(
                    f"{PREVIEW}: a tick starts {job.name} for the changes {waiting or 'none'} of {component.name}"
                )
                continue
            try:
                is_first, watched = _look_for_changes(workspace, component, len(components), now)
            except AccelCiError as error:
                errors.append(redact(f"{component.name} cannot be asked: {error}"))
                continue
            if is_first:
                reasons.append(f"noted {len(watched.seen_refs or ())} changes of {component.name}")
            heads = Heads(context.instance, workspace, component)
            reasons += heads.end_obsolete(watched)
            taken = heads.take_up(watched, until)
            requests += taken.requests
            reasons += taken.reasons
            failed += taken.errors
            tried += taken.tried
        fail_if_all_failed("no component can be asked for its changes", errors, len(components))
        fail_if_all_failed("no change can be built", failed, tried)
        reasons += [*errors, *failed]
        if not requests:
            return dg.SkipReason("; ".join(reasons) or "no component has a new change")
        for reason in reasons:
            context.log.warning(reason)
        return dg.SensorResult(run_requests=requests)

    return stack_changes_sensor


def _stack_answers_sensor(workspace: Workspace, section: Stack, components: Sequence[Component]) -> dg.SensorDefinition:
    @dg.sensor(
        name="stack_answers_sensor",
        minimum_interval_seconds=section.check_every_seconds,
        description="Keeps check runs of each change request of a component at GitHub up to date. It delays no build.",
        default_status=dg.DefaultSensorStatus.RUNNING if section.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def stack_answers_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from accel_ci.pull_requests.publish import publish_component_answers

        if is_preview(context):
            return dg.SkipReason(f"{PREVIEW}: a tick sends the check runs that have changed")
        now, lines, errors = datetime.now(timezone.utc), list[str](), list[str]()
        for component in components:
            try:
                found = publish_component_answers(workspace, component, now, _TICK_S / len(components))
                lines += [f"{component.name}:{line}" for line in found]
            except AccelCiError as error:
                errors.append(redact(f"{component.name}: {error}"))
        fail_if_all_failed("no change request can be answered", errors, len(components))
        return dg.SkipReason("; ".join([*lines, *errors]) or "no answer has changed")

    return stack_answers_sensor


def _look_for_changes(workspace: Workspace, component: Component, among: int, now: datetime) -> tuple[bool, Watched]:
    """Look at the change requests of a component, and keep what is there. Return whether it is the first look.

    Each of the components has its part of a tick's time. Raises `AccelCiError`.
    """
    project, known = workspace.project, read_watched(workspace, component.name)
    if component.changes is None:
        return False, known
    limit = min(project.settings.limits.git_seconds, _TICK_S / among)
    address = str(local_path(component.repository, project.root) or component.repository)
    watched = look_at_refs(address, component.changes, known, limit, now)
    if watched != known:
        keep_watched(workspace, watched, component.name)
    return known.seen_refs is None, watched


def changed_components(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the components whose state is another one than the last that was seen; none at the first look."""
    return [name for name, label in found.items() if known and known.get(name) != label]


def stack_of(workspace: Workspace, build: Build) -> SoftwareStack | None:
    """Return the stack of a build, with its files in place; None where none is configured.

    Raises `AccelCiError` if it was not built, or its files are gone.
    """
    if workspace.project.settings.stack is None:
        return None
    manifests = workspace.manifests
    found = manifests.read(manifests.path(STACK, build.revision, build.variant), SoftwareStack)
    bring_stack(found, workspace.artifacts)
    return found


def _section(workspace: Workspace) -> Stack:
    """Return the settings, without which there are no assets."""
    section = workspace.project.settings.stack
    if section is None:
        raise TypeError("the section 'stack' is missing")
    return section
