"""The section `pool`: one class of settings for each kind, with the check of what it needs from other sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from accel_ci.config.pod_template import template_mistakes
from accel_ci.config.section import Mistake, Section, as_mapping, as_sequence
from accel_ci.config.values import (
    AbsolutePath,
    BucketName,
    ContainerUser,
    Device,
    Endpoint,
    EnvironmentName,
    ExtendedResource,
    Name,
    Namespace,
    Network,
    Quantity,
    Seconds,
    Size,
)


class Instance(Section):
    """A machine that is started before tests and paused after them: commands as argument lists, times in seconds.

    The machine can be used once `ready` succeeds and `ready_url` answers. `timeout_seconds` limits each command and the time
    until the machine is ready. The janitor pauses it when its user was killed, or the lease expires without a renewal.
    """

    start: tuple[str, ...] = Field(min_length=1)
    pause: tuple[str, ...] = Field(min_length=1)
    ready: tuple[str, ...] = ()
    ready_url: Endpoint | None = None
    lease_seconds: Annotated[float, Field(ge=3)] = 900
    timeout_seconds: Seconds = 600


class PoolSettings(Section):
    """The settings that all kinds of pools share.

    Tests see `environment`; a variable that is null is removed, even if an image sets it. `processes` is the number of
    workers without a card that run deviceless suites at the same time.
    """

    extra: ClassVar[str | None] = None
    """The extra of this package that the pool needs."""

    cards: Annotated[int, Field(ge=1, le=4096)] = 1
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    health_probe: tuple[str, ...] = ()
    environment: dict[EnvironmentName, str | None] = {}
    pass_environment: tuple[EnvironmentName, ...] = ()
    rounds: Annotated[int, Field(ge=1, le=10)] = 2
    instance: Instance | None = None

    @classmethod
    def mistakes(cls, document: Mapping[str, Any]) -> Iterator[Mistake]:
        """Mistakes that involve other sections, found in the raw file so that they are reported together with the rest."""
        return iter(())

    @property
    def unset_environment(self) -> tuple[str, ...]:
        """The variables that tests must not see."""
        return tuple(name for name, value in self.environment.items() if value is None)


class LocalPoolSettings(PoolSettings):
    """Subprocesses on this machine.

    With `user` (`uid` or `uid:gid`), which needs accel-ci to run as root, workers, builds and checks on this machine run as
    that user, and read nothing that only root can read. Projects that share the machine's cards name the same file as
    `cards_lock`; a run locks it while it has the cards.
    """

    kind: Literal["local"] = "local"
    card_environment: EnvironmentName
    user: ContainerUser | None = None
    cards_lock: AbsolutePath | None = None


class DockerPoolSettings(PoolSettings):
    """Containers on this machine's engine (`DOCKER_HOST`), from `image` or else from the build's own runtime image.

    In `devices`, `{card}` stands for the name of the worker's card. `gpus` gives a container all GPUs, or only that of its
    card. Sizes are a number with `b`, `k`, `m` or `g`. `user` is `uid` or `uid:gid`, by default this process's own. Another
    user needs accel-ci to run as root, so that it can hand over the folders that workers write to. `cards_lock` is as in
    the pool `local`.
    """

    extra = "docker"
    kind: Literal["docker"]
    card_environment: EnvironmentName
    image: str | None = None
    python: str | None = None
    devices: tuple[Device, ...] = ()
    gpus: Literal["all", "card"] | None = None
    shm_size: Size = "1g"
    memory: Size | None = None
    pids_limit: Annotated[int, Field(ge=16)] = 4096
    network: Network = "none"
    user: ContainerUser | None = None
    cards_lock: AbsolutePath | None = None

    @classmethod
    def mistakes(cls, document: Mapping[str, Any]) -> Iterator[Mistake]:
        """Containers need an image."""
        if not _has_image(document):
            yield _NO_IMAGE


class Toleration(Section):
    """A node taint that pods tolerate, as in Kubernetes; without a key, all taints."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class BucketSettings(Section):
    """A bucket of any S3 with conditional PUT. `worker_endpoint` is its address for workers, if that differs."""

    bucket: BucketName
    prefix: str = "rounds"
    endpoint: Endpoint | None = None
    region: str | None = None
    worker_endpoint: Endpoint | None = None


class KubernetesPoolSettings(PoolSettings):
    """Pods of a cluster (`KUBECONFIG`, or the cluster that accel-ci itself runs in), with one Job per round.

    Each pod requests the extended resource `resource` once for each card that its worker holds; the device plugin assigns
    the cards. Rounds are kept in `bucket`, by default that of the results. Sources reach the pods through it; the image, by
    default the build's own, must hold the backend, its tests' requirements and pytest. `cpu`, `memory` and `shm_size` are
    Kubernetes quantities; memory is both request and limit. A run does not begin when no node has the resource, unless nodes
    are added on demand (`nodes_on_demand`). `queue_seconds` limits how long pods wait for a card and
    `round_seconds` how long a round takes; `keep_seconds` is how long the cluster keeps the Job of a dead step.
    """

    extra = "kubernetes"
    kind: Literal["kubernetes"]
    image: str | None = None
    python: str | None = None
    context: str | None = None
    namespace: Namespace | None = None
    resource: ExtendedResource
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shm_size: Quantity = "1Gi"
    run_as_user: Annotated[int, Field(ge=1)] = 1000
    host_network: bool = False
    node_selector: dict[str, str] = {}
    nodes_on_demand: bool = False
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    image_pull_secret: str | None = None
    queue: Name | None = None
    queue_seconds: Seconds = 3600
    round_seconds: Seconds = 21600
    keep_seconds: Annotated[int, Field(ge=60)] = 3600
    bucket: BucketSettings | None = None
    pod_template: dict[str, Any] = {}

    @classmethod
    def mistakes(cls, document: Mapping[str, Any]) -> Iterator[Mistake]:
        """Pods need a bucket, an image, and a registry to pull it from; their template must fit."""
        pool = as_mapping(document.get("pool"))
        others = (as_mapping(document.get(section)).get("bucket") for section in ("results", "store"))
        if pool.get("bucket") is None and not any(others):
            advice = "set it here, or in results.bucket or store.bucket"
            what = f"is missing: pods and driver exchange data through a bucket; {advice}"
            yield ("pool", "bucket"), what
        for where, what in template_mistakes(as_mapping(pool.get("pod_template"))):
            yield ("pool", "pod_template", *where), what
        if not _has_image(document):
            yield _NO_IMAGE
        elif pool.get("image") is None and document.get("image") and not as_mapping(document["image"]).get("registry"):
            yield ("image", "registry"), "is missing: the cluster pulls the images of the builds from there"


Pool = LocalPoolSettings | DockerPoolSettings | KubernetesPoolSettings
"""The key `kind` selects the type; the default is `local`."""

_NO_IMAGE: Mistake = ("pool", "image"), "is missing; set it, or add the section 'image' so that each build makes one"


def _has_image(document: Mapping[str, Any]) -> bool:
    """True when the pool names an image, or every build makes one."""
    variants = as_sequence(document.get("variants"))
    made = any(
        document.get(key) or all(as_mapping(variant).get(key) for variant in variants) for key in ("image", "prebuilt_image")
    )
    return bool(made) or as_mapping(document.get("pool")).get("image") is not None
