"""The one place where the pool's kind decides: from settings to a pool. Each kind imports only what it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accel_ci.config.pool_settings import DockerPoolSettings, KubernetesPoolSettings
from accel_ci.config.settings import Settings
from accel_ci.model import RuntimeImage, Trigger, WorkerSpec
from accel_ci.pool.project_pool import ProjectPool
from accel_ci.pool.sessions import session_of
from accel_ci.runner.wheel_modules import WHEELS


def pool_for(settings: Settings, run: str = "", *, with_cards: bool = True) -> ProjectPool:
    """The configured pool; nothing is started or reached yet. `run` names who asks, such as a Dagster run's id.

    Unless it is `with_cards`, its workers get none, and see none where a variable selects them.
    """
    if isinstance(settings.pool, DockerPoolSettings):
        from accel_ci.pool.docker.pool import DockerPool

        return DockerPool(settings.pool, with_cards=with_cards)
    if isinstance(settings.pool, KubernetesPoolSettings):
        from accel_ci.pool.kubernetes.pool import KubernetesPool, round_store

        store = round_store(settings.pool, settings.place_of_results)
        widest = max(suite.cards for suite in settings.suites.values())
        return KubernetesPool(settings.pool, store, settings.identity, run, widest, with_cards=with_cards)
    from accel_ci.pool.local import LocalPool

    return LocalPool(settings.pool, with_cards=with_cards)


def worker_spec_for(
    settings: Settings, image: RuntimeImage, sources: Path, trigger: Trigger = "manual", *, with_cards: bool = True
) -> WorkerSpec:
    """The spec of the project's workers, with the health probe and what pytest is started with in builds of the trigger.

    Workers without cards have no probe.
    """
    spec = pool_for(settings, with_cards=with_cards).worker_spec(image, sources)
    sessions = {name: session_of(settings, suite, sources, trigger) for name, suite in settings.suites.items()}
    backend = settings.backend
    named = [(backend.distribution, backend.import_name)]
    named += [(each.distribution, each.import_name or "") for each in backend.companions]
    wheels = ",".join(f"{distribution}={import_name}" for distribution, import_name in named)
    environment = {**spec.environment, WHEELS: wheels}
    probe = settings.pool.health_probe if with_cards else ()
    return replace(spec, probe=probe, sessions=sessions, environment=environment)
