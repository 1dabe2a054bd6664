"""A throw-away suite and a run of it on a pool of local processes, over a folder and over a bucket."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accel_ci.model import Attempt, Batch, Launch, Limits
from accel_ci.pool.bucket_rounds import BucketRounds
from accel_ci.pool.driver import PoolRun, run_rounds
from accel_ci.pool.environment import clean_environment
from accel_ci.pool.local import LocalPool
from accel_ci.pool.round_bucket import RoundStore
from accel_ci_tests.conftest import Write as Write
from accel_ci_tests.pool.bucket_pool import BucketPool, round_store

Run = Callable[..., PoolRun]


def batch(name: str, *tests: str, suite: str = "suite", avoid: tuple[str, ...] = (), cards: int = 1) -> Batch:
    """A batch of tests of one file."""
    return Batch(name, suite, tests[0].split("::")[0], tests, float(len(tests)), avoid, cards)


@dataclass(frozen=True)
class Ground:
    """Where rounds are kept: in a folder, or in a bucket that alone their workers see."""

    store: RoundStore | None = None

    def run_rounds(self, *arguments: Any) -> PoolRun:
        """`accel_ci.pool.driver.run_rounds` by a driver that knows nothing of those before."""
        if self.store is None:
            return run_rounds(LocalPool(), *arguments)
        return run_rounds(BucketPool(BucketRounds(self.store, "run")), *arguments)


@pytest.fixture(params=["folder", "bucket"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A folder, and a bucket below a prefix of its own."""
    if request.param == "folder":
        yield Ground()
        return
    store = round_store()
    yield Ground(store)
    store.of_round("run").clear()


@pytest.fixture
def run(ground: Ground, root: Path, tmp_path: Path) -> Run:
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
        result = ground.run_rounds(batches, cards, launch, limits or Limits(), tmp_path / "run", called.append, max_rounds)
        assert [(a.test, a.round, a.outcome) for a in called] == [(a.test, a.round, a.outcome) for a in result.attempts]
        once = Counter((attempt.suite, attempt.test, attempt.round) for attempt in result.attempts)
        assert set(once.values()) <= {1}
        return result

    return _run


def outcomes(result: PoolRun, round_number: int = 1) -> dict[str, str]:
    """Test to outcome in a round."""
    return {attempt.test: attempt.outcome for attempt in result.attempts if attempt.round == round_number}
