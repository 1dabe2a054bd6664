"""The metadata of the integration pipeline's assets, as plain functions of their manifests."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from accel_ci.defs.metadata import table
from accel_ci.model import Attempt, DeviceTestResults, RuntimeImage, Source, TestPlan, TestSelection, Wheel
from accel_ci.storage.artifacts import ArtifactStore


def of_wheel(built: Wheel, backend: Source, artifacts: ArtifactStore) -> dict[str, Any]:
    """Describe a wheel and the state of the backend that it was built from."""
    return {
        "version": built.version,
        "source": f"{backend.repository} at {backend.label}",
        "wheel": dg.MetadataValue.url(artifacts.uri(built.wheel)),
        "sdist": dg.MetadataValue.url(artifacts.uri(built.sdist)),
        "companions": table(["wheel", "bytes"], [[each.name, each.size_bytes] for each in built.companions]),
        "size": built.wheel.size_bytes,
        "built_in": built.built_in,
        "patches": table(["patch"], [[patch] for patch in built.patches]),
        "reused": built.reused,
        "work_seconds": built.work_s,
        "checks": table(["check", "passed", "summary"], [[c.name, c.passed, c.summary] for c in built.checks]),
    }


def of_image(image: RuntimeImage, artifacts: ArtifactStore) -> dict[str, Any]:
    """Describe a runtime image: its containers, or the bill of materials of a virtual environment, and its packages."""
    shown: dict[str, Any] = {"sbom": dg.MetadataValue.url(artifacts.uri(image.sbom))} if image.sbom else {}
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
    if image.kind == "docker":
        reused.append(f"{image.steps if image.reused else image.cached_steps} of {image.steps} steps cached")
    return f"torch {image.torch_version}" + (f" ({', '.join(reused)})" if reused else "")


def of_selection(selection: TestSelection) -> dict[str, Any]:
    """Describe a selection: counts by suite, what is out of scope and why, and files that cannot be collected."""
    return {
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
    }


def of_plan(plan: TestPlan) -> dict[str, Any]:
    """Describe a plan; times are in seconds."""
    return {
        "tests": plan.tests,
        "batches": plan.batch_count,
        "never_seen": plan.unknown,
        "cards": plan.cards,
        "estimated_seconds": plan.estimated_s,
        "lower_bound_seconds": plan.lower_bound_s,
        "predicted_makespan_seconds": plan.predicted_s,
    }


def of_results(results: DeviceTestResults, failures: Sequence[Attempt]) -> dict[str, Any]:
    """Describe a stage's results: attempts by outcome, its rounds, its cards and its failed attempts."""
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
        "failures": table(
            ["test", "round", "outcome", "card", "infra", "message"],
            [[a.test, a.round, a.outcome, a.card, a.infra or "", a.message or ""] for a in failures],
        ),
    }
