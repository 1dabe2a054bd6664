"""The Docker engine as the pool uses it: clear errors, time limits, and containers listed, stopped and removed.

The SDK is imported when the engine is needed: most users have no Docker pool.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from accel_ci.errors import PoolError
from accel_ci.process.waiting import poll

if TYPE_CHECKING:
    from docker import DockerClient

ENDED = frozenset({"exited", "dead", "removing"})
"""The engine's states of containers that have ended."""

_LOG = logging.getLogger(__name__)
_CALL_LIMIT_S = 60
_GRACE_S = 10


def connect() -> DockerClient:
    """A client of the engine that `DOCKER_HOST` names. Raises `PoolError` when none answers."""
    import docker
    from docker.errors import DockerException

    try:
        return docker.from_env(timeout=_CALL_LIMIT_S)
    except DockerException as error:
        where = os.environ.get("DOCKER_HOST") or "the default socket"
        raise PoolError(
            f"no Docker engine answers at {where} ({error}); start it, set DOCKER_HOST, or set pool.kind to local"
        ) from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the engine's refusals into a `PoolError` that it could not do `what`."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        reason = getattr(error, "explanation", None) or error
        raise PoolError(f"the Docker engine could not {what}: {reason}") from error


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
