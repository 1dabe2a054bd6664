"""The rules by which a build passes, and by which it has lost tests. Pure functions."""

from __future__ import annotations

from accel_ci.model import VERDICTS, Ledger

ALLOWED_DROP = 0.05
"""The share of the collected tests that a build may lose without a reason."""


def collected_drop(
    collected: int, previous: int | None, reason: str | None = None, allowed: float = ALLOWED_DROP
) -> str | None:
    """Report a number of collected tests that is too low against the variant's last build; None when it is not.

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
    """The reasons why a build does not pass, in a few words each; empty for one that passes.

    A build without tests, or with nothing but skips, never passes.
    """
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    bad = [
        f"{counts[verdict]:,} {verdict.replace('_', ' ')}" for verdict in ("failed", "infra", "not_run") if counts[verdict]
    ]
    if ledger.expected <= 0:
        bad.append("no tests")
    elif sum(counts.values()) != ledger.expected:
        bad.append("does not balance")
    elif counts["skipped"] == ledger.expected:
        bad.append("all skipped")
    if ledger.missing_suites:
        bad.append(f"no results from {', '.join(ledger.missing_suites)}")
    return tuple(bad)
