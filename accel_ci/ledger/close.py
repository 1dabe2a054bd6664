"""Closing a build's ledger: what the stages have stored against what they expected, with exact sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from accel_ci.errors import LedgerError
from accel_ci.ledger.account import account_of, check_balance, expected_tests
from accel_ci.model import BAZEL_SUITE, VERDICTS, BazelTestResults, Build, DeviceTestResults, Ledger, Verdict
from accel_ci.results.columns import one_chunk
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore


def account_of_stage(build: Build, results: DeviceTestResults, artifacts: ArtifactStore, store: ResultsStore) -> Ledger:
    """Return the account of a single stage of a build, which nobody keeps. Raises `LedgerError` if it does not balance."""
    return close_ledger(build, [results], None, results.suites, artifacts, store)


def close_ledger(
    build: Build,
    stages: Sequence[DeviceTestResults],
    bazel: BazelTestResults | None,
    wanted_suites: Iterable[str],
    artifacts: ArtifactStore,
    store: ResultsStore,
) -> Ledger:
    """Judge what has been expected so far against the attempts in the store.

    `stages` are those of the integration pipeline that have ended, the device tests last, and `bazel` is the result of the
    source build. A wanted suite without results is named. Raises `LedgerError` when the account does not balance.
    """
    stored = {each.suite: each for each in store.suites(build=build)}
    expected: dict[str, pa.Array[Any]] = {}
    for stage in stages:
        for suite, tests in expected_tests(stage.expected, artifacts).items():
            if suite in expected:
                raise LedgerError(f"suite {suite} is expected by two stages; each suite belongs to one")
            expected[suite] = tests
    total = sum(map(len, expected.values()))
    if bazel is not None:  # every test that Bazel expected has a row
        expected[BAZEL_SUITE] = one_chunk(store.judged(stored.get(BAZEL_SUITE), [])["test"])
        total += bazel.expected
    suites: dict[str, dict[Verdict, int]] = {}
    unexpected: list[str] = []
    unexpected_failures: list[str] = []
    infra_attempts = 0
    for suite, tests in expected.items():
        account = account_of(tests, store.judged(stored.get(suite), ["verdict"]))
        suites[suite] = account.counts
        unexpected += [f"{suite}: {test}" for test in account.unexpected]
        unexpected_failures += [f"{suite}: {test}" for test in account.unexpected_failures]
        if suite in stored:
            infra = store.read(stored[suite], ["infra"])["infra"]
            infra_attempts += len(infra) - infra.null_count
    counts = {verdict: sum(of_suite[verdict] for of_suite in suites.values()) for verdict in VERDICTS}
    check_balance(total, counts)
    missing = tuple(suite for suite in wanted_suites if suite not in suites)
    times = (stages[-1].makespan_s, stages[-1].lower_bound_s) if stages else (0.0, 0.0)
    digests = "\n".join([*(stage.digest for stage in stages), bazel.digest if bazel else ""])
    digest = hashlib.sha256(digests.encode()).hexdigest()
    setup_s = stages[-1].mean_setup_s if stages else None
    return Ledger(
        build, total, counts, suites, missing, tuple(unexpected), infra_attempts, *times, digest, tuple(unexpected_failures),
        setup_s,
    )  # fmt: skip
