"""Clearing away what dead runs of all kinds left, with one engine that is away."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.docker.client import docker_client
from accel_ci.errors import BuildError
from accel_ci.leftovers import clear_leftovers


def test_an_engine_that_is_away_hinders_no_other(
    make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    try:
        docker_client()
    except BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what others have left on this machine is not looked at
    pool = {"kind": "docker", "card_environment": "CARD", "image": "toy:1"}
    project = make_project(pool=pool, wheels={"builder": f"toy@sha256:{'0' * 64}"})
    private = project.home / "rbe" / "py3" / "private"
    private.mkdir(parents=True)
    (private.parent / "lock").touch()
    found = clear_leftovers(project, lambda run: None)
    assert {leftover.what: leftover.problem is None for leftover in found} == {
        "workers of dead runs": False,
        "containers of dead runs": False,
        f"Bazel in {private.parent}": True,
    }
    assert not private.exists()
    assert all("Docker" in leftover.describe() for leftover in found if leftover.problem)
