"""Sort a million rows on two cores. This module knows nothing about the data that it sorts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from accel_ci.results.columns import counted, kernels

_PIECE = 1 << 15
"""Values are sorted in pieces of this length, which Arrow merges; this halves the time."""


def order_of(first: pa.Array[Any], *further: pa.Array[Any]) -> pa.Array[Any]:
    """The order of rows by a column without nulls and then by further columns; stable.

    Further columns that never decrease need no comparison. The rows below and above a middle value are sorted in parallel.
    """
    falling = [place for place, column in enumerate(further) if kernels.any(kernels.less(column[1:], column[:-1])).as_py()]
    columns = [first, *further[: max(falling, default=-1) + 1]]
    if len(first) <= _PIECE:
        return _sorted(columns, counted(len(first)))
    low = kernels.less(first, _middle_of(first))
    sides = [kernels.indices_nonzero(side).cast(pa.int32()) for side in (low, kernels.invert(low))]
    with ThreadPoolExecutor(len(sides)) as threads:
        return pa.concat_arrays(list(threads.map(partial(_sorted, columns), sides)))


def _middle_of(values: pa.Array[Any]) -> Any:
    """A value that about half of the others are below, estimated from a sample."""
    sample: Any = values.take(pa.array(range(0, len(values), max(1, len(values) // 1000))))
    return sample[kernels.sort_indices(sample)[len(sample) // 2].as_py()]


def _sorted(columns: Sequence[pa.Array[Any]], places: pa.Array[Any]) -> pa.Array[Any]:
    """Sort row numbers by the values that the columns have in these rows."""
    pieces = range(0, len(places), _PIECE)
    keys = {}
    for number, column in enumerate(columns):
        there = column.take(places)
        keys[str(number)] = pa.chunked_array([there[at : at + _PIECE] for at in pieces], column.type)
    order = kernels.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
    return places.take(order)
