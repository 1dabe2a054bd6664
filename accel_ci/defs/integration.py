"""The integration pipeline: the wheel as a user would install it, in an image, tested on cards."""

from dataclasses import replace

import dagster as dg

from accel_ci.defs import integration_metadata as metadata
from accel_ci.defs.metadata import stage_result
from accel_ci.defs.partitions import build_of
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.images.docker_image import IMAGE_CHECK_NAMES
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.model import CheckResult, DeviceTestResults, Revision, RuntimeImage, TestPlan, TestSelection, Wheel, WorkerSpec
from accel_ci.pipelines import DEVICE_TEST_RESULTS, INTEGRATION, SMOKE_RESULTS
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.results.history import median_durations
from accel_ci.results.questions import failed_attempts
from accel_ci.source.revision import checkout_backend
from accel_ci.steps.device_tests import StageContext, cards_of_suites, collect_tests, run_device_stage, run_smoke_stage
from accel_ci.steps.plan import plan_device_tests
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci.workspace import Workspace


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets of the pipeline."""
    checks = _image_checks(workspace)
    image_kinds = {"python", "docker" if checks else "uv"}
    return [
        stage_asset(INTEGRATION, workspace, wheel, Wheel, kinds={"python", "wheel"}, checks=CHECK_NAMES),
        stage_asset(INTEGRATION, workspace, runtime_image, RuntimeImage, kinds=image_kinds, checks=checks),
        stage_asset(INTEGRATION, workspace, smoke_results, DeviceTestResults, kinds={"pytest"}, checks=["smoke_passed"]),
        stage_asset(INTEGRATION, workspace, test_selection, TestSelection, kinds={"pytest"}, deps=[SMOKE_RESULTS]),
        stage_asset(INTEGRATION, workspace, test_plan, TestPlan, kinds={"python"}),
        stage_asset(INTEGRATION, workspace, device_test_results, DeviceTestResults, kinds={"pytest", "pytorch"}),
    ]


def wheel(context: dg.AssetExecutionContext, revision: Revision, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The backend's wheel and sdist, built in isolation from the revision's sources and checked as a user's install."""
    workspace, project, backend = stages.workspace, stages.workspace.project, revision.backend
    settings, artifacts = project.settings, workspace.artifacts
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        sources = checkout_backend(project, backend)
        built = build_wheel(settings, variant, backend, sources, artifacts, workspace.wheel_cache, project.root)
        step.note(f"{built.name} {built.version}{' (reused)' if built.reused else ''}")
    return stage_result(built, built.wheel.sha256, metadata.of_wheel(built, backend, artifacts), built.checks)


def runtime_image(context: dg.AssetExecutionContext, wheel: Wheel, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The environment under test: the wheel, the variant's PyTorch and what the tests need, by exact pins."""
    workspace, settings = stages.workspace, stages.workspace.project.settings
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        image = make_runtime_image(settings, variant, wheel, workspace.artifacts, workspace.images)
        step.note(metadata.image_note(image))
    made = {check.name: check for check in image.checks}
    venv = CheckResult("", True, "this variant's image is a virtual environment")
    checks = [replace(made.get(name, venv), name=name) for name in _image_checks(workspace)]
    return stage_result(image, image.digest, metadata.of_image(image, workspace.artifacts), checks)


def smoke_results(
    context: dg.AssetExecutionContext, revision: Revision, runtime_image: RuntimeImage, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The smoke suites on a single card: whether there is any use in taking the others."""
    settings = stages.workspace.project.settings
    suites = settings.suites_of(revision.trigger, "smoke")
    with stages.stage(context) as step:
        spec, place = _worker(context, stages.workspace, revision, runtime_image, "smoke")
        results = run_smoke_stage(settings, suites, spec, place, step)
    failures = failed_attempts(stages.workspace.results, build_of(context), results.suites)
    passed = not failures and (results.counts.get("passed", 0) > 0 or not suites)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items()) or "no smoke suite in this job"
    check = CheckResult(
        "smoke_passed",
        passed,
        f"{counts}: {'the device tests may begin' if passed else 'no further card is taken'}",
        tuple(f"{attempt.test}: {attempt.outcome}: {attempt.message}" for attempt in failures),
    )
    return stage_result(results, results.digest, metadata.of_results(results, failures), [check])


def test_selection(
    context: dg.AssetExecutionContext, revision: Revision, runtime_image: RuntimeImage, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """The tests in scope: what pytest collects in the image, less what the scope rules leave out, and why."""
    settings = stages.workspace.project.settings
    with stages.stage(context) as step:
        spec, place = _worker(context, stages.workspace, revision, runtime_image, "device")
        selection = collect_tests(settings, settings.suites_of(revision.trigger, "device"), spec, place)
        step.note(f"{selection.selected} of {selection.collected} collected tests are in scope")
    return stage_result(selection, selection.tests.sha256, metadata.of_selection(selection))


def test_plan(
    context: dg.AssetExecutionContext, revision: Revision, test_selection: TestSelection, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """How the tests are spread over the cards: batches from recorded durations, and the bound no schedule can beat."""
    build, workspace, settings = build_of(context), stages.workspace, stages.workspace.project.settings
    with stages.stage(context) as step:
        durations = median_durations(workspace.results, build.variant, revision.created_at.date())
        before = workspace.manifests.previous(DEVICE_TEST_RESULTS, build, DeviceTestResults)
        setup_s = before.mean_setup_s if before else None
        cards, widths = settings.pool.cards, cards_of_suites(settings)
        plan = plan_device_tests(test_selection, durations, cards, workspace.artifacts, widths, setup_s)
        step.note(
            f"{plan.tests} tests in {plan.batch_count} batches, lower bound {plan.lower_bound_s:.1f} s, "
            f"{plan.predicted_s:.1f} s are expected"
        )
    return stage_result(plan, plan.batches.sha256, metadata.of_plan(plan))


def device_test_results(
    context: dg.AssetExecutionContext,
    revision: Revision,
    runtime_image: RuntimeImage,
    test_selection: TestSelection,
    test_plan: TestPlan,
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """Every attempt of every test in scope on the pool's cards; failed tests ran once more, afresh and on another card."""
    workspace, suites = stages.workspace, [suite.suite for suite in test_selection.suites]
    with stages.stage(context) as step:
        spec, place = _worker(context, workspace, revision, runtime_image, "device")
        results = run_device_stage(workspace.project.settings, test_selection.tests, suites, test_plan, spec, place, step)
    failures = failed_attempts(workspace.results, build_of(context), results.suites)
    predicted = {"predicted_makespan_seconds": test_plan.predicted_s}
    return stage_result(results, results.digest, metadata.of_results(results, failures) | predicted)


def _image_checks(workspace: Workspace) -> tuple[str, ...]:
    """Return the checks of runtime images: none where every variant's image is a virtual environment."""
    settings = workspace.project.settings
    return IMAGE_CHECK_NAMES if any(settings.image_of(variant) for variant in settings.variants) else ()


def _worker(
    context: dg.AssetExecutionContext, workspace: Workspace, revision: Revision, image: RuntimeImage, stage: str
) -> tuple[WorkerSpec, StageContext]:
    """Return what the workers of a stage run in, and where the stage runs its tests."""
    spec = worker_spec_for(workspace.project.settings, image, checkout_backend(workspace.project, revision.backend))
    return spec, workspace.stage_context(revision, build_of(context).variant, stage, context.run.run_id)
