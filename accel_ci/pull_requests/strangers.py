"""The builds of strangers' pull requests before a maintainer's label: deviceless suites, no card and no secret.

Its code is hostile. It runs as a user that no other build has, or in containers, and sees no variable that only trusted
builds may see. It writes to nothing that another build reads: wheels are known by their sources, a compiler's cache, which
everybody would share, is left out, and its image goes to no registry, or to one that trusted builds do not take from. Its
wheel may ask for any package, so that none is built from an sdist.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from accel_ci.config.pod_template import harmless_part
from accel_ci.config.pool_settings import KubernetesPoolSettings, LocalPoolSettings, Pool
from accel_ci.config.settings import Image, Settings, Variant, Wheels
from accel_ci.docker.client import engine_version
from accel_ci.errors import BuildError
from accel_ci.pipelines import DEVICELESS_RESULTS, Pipeline
from accel_ci.process.own_user import OwnUser
from accel_ci.redaction import credentials_in
from accel_ci.secrets import is_secret_name
from accel_ci.source.checkout import checkout_root
from accel_ci.workspace import Workspace

_Value = TypeVar("_Value", str, str | None)
_FETCHES = (".gitmodules", ".lfsconfig")


def stages_for_strangers(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the stages that need no card: those up to the deviceless suites."""
    return pipeline.stages[: pipeline.stages.index(DEVICELESS_RESULTS) + 1]


def as_for_strangers(workspace: Workspace) -> Workspace:
    """Return the workspace with the settings of strangers' builds (`settings_for_strangers`)."""
    project = workspace.project
    return replace(workspace, project=replace(project, settings=settings_for_strangers(project.settings)))


def settings_for_strangers(settings: Settings) -> Settings:
    """Return the settings without variables that are passed or have secrets, and without what builds share."""
    backend, pool = settings.backend, _pool(settings)
    suites = {
        name: suite.model_copy(update={"environment": _without_secrets(suite.environment)})
        for name, suite in settings.suites.items()
    }
    return settings.model_copy(
        update={
            "pool": pool,
            "wheels": _wheels(settings.wheels),
            "image": _image(settings.image, pool),
            "variants": tuple(_variant(variant, pool) for variant in settings.variants),
            "backend": backend.model_copy(update={"build_environment": _without_secrets(backend.build_environment)}),
            "suites": suites,
        }
    )


def require_isolation(settings: Settings, variant: Variant) -> None:
    """Raise `BuildError` unless a stranger's code runs apart from this process: as another user, or in containers alone.

    `settings` are those of strangers' builds.
    """
    if isinstance(settings.pool, LocalPoolSettings):
        user = OwnUser.named(settings.code_user)
        if user is None or user.uid == 0:
            raise BuildError(
                f"a stranger's code would run as the user of accel-ci ({settings.code_user}): run accel-ci as root, and set "
                "pull_requests.strangers_user to another user"
            )
        return
    if isinstance(settings.pool, KubernetesPoolSettings) and settings.pool.host_network:
        raise BuildError("a stranger's code would have the network of a node: remove pool.host_network")
    if settings.wheels_of(variant).builder is None or not engine_version():
        raise BuildError(
            "a stranger's wheel would be built on this machine: it needs wheels.builder, and a Docker engine that answers"
        )


def refuse_fetches(sources: Path) -> None:
    """Raise `BuildError` if the sources name other places to fetch from, which git would do with our log-ins.

    `sources` were checked out without submodules and files of Git LFS.
    """
    named = [name for name in _FETCHES if os.path.lexists(checkout_root(sources) / name)]
    if named:
        raise BuildError(
            f"{', '.join(named)} of a stranger's pull request could have git fetch anything that our log-ins can read: "
            "it is built once a maintainer has set a label"
        )


def _pool(settings: Settings) -> Pool:
    pulls, pool = settings.pull_requests, settings.pool
    own: dict[str, object] = {"pass_environment": (), "environment": _without_secrets(pool.environment)}
    if isinstance(pool, LocalPoolSettings) and pulls is not None:
        own["user"] = pulls.strangers_user
    if isinstance(pool, KubernetesPoolSettings):  # a cloud may give pods the rights of their service account
        own |= {"service_account": None, "pod_template": harmless_part(pool.pod_template, _is_harmless)}
    return pool.model_copy(update=own)


def _variant(variant: Variant, pool: Pool) -> Variant:
    wheels = _wheels(variant.wheels) if variant.wheels is not None else None
    image, own = _image(variant.image, pool), _without_secrets(variant.build_environment)
    return variant.model_copy(update={"wheels": wheels, "image": image, "build_environment": own})


def _image(image: Image | None, pool: Pool) -> Image | None:
    """Push an image only where pods must pull it, to the repository of pull requests."""
    if image is None:
        return None
    registry = image.registry_of_pulls if isinstance(pool, KubernetesPoolSettings) else None
    return image.model_copy(update={"registry": registry, "registry_of_pulls": registry})


def _wheels(rules: Wheels) -> Wheels:
    return rules.model_copy(update={"pass_environment": (), "compiler_cache": None, "only_wheels": True})


def _without_secrets(environment: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: value for name, value in environment.items() if _is_harmless(name, value or "")}


def _is_harmless(name: str, value: str) -> bool:
    return not is_secret_name(name) and not credentials_in(value)
