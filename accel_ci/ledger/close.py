"""Closing a build's ledger: its attempts go into the store, its verdicts into an artifact, and the sums are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from pydantic import TypeAdapter

from accel_ci.ledger.verdicts import make_account
from accel_ci.model import (
    BAZEL_SUITE,
    FAILING_OUTCOMES,
    Artifact,
    Attempt,
    BazelTestResults,
    Build,
    DeviceTestResults,
    Ledger,
    SelectedTest,
    TestVerdict,
)
from accel_ci.rbe.results import attempts_of, read_rows, read_tests, with_earlier
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore

ATTEMPTS = TypeAdapter(list[Attempt])
EXPECTED = TypeAdapter(list[SelectedTest])
VERDICTS = TypeAdapter(list[TestVerdict])


def close_ledger(
    build: Build,
    day: date,
    stages: Sequence[DeviceTestResults],
    bazel: BazelTestResults | None,
    wanted_suites: Iterable[str],
    artifacts: ArtifactStore,
    store: ResultsStore,
) -> Ledger:
    """Judge what has been expected so far against what was attempted, and store every attempt.

    `stages` are those of the integration pipeline that have ended, the device tests last, and `bazel` is what the source
    build has said. A wanted suite without a word is named. Raises `LedgerError` when the account does not balance.
    """
    expected = [test for stage in stages for test in EXPECTED.validate_json(artifacts.path(stage.expected).read_bytes())]
    attempts = [attempt for stage in stages for attempt in read_attempts(stage.attempts, artifacts)]
    store.write(build, day, attempts)
    if bazel is not None:
        expected += read_tests(bazel, artifacts)
        rows = read_rows(bazel, artifacts)
        for stored in store.suites(day, day, build, suite=BAZEL_SUITE):
            rows = with_earlier(rows, store.read(stored))
        attempts += attempts_of(rows)
        store.write_rows(build, day, BAZEL_SUITE, [rows])
    account = make_account(expected, attempts)
    makespan_s, lower_bound_s = (stages[-1].makespan_s, stages[-1].lower_bound_s) if stages else (0.0, 0.0)
    return Ledger(
        build,
        len(account.verdicts),
        account.counts,
        account.suites,
        tuple(suite for suite in wanted_suites if suite not in account.suites),
        account.unexpected,
        sum(attempt.infra is not None for attempt in attempts),
        artifacts.put_bytes(VERDICTS.dump_json(list(account.verdicts)), "verdicts.json"),
        makespan_s,
        lower_bound_s,
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
