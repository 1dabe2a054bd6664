"""The settings of a project: which there are, what each may be, and its default.

Here belong the sections of the configuration file and the questions that are answered from them alone. Reading a file and
reporting its mistakes is in `accel_ci.config.loading`. What needs the world (does the repository answer, is the Python
there) is found out by the code that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from accel_ci.config.values import (
    BucketName,
    ContainerUser,
    Cron,
    Device,
    Endpoint,
    EntryPoint,
    EnvironmentName,
    Flag,
    HeaderName,
    ImportName,
    LibraryPattern,
    Name,
    Owner,
    Package,
    PinnedImage,
    Quantity,
    RelativePath,
    RemoteEndpoint,
    RequirementText,
    Seconds,
    Size,
    Target,
    Workspace,
)
from accel_ci.errors import ConfigError
from accel_ci.model import Trigger


class Section(BaseModel):
    """A mapping of the file: no key that is not here, no empty text, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_min_length=1, validate_default=True)


class Companion(Section):
    """One more wheel of the backend, such as the runtime beside the plugin; `subdirectory` is below the backend's."""

    distribution: Name
    subdirectory: RelativePath
    import_name: ImportName | None = None
    entry_points: tuple[EntryPoint, ...] = ()


class Backend(Section):
    """The package under test and where its sources are.

    `companions` are further wheels, built from the same sources and installed with it.
    """

    name: Name
    distribution: Name
    import_name: ImportName
    repository: str
    ref: Annotated[str, Field(pattern=r"^[^-\s][^\s]*$")] = "HEAD"
    subdirectory: RelativePath = "."
    entry_points: tuple[EntryPoint, ...] = ()
    companions: tuple[Companion, ...] = ()
    build_environment: dict[EnvironmentName, str] = {}
    pytest_args: tuple[str, ...] = ()
    owners: tuple[Owner, ...] = ()


class Wheels(Section):
    """How wheels are built, and what must hold of each.

    `platform` is the newest platform that a compiled wheel may need (`manylinux_2_28_x86_64`); without it, the one that the
    wheel itself names. `external_libraries` may be linked without being in the wheel, PyTorch's own always. `repair` puts
    the others in (`auditwheel repair`). `tags` are patterns of which one must fit the wheel's tag. `builder` is an image to
    build in where an engine answers; without one, wheels are built on this machine, in an environment of their own.
    `compiler_cache` is kept between builds.
    """

    platform: Annotated[str, Field(pattern=r"^(manylinux|musllinux)_\d+_\d+_\w+$")] | None = None
    external_libraries: tuple[LibraryPattern, ...] = ()
    repair: bool = False
    tags: tuple[Annotated[str, Field(pattern=r"^[^-\s]+-[^-\s]+-[^-\s]+$")], ...] = ()
    size_budget: Size | None = None
    ignored_findings: tuple[Annotated[str, Field(pattern=r"^W\d{3}$")], ...] = ()
    patches: RelativePath | None = None
    builder: PinnedImage | None = None
    compiler_cache: Literal["ccache", "sccache"] | None = None


class Image(Section):
    """The Docker image that the backend is tested in: two targets, `development` and `runtime`, of one Dockerfile.

    `base` is what both begin with, `runtime_base` another one for `runtime`. Packages are the distribution's (Debian's or
    Ubuntu's). `stripped` are patterns of files below site-packages that only a compiler needs, which `runtime` goes without.
    Budgets are for the size that the engine tells. `registry` is the repository that both are pushed to.
    """

    base: PinnedImage
    runtime_base: PinnedImage | None = None
    development_packages: tuple[Package, ...] = ("build-essential", "git")
    runtime_packages: tuple[Package, ...] = ()
    stripped: tuple[RelativePath, ...] = ("torch/include", "torch/share", "torch/test", "torch/lib/*.a", "torch/bin/test_*")
    environment: dict[EnvironmentName, str] = {}
    runtime_budget: Size | None = None
    development_budget: Size | None = None
    allowed_duplicates: tuple[LibraryPattern, ...] = ()
    registry: Annotated[str, Field(pattern=r"^[a-z0-9][\w.:/-]*$")] | None = None


