"""Connect to the Docker engine with its SDK, within time limits and with clear errors.

The Docker pool uses the SDK, because it watches many containers at once. The package is imported when it is needed: most
users have no Docker pool.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accel_ci.config.extras import require_extra
from accel_ci.errors import PoolError

if TYPE_CHECKING:
    from docker import DockerClient

_CALL_LIMIT_S = 60


def connect() -> DockerClient:
    """Connect to the engine that `DOCKER_HOST` names. Raises `PoolError` if none answers."""
    require_extra("docker", "pool.kind: docker")
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
    """Turn the engine's errors into a `PoolError` that it could not do `what`."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        reason = getattr(error, "explanation", None) or error
        raise PoolError(f"the Docker engine could not {what}: {reason}") from error
