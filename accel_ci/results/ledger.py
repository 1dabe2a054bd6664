"""Closing a build's ledger: its attempts go into the store, its verdicts into an artifact, and the sums are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from pydantic import TypeAdapter

from accel_ci.artifacts import ArtifactStore
from accel_ci.model import (
    FAILING_OUTCOMES,
    Artifact,
    Attempt,
    Build,
    DeviceTestResults,
    Ledger,
    SelectedTest,
    TestVerdict,
)
from accel_ci.results.store import ResultsStore
from accel_ci.results.verdicts import make_account

ATTEMPTS = TypeAdapter(list[Attempt])
EXPECTED = TypeAdapter(list[SelectedTest])
VERDICTS = TypeAdapter(list[TestVerdict])


def close_ledger(
    build: Build,
    day: date,
    stages: Sequence[DeviceTestResults],
    wanted_suites: Iterable[str],
    artifacts: ArtifactStore,
    store: ResultsStore,
) -> Ledger:
    """Judge what the stages expected against what they attempted, and store every attempt.

    Raises `LedgerError` when the account does not balance.
    """
    expected = [test for stage in stages for test in EXPECTED.validate_json(artifacts.path(stage.expected).read_bytes())]
    attempts = [attempt for stage in stages for attempt in read_attempts(stage.attempts, artifacts)]
    account = make_account(expected, attempts)
    store.write(build, day, attempts)
    device = stages[-1]
    return Ledger(
        build,
        len(account.verdicts),
        account.counts,
        account.suites,
        tuple(suite for suite in wanted_suites if suite not in account.suites),
        account.unexpected,
        sum(attempt.infra is not None for attempt in attempts),
        artifacts.put_bytes(VERDICTS.dump_json(list(account.verdicts)), "verdicts.json"),
        device.makespan_s,
        device.lower_bound_s,
    )


def read_attempts(artifact: Artifact, artifacts: ArtifactStore) -> list[Attempt]:
    """The attempts of a manifest."""
    return ATTEMPTS.validate_json(artifacts.path(artifact).read_bytes())


def failed_attempts(results: DeviceTestResults, artifacts: ArtifactStore) -> list[Attempt]:
    """The attempts of a stage that failed, those put down to the infrastructure included."""
    return [a for a in read_attempts(results.attempts, artifacts) if a.outcome in FAILING_OUTCOMES or a.infra is not None]


def read_verdicts(ledger: Ledger, artifacts: ArtifactStore) -> list[TestVerdict]:
    """The verdicts of a ledger."""
    return VERDICTS.validate_json(artifacts.path(ledger.verdicts).read_bytes())
