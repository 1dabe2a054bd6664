"""The integration pipeline: the wheel as a user would install it, in an image, tested on cards."""

from dataclasses import replace
from typing import Any

import dagster as dg

from accel_ci.defs.manifest_io import produces
from accel_ci.defs.metadata import check_result, table
from accel_ci.defs.partitions import build_of, builds, of_revision
from accel_ci.defs.stage import Stages
from accel_ci.images.docker_image import IMAGE_CHECK_NAMES
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.model import CheckResult, DeviceTestResults, Revision, RuntimeImage, TestPlan, TestSelection, Wheel
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.results.history import median_durations
from accel_ci.results.questions import failed_attempts
from accel_ci.source.revision import checkout_backend
from accel_ci.steps.device_tests import StageContext, cards_of_suites, collect_tests, run_device_stage, run_smoke_stage
from accel_ci.steps.plan import plan_device_tests
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci.workspace import Workspace

GROUP = "integration"


def integration_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """The assets of the pipeline, partitioned by the variants of the project."""
    project, settings, artifacts = workspace.project, workspace.project.settings, workspace.artifacts
    owners = list(settings.backend.owners)
    with_docker = any(settings.image_of(variant) for variant in settings.variants)
    image_checks = IMAGE_CHECK_NAMES if with_docker else ()
    common: dict[str, Any] = {
        "group_name": GROUP,
        "owners": owners,
        "partitions_def": builds([variant.name for variant in settings.variants]),
    }

    @dg.asset(
        **common,
        ins={"revision": of_revision()},
        kinds={"python", "wheel"},
        dagster_type=produces(Wheel),
        check_specs=[dg.AssetCheckSpec(name, asset="wheel", blocking=True) for name in CHECK_NAMES],
    )
    def wheel(
        context: dg.AssetExecutionContext, revision: Revision, stages: dg.ResourceParam[Stages]
    ) -> dg.MaterializeResult:
        """The backend's wheel and sdist, built in isolation from the revision's sources and checked as a user's install."""
        variant = settings.variant(build_of(context).variant)
        with stages.stage(context) as step:
            sources = checkout_backend(project, revision.backend)
            built = build_wheel(settings, variant, revision.backend, sources, artifacts, workspace.wheel_cache, project.root)
            step.note(f"{built.name} {built.version}{' (reused)' if built.reused else ''}")
        return dg.MaterializeResult(
            value=built,
            data_version=dg.DataVersion(built.wheel.sha256),
            check_results=[check_result(check) for check in built.checks],
            metadata={
                "version": built.version,
                "source": f"{revision.backend.repository} at {revision.backend.label}",
                "wheel": dg.MetadataValue.url(artifacts.uri(built.wheel)),
                "sdist": dg.MetadataValue.url(artifacts.uri(built.sdist)),
                "companions": table(["wheel", "bytes"], [[each.name, each.size_bytes] for each in built.companions]),
                "size": built.wheel.size_bytes,
                "built_in": built.built_in,
                "patches": table(["patch"], [[patch] for patch in built.patches]),
                "reused": built.reused,
                "work_seconds": built.work_s,
                "checks": table(["check", "passed", "summary"], [[c.name, c.passed, c.summary] for c in built.checks]),
            },
        )

    @dg.asset(
        **common,
        kinds={"python", "docker" if image_checks else "uv"},
        dagster_type=produces(RuntimeImage),
        check_specs=[dg.AssetCheckSpec(name, asset="runtime_image", blocking=True) for name in image_checks],
    )
    def runtime_image(
        context: dg.AssetExecutionContext, wheel: Wheel, stages: dg.ResourceParam[Stages]
    ) -> dg.MaterializeResult:
        """The environment under test: the wheel, the variant's PyTorch and what the tests need, by exact pins."""
        variant = settings.variant(build_of(context).variant)
        with stages.stage(context) as step:
            image = make_runtime_image(settings, variant, wheel, artifacts, workspace.images)
            step.note(f"torch {image.torch_version}{_cache_hits(image)}")
        made = {check.name: check for check in image.checks}
        venv = CheckResult("", True, "this variant's image is a virtual environment")
        return dg.MaterializeResult(
            value=image,
            data_version=dg.DataVersion(image.digest),
            check_results=[check_result(replace(made.get(name, venv), name=name)) for name in image_checks],
            metadata={
                **_container_metadata(image, artifacts),
                "python": image.python_version,
                "torch": image.torch_version,
                "upstream_sha": image.torch_sha or "unknown",
                "interpreter": dg.MetadataValue.path(image.python),
                "reused": image.reused,
                "work_seconds": image.work_s,
                "packages": table(["package"], [[package] for package in image.packages], limit=200),
            },
        )

    def stage_context_of(context: dg.AssetExecutionContext, revision: Revision, stage: str) -> StageContext:
        return workspace.stage_context(revision, build_of(context).variant, stage, context.run.run_id)

    @dg.asset(
        **common,
        ins={"revision": of_revision()},
        kinds={"pytest"},
        dagster_type=produces(DeviceTestResults),
        check_specs=[dg.AssetCheckSpec("smoke_passed", asset="smoke_results", blocking=True)],
    )
    def smoke_results(
        context: dg.AssetExecutionContext,
        revision: Revision,
        runtime_image: RuntimeImage,
        stages: dg.ResourceParam[Stages],
    ) -> dg.MaterializeResult:
        """The smoke suites on a single card: whether there is any use in taking the others."""
        with stages.stage(context) as step:
            spec = worker_spec_for(settings, runtime_image, checkout_backend(project, revision.backend))
            suites = settings.suites_of(revision.trigger, "smoke")
            results = run_smoke_stage(settings, suites, spec, stage_context_of(context, revision, "smoke"), step)
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
            metadata=_results_metadata(results) | {"failures": _failures(failures)},
        )

    @dg.asset(**common, ins={"revision": of_revision()}, deps=[smoke_results], kinds={"pytest"})
    def test_selection(
        context: dg.AssetExecutionContext,
        revision: Revision,
        runtime_image: RuntimeImage,
        stages: dg.ResourceParam[Stages],
    ) -> dg.MaterializeResult[TestSelection]:
        """The tests in scope: what pytest collects in the image, less what the scope rules leave out, and why."""
        with stages.stage(context) as step:
            spec = worker_spec_for(settings, runtime_image, checkout_backend(project, revision.backend))
            suites = settings.suites_of(revision.trigger, "device")
            selection = collect_tests(settings, suites, spec, stage_context_of(context, revision, "device"))
            step.note(f"{selection.selected} of {selection.collected} collected tests are in scope")
        return dg.MaterializeResult(
            value=selection,
            data_version=dg.DataVersion(selection.tests.sha256),
            metadata={
                "collected": selection.collected,
                "selected": selection.selected,
                "suites": table(
                    ["suite", "collected", "selected", "cannot be collected"],
                    [[s.suite, s.collected, s.selected, len(s.collection_errors)] for s in selection.suites],
                ),
                "out_of_scope": table(
                    ["suite", "tests", "reason"],
                    [[s.suite, count, reason] for s in selection.suites for reason, count in s.out_of_scope.items()],
                ),
                "collection_errors": table(["file"], [[e] for s in selection.suites for e in s.collection_errors]),
                "work_seconds": selection.work_s,
            },
        )

    @dg.asset(**common, ins={"revision": of_revision()}, kinds={"python"})
    def test_plan(
        context: dg.AssetExecutionContext,
        revision: Revision,
        test_selection: TestSelection,
        stages: dg.ResourceParam[Stages],
    ) -> dg.MaterializeResult[TestPlan]:
        """How the tests are spread over the cards: batches from recorded durations, and the bound no schedule can beat."""
        with stages.stage(context) as step:
            build, cards = build_of(context), settings.pool.cards
            durations = median_durations(workspace.results, build.variant, revision.created_at.date())
            before = workspace.manifests.previous("device_test_results", build, DeviceTestResults)
            setup_s = before.mean_setup_s if before else None
            plan = plan_device_tests(test_selection, durations, cards, artifacts, cards_of_suites(settings), setup_s)
            step.note(
                f"{plan.tests} tests in {plan.batch_count} batches, lower bound {plan.lower_bound_s:.1f} s, "
                f"{plan.predicted_s:.1f} s are expected"
            )
        return dg.MaterializeResult(
            value=plan,
            data_version=dg.DataVersion(plan.batches.sha256),
            metadata={
                "tests": plan.tests,
                "batches": plan.batch_count,
                "never_seen": plan.unknown,
                "cards": plan.cards,
                "estimated_seconds": plan.estimated_s,
                "lower_bound_seconds": plan.lower_bound_s,
                "predicted_makespan_seconds": plan.predicted_s,
            },
        )

    @dg.asset(**common, ins={"revision": of_revision()}, kinds={"pytest", "pytorch"})
    def device_test_results(
        context: dg.AssetExecutionContext,
        revision: Revision,
        runtime_image: RuntimeImage,
        test_selection: TestSelection,
        test_plan: TestPlan,
        stages: dg.ResourceParam[Stages],
    ) -> dg.MaterializeResult[DeviceTestResults]:
        """Every attempt of every test in scope on the pool's cards; what failed once more, afresh and on another card."""
        with stages.stage(context) as step:
            spec = worker_spec_for(settings, runtime_image, checkout_backend(project, revision.backend))
            results = run_device_stage(
                settings,
                test_selection.tests,
                [suite.suite for suite in test_selection.suites],
                test_plan,
                spec,
                stage_context_of(context, revision, "device"),
                step,
            )
        return dg.MaterializeResult(
            value=results,
            data_version=dg.DataVersion(results.digest),
            metadata=_results_metadata(results)
            | {
                "predicted_makespan_seconds": test_plan.predicted_s,
                "failures": _failures(failed_attempts(workspace.results, build_of(context), results.suites)),
            },
        )

    return [wheel, runtime_image, smoke_results, test_selection, test_plan, device_test_results]


