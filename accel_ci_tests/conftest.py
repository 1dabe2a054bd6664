"""Fixtures that several folders share: repositories, configurations, projects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

from accel_ci.config.loading import parse_settings
from accel_ci.config.settings import Project

# Started in the background of a shell, SIGINT is ignored here, and would be in every process that a test starts and ends.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing of the code: on a fresh machine, Hypothesis first makes its tables of characters.
# The same examples every time, but in the longer tier, which is there to find new ones.
settings.register_profile(
    "accel_ci",
    parent=settings(),
    deadline=None,
    derandomize="ACCEL_CI_FUZZ_RUNS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("accel_ci")

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = [f"accel_ci_tests.fixtures.{module}" for module in ("rounds", "stored_attempts", "toy_backend")]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs the command line with the given arguments."""

Write = Callable[[str, str], Path]
"""Writes a file of a throw-away suite: its name below the root, and its text."""


def git(folder: Path, *arguments: str) -> str:
    """Run git with an identity of its own."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait for something to be so; fails when it is not by then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def commit(folder: Path, files: dict[str, str], message: str = "change") -> str:
    """Write files and commit them; the SHA."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit: a pure-Python backend below `backend/` and a file beside it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, {"backend/pyproject.toml": "[project]\n", "README.md": "hello\n"}, "first")
    return folder


def minimal_config() -> dict[str, object]:
    """The smallest valid configuration, as a document to change."""
    job = {"cron": "0 2 * * *", "suites": ["smoke", "unit"]}
    return {
        "backend": {
            "name": "toy",
            "distribution": "toy-backend",
            "import_name": "toy_backend",
            "repository": "repository",
            "subdirectory": "backend",
            "owners": ["team:toy"],
        },
        "upstream": {"repository": "upstream", "ref": "refs/heads/main"},
        "variants": [{"name": "py3", "python": "3.11", "torch": "torch", "runtime": "none"}],
        "suites": {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, "unit": {"paths": ["tests/unit"]}},
        "pool": {"cards": 2, "card_environment": "TOY_CARD"},
        "jobs": {
            "nightly": job,
            "intraday": {**job, "cron": "0 6,12,18 * * *"},
            "main": {"suites": ["smoke", "unit"]},
            "pr": {"suites": ["smoke", "unit"]},
        },
    }


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project in `tmp_path` from the minimal configuration with some sections replaced."""

    def make(**sections: object) -> Project:
        text = yaml.safe_dump({**minimal_config(), **sections}, sort_keys=False)
        path = tmp_path / "accel_ci.yaml"
        path.write_text(text)
        return Project(parse_settings(text), path, tmp_path / ".accel_ci")

    return make


@pytest.fixture
def accel_ci(tmp_path: Path) -> Run:
    """Runs the command line in `tmp_path`."""
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "accel_ci.cli", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a throw-away suite."""
    path = tmp_path / "sources"
    path.mkdir()
    return path


@pytest.fixture
def write(root: Path) -> Write:
    """Writes a file of the suite."""

    def _write(name: str, text: str) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    return _write
