"""Sort and compute in threads: Arrow does most of its work without the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from accel_ci.results.columns import counted, kernels

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

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
    sample: Any = first.take(pa.array(range(0, len(first), max(1, len(first) // 1000))))
    middle = sample[kernels.sort_indices(sample)[len(sample) // 2].as_py()]  # about half of the values are below it
    low = kernels.less(first, middle)
    sides = [kernels.indices_nonzero(side).cast(pa.int32()) for side in (low, kernels.invert(low))]
    with ThreadPoolExecutor(len(sides)) as threads:
        return pa.concat_arrays(list(threads.map(partial(_sorted, columns), sides)))


def _sorted(columns: Sequence[pa.Array[Any]], places: pa.Array[Any]) -> pa.Array[Any]:
    """Sort row numbers by the values that the columns have in these rows."""
    pieces = range(0, len(places), _PIECE)
    keys = {}
    for number, column in enumerate(columns):
        there = column.take(places)
        keys[str(number)] = pa.chunked_array([there[at : at + _PIECE] for at in pieces], column.type)
    return places.take(kernels.sort_indices(pa.table(keys), [(name, "ascending") for name in keys]))


def prefetch(function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 2) -> Iterator[_Result]:
    """Yield the results of `function` in the order of the items; at most `most` of them are in progress or waiting."""
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(most) as threads:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
