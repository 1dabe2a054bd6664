"""The workers that forward the steps of jobs: to check runs, and to the stores of results.

Each destination has a lane in each process, so that one which is down holds up no other. A lane claims what is due, sends
it, and writes how that ended. When a failed one is tried again is decided as for dispatches, by `fan_out.settlement_of`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from accel_ci.github.answers import Answer, Failed, Sent
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.check_runs import put_check_run
from accel_ci.relay.server.database import going_on
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.fan_out import HOUSEKEEPING_S, settlement_of
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.outbox import Destination, ForwardClaim, ForwardEnd, Outbox
from accel_ci.relay.server.queue import FORGOTTEN_AT_ONCE, Settlement
from accel_ci.relay.server.settings import ForwardSettings

_LOG = logging.getLogger(__name__)

Sending = Callable[[Sequence[ForwardClaim]], Awaitable[Sequence[tuple[Answer, str | None]]]]
"""Sends claims; returns for each what became of it, and the name of the job at the destination."""


class Sink(Protocol):
    """A store of results."""

    def add(self, rows: Sequence[JobRow]) -> None:
        """Add rows; the same row of a job and status again changes nothing. Blocks, and raises what it likes."""


def check_runs(github: GitHubClient, settings: ForwardSettings) -> Sending:
    """Return the way to GitHub's check runs: each claim for itself, within `timeout_s`."""

    async def put(claim: ForwardClaim) -> tuple[Answer, str | None]:
        try:
            return await asyncio.wait_for(put_check_run(github, claim), settings.timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            return Failed(f"not done within {settings.timeout_s:g} s"), None
        except Exception as error:  # a row that nobody thought of must not end the lane
            _LOG.exception("no check run can be made of a row of %s", claim.row.repository)
            return Failed(f"{type(error).__name__}: {error}"), None

    async def send(claims: Sequence[ForwardClaim]) -> Sequence[tuple[Answer, str | None]]:
        return await asyncio.gather(*(put(claim) for claim in claims))

    return send


def rows_for(sink: Sink) -> Sending:
    """Return the way to a store of results: all claims at once."""

    async def send(claims: Sequence[ForwardClaim]) -> Sequence[tuple[Answer, str | None]]:
        answer: Answer = Sent()
        try:
            await asyncio.to_thread(sink.add, [claim.row for claim in claims])
        except Exception as error:  # a disk, a network or a library: all of them are tried again
            answer = Failed(f"{type(error).__name__}: {error}")
        return [(answer, None)] * len(claims)

    return send


@dataclass(frozen=True)
class Lane:
    """A destination: the way there, the forwards at a time, and the destinations that get what it has got.

    With `is_batch`, forwards are sent together and fail together.
    """

    destination: Destination
    send: Sending
    at_a_time: int
    is_batch: bool = False
    then: tuple[Destination, ...] = ()


class Forwarder:
    """The lanes of a process."""

    def __init__(self, outbox: Outbox, lanes: Sequence[Lane], settings: ForwardSettings, metrics: RelayMetrics) -> None:
        self._outbox, self._lanes, self._settings, self._metrics = outbox, lanes, settings, metrics
        self._wakes = [asyncio.Event() for _ in lanes]
        self._stopping = False

    def wake(self) -> None:
        """Look for work now: something has been stored."""
        for event in self._wakes:
            event.set()

    def stop(self) -> None:
        """Claim nothing more; `run` ends when all that is under way has been written."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Work until `stop`. An error of the database is logged, and all that it concerns is tried again."""
        tidying = asyncio.create_task(self._tidy())
        await asyncio.gather(*(self._work(lane, wake) for lane, wake in zip(self._lanes, self._wakes, strict=True)))
        tidying.cancel()
        with suppress(asyncio.CancelledError):
            await tidying

    async def _work(self, lane: Lane, wake: asyncio.Event) -> None:
        limit, in_a_row = lane.at_a_time, 0
        while not self._stopping:
            wake.clear()
            pause_s = self._settings.poll_s
            with going_on(f"the forwards to {lane.destination}"):
                claims = await asyncio.to_thread(
                    self._outbox.claim, lane.destination, limit, time.time(), self._settings.lease_s
                )
                if claims:
                    ends = await self._try(lane, claims, in_a_row)
                    if any(end.sent for end in ends):
                        limit, in_a_row, pause_s = min(lane.at_a_time, 2 * limit), 0, 0.0
                    else:  # one at a time, so that a row which nobody takes is found
                        limit, in_a_row = 1, in_a_row + 1
                        pause_s = max(0.0, max(end.paused_until for end in ends) - time.time())
            await self._rest(wake, pause_s)

    async def _rest(self, wake: asyncio.Event, seconds: float) -> None:
        """Wait. New work ends only a wait that is no pause of a breaker."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            with suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(wake.wait(), left)
            if seconds <= self._settings.poll_s:
                return
            wake.clear()

    async def _try(self, lane: Lane, claims: Sequence[ForwardClaim], in_a_row: int) -> list[Settlement[ForwardClaim]]:
        """Send claims, write how that ended, and return it."""
        answers = await lane.send(claims)
        now = time.time()
        ends = [
            settlement_of(claim, answer, self._settings, now, in_a_row, random.random())  # noqa: S311 - no secret
            for claim, (answer, _) in zip(claims, answers, strict=True)
        ]
        if lane.is_batch and len(claims) > 1:
            # The failure may be that of one row: it does not count before each was tried for itself.
            again = now + self._settings.first_pause_s
            ends = [end if end.sent else replace(end, failed=False, due_at=again) for end in ends]
        names = [reference for _, reference in answers]
        settled = [ForwardEnd(end, reference) for end, reference in zip(ends, names, strict=True)]
        await asyncio.to_thread(self._outbox.settle, settled, lane.then)
        for end in ends:
            self._metrics.forwarded(end)
            if not end.sent:
                follows = "it will be tried again" if end.due_at is not None else "it is a dead letter"
                _LOG.warning(
                    "%s of %s was not forwarded to %s, %s: %s",
                    end.claim.row.status, end.claim.row.repository, lane.destination, follows, end.error,
                )  # fmt: skip
        return ends

    async def _tidy(self) -> None:
        """Give up what waits too long, and forget what was sent long ago."""
        while True:
            pause_s = HOUSEKEEPING_S
            with going_on("the relay's housekeeping"):
                now = time.time()
                if hastened := await asyncio.to_thread(self._outbox.hasten, now, now + self._settings.furthest_s):
                    _LOG.warning("%d forwards were put off by a clock that was ahead, and are due now", hastened)
                if dead := await asyncio.to_thread(self._outbox.give_up, now - self._settings.give_up_s):
                    _LOG.warning("%d forwards have waited too long and are dead letters", dead)
                if await asyncio.to_thread(self._outbox.forget, now - self._settings.keep_s) >= FORGOTTEN_AT_ONCE:
                    pause_s = 1.0
            await asyncio.sleep(pause_s)
