"""The folders of a device stage."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci.pool.runner_package import build_runner
from accel_ci.results.store import ResultsStore
from accel_ci.steps.device_tests import StageContext
from accel_ci.storage.artifacts import ArtifactStore


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    runner = build_runner(tmp_path / "runner.pyz")
    return StageContext(
        Build("nightly-20261128", "py3"), date(2026, 11, 28), runner, tmp_path / "runs" / "device", tmp_path / "cards.lock",
        ArtifactStore(tmp_path / "artifacts"), ResultsStore(tmp_path / "results"),
    )  # fmt: skip
