"""The stage at which a build without a ledger stopped, and the reasons. Pure functions of its manifests and tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accel_ci.hud.records import BuildRecord
from accel_ci.model import BAD_VERDICTS, FAILING_OUTCOMES, CheckResult, DeviceTestResults, TestVerdict
from accel_ci.pipelines import DEVICELESS_RESULTS, EVERY_STAGE, RUNTIME_IMAGE, SMOKE_RESULTS, WHEEL, next_stage


@dataclass(frozen=True)
class Fault:
    """A reason why a build stopped: the test, the check or the stage that failed, and its message."""

    subject: str
    message: str


@dataclass(frozen=True)
class Stop:
    """The stage at which a build stopped. `by_itself` is true when it failed, so that nothing runs on after it."""

    stage: str
    by_itself: bool = False
    faults: tuple[Fault, ...] = ()


def find_stop(record: BuildRecord, tests: Iterable[TestVerdict] = ()) -> Stop:
    """Find the stage at which a build stopped: one that failed, or whose checks did, else the first that is missing.

    `tests` are the bad ones of the deviceless or smoke stage.
    """
    missing = next_stage(record.present, record.begun)
    for stage in _ended_at(record, missing):
        if faults := _faults_of(stage, record, tests):
            return Stop(stage, True, faults)
    return Stop(missing)


def failed_attempts_of(results: DeviceTestResults | None) -> int:
    """Count the attempts of a stage that failed."""
    return sum(results.counts.get(outcome, 0) for outcome in FAILING_OUTCOMES) if results else 0


def _ended_at(record: BuildRecord, missing: str) -> list[str]:
    """The stages at which the last runs may have failed; where their activity is known, other stages are of earlier runs."""
    if record.activity:
        ended = [text.split() for text in record.activity.values() if not text.startswith("running")]
        return [stage for stage in EVERY_STAGE if any(stage in words for words in ended)]
    before = [stage for stage in EVERY_STAGE[: EVERY_STAGE.index(missing)] if stage in record.present]
    return [*(stage for stage in EVERY_STAGE if stage in record.failures), *before[-1:]]


def _faults_of(stage: str, record: BuildRecord, tests: Iterable[TestVerdict]) -> tuple[Fault, ...]:
    if stage in record.failures:
        return (Fault(stage, record.failures[stage]),)
    if stage == WHEEL and record.wheel:
        return _of_checks(record.wheel.checks)
    if stage == RUNTIME_IMAGE and record.runtime_image:
        return _of_checks(record.runtime_image.checks)
    results = {DEVICELESS_RESULTS: record.deviceless_results, SMOKE_RESULTS: record.smoke_results}
    return _of_tests(stage, results.get(stage), tests)


def _of_checks(checks: Iterable[CheckResult]) -> tuple[Fault, ...]:
    return tuple(
        Fault(check.name, "\n".join([check.summary, *check.findings])) for check in checks if not check.passed
    )  # fmt: skip


def _of_tests(stage: str, results: DeviceTestResults | None, tests: Iterable[TestVerdict]) -> tuple[Fault, ...]:
    if results is None or not results.suites:
        return ()
    failed, name = failed_attempts_of(results), stage.partition("_")[0]
    named = tuple(Fault(test.test, test.message or "no message") for test in tests if test.verdict in BAD_VERDICTS)
    if failed:
        return named or (Fault(stage, f"{failed} {name} attempts failed; their tests are unreadable"),)
    return () if results.counts.get("passed", 0) else (named or (Fault(stage, f"no {name} test passed"),))
