"""The outcome of one attempt, with its message from pytest's reports and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FAILING = frozenset({"failed", "error", "crashed", "timeout"})

TEST_MARK = b"\0accel-ci test "  # a child writes this to its own output before each test, followed by the test's number
_MESSAGE_BYTES = 8 * 1024
_TAIL_BYTES = 16 * 1024


def bounded(text: str, max_bytes: int = _MESSAGE_BYTES) -> str:
    """Cut a text to at most `max_bytes` bytes of UTF-8: keep its beginning and, as the larger part, its end."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode("utf-8")
    head, mark = raw[: max_bytes // 4], "\n[…]\n"
    tail = raw[len(head) + len(mark.encode()) - max_bytes :]
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore")


def outcome_of(reports: Sequence[Any]) -> tuple[str, str | None]:
    """Return the outcome and message of one attempt from all its reports: setup, call, subtests, teardown."""
    failed = [report for report in reports if report.failed]
    if failed:
        in_call = [report for report in failed if report.when == "call"]
        first = (in_call or failed)[0]
        message = _failure_message(first)
        if is_subtest(first):
            count = sum(map(is_subtest, in_call))
            message = bounded(f"{count} subtest{'s' if count > 1 else ''} failed; the first: {message}")
        return ("failed" if in_call else "error"), message
    main = [report for report in reports if not is_subtest(report)]
    skipped = next((report for report in main if report.skipped), None)
    if skipped is not None:
        return ("xfailed" if hasattr(skipped, "wasxfail") else "skipped"), _reason(skipped)
    if any(hasattr(report, "wasxfail") for report in main if report.when == "call"):
        return "xpassed", _reason(next(report for report in main if hasattr(report, "wasxfail")))
    if not any(report.when == "call" for report in main):
        return "error", "pytest ended the test without running it"
    return "passed", None


def skip_reason(longrepr: Any) -> str:
    """Return the reason in the representation of a skipped test or file."""
    reason = longrepr[2] if isinstance(longrepr, tuple) else longrepr
    return bounded(str(reason).removeprefix("Skipped: "))


def is_subtest(report: Any) -> bool:
    """True for the report of a part of a test."""
    return type(report).__name__.lower() == "subtestreport"


def _failure_message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    summary = f"{crash.path}:{crash.lineno}: {crash.message}\n\n" if crash is not None else ""
    return bounded(summary + report.longreprtext)


def _reason(report: Any) -> str | None:
    if hasattr(report, "wasxfail"):
        return bounded(str(report.wasxfail)) or None
    return skip_reason(report.longrepr) if report.longrepr else None


def captured_output(reports: Sequence[Any]) -> str | None:
    """Return the end of what pytest captured during a test, at most 16 KB, under pytest's own headings."""
    sections = reports[-1].sections if reports else ()
    text = "\n".join(f"--- {title} ---\n{content.rstrip()}" for title, content in sections if content.strip())
    return bounded(text, _TAIL_BYTES).replace("\0", "") or None


class OutputTail:
    """The most recent output of a child, at most 64 KB."""

    def __init__(self) -> None:
        self._recent = b""

    def feed(self, data: bytes) -> None:
        """Add output and drop the oldest beyond 64 KB."""
        self._recent = (self._recent + data)[-4 * _TAIL_BYTES :]

    def of_test(self, number: int) -> str:
        """Return the last 16 KB of the output of the test with that number."""
        begin = self._recent.rfind(TEST_MARK + b"%d\0\n" % number)
        text = self._recent if begin < 0 else self._recent[begin + len(TEST_MARK) :].partition(b"\n")[2]
        return output_text(text.partition(TEST_MARK)[0])

    def of_child(self) -> str:
        """Return the last 16 KB of the child's output."""
        return output_text(self._recent)


def output_text(output: bytes) -> str:
    """Return the last 16 KB of output as text."""
    return output[-_TAIL_BYTES:].decode("utf-8", "replace").replace("\0", "")
