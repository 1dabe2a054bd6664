"""Fixtures of the tests of pruning."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accel_ci.config.settings import Project
from accel_ci_tests.retention.data_folder import DataFolder


@pytest.fixture
def make_folder(make_project: Callable[..., Project]) -> Callable[..., DataFolder]:
    """Makes an empty data folder of a project with these keep rules."""

    def make(**retention: object) -> DataFolder:
        return DataFolder(make_project(retention=retention))

    return make
