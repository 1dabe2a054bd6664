"""The integration pipeline: the wheel as a user would install it, in an image, tested on cards."""

from dataclasses import replace

import dagster as dg

from accel_ci.defs import integration_metadata as metadata
from accel_ci.defs.metadata import check_result
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
from accel_ci.steps.device_tests import StageContext, collect_tests, plan_device_tests, run_device_stage, run_smoke_stage
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci.workspace import Workspace


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets of the pipeline."""
    checks = _image_checks(workspace)
    return [
        stage_asset(INTEGRATION, workspace, wheel, Wheel, kinds={"python", "wheel"}, checks=CHECK_NAMES),
        stage_asset(
            INTEGRATION,
            workspace,
            runtime_image,
            RuntimeImage,
            kinds={"python", "docker" if checks else "uv"},
            checks=checks,
        ),
        stage_asset(INTEGRATION, workspace, smoke_results, DeviceTestResults, kinds={"pytest"}, checks=["smoke_passed"]),
        stage_asset(INTEGRATION, workspace, test_selection, TestSelection, kinds={"pytest"}, deps=[SMOKE_RESULTS]),
        stage_asset(INTEGRATION, workspace, test_plan, TestPlan, kinds={"python"}),
        stage_asset(INTEGRATION, workspace, device_test_results, DeviceTestResults, kinds={"pytest", "pytorch"}),
    ]


def wheel(
    context: dg.AssetExecutionContext,
    revision: Revision,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """The backend's wheel and sdist, built in isolation from the revision's sources and checked as a user's install."""
    project, backend = workspace.project, revision.backend
    settings = project.settings
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        sources = checkout_backend(project, backend)
        built = build_wheel(settings, variant, backend, sources, workspace.artifacts, workspace.wheel_cache, project.root)
        step.note(f"{built.name} {built.version}{' (reused)' if built.reused else ''}")
    return dg.MaterializeResult(
        value=built,
        data_version=dg.DataVersion(built.wheel.sha256),
        check_results=[check_result(check) for check in built.checks],
        metadata=metadata.of_wheel(built, backend, workspace.artifacts),
    )


def runtime_image(
    context: dg.AssetExecutionContext,
    wheel: Wheel,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """The environment under test: the wheel, the variant's PyTorch and what the tests need, by exact pins."""
    settings = workspace.project.settings
    variant = settings.variant(build_of(context).variant)
    with stages.stage(context) as step:
        image = make_runtime_image(settings, variant, wheel, workspace.artifacts, workspace.images)
        step.note(metadata.image_note(image))
    made = {check.name: check for check in image.checks}
    venv = CheckResult("", True, "this variant's image is a virtual environment")
    return dg.MaterializeResult(
        value=image,
        data_version=dg.DataVersion(image.digest),
        check_results=[check_result(replace(made.get(name, venv), name=name)) for name in _image_checks(workspace)],
        metadata=metadata.of_image(image, workspace.artifacts),
    )


def smoke_results(
    context: dg.AssetExecutionContext,
    revision: Revision,
    runtime_image: RuntimeImage,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """The smoke suites on a single card: whether there is any use in taking the others."""
    settings = workspace.project.settings
    suites = settings.suites_of(revision.trigger, "smoke")
    with stages.stage(context) as step:
        spec = _worker_spec(workspace, revision, runtime_image)
        results = run_smoke_stage(settings, suites, spec, _stage_context(context, workspace, revision, "smoke"), step)
    failures = failed_attempts(workspace.results, build_of(context), results.suites)
    passed = not failures and (results.counts.get("passed", 0) > 0 or not suites)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items()) or "no smoke suite in this job"
    check = CheckResult(
        "smoke_passed",
        passed,
        f"{counts}: {'the device tests may begin' if passed else 'no further card is taken'}",
        tuple(f"{attempt.test}: {attempt.outcome}: {attempt.message}" for attempt in failures),
    )
    return dg.MaterializeResult(
        value=results,
        data_version=dg.DataVersion(results.digest),
        check_results=[check_result(check)],
        metadata=metadata.of_results(results) | {"failures": metadata.failures(failures)},
    )


def test_selection(
    context: dg.AssetExecutionContext,
    revision: Revision,
    runtime_image: RuntimeImage,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """The tests in scope: what pytest collects in the image, less what the scope rules leave out, and why."""
    settings = workspace.project.settings
    with stages.stage(context) as step:
        spec = _worker_spec(workspace, revision, runtime_image)
        place = _stage_context(context, workspace, revision, "device")
        selection = collect_tests(settings, settings.suites_of(revision.trigger, "device"), spec, place)
        step.note(f"{selection.selected} of {selection.collected} collected tests are in scope")
    return dg.MaterializeResult(
        value=selection,
        data_version=dg.DataVersion(selection.tests.sha256),
        metadata=metadata.of_selection(selection),
    )


def test_plan(
    context: dg.AssetExecutionContext,
    revision: Revision,
    test_selection: TestSelection,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """How the tests are spread over the cards: batches from recorded durations, and the bound no schedule can beat."""
    build, settings = build_of(context), workspace.project.settings
    with stages.stage(context) as step:
        durations = median_durations(workspace.results, build.variant, revision.created_at.date())
        before = workspace.manifests.previous(DEVICE_TEST_RESULTS, build, DeviceTestResults)
        setup_s = before.mean_setup_s if before else None
        plan = plan_device_tests(settings, test_selection, durations, workspace.artifacts, setup_s)
        step.note(
            f"{plan.tests} tests in {plan.batch_count} batches, lower bound {plan.lower_bound_s:.1f} s, "
            f"{plan.predicted_s:.1f} s are expected"
        )
    return dg.MaterializeResult(
        value=plan, data_version=dg.DataVersion(plan.batches.sha256), metadata=metadata.of_plan(plan)
    )


def device_test_results(
    context: dg.AssetExecutionContext,
    revision: Revision,
    runtime_image: RuntimeImage,
    test_selection: TestSelection,
    test_plan: TestPlan,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """Every attempt of every test in scope on the pool's cards; failed tests ran once more, afresh and on another card."""
    suites = [suite.suite for suite in test_selection.suites]
    with stages.stage(context) as step:
        spec = _worker_spec(workspace, revision, runtime_image)
        place = _stage_context(context, workspace, revision, "device")
        results = run_device_stage(workspace.project.settings, test_selection.tests, suites, test_plan, spec, place, step)
    return dg.MaterializeResult(
        value=results,
        data_version=dg.DataVersion(results.digest),
        metadata=metadata.of_results(results)
        | {
            "predicted_makespan_seconds": test_plan.predicted_s,
            "failures": metadata.failures(failed_attempts(workspace.results, build_of(context), results.suites)),
        },
    )


def _image_checks(workspace: Workspace) -> tuple[str, ...]:
    """Return the checks of runtime images: none where every variant's image is a virtual environment."""
    settings = workspace.project.settings
    return IMAGE_CHECK_NAMES if any(settings.image_of(variant) for variant in settings.variants) else ()


def _worker_spec(workspace: Workspace, revision: Revision, image: RuntimeImage) -> WorkerSpec:
    project = workspace.project
    return worker_spec_for(project.settings, image, checkout_backend(project, revision.backend))


def _stage_context(context: dg.AssetExecutionContext, workspace: Workspace, revision: Revision, stage: str) -> StageContext:
    return workspace.stage_context(revision, build_of(context).variant, stage, context.run.run_id)
