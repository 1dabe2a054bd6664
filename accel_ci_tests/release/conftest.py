"""The registry of tests on released images."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def registry() -> str:
    """The address of the registry of `ACCEL_CI_DOCKER_IMAGE`."""
    named = os.environ.get("ACCEL_CI_DOCKER_IMAGE", "")
    if not named:
        pytest.skip("ACCEL_CI_DOCKER_IMAGE is not set: an image in a registry that takes more")
    return named.partition("/")[0]
