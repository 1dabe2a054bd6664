"""The needs of a run from outside: its start checks them in seconds, and `accel-ci doctor` shows them.

How each engine is asked is in the engine's package. Here belongs which pipeline needs what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.config.settings import Settings
from accel_ci.docker.client import engine_version
from accel_ci.docker.image import check_image, check_registry
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.images.buildah_builder import buildah_version
from accel_ci.images.registry import check_access, require_image
from accel_ci.pipelines import INTEGRATION, RBE, Pipeline
from accel_ci.pool.choose_pool import pool_for
from accel_ci.rbe.bazel import find_bazel, read_secrets
from accel_ci.rbe.remote import check_remote
from accel_ci.storage.s3 import check_bucket, environment_keys, s3_session


@dataclass(frozen=True)
class Need:
    """Something that a run needs from outside.

    `check` returns its state in a few words, None where nothing is configured, and raises `AccelCiError` or `OSError`. A run
    does not begin without a need that `stops` it; without another one it goes on, and its results show the reason.
    """

    name: str
    check: Callable[[], str | None]
    stops: bool = True


@dataclass(frozen=True)
class Answer:
    """The state of a need; `problem` is None for one that is met."""

    need: Need
    state: str | None
    problem: str | None


def needs_of(settings: Settings, pipelines: Iterable[Pipeline]) -> list[Need]:
    """The needs of runs of these pipelines: pool, images, stores, remote execution."""
    chosen = {pipeline.name for pipeline in pipelines}
    needs = [Need("stores", lambda: check_stores(settings))]
    if INTEGRATION.name in chosen:
        needs.append(Need("pool", pool_for(settings).check))
        if settings.executor.kind != "kubernetes":  # there, the step that makes images has what it needs, and no other
            needs.append(Need("images", lambda: _check_images(settings)))
    if RBE.name in chosen:
        remote = Need("remote execution", lambda: _check_remote(settings), stops=False)
        needs += [Need("Bazel", lambda: _check_bazel(settings)), remote]
    return needs


def ask(needs: Sequence[Need]) -> list[Answer]:
    """Check all needs at the same time."""

    def answer(need: Need) -> Answer:
        try:
            return Answer(need, need.check(), None)
        except (AccelCiError, OSError) as error:
            return Answer(need, None, str(error))

    with ThreadPoolExecutor(max(1, len(needs))) as at_once:
        return list(at_once.map(answer, needs))


def require(settings: Settings, pipelines: Iterable[Pipeline], say: Callable[[str], None]) -> None:
    """Check the needs of a run. Raises `AccelCiError` with a line for each that stops it; reports the others by `say`."""
    answers = [answer for answer in ask(needs_of(settings, pipelines)) if answer.problem]
    if stopping := [f"{answer.need.name}: {answer.problem}" for answer in answers if answer.need.stops]:
        raise AccelCiError("\n".join(stopping))
    for answer in answers:
        say(f"{answer.need.name}: {answer.problem}")


def check_stores(settings: Settings) -> str | None:
    """Check the buckets of results and rounds."""
    keys, results, store, found = environment_keys(), settings.results, settings.store, []
    if store is not None:
        session = s3_session(*keys, store.region)
        found.append(check_bucket(session, store.endpoint, store.bucket, store.prefix))
    if results.bucket is not None:
        session = s3_session(*keys, results.region)
        found.append(check_bucket(session, results.endpoint, results.bucket, results.prefix))
    if isinstance(settings.pool, KubernetesPoolSettings) and (rounds := settings.pool.bucket) is not None:
        session = s3_session(*keys, rounds.region)
        found.append(check_bucket(session, rounds.endpoint, rounds.bucket, rounds.prefix))
    return ", ".join(dict.fromkeys(found)) or None


def _check_images(settings: Settings) -> str | None:
    """Check what builds images, their bases, and the registries that they are pushed to."""
    images = [image for variant in settings.variants if (image := settings.image_of(variant)) is not None]
    found: list[str] = []
    for kind in sorted({image.builder.kind for image in images}):
        found.append(buildah_version() if kind == "buildah" else "engine " + _engine("the section 'image'"))
    for image in images:
        has_engine = image.builder.kind == "docker"
        for base in filter(None, (image.base, image.runtime_base)):
            (check_image if has_engine else require_image)(base)
        for registry in filter(None, (image.registry, image.registry_of_pulls)):
            (check_registry if has_engine else check_access)(registry)
            found.append(registry)
    for prebuilt in filter(None, map(settings.prebuilt_image_of, settings.variants)):
        require_image(prebuilt.reference)
        found.append(prebuilt.reference)
    return ", ".join(dict.fromkeys(found)) or None


def _check_bazel(settings: Settings) -> str | None:
    """Check Bazel or the engine of its container, and that the variables with the credentials are set."""
    if (rbe := settings.rbe) is None:
        return None
    read_secrets(rbe)
    if rbe.image is None:
        return find_bazel(rbe)
    _engine("rbe.image")
    check_image(rbe.image)
    return rbe.image


def _check_remote(settings: Settings) -> str | None:
    return check_remote(settings.rbe, read_secrets(settings.rbe)) if settings.rbe is not None else None


def _engine(needed_by: str) -> str:
    """The version of the Docker engine. Raises `BuildError` when none answers."""
    version = engine_version()
    if version is None:
        raise BuildError(
            f"{needed_by} needs a Docker engine, and none answers; start it, set DOCKER_HOST, or remove the key"
        )
    return version
