"""Sorting a million rows on two cores. What is sorted, and why, is not known here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from accel_ci.results.columns import counted, kernels

_PIECE = 1 << 15
"""Values are sorted in pieces of this length, which Arrow merges: that halves the time."""


def order_of(first: pa.Array[Any], *further: pa.Array[Any]) -> pa.Array[Any]:
    """The places of rows sorted by a column without nulls and then by further ones, stable.

    Further columns that never fall need not be compared. Both sides of a middle value are sorted at the same time.
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
    """A value that about half of the others are below, by a sample."""
    sample: Any = values.take(pa.array(range(0, len(values), max(1, len(values) // 1000))))
    return sample[kernels.sort_indices(sample)[len(sample) // 2].as_py()]


def _sorted(columns: Sequence[pa.Array[Any]], places: pa.Array[Any]) -> pa.Array[Any]:
    """The places in the order of the columns' values there."""
    pieces = range(0, len(places), _PIECE)
    keys = {}
    for number, column in enumerate(columns):
        there = column.take(places)
        keys[str(number)] = pa.chunked_array([there[at : at + _PIECE] for at in pieces], column.type)
    order = kernels.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
    return places.take(order)
