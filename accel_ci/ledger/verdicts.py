"""From attempts to verdicts, and the ledger that must balance. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accel_ci.errors import LedgerError
from accel_ci.model import FAILING_OUTCOMES, VERDICTS, Attempt, Ledger, SelectedTest, TestVerdict, Verdict

ALLOWED_DROP = 0.05
"""The share of the collected tests that a build may lose without a reason."""


@dataclass(frozen=True)
class Account:
    """The verdicts of a build's expected tests, counted, and the tests that nobody expected."""

    verdicts: tuple[TestVerdict, ...]
    counts: dict[Verdict, int]
    suites: dict[str, dict[Verdict, int]]
    unexpected: tuple[str, ...]


def judge(attempts: Sequence[Attempt]) -> Verdict:
    """The verdict of one test from its attempts in one build, in the order in which they began.

    Failures that the pool puts down to the infrastructure do not count; when nothing else is left, the verdict is
    `infra`. A pass and a failure in the same build are `flaky`. Otherwise the last outcome stands.
    """
    own = [attempt.outcome for attempt in attempts if attempt.infra is None and attempt.outcome != "not_run"]
    if not own:
        return "infra" if any(attempt.infra is not None for attempt in attempts) else "not_run"
    failed = any(outcome in FAILING_OUTCOMES for outcome in own)
    if failed and any(outcome not in FAILING_OUTCOMES for outcome in own):
        return "flaky"
    return "failed" if failed else _AS_VERDICT[own[-1]]


_AS_VERDICT: dict[str, Verdict] = {
    "passed": "passed", "skipped": "skipped", "xfailed": "xfailed", "xpassed": "xpassed", "not_run": "not_run",
}  # fmt: skip


def make_account(expected: Iterable[SelectedTest], attempts: Iterable[Attempt]) -> Account:
    """Give every expected test one verdict. Raises `LedgerError` when the sums differ or a test is expected twice.

    Attempts are judged by round, and within a round in the order in which they are given: that of the store's rows.
    """
    by_test: defaultdict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_test[attempt.suite, attempt.test].append(attempt)
    verdicts: list[TestVerdict] = []
    suites: dict[str, dict[Verdict, int]] = {}
    seen: set[tuple[str, str]] = set()
    for test in expected:
        identity = (test.suite, test.test)
        if identity in seen:
            raise LedgerError(f"{test.suite}: {test.test} is expected twice; the selection must name each test once")
        seen.add(identity)
        verdict = _verdict(test, sorted(by_test.get(identity, ()), key=lambda attempt: attempt.round))
        verdicts.append(verdict)
        counts = suites.setdefault(test.suite, dict.fromkeys(VERDICTS, 0))
        counts[verdict.verdict] += 1
    totals = {verdict: sum(counts[verdict] for counts in suites.values()) for verdict in VERDICTS}
    check_balance(len(seen), totals)
    unexpected = tuple(f"{suite}: {test}" for suite, test in by_test if (suite, test) not in seen)
    return Account(tuple(verdicts), totals, suites, unexpected)


def check_balance(expected: int, counts: Mapping[Verdict, int]) -> None:
    """Raise `LedgerError`, naming the difference, unless the verdicts sum to `expected`."""
    total = sum(counts.values())
    if total != expected:
        parts = " + ".join(f"{count} {verdict}" for verdict, count in counts.items())
        raise LedgerError(f"the ledger does not balance: {expected} expected, but {parts} = {total} ({total - expected:+d})")


def collected_drop(
    collected: int, previous: int | None, reason: str | None = None, allowed: float = ALLOWED_DROP
) -> str | None:
    """What is wrong with the number of collected tests against the last build of the variant; None when nothing is.

    A build may lose tests for a reason that somebody gave, or up to the share `allowed`. A variant's first build (`previous`
    is None) has nothing to lose; a build that collects nothing is always wrong.
    """
    if collected <= 0:
        return "no tests were collected"
    if previous is None or reason or previous - collected <= previous * allowed:
        return None
    share = (previous - collected) / previous
    return f"{collected} tests were collected, {share:.1%} fewer than the last build's {previous}; fix it, or give a reason"


def shortcomings(ledger: Ledger) -> tuple[str, ...]:
    """Why a build is no pass; empty for one that is. A build without tests, or with nothing but skips, never passes."""
    bad = [f"{ledger.counts[verdict]} {verdict}" for verdict in ("failed", "infra", "not_run") if ledger.counts[verdict]]
    if ledger.expected <= 0:
        bad.append("no tests were expected")
    elif ledger.counts["skipped"] == ledger.expected:
        bad.append("every test was skipped")
    if ledger.missing_suites:
        bad.append(f"no word from {', '.join(ledger.missing_suites)}")
    return tuple(bad)


def _verdict(test: SelectedTest, attempts: Sequence[Attempt]) -> TestVerdict:
    failures = [a for a in attempts if a.outcome in FAILING_OUTCOMES or a.infra is not None]
    reasons = [a for a in attempts if a.message] if not failures else [a for a in failures if a.message]
    durations = [a.duration_s for a in attempts if a.duration_s is not None]
    return TestVerdict(
        test.suite,
        test.test,
        judge(attempts),
        tuple(a.outcome for a in attempts),
        durations[-1] if durations else None,
        tuple(dict.fromkeys(a.card for a in attempts if a.card is not None)),
        reasons[-1].message if reasons else None,
    )
