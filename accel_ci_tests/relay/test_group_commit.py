"""Items that wait together are written together, and share the error of their transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from accel_ci.relay.server.group_commit import GroupCommit


def test_what_waits_goes_into_one_transaction() -> None:
    batches: list[list[int]] = []
    first_began, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[int]) -> list[int]:
        batches.append([*items])
        first_began.set()
        go_on.wait(30)
        if 13 in items:
            raise OSError("the disk is full")
        return [10 * item for item in items]

    async def run() -> list[int | BaseException]:
        group: GroupCommit[int, int] = GroupCommit(write, largest=3)
        first = asyncio.create_task(group.submit(0))
        await asyncio.to_thread(first_began.wait, 30)
        others = [asyncio.create_task(group.submit(item)) for item in (1, 2, 3, 13, 4)]
        await asyncio.sleep(0)
        go_on.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        found.append(await group.submit(5))
        group.close()
        return found

    found = asyncio.run(run())
    assert batches == [[0], [1, 2, 3], [13, 4], [5]]
    assert [item for item in found if isinstance(item, int)] == [0, 10, 20, 30, 50]
    assert [str(item) for item in found if isinstance(item, OSError)] == ["the disk is full"] * 2


def test_a_caller_that_goes_away_disturbs_nobody() -> None:
    began, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[str]) -> list[str]:
        began.set()
        go_on.wait(30)
        return [*items]

    async def run() -> str:
        group: GroupCommit[str, str] = GroupCommit(write)
        gone = asyncio.create_task(group.submit("gone"))
        await asyncio.to_thread(began.wait, 30)
        stays = asyncio.create_task(group.submit("stays"))
        gone.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await gone
        found = await stays
        group.close()
        return found

    assert asyncio.run(run()) == "stays"


def test_what_waits_for_too_long_is_not_written_later() -> None:
    batches: list[list[str]] = []
    began, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[str]) -> list[str]:
        batches.append([*items])
        began.set()
        go_on.wait(30)
        return [*items]

    async def run() -> None:
        group: GroupCommit[str, str] = GroupCommit(write)
        first = asyncio.create_task(group.submit("first"))
        await asyncio.to_thread(began.wait, 30)
        with pytest.raises(asyncio.TimeoutError):
            await group.submit("late", 0.01)
        go_on.set()
        assert (await first, await group.submit("next", 30)) == ("first", "next")
        group.close()

    asyncio.run(run())
    assert batches == [["first"], ["next"]]