def _cache_hits(image: RuntimeImage) -> str:
    """What of an image was there already, for a person."""
    if image.kind == "docker":
        steps = f"{image.steps if image.reused else image.cached_steps} of {image.steps} steps cached"
        return f" ({'reused, ' if image.reused else ''}{steps})"
    return " (reused)" if image.reused else ""


def _container_metadata(image: RuntimeImage, artifacts: ArtifactStore) -> dict[str, Any]:
    """What there is to see of a Docker image; of a virtual environment, its bill of materials."""
    shown: dict[str, Any] = {"sbom": dg.MetadataValue.url(artifacts.uri(image.sbom))} if image.sbom else {}
    for container in image.containers:
        shown |= {
            container.target: container.reference,
            f"{container.target}_bytes": container.size_bytes,
            f"{container.target}_layers": table(
                ["bytes", "made by"], [[layer.size_bytes, layer.made_by] for layer in container.layers]
            ),
        }
    development, runtime = image.container("development"), image.container("runtime")
    if development is not None and runtime is not None:
        shown["runtime_over_development"] = round(runtime.size_bytes / development.size_bytes, 3)
        shown["cached_steps"] = f"{image.cached_steps} of {image.steps}"
    return shown


def _results_metadata(results: DeviceTestResults) -> dict[str, Any]:
    bound = results.lower_bound_s
    return {
        **{f"attempts_{outcome}": count for outcome, count in results.counts.items() if count},
        "makespan_seconds": round(results.makespan_s, 2),
        "lower_bound_seconds": round(bound, 2),
        "makespan_over_lower_bound": round(results.makespan_s / bound, 3) if bound else 0.0,
        "rounds": table(
            ["round", "tests", "cards", "makespan s", "lower bound s"],
            [[r.round, r.tests, r.cards, f"{r.makespan_s:.1f}", f"{r.lower_bound_s:.1f}"] for r in results.rounds],
        ),
        "cards": table(
            ["card", "healthy", "reason", "attempts", "busy s", "set-up s"],
            [[c.card, c.healthy, c.reason or "", c.attempts, f"{c.busy_s:.1f}", f"{c.setup_s:.1f}"] for c in results.cards],
        ),
        "work_seconds": results.work_s,
    }


def _failures(failures: list[Any]) -> dg.MetadataValue:
    return table(
        ["test", "round", "outcome", "card", "infra", "message"],
        [[a.test, a.round, a.outcome, a.card, a.infra or "", a.message or ""] for a in failures],
    )
