"""Pods that wait: how long to be patient with them, and the error when none can begin."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.pool.kubernetes.pods import STUCK, PodState
from accel_ci.process.waiting import WaitLog

_LOG = logging.getLogger(__name__)
_STUCK_PATIENCE_S = 30.0


class PendingPods:
    """Remembers since when pods wait. Half a minute is allowed for a stuck start, `pool.queue_seconds` for a card."""

    def __init__(self, settings: KubernetesPoolSettings) -> None:
        """No pod has been seen yet."""
        self._settings = settings
        self._since: dict[tuple[str, bool], float] = {}
        self._causes: dict[str, str] = {}
        self._wait_log: WaitLog | None = None

    def overdue(self, states: Sequence[PodState]) -> list[PodState]:
        """The pods that have waited too long. Logs a long wait."""
        found = []
        now = time.monotonic()
        waiting = [(state, state.waits) for state in states if state.waits is not None and state.end is None]
        for state, waits in waiting:
            stuck = state.reason in STUCK
            since = self._since.setdefault((state.name, stuck), now)
            if stuck and ": " in waits and state.reason != "ImagePullBackOff":
                self._causes[state.name] = waits  # a later back-off hides the cause
            if now - since > (_STUCK_PATIENCE_S if stuck else self._settings.queue_seconds):
                found.append(state)
        if not waiting:
            self._wait_log = None
            return []
        self._wait_log = self._wait_log or WaitLog(_LOG, "pods to begin")
        self._wait_log.still_waiting(f"{len(waiting)} pod(s), first: {waiting[0][1]}")
        return found

    def error(self, state: PodState) -> PoolError:
        """The error that no pod can begin, as one of the overdue pods explains it."""
        waits = state.waits or ""
        if state.reason in STUCK:
            first = self._causes.get(state.name)
            cause = f"{waits} ({first})" if first and first != waits else waits
            return PoolError(
                f"no pod can start with the image {self._settings.image}: {cause}; fix pool.image or its pull secret"
            )
        return PoolError(
            f"no pod began within {self._settings.queue_seconds:g} s (pool.queue_seconds): {waits}; everything is given "
            f"back. Look at the free {self._settings.resource} of the cluster, at pool.node_selector, and at quotas"
        )
