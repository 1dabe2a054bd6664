"""The integration pipeline: the wheel as a user would install it, in an image, tested on cards."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg

from accel_ci.config.settings import Stage
from accel_ci.defs.metadata import link, pods_table, stage_result, table
from accel_ci.defs.partitions import build_of
from accel_ci.defs.stack import stack_of
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.images.docker_image import IMAGE_CHECK_NAMES
from accel_ci.images.kept_image import same_image
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.ledger.close import account_of_stage
from accel_ci.ledger.status import deviceless_shortcoming, smoke_shortcoming
from accel_ci.model import (
    Attempt,
    Build,
    CheckResult,
    DeviceTestResults,
    Revision,
    RuntimeImage,
    Source,
    TestPlan,
    TestSelection,
    Wheel,
    WorkerSpec,
)
from accel_ci.pipelines import (
    DEVICE_TEST_RESULTS,
    DEVICELESS_RESULTS,
    INTEGRATION,
    RUNTIME_IMAGE,
    SMOKE_RESULTS,
    STACK,
    WHEEL,
)
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.progress import Step
from accel_ci.pull_requests.strangers import refuse_fetches
from accel_ci.quality.confirm_selection import Repetition, confirm_selection, manifest_of_confirmed, read_repetition
from accel_ci.quality.current_quarantine import muted_failures, quarantined, without_disabled
from accel_ci.ramp.current import sweep_selection
from accel_ci.ramp.pull_request import changed_selection, first_tests
from accel_ci.release.tags import has_public_version
from accel_ci.results.history import known_durations
from accel_ci.results.questions import failed_attempts
from accel_ci.rounds.tally import OnFailure, TestKey
from accel_ci.scope.modes import with_modes
from accel_ci.scope.rule_files import with_rule_files
from accel_ci.source.revision import checkout_backend, is_trusted, tests_the_backends_change
from accel_ci.source.upstream_tree import UpstreamTree, behind_revision
from accel_ci.steps.device_tests import (
    StageContext,
    changed_by_tests,
    collect_tests,
    plan_device_tests,
    run_device_stage,
    run_smoke_stage,
    unfinished_plan,
)
from accel_ci.steps.deviceless_tests import run_deviceless_stage
from accel_ci.steps.first_estimates import first_estimates
from accel_ci.steps.test_sources import sources_for_tests
from accel_ci.storage.sealed_folder import in_short
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci.workspace import Workspace

NO_HISTORY = "no history yet"
"""Shown in place of expected times where most tests have never been timed."""


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets of the pipeline."""
    checks = _image_checks(workspace)
    stack = [STACK] if workspace.project.settings.stack is not None else []
    pipeline = INTEGRATION.as_configured(workspace.project.settings)
    before_smoke = [DEVICELESS_RESULTS] if DEVICELESS_RESULTS in pipeline.stages else []
    image_kinds = {"python", "docker" if checks else "uv"}
    return [
        stage_asset(INTEGRATION, workspace, wheel, Wheel, kinds={"python", "wheel"}, checks=CHECK_NAMES, deps=stack),
        stage_asset(INTEGRATION, workspace, runtime_image, RuntimeImage, kinds=image_kinds, checks=checks, deps=stack),
        *(
            stage_asset(pipeline, workspace, made, DeviceTestResults, kinds={"pytest"}, checks=["deviceless_passed"])
            for made in ([deviceless_results] if before_smoke else [])
        ),
        stage_asset(
            INTEGRATION,
            workspace,
            smoke_results,
            DeviceTestResults,
            kinds={"pytest"},
            checks=["smoke_passed"],
            deps=before_smoke,
        ),
        stage_asset(INTEGRATION, workspace, test_selection, TestSelection, kinds={"pytest"}, deps=[SMOKE_RESULTS]),
        stage_asset(INTEGRATION, workspace, test_plan, TestPlan, kinds={"python"}),
        stage_asset(INTEGRATION, workspace, device_test_results, DeviceTestResults, kinds={"pytest", "pytorch"}),
    ]