class Upstream(Section):
    """The repository that the backend follows."""

    repository: str = "https://github.com/pytorch/pytorch.git"
    ref: Annotated[str, Field(pattern=r"^[^-\s][^\s]*$")] = "refs/heads/main"


class Variant(Section):
    """One cell of the build matrix. `wheels` and `image` stand for the sections of that name in this variant alone.

    In the file, one entry may stand for several variants: see `accel_ci.config.variant_matrix`.
    """

    name: Name
    python: Annotated[str, Field(pattern=r"^3(\.\d+){1,2}$")]
    torch: RequirementText
    torch_source: Literal["pinned", "main"] = "pinned"
    runtime: Name
    requirements: tuple[RequirementText, ...] = ()
    build_environment: dict[EnvironmentName, str] = {}
    wheels: Wheels | None = None
    image: Image | None = None
    torch_backend: Annotated[str, Field(pattern=r"^[\w.]+$")] | None = None


class ScopeRule(Section):
    """Node-id patterns (`*` and `?` are wild, all else is literal) with the reason why they are out of scope."""

    tests: tuple[str, ...] = Field(min_length=1)
    reason: str


class Scope(Section):
    """Which collected tests belong to a suite: included by a pattern and excluded by no rule."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[ScopeRule, ...] = ()


class Suite(Section):
    """A named set of tests. Suites of the stage `smoke` gate the others. A test of it holds `cards` cards at once."""

    stage: Literal["smoke", "device"] = "device"
    paths: tuple[RelativePath, ...] = Field(min_length=1)
    scope: Scope = Scope()
    cards: Annotated[int, Field(ge=1, le=64)] = 1


class Instance(Section):
    """A machine that is started before tests and paused after them: commands as lists of words, limits in seconds.

    `ready` and `ready_url` say when it can be used; `timeout_seconds` is for each command and for it to become ready. When
    the lease has run out without a renewal, the janitor pauses the machine.
    """

    start: tuple[str, ...] = Field(min_length=1)
    pause: tuple[str, ...] = Field(min_length=1)
    ready: tuple[str, ...] = ()
    ready_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    lease_seconds: Annotated[float, Field(ge=3)] = 900
    timeout_seconds: Seconds = 600


class PoolSettings(Section):
    """Where workers run: what pools of all kinds have in common.

    `environment` is what tests see; a variable that is null is taken away, also from what an image has.
    """

    cards: Annotated[int, Field(ge=1, le=4096)] = 1
    health_probe: tuple[str, ...] = ()
    environment: dict[EnvironmentName, str | None] = {}
    pass_environment: tuple[EnvironmentName, ...] = ()
    rounds: Annotated[int, Field(ge=1, le=10)] = 2
    instance: Instance | None = None

    @property
    def unset_environment(self) -> tuple[str, ...]:
        """The variables that tests must not see."""
        return tuple(name for name, value in self.environment.items() if value is None)


class LocalPoolSettings(PoolSettings):
    """Subprocesses on this machine."""

    kind: Literal["local"] = "local"
    card_environment: EnvironmentName


class DockerPoolSettings(PoolSettings):
    """Containers of an engine on this machine (`DOCKER_HOST`), of `image` or else of the build's own runtime image.

    In `devices`, `{card}` stands for the name of the worker's card. `gpus` gives a container all GPUs, or that of its card
    alone. Sizes are a number with `b`, `k`, `m` or `g`. `user` is `uid` or `uid:gid`, by default this process' own;
    another one is for accel-ci as root, which gives it the folders that workers write to.
    """

    kind: Literal["docker"]
    card_environment: EnvironmentName
    image: str | None = None
    python: str | None = None
    devices: tuple[Device, ...] = ()
    gpus: Literal["all", "card"] | None = None
    shm_size: Size = "1g"
    memory: Size | None = None
    pids_limit: Annotated[int, Field(ge=16)] = 4096
    network: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "none"
    user: ContainerUser | None = None


class Toleration(Section):
    """A taint of nodes that pods put up with, as Kubernetes has it; without a key all of them."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class BucketSettings(Section):
    """A bucket of any S3 with conditional PUT. `worker_endpoint` is its address as workers see it, where that is another."""

    bucket: BucketName
    prefix: str = "rounds"
    endpoint: Endpoint | None = None
    region: str | None = None
    worker_endpoint: Endpoint | None = None


