"""The containers of the Docker engine as the pool uses them: listed, stopped and removed.

The SDK is imported when the engine is needed: most users have no Docker pool.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from accel_ci.process.waiting import poll

if TYPE_CHECKING:
    from docker import DockerClient

ENDED = frozenset({"exited", "dead", "removing"})
"""The engine's states of containers that have ended."""

_LOG = logging.getLogger(__name__)
_GRACE_S = 10


def containers_with(client: DockerClient, label: str) -> list[Any]:
    """The containers with a label (`name` or `name=value`) in any state, each with what the engine's list contains."""
    return list(client.containers.list(all=True, sparse=True, filters={"label": label}))


def stop(container: Any) -> None:
    """Stop a container by SIGTERM, and by force after 10 s."""
    from docker.errors import NotFound

    with suppress(NotFound):
        container.stop(timeout=_GRACE_S)


def remove(containers: Sequence[Any]) -> None:
    """Stop those that run and remove all, in parallel."""
    from docker.errors import APIError, NotFound

    def remove_one(container: Any) -> None:
        with suppress(NotFound):
            if container.attrs["State"] not in ENDED:
                container.stop(timeout=_GRACE_S)
            try:
                container.remove(force=True, v=True)
            except APIError as error:
                if error.status_code != 409:  # somebody else is removing it
                    raise

    if containers:
        with ThreadPoolExecutor(min(16, len(containers))) as at_once:
            list(at_once.map(remove_one, containers))


def exit_code(container: Any, timeout_s: float) -> int | None:
    """Wait for a container to end; return its exit code, None at the limit."""
    for _ in poll(_LOG, f"container {container.name} to end", 0.05, timeout_s):
        container.reload()
        if container.attrs["State"]["Status"] in ENDED:
            return int(container.attrs["State"]["ExitCode"])
    return None