def wheel(context: dg.AssetExecutionContext, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The backend's wheel and sdist, built in isolation from the revision's sources and checked as a user's install."""
    workspace, project = stages.workspace, stages.workspace.project
    settings, artifacts = project.settings, workspace.artifacts
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        revision = stages.revision(context)
        backend, upstream = revision.backend, revision.upstream.sha
        if revision.confirms is not None:
            before = manifest_of_confirmed(workspace, WHEEL, revision, variant.name, Wheel)
            built = replace(before, reused=True, work_s=0.0)
        else:
            if stages.is_stranger:
                refuse_fetches(checkout_backend(project, backend, submodules=False, lfs=False))
            sources, cache = checkout_backend(project, backend), workspace.wheel_cache
            stack = stack_of(workspace, build_of(context))
            built = build_wheel(
                settings, variant, backend, sources, artifacts, cache, project.root, upstream, stack,
                public=has_public_version(settings, revision), trusted=is_trusted(settings, revision),
            )  # fmt: skip
        step.note(f"{built.name} {built.version}{' (reused)' if built.reused else ''}")
    return stage_result(
        built, build_of(context), built.wheel.sha256, wheel_metadata(built, backend, workspace), built.checks
    )


def runtime_image(context: dg.AssetExecutionContext, wheel: Wheel, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The environment under test: the wheel, the variant's PyTorch and what the tests need, by exact pins."""
    workspace, settings = stages.workspace, stages.workspace.project.settings
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        revision = stages.revision(context)
        trusted = is_trusted(settings, revision)
        make = partial(make_runtime_image, settings, variant, wheel, trusted=trusted)
        if revision.confirms is not None:
            before = manifest_of_confirmed(workspace, RUNTIME_IMAGE, revision, variant.name, RuntimeImage)
            image = same_image(before, lambda: make(workspace.artifacts, workspace.images))
        else:
            image = make(workspace.artifacts, workspace.images, stack_of(workspace, build_of(context)))
        step.note(image_note(image))
        if behind := behind_revision(variant, image, revision):
            context.log.info(behind)
            step.say(behind)
    made = {check.name: check for check in image.checks}
    venv = CheckResult("", True, "builds of this variant make no Docker image")
    checks = [replace(made.get(name, venv), name=name) for name in _image_checks(workspace)]
    metadata = image_metadata(image, workspace) | {"differs_from_revision": behind or "no"}
    return stage_result(image, build_of(context), image.digest, metadata, checks)


def deviceless_results(
    context: dg.AssetExecutionContext, runtime_image: RuntimeImage, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The suites that need no card, such as lint; if they fail in a pull request, no card is taken."""
    workspace, build = stages.workspace, build_of(context)
    project, settings = workspace.project, workspace.project.settings
    with stages.stage(context) as step:
        revision = stages.revision(context)
        suites = settings.suites_of(revision.trigger, "deviceless", revision.suites, build.variant)
        suites = with_rule_files(suites, project.root)
        muted = quarantined(workspace, build.variant, revision.created_at.date())
        suites = without_disabled(suites, muted)
        spec, place, _ = _worker(context, workspace, revision, runtime_image, "deviceless")
        if stages.is_stranger:  # whose conftest.py could forge what is collected from files that other builds have, too
            place = replace(place, collections=None)
        sources = checkout_backend(project, revision.backend)
        results = run_deviceless_stage(settings, suites, spec, sources, place, step)
        changed = _changed_by_tests(context, spec, runtime_image, step)
        account = account_of_stage(build, results, workspace.artifacts, workspace.results.around(place.day))
        account = replace(account, muted=muted_failures(workspace.results, account, muted))
        closed = deviceless_shortcoming(account)
        gates = revision.trigger == "pr"
        step.note(closed or f"{account.expected} tests passed or are excused")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in account.counts.items() if count)
    after = "no card is taken" if gates else "only in pull requests does that keep the other suites from running"
    summary = (
        f"{counts or 'no deviceless suite in this job'}: {f'{closed}; {after}' if closed else 'the smoke suites may begin'}"
    )
    failures = failed_attempts(workspace.results, build, results.suites)
    named = tuple(f"{attempt.test}: {attempt.outcome}: {attempt.message}" for attempt in failures)
    check = CheckResult("deviceless_passed", closed is None, summary, named)
    metadata = results_metadata(results, failures, workspace) | {
        "changed_by_tests": table(["path"], [[path] for path in changed])
    }
    return stage_result(results, build, results.digest, metadata, [check], warn=not gates)


def smoke_results(
    context: dg.AssetExecutionContext, runtime_image: RuntimeImage, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The smoke suites on a single card: whether there is any use in taking the others."""
    settings = stages.workspace.project.settings
    with stages.stage(context) as step:
        revision = stages.revision(context)
        suites = settings.suites_of(revision.trigger, "smoke", revision.suites, build_of(context).variant)
        suites = with_rule_files(suites, stages.workspace.project.root)
        spec, place, _ = _worker(context, stages.workspace, revision, runtime_image, "smoke")
        results = run_smoke_stage(settings, suites, spec, place, step)
        changed = _changed_by_tests(context, spec, runtime_image, step)
    failures = failed_attempts(stages.workspace.results, build_of(context), results.suites)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items()) or "no smoke suite in this job"
    closed = smoke_shortcoming(results.counts, sum(each.expected for each in results.selections), len(failures))
    check = CheckResult(
        "smoke_passed",
        closed is None,
        f"{counts}: {closed or 'the device tests may begin'}{'; no further card is taken' if closed else ''}",
        tuple(f"{attempt.test}: {attempt.outcome}: {attempt.message}" for attempt in failures),
    )
    metadata = results_metadata(results, failures, stages.workspace) | {
        "changed_by_tests": table(["path"], [[path] for path in changed])
    }
    return stage_result(results, build_of(context), results.digest, metadata, [check])


def test_selection(
    context: dg.AssetExecutionContext, runtime_image: RuntimeImage, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The tests in scope: what pytest collects in the image, less what the scope rules leave out, and why."""
    workspace, settings = stages.workspace, stages.workspace.project.settings
    with stages.stage(context) as step:
        revision = stages.revision(context)
        if revision.confirms is not None:
            selection = confirm_selection(workspace, revision, build_of(context).variant)
            step.note(f"{selection.selected} tests: {selection.subset.words if selection.subset else 'all'}")
            return stage_result(selection, build_of(context), selection.tests.sha256, selection_metadata(selection))
        spec, place, tree = _worker(context, workspace, revision, runtime_image, "device")
        suites = settings.suites_of(revision.trigger, "device", revision.suites, build_of(context).variant)
        if tree is not None and tree.skew is not None:
            context.log.warning(tree.skew)
            step.say(tree.skew)
        sweeps = revision.trigger == "sweep"
        suites = with_rule_files(suites, workspace.project.root)
        day = revision.created_at.date()
        suites = without_disabled(suites, quarantined(workspace, build_of(context).variant, day))
        selection = collect_tests(settings, suites, spec, place, none_enabled=sweeps)
        if sweeps:
            selection = sweep_selection(workspace, selection, build_of(context).variant, day)
        elif settings.jobs.pr.tests != "all" and tests_the_backends_change(settings, revision):
            selection = changed_selection(workspace, selection, revision, build_of(context).variant)
        step.note(selection_note(selection))
    shown = {"upstream_tests": tree.sha, "upstream_tests_differ": tree.skew or "no"} if tree is not None else {}
    return stage_result(selection, build_of(context), selection.tests.sha256, selection_metadata(selection) | shown)


def test_plan(
    context: dg.AssetExecutionContext, test_selection: TestSelection, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The tests spread over the cards: batches from recorded durations, and the bound that no schedule can beat."""
    build, workspace, settings = build_of(context), stages.workspace, stages.workspace.project.settings
    with stages.stage(context) as step:
        revision = stages.revision(context)
        day, limit_s = revision.created_at.date(), settings.longest_test_s
        durations = known_durations(workspace.results, workspace.is_trusted_build, build, day, limit_s=limit_s)
        before = workspace.manifests.previous(DEVICE_TEST_RESULTS, build, DeviceTestResults)
        setup_s = before.mean_setup_s if before else None
        folder = workspace.stage_context(revision, build.variant, "device").folder
        plan = unfinished_plan(settings, test_selection, folder)
        if plan is None:
            estimates = first_estimates(workspace.project, revision, test_selection, workspace.artifacts)
            again = _repetition(workspace, revision, test_selection)
            failed_on = again.failed_on if again is not None else None
            first, artifacts = first_tests(test_selection, workspace.artifacts), workspace.artifacts
            plan = plan_device_tests(settings, test_selection, durations, artifacts, setup_s, estimates, failed_on, first)
        step.note(f"{plan.tests:,} tests in {plan.batch_count} batches, {outlook(plan)}")
    return stage_result(plan, build_of(context), plan.batches.sha256, plan_metadata(plan))


def device_test_results(
    context: dg.AssetExecutionContext,
    runtime_image: RuntimeImage,
    test_selection: TestSelection,
    test_plan: TestPlan,
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """Every attempt of every test in scope on the pool's cards; failed tests ran once more, afresh and on another card."""
    workspace, suites = stages.workspace, [suite.suite for suite in test_selection.suites]
    with stages.stage(context) as step:
        revision = stages.revision(context)
        spec, place, _ = _worker(context, workspace, revision, runtime_image, "device", suites)
        spec = with_modes(spec, test_selection.scope, workspace.artifacts)
        again, settings = _repetition(workspace, revision, test_selection), workspace.project.settings
        times = again.times if again is not None else None
        workspace.manifests.note_early_failure(build_of(context), None)
        noting = _early_failure_noter(workspace, build_of(context), test_selection)
        results = run_device_stage(settings, test_selection.tests, suites, test_plan, spec, place, step, times, noting)
        workspace.manifests.note_early_failure(build_of(context), None)
        changed = _changed_by_tests(context, spec, runtime_image, step)
    failures = failed_attempts(workspace.results, build_of(context), results.suites)
    predicted = {"predicted_makespan_seconds": test_plan.predicted_s if test_plan.has_history else NO_HISTORY}
    metadata = results_metadata(results, failures, workspace) | {
        "changed_by_tests": table(["path"], [[path] for path in changed])
    }
    return stage_result(results, build_of(context), results.digest, metadata | predicted)


def _early_failure_noter(workspace: Workspace, build: Build, selection: TestSelection) -> OnFailure | None:
    """Return a function that notes the first failure of the tests that run before all others; None if there are none."""
    first, noted = first_tests(selection, workspace.artifacts), list[TestKey]()
    if not first:
        return None

    def note(test: TestKey) -> None:
        if test in first and not noted:
            noted.append(test)
            workspace.manifests.note_early_failure(build, f"{': '.join(test)} has failed, and runs again")

    return note


def _repetition(workspace: Workspace, revision: Revision, selection: TestSelection) -> Repetition | None:
    """Return how often the tests of a build that confirms failures run; None for another build."""
    return read_repetition(selection, workspace.artifacts) if revision.confirms is not None else None


def _changed_by_tests(context: dg.AssetExecutionContext, spec: WorkerSpec, image: RuntimeImage, step: Step) -> list[str]:
    """Return what tests have changed that a later build would read, and report it."""
    if changed := changed_by_tests(spec, image):
        report = f"tests have written to what later builds would read, and is therefore made anew: {in_short(changed)}"
        context.log.warning(report)
        step.say(report)
    return changed


def outlook(plan: TestPlan) -> str:
    """Describe how long a plan will take."""
    if not plan.has_history or plan.predicted_s is None:
        return NO_HISTORY
    new = f" ({plan.unknown:,} tests are new)" if plan.unknown else ""
    return f"lower bound {plan.lower_bound_s:.1f} s, {plan.predicted_s:.1f} s are expected{new}"


def wheel_metadata(built: Wheel, backend: Source, workspace: Workspace) -> dict[str, Any]:
    """Describe a wheel and the state of the backend that it was built from."""
    return {
        "version": built.version,
        "source": f"{backend.repository} at {backend.label}",
        "wheel": link(workspace, built.wheel),
        "sdist": link(workspace, built.sdist),
        "companions": table(["wheel", "bytes"], [[each.name, each.size_bytes] for each in built.companions]),
        "size": built.wheel.size_bytes,
        "built_in": built.built_in,
        "torch": built.torch or "as configured",
        "patches": table(["patch"], [[patch] for patch in built.patches]),
        "reused": built.reused,
        "work_seconds": built.work_s,
        "checks": table(["check", "passed", "summary"], [[c.name, c.passed, c.summary] for c in built.checks]),
    }


def image_metadata(image: RuntimeImage, workspace: Workspace) -> dict[str, Any]:
    """Describe a runtime image: its containers, or the bill of materials of a virtual environment, and its packages."""
    shown: dict[str, Any] = {"sbom": link(workspace, image.sbom)} if image.sbom else {}
    for container in image.containers:
        layers = table(["bytes", "made by"], [[layer.size_bytes, layer.made_by] for layer in container.layers])
        name, size = container.target, container.size_bytes
        shown |= {name: container.reference, f"{name}_bytes": size, f"{name}_layers": layers}
    development, runtime = image.container("development"), image.container("runtime")
    if development is not None and runtime is not None:
        shown["runtime_over_development"] = round(runtime.size_bytes / development.size_bytes, 3)
        shown["cached_steps"] = f"{image.cached_steps} of {image.steps}"
    return shown | {
        "python": image.python_version,
        "torch": image.torch_version,
        "upstream_sha": image.torch_sha or "unknown",
        "interpreter": dg.MetadataValue.path(image.python),
        "reused": image.reused,
        "work_seconds": image.work_s,
        "packages": table(["package"], [[package] for package in image.packages], limit=200),
    }


def image_note(image: RuntimeImage) -> str:
    """Return the PyTorch version of an image, and what of it was reused or came from a cache."""
    reused = ["reused"] if image.reused else []
    if image.steps:
        reused.append(f"{image.steps if image.reused else image.cached_steps} of {image.steps} steps cached")
    return f"torch {image.torch_version}" + (f" ({', '.join(reused)})" if reused else "")


def selection_note(selection: TestSelection) -> str:
    """Describe a selection in a line."""
    later = selection.in_scope - selection.enabled
    enabled = f", {selection.enabled} of them enabled" if later else ""
    subset = f"; runs {selection.subset.words}" if selection.subset else ""
    files = sum(len(suite.empty_files) for suite in selection.suites)
    empty = f"; {files} {'file has' if files == 1 else 'files have'} no test" if files else ""
    return f"{selection.in_scope} of {selection.collected} collected tests are in scope{enabled}{subset}{empty}"


def selection_metadata(selection: TestSelection) -> dict[str, Any]:
    """Describe a selection: counts by suite, its subset, what is out of scope and why, files that cannot be collected."""
    suites = [[s.suite, s.collected, s.selected, len(s.collection_errors)] for s in selection.suites]
    out_of_scope = [[s.suite, count, reason] for s in selection.suites for reason, count in s.out_of_scope.items()]
    not_enabled = [[s.suite, count, reason] for s in selection.suites for reason, count in s.not_enabled.items()]
    tolerances = [[s.suite, t.rule, t.tests, t.atol, t.rtol, t.reason] for s in selection.suites for t in s.tolerances]
    left_out = [[s.suite, count, who] for s in selection.suites for who, count in s.left_out.items()]
    skipped = [[s.suite, file, reason] for s in selection.suites for file, reason in s.skipped_files.items()]
    empty = [[s.suite, file] for s in selection.suites for file in s.empty_files]
    subset, shown = selection.subset, {}
    if subset is not None:
        reasons = [[count, reason] for reason, count in subset.reasons.items()]
        shown = {
            "subset": subset.words,
            "compared_with": subset.base or "nothing",
            "chosen": table(["tests", "reason"], reasons),
        }
    return shown | {
        "left_out": table(["suite", "tests or files", "by whom"], left_out),
        "skipped_files": table(["suite", "file", "reason"], skipped),
        "empty_files": table(["suite", "file"], empty),
        "collected": selection.collected,
        "selected": selection.selected,
        "suites": table(["suite", "collected", "selected", "cannot be collected"], suites),
        "in_scope": selection.in_scope,
        "not_enabled": table(["suite", "tests", "reason"], not_enabled),
        "out_of_scope": table(["suite", "tests", "reason"], out_of_scope),
        "collection_errors": table(["file"], [[e] for s in selection.suites for e in s.collection_errors]),
        "tolerances": table(["suite", "rule", "tests", "atol", "rtol", "reason"], tolerances),
        "work_seconds": selection.work_s,
    }


def plan_metadata(plan: TestPlan) -> dict[str, Any]:
    """Describe a plan; times are in seconds."""
    times = {
        "estimated_seconds": plan.estimated_s,
        "lower_bound_seconds": plan.lower_bound_s,
        "predicted_makespan_seconds": plan.predicted_s,
    }
    return {
        "tests": plan.tests,
        "batches": plan.batch_count,
        "never_seen": plan.unknown,
        "cards": plan.cards,
        **{name: seconds if plan.has_history else NO_HISTORY for name, seconds in times.items()},
    }


def results_metadata(results: DeviceTestResults, failures: Sequence[Attempt], workspace: Workspace) -> dict[str, Any]:
    """Describe a stage's results: attempts by outcome, its rounds, its cards and its failed attempts."""
    bound = results.lower_bound_s
    rounds = [[r.round, r.tests, r.cards, f"{r.makespan_s:.1f}", f"{r.lower_bound_s:.1f}"] for r in results.rounds]
    cards = [[c.card, c.healthy, c.reason or "", c.attempts, f"{c.busy_s:.1f}", f"{c.setup_s:.1f}"] for c in results.cards]
    failed = [[a.test, a.round, a.outcome, a.card, a.infra or "", a.message or ""] for a in failures]
    return {
        **{f"attempts_{outcome}": count for outcome, count in results.counts.items() if count},
        "makespan_seconds": round(results.makespan_s, 2),
        "lower_bound_seconds": round(bound, 2),
        "setup_seconds": round(results.mean_setup_s or 0.0, 2),
        "makespan_without_setup_over_lower_bound": results.ratio,
        "rounds": table(["round", "tests", "cards", "makespan s", "lower bound s"], rounds),
        "cards": table(["card", "healthy", "reason", "attempts", "busy s", "set-up s"], cards),
        "drivers": table(["host", "driver"], sorted(results.drivers.items())),
        **({"pods": pods_table(workspace, results.pods)} if results.pods else {}),
        "work_seconds": results.work_s,
        "failures": table(["test", "round", "outcome", "card", "infra", "message"], failed),
    }


def _image_checks(workspace: Workspace) -> tuple[str, ...]:
    """Return the checks of runtime images: none where every variant's image is a virtual environment."""
    settings = workspace.project.settings
    return IMAGE_CHECK_NAMES if any(settings.image_of(variant) for variant in settings.variants) else ()


def _worker(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    revision: Revision,
    image: RuntimeImage,
    stage: Stage,
    chosen: Sequence[str] = (),
) -> tuple[WorkerSpec, StageContext, UpstreamTree | None]:
    """Return what the workers of a stage run in, where the stage runs its tests, and PyTorch's tests if it has them.

    The suites are the `chosen` ones, by default those of the revision.
    """
    settings, build = workspace.project.settings, build_of(context)
    stack_of(workspace, build)
    built = workspace.manifests.find(WHEEL, build, Wheel)
    wheels = [workspace.artifacts.path(each) for each in built.wheels] if built is not None else []
    suites = settings.suites_of(revision.trigger, stage, chosen or revision.suites, build.variant).values()
    sources = sources_for_tests(workspace.project, revision, settings.variant(build.variant), image, wheels, suites)
    with_cards = stage != "deviceless"
    spec = worker_spec_for(settings, image, sources.folder, revision.tested_as, with_cards=with_cards)
    place = workspace.stage_context(revision, build.variant, stage, context.run.run_id)
    content = f"{image.digest} {revision.backend.label}"
    collections = workspace.collections(revision, content)
    place = replace(place, content=content, collections=collections, with_cards=with_cards)
    return spec, place, sources.upstream