class KubernetesPoolSettings(PoolSettings):
    """Pods of a cluster (`KUBECONFIG`, or the cluster that accel-ci itself runs in), a Job for each round.

    Each pod asks for the extended resource `resource` once for each card that its worker holds; the device plugin tells it
    which these are. Rounds are kept in `bucket`, by default in that of the results. Sources go to the pods through it, so
    an image, by default the one that the build makes, has the backend, what its tests need and pytest. `cpu`, `memory` and
    `shm_size` are quantities as Kubernetes has them; memory is request and limit. Seconds: `queue_seconds` is how long pods
    may wait for a card, `round_seconds` how long a round may take, `keep_seconds` how long the cluster keeps the Job of a
    step that has died.
    """

    kind: Literal["kubernetes"]
    image: str | None = None
    python: str | None = None
    context: str | None = None
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] | None = None
    resource: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shm_size: Quantity = "1Gi"
    run_as_user: Annotated[int, Field(ge=1)] = 1000
    host_network: bool = False
    node_selector: dict[str, str] = {}
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


Pool = LocalPoolSettings | DockerPoolSettings | KubernetesPoolSettings
"""Told apart by `kind`, which is `local` when it is not said."""


class Limits(Section):
    """How long things may take before they are ended."""

    test_timeout_seconds: Seconds = 300
    silence_seconds: Seconds = 300
    startup_seconds: Seconds = 600
    probe_seconds: Seconds = 120
    build_seconds: Seconds = 3600
    install_seconds: Seconds = 3600
    git_seconds: Seconds = 30


class ScheduledJob(Section):
    """A job that cron starts."""

    cron: Cron
    suites: tuple[str, ...] = Field(min_length=1)
    variants: tuple[str, ...] = ()
    enabled: bool = False


class MainJob(Section):
    """The job that a new upstream commit starts."""

    suites: tuple[str, ...] = Field(min_length=1)
    variants: tuple[str, ...] = ()
    minimum_interval_minutes: Annotated[float, Field(ge=0)] = 60
    check_every_seconds: Annotated[int, Field(ge=5)] = 60
    enabled: bool = False


class PullRequestJob(Section):
    """The job that a pull request of the backend starts."""

    suites: tuple[str, ...] = Field(min_length=1)
    variants: tuple[str, ...] = ()


class BazelJob(Section):
    """The job of the source build that cron starts, on the night's revision."""

    cron: Cron
    variants: tuple[str, ...] = ()
    enabled: bool = False


class Jobs(Section):
    """What runs when, over which suites and variants (no variants named: all of them)."""

    nightly: ScheduledJob
    nightly_rbe: BazelJob | None = None
    intraday: ScheduledJob
    main: MainJob
    pr: PullRequestJob


class MultiCard(Section):
    """Test targets that need several cards at once: how they are known, and where Bazel runs them."""

    tag: Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")] = "multi-card"
    strategy: Annotated[str, Field(pattern=r"^[a-z][\w,-]*$")] = "local"
    flags: tuple[Flag, ...] = ()


