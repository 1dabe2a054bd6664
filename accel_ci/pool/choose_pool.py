"""Which pool the configuration asks for, and how its workers are started."""

from __future__ import annotations

import os
from pathlib import Path

from accel_ci.config import DockerPoolSettings, Settings
from accel_ci.model import Launch, RuntimeImage
from accel_ci.pool.docker import DockerPool
from accel_ci.pool.engine import Pool
from accel_ci.pool.environment import clean_environment
from accel_ci.pool.local import LocalPool


def pool_for(settings: Settings) -> Pool:
    """The pool of the configured kind; nothing is started or reached yet."""
    if isinstance(settings.pool, DockerPoolSettings):
        return DockerPool(settings.pool)
    return LocalPool()


def launch_for(settings: Settings, image: RuntimeImage, sources: Path) -> Launch:
    """How workers are started: in the runtime image, or with the interpreter of the image that a Docker pool names itself.

    Locally byte code is kept beside the runtime image: it halves the start of every test process, and the sources stay as
    they are. A container has no variable of this process but those that `pass_environment` names.
    """
    pool = settings.pool
    if isinstance(pool, DockerPoolSettings):
        own = {"HOME": "/tmp"}  # noqa: S108 - the container's own
        python = pool.python or ("python3" if pool.image else image.python)
        inherited = {name: os.environ[name] for name in pool.pass_environment if name in os.environ}
    else:
        python, own = image.python, {"PYTHONPYCACHEPREFIX": str(Path(image.python).parents[1] / "pycache")}
        inherited = dict(os.environ)
    environment = clean_environment({**own, **pool.environment}, inherited=inherited, keep=pool.pass_environment)
    runtime = image.container("runtime")
    return Launch(
        python,
        str(sources),
        environment,
        pool.card_environment,
        pool.health_probe,
        settings.backend.pytest_args,
        runtime.reference if runtime is not None else None,
    )
