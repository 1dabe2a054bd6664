"""The first estimates of the durations of tests, from the file of test times that the backend's sources have."""

from __future__ import annotations

import json

from accel_ci.config.settings import Project
from accel_ci.errors import SourceError
from accel_ci.model import Revision, TestSelection
from accel_ci.plan.test_times import parse_test_times, seconds_per_test
from accel_ci.scope.table import read_scope
from accel_ci.source.revision import checkout_backend
from accel_ci.storage.artifacts import ArtifactStore


def first_estimates(
    project: Project, revision: Revision, selection: TestSelection, artifacts: ArtifactStore
) -> dict[tuple[str, str], float]:
    """Return the expected seconds of a test by (suite, file), as `device.test_times` has them.

    The time of a file is spread evenly over all its collected tests. Raises `SourceError` when the file cannot be read.
    """
    device = project.settings.device
    if device is None or device.test_times is None or selection.scope is None:
        return {}
    path = checkout_backend(project, revision.backend) / device.test_times
    try:
        times = parse_test_times(json.loads(path.read_text("utf-8")), device.type)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"device.test_times: {device.test_times} in the backend's sources cannot be read: {error}"
        ) from None
    columns = read_scope(selection.scope, artifacts).select(("suite", "file")).to_pydict()
    return seconds_per_test(times, zip(columns["suite"], columns["file"], strict=True))
