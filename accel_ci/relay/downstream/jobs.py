"""The result of a job as upstream sees it, from the ledger of its build. A job is a suite in a variant. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from accel_ci.ledger.status import shortcomings
from accel_ci.model import Ledger, TestVerdict, Verdict
from accel_ci.quality.causes import Blame
from accel_ci.quality.triage import triage_verdict
from accel_ci.relay.messages import LONGEST_MESSAGE, MOST_FAILED_TESTS, Conclusion, CountedTests, FailedTest, cut

_LONGEST_NAME = 500
_ORDER = ("upstream", "backend", "infra", "unknown", "flaky")
"""Of causes with equally many failures, the first is that of the job."""


def job_name(variant: str, suite: str) -> str:
    """Return the name of a job, which no other variant and suite have: neither may contain `~`."""
    return f"{variant}~{suite}"


def count_tests(verdicts: Mapping[Verdict, int]) -> CountedTests:
    """Count the tests of a suite as upstream does.

    A flaky test passed in the end. One that fails as expected counts as skipped, as in a report of pytest. One that the
    infrastructure lost, or that did not run, counts as failed: it must not vanish from the total.
    """
    passed, failed, skipped = (
        sum(verdicts.get(verdict, 0) for verdict in group)
        for group in (("passed", "flaky", "xpassed"), ("failed", "infra", "not_run"), ("skipped", "xfailed"))
    )
    return CountedTests(passed=passed, failed=failed, skipped=skipped, total=passed + failed + skipped)


def conclude(ledger: Ledger, suite: str) -> Conclusion:
    """Conclude from the ledger of a build whether a suite succeeded.

    It needs a test that passed, and none that failed but those in quarantine. What makes the build as a whole
    untrustworthy keeps each suite from success: a suite without results, too few tests, a sum that does not balance.
    """
    verdicts = ledger.suites.get(suite)
    if verdicts is None or suite in ledger.missing_suites:
        return "failure"
    own = replace(
        ledger,
        expected=sum(verdicts.values()),
        counts=dict(verdicts),
        suites={suite: dict(verdicts)},
        missing_suites=(),
        unexpected_failures=_of_suite(ledger.unexpected_failures, suite),
        muted=_of_suite(ledger.muted, suite),
        informative=False,
    )
    if shortcomings(own) or not count_tests(verdicts).passed:
        return "failure"
    return "neutral" if ledger.missing_suites or sum(ledger.counts.values()) != ledger.expected else "success"


def _of_suite(names: Iterable[str], suite: str) -> tuple[str, ...]:
    return tuple(name for name in names if name.startswith(f"{suite}: "))


def failed_tests(tests: Iterable[TestVerdict], suite: str) -> tuple[FailedTest, ...]:
    """Return the tests of a suite that count as failed, within the limits of the relay."""
    failed = [test for test in tests if test.suite == suite and test.verdict in ("failed", "infra", "not_run")]
    return tuple(
        FailedTest(
            name=cut(test.test, _LONGEST_NAME),
            classname=suite,
            message=cut(test.message or f"the verdict is {test.verdict}", LONGEST_MESSAGE),
            duration=test.duration_s,
        )
        for test in failed[:MOST_FAILED_TESTS]
    )


def verdict_of_job(blames: Iterable[Blame], suite: str, now: datetime) -> dict[str, Any] | None:
    """Return the `triage_verdict` of a job: that of its most frequent cause; None where nobody has judged its failures."""
    own = [blame for blame in blames if blame.suite == suite]
    if not own:
        return None
    counts = Counter(blame.cause for blame in own)
    cause = max(counts, key=lambda each: (counts[each], -_ORDER.index(each)))
    surest = max((blame for blame in own if blame.cause == cause), key=lambda blame: blame.probability)
    verdict = triage_verdict(surest, now)
    if len(own) > 1:
        verdict["summary"] = f"{counts[cause]} of {len(own)} failures: {verdict['summary']}"
    return verdict


def other_commit_verdict(tested: str | None, wanted: str, now: datetime) -> dict[str, Any]:
    """Return the `triage_verdict` of a job whose PyTorch is not, or may not be, the one that it was to test."""
    found = tested[:12] if tested else "of an unknown commit"
    summary = f"PyTorch {found} was tested instead of {wanted[:12]}, so that this says nothing of the change."
    return {
        "schema_version": 1, "category": "infra", "confidence": "high", "summary": summary,
        "analyzer": {"name": "accel-ci"}, "analyzed_at": now.isoformat(timespec="seconds"),
    }  # fmt: skip
