"""The sweep: jobs whose end nobody has told are looked for at GitHub, and ended as lost.

When a job is looked for again, and when it is lost, is decided here. The transactions are in `jobs`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any, Literal

from accel_ci.github.answers import Answer, Limited, Sent
from accel_ci.relay.server.database import going_on
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.jobs import FORGOTTEN_AT_ONCE, Jobs, Overdue
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.settings import CallbackSettings

AGAIN_S = 300.0
"""Pause where GitHub does not tell whether the run goes on."""

GRACE_S = 3600.0
"""A job is lost so long after `zombie_s` if GitHub has not told by then: it may never, as of a run of Buildkite."""

LEASE_S = 600.0
"""For all that is claimed at once: 20 requests of 10 s each."""

Look = Literal["goes on", "ended", "unknown"]
_LOG = logging.getLogger(__name__)


def meaning(answer: Answer, run: Any) -> Look:
    """Say what an answer about a run means. GitHub answers with 404 also where a token may not read it: that is unknown."""
    if not isinstance(answer, Sent) or not isinstance(run, dict):
        return "unknown"
    return "ended" if run.get("status") == "completed" else "goes on"


def next_look(look: Look, started_at: float, now: float, settings: CallbackSettings) -> float | None:
    """Return when to look for a job again; None if it is lost now. Times are seconds of Unix time."""
    last = started_at + settings.longest_s
    if look == "ended" or now >= last:
        return None
    if look == "goes on":
        return min(now + settings.zombie_s, last)
    return None if now >= started_at + settings.zombie_s + GRACE_S else min(now + AGAIN_S, last)


class Sweep:
    """Looks for jobs whose end is overdue until it is stopped. Of several servers, one looks for a job at a time."""

    def __init__(self, jobs: Jobs, github: GitHubClient, settings: CallbackSettings, metrics: RelayMetrics) -> None:
        self._jobs, self._github, self._settings, self._metrics = jobs, github, settings, metrics
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Claim nothing more; `run` ends after the request under way."""
        self._stopped.set()

    async def run(self) -> None:
        """Sweep every `sweep_s` until `stop`. An error of the database is logged, and the next round tries again."""
        while not self._stopped.is_set():
            with going_on("the sweep of lost jobs"):
                await self._round()
            with suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self._settings.sweep_s)

    async def _round(self) -> None:
        while await asyncio.to_thread(self._jobs.forget, time.time() - self._settings.keep_s) >= FORGOTTEN_AT_ONCE:
            if self._stopped.is_set():
                return
        for job in await asyncio.to_thread(self._jobs.overdue, time.time(), LEASE_S):
            if self._stopped.is_set() or not await self._look(job):
                return

    async def _look(self, job: Overdue) -> bool:
        """Look for a job. Return whether GitHub may be asked for more."""
        row = job.row
        path = f"actions/runs/{row.run_id}/attempts/{row.run_attempt}"
        answer, run = await self._github.request("GET", row.repository, path, None, time.time())
        look, now = meaning(answer, run), time.time()
        name = f"{row.repository} {row.delivery_id} {row.run_id}/{row.run_attempt} {row.job_name}"
        look_at = next_look(look, row.started_at or 0.0, now, self._settings)
        if look_at is not None:
            await asyncio.to_thread(self._jobs.look_later, job, look_at)
            _LOG.info("%s is overdue; its run: %s", name, look)
        elif await asyncio.to_thread(self._jobs.end_lost, job, now) is not None:
            self._metrics.lost(row.repository)
            _LOG.warning("%s is lost: no callback has told its end; its run: %s", name, look)
        return not isinstance(answer, Limited)
