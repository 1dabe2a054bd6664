"""The signature of a failure: its message, without a traceback, and with everything masked that differs from run to run.

Two failures with the same signature are treated as the same fault. Only the masking belongs here; grouping is done by
`accel_ci.results.questions`. The patterns run in RE2 (through Arrow), whose time is linear in the length of any text, and
over whole columns, so that rows without a message cost nothing.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from accel_ci.results.columns import Column, kernels

READ_CHARS = 2000
"""The number of characters of a message that are read."""

SIGNATURE_CHARS = 200
"""The maximum length of a signature."""

# Eight or more hex digits with at least one letter. RE2 has no look-ahead, so each place of the first letter is a pattern.
_LONG_HEX = "|".join([*(rf"\d{{{n}}}[a-f][0-9a-f]{{{7 - n},}}" for n in range(7)), r"\d{7,}[a-f][0-9a-f]*"])

_MASKS: tuple[tuple[str, str], ...] = (
    (r"(?s)\n[ \t\r]*\n.*|\nTraceback \(most recent call last\):.*", ""),  # where the message ends
    (r"\x1b\[[0-9;]*[A-Za-z]", ""),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"\b\d\d:\d\d:\d\d([.,]\d+)?\b", "<time>"),
    (r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)\]]+", "<url>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"(?i)\b0x[0-9a-f]+\b", "<hex>"),
    (r"(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+){2,}|\b[\w.@+~-]+(?:/[\w.@+~-]+)+\.\w+", "<path>"),
    (rf"(?i)\b(?:{_LONG_HEX})\b", "<hex>"),
    (r"(^|[^A-Za-z0-9_])[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?(%|[munpkMGTx]?i?[sB]?\b)", r"\1<n>"),
    (r"\d+", "<n>"),
    (r"\s+", " "),
)
"""Applied in this order: text that a later mask would break up must be masked first."""


def signatures(messages: Column) -> pa.Array[Any]:
    """The signatures of a column of messages, null where there is none. Each distinct message is masked once."""
    column = messages.combine_chunks() if isinstance(messages, pa.ChunkedArray) else messages
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    encoded: Any = column.dictionary_encode()
    texts = kernels.utf8_slice_codeunits(kernels.utf8_ltrim_whitespace(encoded.dictionary), 0, READ_CHARS)
    for pattern, mask in _MASKS:
        texts = kernels.replace_substring_regex(texts, pattern, mask)
    texts = kernels.utf8_slice_codeunits(kernels.utf8_trim_whitespace(texts), 0, SIGNATURE_CHARS)
    found: pa.Array[Any] = texts.take(encoded.indices)
    return found
