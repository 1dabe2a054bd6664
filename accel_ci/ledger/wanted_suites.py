"""The suites that a build must have results of."""

from __future__ import annotations

from accel_ci.model import Build, Revision, TestSelection
from accel_ci.pipelines import TEST_SELECTION, Pipeline
from accel_ci.workspace import Workspace


def wanted_suites(workspace: Workspace, revision: Revision, build: Build) -> list[tuple[Pipeline, str]]:
    """Return the suites of the pipelines that such a build always has, and of those that have begun on this one.

    A build that confirms failures has those of its failures.
    """
    if revision.confirms is not None:
        selection = workspace.manifests.find(TEST_SELECTION, build, TestSelection)
        names = [suite.suite for suite in selection.suites] if selection is not None else []
        return [(workspace.pipelines[0], name) for name in names]
    settings, begun = workspace.project.settings, workspace.manifests.begun(build)
    return [
        (pipeline, suite)
        for pipeline in workspace.pipelines
        if pipeline.first in begun or pipeline.expected(settings, revision, build.variant)
        for suite in pipeline.suites(settings, revision)
        if suite not in settings.suites or settings.suites[suite].runs_in(build.variant)
    ]
