"""Verdicts and durations as single characters: a build's tests are then a string."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from accel_ci.model import VERDICTS, Verdict
from accel_ci.results.columns import kernels, one_chunk

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

LETTERS: dict[Verdict, str] = dict(zip(VERDICTS, "pfksxyin", strict=True))
"""The letter of each verdict. That of a cached result, which is an earlier build's, is a capital."""

ABSENT = ord("-")
"""The letter of a test that was not in a build."""

NO_SECONDS = ord(" ")
_FIRST, _LEFT_OUT, _LEVELS = ord("#"), ord("\\"), 91
_SHORTEST_S = 0.001
STEPS_PER_DOUBLING = 4
"""A duration is known to a quarter of a doubling: within 9 %."""


def letters_of(judged: pa.Table) -> Numbers:
    """The letters of tests, from the columns `verdict` and `cached` of a rollup."""
    import numpy as np

    table = np.frombuffer("".join(LETTERS.values()).encode(), np.uint8)
    cached = one_chunk(kernels.fill_null(judged["cached"], False)).to_numpy(zero_copy_only=False)
    found: Numbers = table[one_chunk(judged["verdict"]).to_numpy()] - np.where(cached, 32, 0).astype(np.uint8)
    return found


def letters_of_seconds(seconds: Numbers) -> Numbers:
    """The characters of durations; a blank for one that is not known (NaN)."""
    import numpy as np

    known = seconds >= 0  # false for NaN
    levels = np.rint(STEPS_PER_DOUBLING * np.log2(np.maximum(np.where(known, seconds, 1), _SHORTEST_S) / _SHORTEST_S))
    codes = _FIRST + np.minimum(levels, _LEVELS - 1).astype(np.uint8)
    codes += (codes >= _LEFT_OUT).astype(np.uint8)
    found: Numbers = np.where(known, codes, NO_SECONDS).astype(np.uint8)
    return found
