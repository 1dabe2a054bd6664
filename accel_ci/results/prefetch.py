"""Compute results before they are needed, in threads: Arrow does most of its work without the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
