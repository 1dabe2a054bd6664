"""What is said of an attempt: outcome and bounded message from pytest's reports, and where its output begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MESSAGE_LIMIT = 8 * 1024

TEST_MARK = b"\0accel-ci test "
"""What a child writes to its own output before a test, with the test's number; the worker cuts the output there."""


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text in at most `limit` UTF-8 bytes: its beginning and, where a message says most, its end."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    head, mark = raw[: limit // 4], "\n[…]\n"
    tail = raw[len(head) + len(mark.encode()) - limit :]
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore")


def judge(reports: Sequence[Any]) -> tuple[str, str | None]:
    """Outcome and message of one attempt from all its reports: setup, call, subtests, teardown."""
    failed = [report for report in reports if report.failed]
    if failed:
        in_call = [report for report in failed if report.when == "call"]
        first = (in_call or failed)[0]
        message = _of_failure(first)
        if _is_subtest(first):
            count = sum(map(_is_subtest, in_call))
            message = bounded(f"{count} subtest{'s' if count > 1 else ''} failed; the first: {message}")
        return ("failed" if in_call else "error"), message
    main = [report for report in reports if not _is_subtest(report)]
    skipped = next((report for report in main if report.skipped), None)
    if skipped is not None:
        outcome = "xfailed" if hasattr(skipped, "wasxfail") else "skipped"
        return outcome, _reason(skipped)
    if any(hasattr(report, "wasxfail") for report in main if report.when == "call"):
        return "xpassed", _reason(next(report for report in main if hasattr(report, "wasxfail")))
    if not any(report.when == "call" for report in main):
        return "error", "pytest ended the test without running it"
    return "passed", None


def _is_subtest(report: Any) -> bool:
    return type(report).__name__.lower() == "subtestreport"


def _of_failure(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext
    if crash is None:
        return bounded(text)
    return bounded(f"{crash.path}:{crash.lineno}: {crash.message}\n\n{text}")


def _reason(report: Any) -> str | None:
    if hasattr(report, "wasxfail"):
        return bounded(str(report.wasxfail)) or None
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return bounded(str(longrepr[2]).removeprefix("Skipped: "))
    return bounded(str(longrepr)) if longrepr else None
