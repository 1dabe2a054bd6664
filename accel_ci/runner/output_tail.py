"""The end of a pytest child's output, and the marks that separate the output of its tests."""

from __future__ import annotations

TEST_MARK = b"\0accel-ci test "
"""A child writes this to its own output before each test, followed by the test's number."""

_TAIL_BYTES = 16 * 1024


class OutputTail:
    """The most recent output of a child, at most 64 KB."""

    def __init__(self) -> None:
        """Start empty."""
        self._recent = b""

    def feed(self, data: bytes) -> None:
        """Add output and drop the oldest beyond 64 KB."""
        self._recent = (self._recent + data)[-4 * _TAIL_BYTES :]

    def of_test(self, number: int) -> str:
        """Return the last 16 KB of the output of the test with that number."""
        begin = self._recent.rfind(TEST_MARK + b"%d\0\n" % number)
        text = self._recent if begin < 0 else self._recent[begin + len(TEST_MARK) :].partition(b"\n")[2]
        return _text(text.partition(TEST_MARK)[0])

    def of_child(self) -> str:
        """Return the last 16 KB of the child's output."""
        return _text(self._recent)


def _text(output: bytes) -> str:
    return output[-_TAIL_BYTES:].decode("utf-8", "replace").replace("\0", "")
