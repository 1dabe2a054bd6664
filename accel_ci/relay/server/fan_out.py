"""The workers: each downstream gets its dispatches over a lane, so that a slow or broken one holds up nobody else.

A coordinator makes the dispatches of new deliveries, and starts a lane for each downstream that has something due. A lane
claims a few dispatches, sends them, and writes how that ended, until nothing is due. When and whether a failed one is tried
again is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from accel_ci.github.answers import Answer, Limited, Sent
from accel_ci.relay.allowlist import AllowlistFile
from accel_ci.relay.server.database import going_on, shown
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.group_commit import GroupCommit
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.queue import FORGOTTEN_AT_ONCE, Claim, Queue, Settlement, Tried
from accel_ci.relay.server.settings import FanOutSettings, TrySettings

HOUSEKEEPING_S = 60.0
_LOG = logging.getLogger(__name__)
_Claim = TypeVar("_Claim", bound=Tried)


def settlement_of(
    claim: _Claim, answer: Answer, settings: TrySettings, now: float, in_a_row: int, jitter: float
) -> Settlement[_Claim]:
    """Decide how a try ends. `in_a_row` counts earlier failures of the receiver; `jitter` is between 0 and 1."""
    if isinstance(answer, Sent):
        return Settlement(claim, now, sent=True)
    if isinstance(answer, Limited):
        # A little later than allowed, and not all at once.
        until = now + answer.wait_s
        return Settlement(claim, now, due_at=until + jitter, error=shown(answer.reason), github_paused_until=until)
    failures = claim.failures + 1
    dead = answer.permanent or failures >= settings.tries or now - claim.queued_at > settings.give_up_s
    pause = max(answer.wait_s, back_off(failures, settings.first_pause_s, settings.longest_pause_s, jitter))
    beyond = in_a_row + 1 - settings.breaker_failures
    opened = beyond >= 0 and not answer.permanent
    paused = back_off(beyond + 1, settings.breaker_pause_s, settings.longest_pause_s, jitter) if opened else 0.0
    return Settlement(
        claim,
        now,
        failed=not answer.permanent,
        due_at=None if dead else now + pause,
        error=shown(answer.reason),
        paused_until=now + max(paused, answer.wait_s) if opened or answer.wait_s else 0.0,
    )


def back_off(failures: int, first_s: float, longest_s: float, jitter: float) -> float:
    """Return the pause after so many failures: it doubles, up to `longest_s`, and `jitter` takes away up to a half."""
    return float(min(longest_s, first_s * 2.0 ** min(failures - 1, 60))) * (1 - jitter / 2)


@dataclass(frozen=True)
class FanOutParts:
    """All that the workers use; it belongs to the caller, who closes it."""

    queue: Queue
    allowlist: AllowlistFile
    github: GitHubClient
    settings: FanOutSettings
    metrics: RelayMetrics


class FanOut:
    """The coordinator and its lanes."""

    def __init__(self, parts: FanOutParts) -> None:
        self._parts, self._settings = parts, parts.settings
        self._wake = asyncio.Event()
        self._stopping = False
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._settle: GroupCommit[Settlement[Claim], None] = GroupCommit(parts.queue.settle)
        self._claim: GroupCommit[tuple[str, int], list[Claim]] = GroupCommit(
            lambda wanted: parts.queue.claim(wanted, time.time(), parts.settings.lease_s)
        )
        self._housekeeping_at = 0.0

    def wake(self) -> None:
        """Look for work now: something has been stored."""
        self._wake.set()

    def stop(self) -> None:
        """Claim nothing more; `run` ends when all that is under way has been written."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`. An error of the database is logged, and all that it concerns is tried again."""
        while not self._stopping:
            self._wake.clear()
            more = False
            with going_on("the relay's workers"):
                more = await self._round()
            if not more:
                with suppress(asyncio.TimeoutError, TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._settings.poll_s)
        await asyncio.gather(*self._lanes.values(), return_exceptions=True)
        self._claim.close()
        self._settle.close()

    async def _round(self) -> bool:
        """Expand deliveries and start lanes. Return whether more deliveries wait."""
        queue, allowlist = self._parts.queue, self._parts.allowlist.current()
        expanded = await asyncio.to_thread(queue.expand, allowlist.recipients, time.time())
        for repository, failures in (await asyncio.to_thread(queue.due_downstreams, time.time())).items():
            # One that has left the allowlist gets nothing more: its dispatches become dead letters in time.
            if repository not in self._lanes and allowlist.find(repository) is not None and not self._stopping:
                self._lanes[repository] = asyncio.create_task(self._lane(repository, failures))
        if time.monotonic() >= self._housekeeping_at:
            now = time.time()
            if hastened := await asyncio.to_thread(queue.hasten, now, now + self._settings.furthest_s):
                _LOG.warning("%d dispatches were put off by a clock that was ahead, and are due now", hastened)
            if dead := await asyncio.to_thread(queue.give_up, now - self._settings.give_up_s):
                _LOG.warning("%d dispatches have waited too long and are dead letters", dead)
            forgotten = await asyncio.to_thread(queue.forget, now - self._settings.keep_s)
            pause_s = HOUSEKEEPING_S if forgotten < FORGOTTEN_AT_ONCE else 1.0
            self._housekeeping_at = time.monotonic() + pause_s
        return expanded > 0

    async def _lane(self, repository: str, in_a_row: int) -> None:
        """Send what is due for a downstream, until nothing is, something fails, it leaves the allowlist, or workers stop."""
        limit = 1 if in_a_row >= self._settings.breaker_failures else self._settings.in_flight
        with going_on(f"the dispatches to {repository}"):
            while not self._stopping and self._parts.allowlist.current().find(repository) is not None:
                claims = await self._claim.submit((repository, limit))
                if not claims:
                    break
                ends = await asyncio.gather(*(self._try(claim, in_a_row) for claim in claims))
                if not all(ends):
                    break
                limit, in_a_row = self._settings.in_flight, 0
        del self._lanes[repository]

    async def _try(self, claim: Claim, in_a_row: int) -> bool:
        """Send a dispatch and write how that ended. Return whether it was sent."""
        answer = await self._parts.github.send(claim.repository, claim.body, time.time())
        now = time.time()
        end = settlement_of(claim, answer, self._settings, now, in_a_row, random.random())  # noqa: S311 - no secret
        await self._settle.submit(end)
        self._parts.metrics.tried(end)
        if end.sent:
            _LOG.info("dispatched %s to %s", claim.delivery, claim.repository)
        else:
            follows = "it will be tried again" if end.due_at is not None else "it is a dead letter"
            _LOG.warning("%s was not dispatched to %s, %s: %s", claim.delivery, claim.repository, follows, end.error)
        return end.sent
