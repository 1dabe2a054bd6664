"""The tests that each worker of a build ran, in order, to reproduce failures that depend on the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from accel_ci.errors import AccelCiError
from accel_ci.model import FAILING_OUTCOMES, Build, Outcome, SelectedTest
from accel_ci.results.store import ResultsStore


@dataclass(frozen=True)
class WorkerSession:
    """The tests that one worker ran in one round of a stage, in order and with their outcomes.

    A test that a plug-in of pytest ran several times is there once, with its first failure.
    """

    stage: str
    round: int
    worker: str
    card: str
    tests: tuple[SelectedTest, ...]
    outcomes: tuple[Outcome, ...]

    def until(self, test: str) -> WorkerSession:
        """The session up to and including a test."""
        end = [selected.test for selected in self.tests].index(test) + 1
        return replace(self, tests=self.tests[:end], outcomes=self.outcomes[:end])


def worker_sessions(store: ResultsStore, build: Build, stages: Mapping[str, str]) -> list[WorkerSession]:
    """The sessions of a build, sorted by stage, round and worker. `stages` maps suites to stages; `device` is the default.

    Raises `AccelCiError` if no worker of the build is stored.
    """
    rows = store.query(
        """
        SELECT suite, test, round, outcome, worker, card FROM attempts
        WHERE worker IS NOT NULL AND card IS NOT NULL AND started_at IS NOT NULL ORDER BY started_at
        """,
        (),
        store.suites(build=build),
    )
    found: dict[tuple[str, int, str, str], dict[SelectedTest, Outcome]] = {}
    for suite, test, number, outcome, worker, card in rows:
        key = (stages.get(suite, "device"), number, worker, card)
        ran = found.setdefault(key, {})
        if ran.get(selected := SelectedTest(suite, test)) not in FAILING_OUTCOMES:
            ran[selected] = outcome
    if not found:
        raise AccelCiError(f"no workers are stored for {build.name}: it has no results, or they were ingested from reports")
    return [WorkerSession(*key, tuple(ran), tuple(ran.values())) for key, ran in sorted(found.items(), key=itemgetter(0))]


def choose_session(
    sessions: Sequence[WorkerSession],
    *,
    worker: str | None = None,
    number: int | None = None,
    stage: str | None = None,
    test: str | None = None,
) -> WorkerSession:
    """Choose a session by worker, round and stage; with a test, the first in which it failed, else ran, up to that test.

    Raises `AccelCiError` with the possible sessions unless exactly one matches.
    """
    left = [
        session
        for session in sessions
        if (worker is None or session.worker == worker)
        and (number is None or session.round == number)
        and (stage is None or session.stage == stage)
        and (test is None or any(selected.test == test for selected in session.tests))
    ]
    if test is not None and left:
        cut = [session.until(test) for session in left]
        return next((session for session in cut if session.outcomes[-1] in FAILING_OUTCOMES), cut[0])
    if len(left) != 1:
        known = "; ".join(f"--stage {s.stage} --round {s.round} --worker {s.worker}" for s in (left or sessions)[:8])
        raise AccelCiError(f"{len(left)} sessions match, but one is needed; choose one of: {known}")
    return left[0]
