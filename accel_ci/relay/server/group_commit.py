"""One transaction for all that waits for the database, which commits a few hundred times a second at best.

`submit` returns after the commit. While one is under way, others collect for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class GroupCommit(Generic[_Item, _Result]):
    """Gives items to a blocking function, in a thread that is for this alone."""

    def __init__(self, write: Callable[[Sequence[_Item]], Sequence[_Result]], largest: int = 500) -> None:
        """Write by `write`, which returns a result for each item, at most `largest` items at a time."""
        self._write, self._largest = write, largest
        self._waiting: list[tuple[_Item, asyncio.Future[_Result]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "group-commit")

    async def submit(self, item: _Item, seconds: float | None = None) -> _Result:
        """Write an item, and return its result. Raises what `write` raised for the items that were written together.

        Raises `asyncio.TimeoutError` after so many seconds; the item may be written all the same if its turn had come.
        """
        done: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._drain())
        try:
            return await asyncio.wait_for(done, seconds)
        finally:
            if done.cancelled():
                self._waiting = [one for one in self._waiting if one[1] is not done]

    def close(self) -> None:
        """End the thread. Nothing may be waiting."""
        self._thread.shutdown()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
                waiting = [done for _, done in batch]
                try:
                    results = await loop.run_in_executor(self._thread, self._write, [item for item, _ in batch])
                except Exception as error:
                    for done in waiting:
                        if not done.cancelled():
                            done.set_exception(error)
                    continue
                for done, result in zip(waiting, results, strict=True):
                    if not done.cancelled():
                        done.set_result(result)
        finally:
            self._writer = None
