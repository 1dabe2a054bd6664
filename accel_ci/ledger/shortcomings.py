"""What a build's verdicts mean: whether it passes, and whether it lost tests. Pure functions."""

from __future__ import annotations

from accel_ci.model import Ledger

ALLOWED_DROP = 0.05
"""The share of the collected tests that a build may lose without a reason."""


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
