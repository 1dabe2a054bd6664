"""Fixtures of the HUD's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from accel_ci_tests.hud.samples import lay_history


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a believable history, to be copied."""
    folder = tmp_path_factory.mktemp("history")
    lay_history(folder)
    return folder


@pytest.fixture
def home(history: Path, tmp_path: Path) -> Path:
    """A data folder with a believable history."""
    return Path(shutil.copytree(history, tmp_path / "home"))
