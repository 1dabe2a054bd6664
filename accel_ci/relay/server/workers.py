"""All that works in a process of the relay besides its HTTP side: loops that share a client of GitHub and a database.

Making the loops and running them together belongs here; each loop is in its module. A loop ends when it is asked to stop and
all that it has under way is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from accel_ci.relay.allowlist import AllowlistFile
from accel_ci.relay.server.authorization import authorization_for
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.fan_out import FanOut, FanOutParts
from accel_ci.relay.server.forward import Forwarder, Lane, check_runs, rows_for
from accel_ci.relay.server.jobs import Jobs
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.outbox import Outbox
from accel_ci.relay.server.queue import Queue
from accel_ci.relay.server.settings import RelayProject
from accel_ci.relay.server.sweep import Sweep


class Loop(Protocol):
    """A loop of work."""

    async def run(self) -> None:
        """Work until `stop`."""

    def stop(self) -> None:
        """Begin nothing more; `run` ends when all that is under way has been written."""


@dataclass(frozen=True)
class RelayState:
    """The database with its tables, and the allowlist, which all processes of a relay share; and the metrics of this one."""

    database: RelayDatabase
    queue: Queue
    jobs: Jobs
    outbox: Outbox
    allowlist: AllowlistFile
    metrics: RelayMetrics


def open_state(project: RelayProject) -> RelayState:
    """Open the database and the allowlist. Raises `AccelCiError` where one cannot be used."""
    allowlist = AllowlistFile(project.allowlist)
    database = RelayDatabase(project.database_url())
    queue, outbox = Queue(database), Outbox(database)
    jobs = Jobs(database, project.settings.upstream, project.settings.callback)
    return RelayState(database, queue, jobs, outbox, allowlist, RelayMetrics(queue, jobs, outbox))


class Workers:
    """The loops of a process."""

    def __init__(self, project: RelayProject, state: RelayState) -> None:
        """Make the loops. Raises `AccelCiError` where a secret cannot be had."""
        settings = project.settings
        self._authorization = authorization_for(project)
        self._github = GitHubClient(settings.github.api, self._authorization, settings.fan_out.timeout_s)
        parts = FanOutParts(state.queue, state.allowlist, self._github, settings.fan_out, state.metrics)
        self._fan_out = FanOut(parts)
        to_github = Lane("check_run", check_runs(self._github, settings.forwards), settings.forwards.in_flight)
        lanes = (to_github, *_stores(project))
        self._loops: tuple[Loop, ...] = (
            self._fan_out,
            Forwarder(state.outbox, lanes, settings.forwards, state.metrics),
            Sweep(state.jobs, self._github, settings.callback, state.metrics),
        )

    def wake(self) -> None:
        """Look for deliveries now: one has been stored."""
        self._fan_out.wake()

    def stop(self) -> None:
        """Stop all loops."""
        for loop in self._loops:
            loop.stop()

    async def run(self) -> None:
        """Work until `stop`, and close the connections to GitHub."""
        await asyncio.gather(*(loop.run() for loop in self._loops))
        await self._github.close()
        await self._authorization.close()


def _stores(project: RelayProject) -> tuple[Lane, ...]:
    """The lanes of the stores of results. ClickHouse gets a row once the store has it."""
    settings = project.settings
    at_a_time = settings.forwards.batch
    results = rows_for(project.open_results())
    if settings.clickhouse is None:
        return (Lane("results", results, at_a_time, is_batch=True),)
    from accel_ci.relay.server.clickhouse_sink import ClickHouseSink

    clickhouse = ClickHouseSink(
        settings.clickhouse, project.clickhouse_password(), project.folder, settings.forwards.timeout_s
    )
    return (
        Lane("results", results, at_a_time, is_batch=True, then=("clickhouse",)),
        Lane("clickhouse", rows_for(clickhouse), at_a_time, is_batch=True),
    )
