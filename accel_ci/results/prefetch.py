"""Work that is done ahead of who asks for it, in threads: Arrow does most of it without the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def prefetch(function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 2) -> Iterator[_Result]:
    """The results of `function` in the order of the items, of which at most so many are worked on or wait."""
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(most) as threads:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
