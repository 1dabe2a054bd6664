"""Settings and fixtures of all tests. Functions that tests share are in `accel_ci_tests/fixtures/`."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from accel_ci_tests import tiers

# Started in the background of a shell, SIGINT is ignored here, and would be in every process that a test starts and ends.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: on a fresh machine, Hypothesis first makes its tables of characters, which says nothing about our code.
# The same examples every time, except in the longer tier, which is there to find new ones.
settings.register_profile(
    "accel_ci",
    parent=settings(),
    deadline=None,
    derandomize="ACCEL_CI_FUZZ_RUNS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("accel_ci")

pytest.register_assert_rewrite("accel_ci_tests.fixtures")
_WITH_FIXTURES = (
    "project",
    "suite",
    "stored_attempts",
    "toy_backend",
    "ground",
    "postgres",
    "cluster_pool",
    "browser",
    "chat_server",
    "github_issues",
)
pytest_plugins = [f"accel_ci_tests.fixtures.{module}" for module in _WITH_FIXTURES]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with their tiers. Where several processes share the tests, the slow ones begin first."""
    for item in items:
        tiers.mark(item)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Undo what a command that runs in the test's process does to the loggers: later tests would log their hostile names."""
    loggers = [logging.getLogger(name) for name in ("accel_ci", "sqlalchemy.pool")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> tiers.Scheduling:
    """Share the tests among processes as `accel_ci_tests/tiers.py` says."""
    return tiers.Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Keep the objects that live until the end out of garbage collection: the results store collects after each suite."""
    gc.collect()
    gc.freeze()
