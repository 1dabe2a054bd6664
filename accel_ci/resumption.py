"""The completeness of a build's stages: what the next run takes as it is, and which builds have stopped before their end.

A stage that ends well leaves a mark beside its manifest: the manifest's digest, and the digest of what the manifest depends
on. Limits and the number of cards are no part of that. A mark goes when its stage, or one before it, begins again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_ci.config.settings import Stage
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, RuntimeImage, SoftwareStack, TestSelection, Wheel
from accel_ci.pipelines import (
    DEVICE_TEST_RESULTS,
    DEVICELESS_RESULTS,
    RUNTIME_IMAGE,
    SMOKE_RESULTS,
    STACK,
    STACK_TEST_RESULTS,
    TEST_PLAN,
    TEST_SELECTION,
    WHEEL,
    Job,
    Pipeline,
)
from accel_ci.steps.device_tests import reopen_rounds, retire_rounds
from accel_ci.storage.manifests import ManifestStore, PipelineRun
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)
_MARK = ".complete-"
_ROUNDS: dict[str, Stage] = {DEVICELESS_RESULTS: "deviceless", SMOKE_RESULTS: "smoke", DEVICE_TEST_RESULTS: "device"}
"""The stages that run tests, with the names of their folders."""

_SCHEDULE = ("cards", "processes", "rounds", "instance")
"""The settings of a pool that change nothing but when and where tests run."""

_IRRELEVANT = frozenset({
    "jobs", "limits", "quality", "results", "retention", "fail_run_on", "variants", "suites", "pool", "stack",
})  # fmt: skip
"""The sections that change no manifest of a stage for which `_inputs` names none."""


@dataclass(frozen=True)
class Completion:
    """The mark of a complete stage: the SHA-256 of its manifest, and that of all that the manifest depends on."""

    manifest: str
    inputs: str


def complete_stage(workspace: Workspace, pipeline: Pipeline, build: Build, stage: str, manifest: Any, *, well: bool) -> None:
    """Write the manifest of a stage, which is complete if it ended `well`. Rounds of its tests are then kept as `.last`."""
    manifests = workspace.manifests
    path = manifests.path(stage, build.revision, build.variant)
    manifests.write(path, manifest)
    if well:
        mark = Completion(_digest(path.read_bytes()), _inputs(workspace, pipeline, build, stage))
        manifests.write(_mark(manifests, build, stage), mark)
    if stage in _ROUNDS:
        try:
            retire_rounds(workspace.project.settings, workspace.run_folder(build) / _ROUNDS[stage])
        except AccelCiError as error:  # the stage has ended nevertheless, and tries again before it begins again
            _LOG.warning("what is left of the rounds of %s stays for now: %s", build.name, error)


def begin_stage(workspace: Workspace, pipeline: Pipeline, build: Build, stage: str) -> None:
    """Note that a stage is made again, so that neither it nor those after it are complete any more."""
    for later in pipeline.stages[pipeline.stages.index(stage) :]:
        mark = _mark(workspace.manifests, build, later)
        if mark.exists():
            if later in _ROUNDS:  # a kill may have come before
                retire_rounds(workspace.project.settings, workspace.run_folder(build) / _ROUNDS[later])
            workspace.manifests.remove(mark)


def begin_again(workspace: Workspace, pipeline: Pipeline, build: Build) -> None:
    """Have all stages of a pipeline made anew; attempts of a run that stopped are kept as `.last`, and are not taken up."""
    begin_stage(workspace, pipeline, build, pipeline.stages[0])
    for stage in _ROUNDS.keys() & set(pipeline.stages):
        retire_rounds(workspace.project.settings, workspace.run_folder(build) / _ROUNDS[stage])


def take_up(workspace: Workspace, pipeline: Pipeline, build: Build) -> tuple[str, ...]:
    """Return the stages that are left of a run that stopped, ready to be made.

    Results of device tests that are complete, but of another selection, are left: their attempts are opened again.
    """
    left = stages_left(workspace, pipeline, build)
    for stage in left:
        mark = _mark(workspace.manifests, build, stage)
        if mark.exists():
            if stage == DEVICE_TEST_RESULTS:
                reopen_rounds(workspace.run_folder(build) / _ROUNDS[stage])
            workspace.manifests.remove(mark)
    return left


def stages_left(workspace: Workspace, pipeline: Pipeline, build: Build) -> tuple[str, ...]:
    """The stages of a pipeline that are not complete, in order.

    A plan is only a schedule: without one, complete results of its tests stay what they are.
    """
    left = [stage for stage in pipeline.stages if not is_complete(workspace, pipeline, build, stage)]
    if left == [TEST_PLAN]:
        return ()
    return tuple(left)


def is_complete(workspace: Workspace, pipeline: Pipeline, build: Build, stage: str) -> bool:
    """Return whether a stage ended well, and its manifest and all that this depends on have not changed since."""
    manifests = workspace.manifests
    try:
        mark = manifests.find(f"{_MARK}{stage}", build, Completion)
        if mark is None:
            return False
        made = _digest(manifests.path(stage, build.revision, build.variant).read_bytes())
        return mark == Completion(made, _inputs(workspace, pipeline, build, stage))
    except (AccelCiError, OSError):  # written by another version, or damaged: the stage is made again
        return False


def has_ended(run: PipelineRun) -> bool:
    """Return whether the run of a pipeline ended as it should, and the ledger has its results."""
    return run.reported and run.ended_at is not None and run.ending is None


def builds_to_resume(workspace: Workspace, named: Build | None) -> list[tuple[Build, Job]]:
    """Return the named build, by default the one that was interrupted or killed last, once for each job that is left of it.

    Raises `AccelCiError` when there is none, or nothing is left.
    """
    manifests = workspace.manifests
    stopped = stopped_builds(manifests)
    if named is None and not stopped:
        raise AccelCiError("no build was interrupted or killed; name the one to take up, or start one with `accel-ci run`")
    build = named or stopped[0][0]
    revision = manifests.revision(build.revision)
    runs = list(_readable_runs(manifests, build))
    unfinished = [pipeline for pipeline, run in runs if not has_ended(run)] if runs else list(manifests.pipelines[:1])
    if revision is None or not unfinished:
        raise AccelCiError(
            f"nothing of {build.name} is left to do; `accel-ci run … --revision {build.revision} --again` makes it anew"
        )
    return [(build, pipeline.job_for(revision.trigger)) for pipeline in unfinished]


def stopped_builds(manifests: ManifestStore) -> list[tuple[Build, Pipeline]]:
    """The builds whose run of a pipeline was killed or interrupted, the last one asked for first."""
    found = [
        (run.asked_at, build, pipeline)
        for build in manifests.list_builds()
        for pipeline, run in _readable_runs(manifests, build)
        if is_interrupted(manifests, build, pipeline, run)
    ]
    return [(build, pipeline) for _, build, pipeline in sorted(found, key=lambda each: each[0], reverse=True)]


def is_interrupted(manifests: ManifestStore, build: Build, pipeline: Pipeline, run: PipelineRun) -> bool:
    """Return whether a run of a pipeline was killed, or stopped by a person or a signal."""
    if run.ended_at is not None:
        return run.ending == "interrupted"
    return not manifests.has_run(pipeline, build)


def _readable_runs(manifests: ManifestStore, build: Build) -> Iterable[tuple[Pipeline, PipelineRun]]:
    for pipeline in manifests.pipelines:
        try:
            run = manifests.last_run(pipeline, build)
        except AccelCiError:
            continue
        if run is not None:
            yield pipeline, run


def _mark(manifests: ManifestStore, build: Build, stage: str) -> Path:
    return manifests.path(f"{_MARK}{stage}", build.revision, build.variant)


def _inputs(workspace: Workspace, pipeline: Pipeline, build: Build, stage: str) -> str:
    """The digest of what a stage's manifest depends on. Raises `AccelCiError` when a manifest before it is missing."""
    settings, manifests = workspace.project.settings, workspace.manifests
    document = settings.model_dump(mode="json")
    variant = settings.variant(build.variant).model_dump(mode="json")
    pool = {name: value for name, value in document["pool"].items() if name not in _SCHEDULE}

    def suites(phase: Stage) -> Any:
        revision = manifests.revision(build.revision)
        chosen = settings.suites_of(revision.trigger, phase, revision.suites, build.variant) if revision else {}
        found = {name: suite.model_dump(mode="json") for name, suite in chosen.items()}
        return [found, document["device"], document["upstream"]] if any(s.is_of_pytorch for s in chosen.values()) else found

    def wheel() -> Any:
        return [each.sha256 for each in manifests.read(_path(WHEEL), Wheel).wheels]

    def image() -> Any:
        return manifests.read(_path(RUNTIME_IMAGE), RuntimeImage).digest

    def stack() -> list[Any]:
        if settings.stack is None:
            return []
        return [document["stack"], manifests.read(_path(STACK), SoftwareStack).digest]

    def selection() -> Any:
        return manifests.read(_path(TEST_SELECTION), TestSelection).tests.sha256

    def _path(name: str) -> Path:
        return manifests.path(name, build.revision, build.variant)

    backend, general = document["backend"], {name: document[name] for name in document.keys() - _IRRELEVANT}
    patches = settings.wheels_of(settings.variant(build.variant)).patches
    if stage == STACK:
        inputs = [document["stack"]]
    elif stage == STACK_TEST_RESULTS:
        inputs = stack()
    elif stage == WHEEL:
        files = _files(workspace.project.root / patches) if patches else []
        inputs = [backend, document["wheels"], variant, files, *stack()]
    elif stage == RUNTIME_IMAGE:
        inputs = [backend, document["image"], variant, wheel(), *stack()]
    elif stage in (DEVICELESS_RESULTS, SMOKE_RESULTS, TEST_SELECTION):
        inputs = [backend, pool, suites(_ROUNDS.get(stage, "device")), image()]
    elif stage == TEST_PLAN:
        inputs = [document["pool"]["cards"], suites("device"), selection()]
    elif stage == DEVICE_TEST_RESULTS:
        inputs = [backend, pool, suites("device"), image(), selection()]
    else:
        before = pipeline.stages[: pipeline.stages.index(stage)]
        inputs = [general, variant, [_digest(_path(name).read_bytes()) for name in before]]
    return _digest(json.dumps(inputs, sort_keys=True).encode())


def _files(folder: Path) -> list[tuple[str, str]]:
    """The names and digests of the files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), _digest(path.read_bytes())) for path in files]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
