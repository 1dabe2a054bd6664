"""A throw-away suite and a run of it on a local pool."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from accel_ci.model import Attempt, Batch, Launch, Limits
from accel_ci.pool.driver import PoolRun, run_rounds
from accel_ci.pool.environment import clean_environment
from accel_ci.pool.local import LocalPool
from accel_ci_tests.conftest import Write as Write

Run = Callable[..., PoolRun]


def batch(name: str, *tests: str, suite: str = "suite", avoid: tuple[str, ...] = (), cards: int = 1) -> Batch:
    """A batch of tests of one file."""
    return Batch(name, suite, tests[0].split("::")[0], tests, float(len(tests)), avoid, cards)


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Run:
    """Run batches; checks on the way that every attempt was called back once."""

    def _run(
        batches: Sequence[Batch],
        cards: Sequence[str] = ("0", "1"),
        *,
        environment: Mapping[str, str] | None = None,
        probe: tuple[str, ...] = (),
        max_rounds: int = 2,
        limits: Limits | None = None,
    ) -> PoolRun:
        launch = Launch(sys.executable, str(root), clean_environment(environment or {}), "CARD", probe)
        called: list[Attempt] = []
        result = run_rounds(
            LocalPool(), batches, cards, launch, limits or Limits(), tmp_path / "run", called.append, max_rounds
        )
        assert [(a.test, a.round, a.outcome) for a in called] == [(a.test, a.round, a.outcome) for a in result.attempts]
        once = Counter((attempt.suite, attempt.test, attempt.round) for attempt in result.attempts)
        assert set(once.values()) <= {1}
        return result

    return _run


def outcomes(result: PoolRun, round_number: int = 1) -> dict[str, str]:
    """Test to outcome in a round."""
    return {attempt.test: attempt.outcome for attempt in result.attempts if attempt.round == round_number}
