"""A small real backend to build: pure Python, its version from the environment, no PyTorch needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.build.bazel import BazelBench
from accel_ci.build.docker_client import engine_answers, run_docker
from accel_ci.config import Project
from accel_ci_tests.conftest import minimal_config

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "toy-backend"
description = "A toy"
readme = "README.md"
requires-python = ">=3.10"
dynamic = ["version"]

[project.entry-points."torch.backends"]
toy = "toy_backend:autoload"
"""
SETUP = """
import os
from setuptools import setup
label = os.environ.get("TOY_LABEL")
setup(version="1.0" + (f"+{label}" if label else ""))
"""


@pytest.fixture(scope="session")
def base() -> str:
    """An image with Python by digest, from the one that `ACCEL_CI_DOCKER_IMAGE` names."""
    named = os.environ.get("ACCEL_CI_DOCKER_IMAGE")
    if not named:
        pytest.skip("ACCEL_CI_DOCKER_IMAGE is not set: an image with Python and pip in an engine that DOCKER_HOST names")
    if not engine_answers():
        pytest.skip("no Docker engine answers")
    digests = json.loads(run_docker(["image", "inspect", "--format", "{{json .RepoDigests}}", named]).output)
    if not digests:
        pytest.skip(f"{named} has no digest: it was never pushed or pulled")
    return str(digests[0])


@pytest.fixture
def bench(tmp_path: Path) -> BazelBench:
    """Where Bazel, or what plays it, works and leaves its results."""
    return BazelBench(tmp_path / "rbe" / "py3", tmp_path / "runs")


@pytest.fixture
def toy_sources(tmp_path: Path) -> Path:
    """The sources of the toy backend."""
    folder = tmp_path / "toy"
    (folder / "toy_backend").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "setup.py").write_text(SETUP)
    (folder / "README.md").write_text("# A toy\n")
    (folder / "toy_backend" / "__init__.py").write_text("def autoload():\n    pass\n")
    return folder


@pytest.fixture
def toy_project(make_project: Callable[..., Project]) -> Project:
    """A project that builds the toy backend; `iniconfig` stands where PyTorch would, being small."""
    backend = {
        **minimal_config()["backend"],  # type: ignore[dict-item]
        "entry_points": ["torch.backends:toy"],
        "build_environment": {"TOY_LABEL": "{label}"},
    }
    variant = {"name": "py3", "python": "3.11", "torch": "iniconfig", "runtime": "none"}
    return make_project(backend=backend, variants=[variant])
