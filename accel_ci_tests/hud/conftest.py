"""Fixtures of the HUD's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci_tests.hud.samples import lay_history


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with a believable history."""
    lay_history(tmp_path / "home")
    return tmp_path / "home"