class Rbe(Section):
    """The source build: a Bazel workspace, what is built and tested in it, and where its actions run."""

    workspace: Workspace = "backend"
    patches: RelativePath | None = None
    submodules: bool = False
    bazel: Annotated[str, Field(pattern=r"^[^-\s]\S*$")] = "bazel"
    targets: tuple[Target, ...] = Field(min_length=1)
    configs: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$")], ...] = ()
    test_tag_filters: tuple[Annotated[str, Field(pattern=r"^[-+]?[A-Za-z_][\w.:-]*$")], ...] = ()
    flaky_test_attempts: Annotated[int, Field(ge=1, le=10)] = 1
    keep_going: bool = True
    executor: RemoteEndpoint | None = None
    cache: RemoteEndpoint | None = None
    event_service: RemoteEndpoint | None = None
    event_results_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    instance_name: str | None = None
    headers: dict[HeaderName, EnvironmentName] = {}
    pass_environment: tuple[EnvironmentName, ...] = ()
    multi_card: MultiCard | None = None
    flags: tuple[Flag, ...] = ()
    image: PinnedImage | None = None
    timeout_seconds: Seconds = 7200


class Quality(Section):
    """How much history is looked at."""

    window_days: Annotated[int, Field(ge=1, le=3650)] = 30
    fewer_tests_reason: str | None = None


class Results(Section):
    """Where attempts are stored: the data folder, or a bucket of any S3 with conditional PUT."""

    bucket: BucketName | None = None
    prefix: str = "results"
    endpoint: Endpoint | None = None
    region: str | None = None


class Settings(Section):
    """The whole file."""

    backend: Backend
    upstream: Upstream = Upstream()
    wheels: Wheels = Wheels()
    image: Image | None = None
    variants: tuple[Variant, ...] = Field(min_length=1)
    suites: dict[Name, Suite] = Field(min_length=1)
    pool: Pool = Field(discriminator="kind")
    limits: Limits = Limits()
    jobs: Jobs
    rbe: Rbe | None = None
    quality: Quality = Quality()
    results: Results = Results()

    @field_validator("pool", mode="before")
    @classmethod
    def _local_unless_said(cls, pool: Any) -> Any:
        return {"kind": "local", **pool} if isinstance(pool, dict) else pool

    def variant(self, name: str) -> Variant:
        """The variant of that name. Raises `ConfigError` naming the known ones."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ConfigError(f"there is no variant {name!r}; known: {', '.join(v.name for v in self.variants)}")

    def wheels_of(self, variant: Variant) -> Wheels:
        """How the wheels of a variant are built and checked."""
        return variant.wheels or self.wheels

    def image_of(self, variant: Variant) -> Image | None:
        """The Docker image of a variant; None where its runtime image is a virtual environment."""
        return variant.image or self.image

    def suites_of(self, trigger: Trigger, stage: Literal["smoke", "device"]) -> dict[str, Suite]:
        """The suites that a trigger asks for in a stage; a `manual` one asks for what the nightly does."""
        job = getattr(self.jobs, "nightly" if trigger == "manual" else trigger)
        return {name: self.suites[name] for name in job.suites if self.suites[name].stage == stage}

    def variants_of_rbe(self) -> tuple[str, ...]:
        """The names of the variants that the source build is made for."""
        job = self.jobs.nightly_rbe
        return (job.variants if job else ()) or tuple(v.name for v in self.variants)

    def variants_of(self, trigger: Trigger) -> tuple[str, ...]:
        """The names of the variants that a trigger asks for."""
        job = getattr(self.jobs, "nightly" if trigger == "manual" else trigger)
        return job.variants or tuple(v.name for v in self.variants)


@dataclass(frozen=True)
class Project:
    """The settings with the places that follow from where the file lies."""

    settings: Settings
    config_path: Path
    home: Path
    """The data folder: builds, artifacts, results, HUD and Dagster's own storage."""

    @property
    def root(self) -> Path:
        """The folder of the configuration file; relative paths in it are read from here."""
        return self.config_path.parent
