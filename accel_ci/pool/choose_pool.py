"""Which pool the configuration asks for, and how its workers are started."""

from __future__ import annotations

import os
from pathlib import Path

from accel_ci.config.settings import BucketSettings, DockerPoolSettings, KubernetesPoolSettings, Settings
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.pool.docker import DockerPool
from accel_ci.pool.environment import clean_environment
from accel_ci.pool.kubernetes.pool import KubernetesPool
from accel_ci.pool.local import LocalPool
from accel_ci.rounds.engine import Pool
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.storage.s3 import environment_keys

_SIGNED_LONGER_S = 3600.0


def pool_for(settings: Settings, run: str = "") -> Pool:
    """The pool of the configured kind, asked for by `run`, such as a Dagster run's id; nothing is started or reached yet."""
    if isinstance(settings.pool, DockerPoolSettings):
        return DockerPool(settings.pool)
    if isinstance(settings.pool, KubernetesPoolSettings):
        return KubernetesPool(settings.pool, round_store(settings.pool, settings), settings.backend.name, run)
    return LocalPool()


def round_store(pool: KubernetesPoolSettings, settings: Settings) -> RoundStore:
    """Where the pool's rounds are kept; credentials come from where those of the results do."""
    own = pool.bucket or BucketSettings(
        bucket=settings.results.bucket or "", endpoint=settings.results.endpoint, region=settings.results.region
    )
    access_key, secret_key = environment_keys()
    return RoundStore(
        own.bucket, own.prefix, own.endpoint, own.region, access_key, secret_key, own.worker_endpoint,
        signed_for_s=pool.queue_seconds + pool.round_seconds + _SIGNED_LONGER_S,
    )  # fmt: skip


def worker_spec_for(settings: Settings, image: RuntimeImage, sources: Path) -> WorkerSpec:
    """How workers are started: in the runtime image, or with the interpreter of the image that a Docker pool names itself.

    Locally byte code is kept beside the runtime image: it halves the start of every test process, and the sources stay as
    they are. A container has no variable of this process but those that `pass_environment` names.
    """
    pool = settings.pool
    runtime = image.container("runtime")
    if isinstance(pool, DockerPoolSettings | KubernetesPoolSettings):
        own = {"HOME": "/tmp"} if isinstance(pool, DockerPoolSettings) else {}  # noqa: S108 - the container's own
        python = pool.python or ("python3" if pool.image else image.python)
        inherited = {name: os.environ[name] for name in pool.pass_environment if name in os.environ}
    else:
        python, own = image.python, {"PYTHONPYCACHEPREFIX": str(Path(image.python).parents[1] / "pycache")}
        inherited = dict(os.environ)
    environment = clean_environment({**own, **pool.environment}, inherited=inherited, keep=pool.pass_environment)
    card_environment = "" if isinstance(pool, KubernetesPoolSettings) else pool.card_environment
    return WorkerSpec(
        python,
        str(sources),
        environment,
        card_environment,
        pool.health_probe,
        settings.backend.pytest_args,
        runtime.reference if runtime is not None else None,
    )
