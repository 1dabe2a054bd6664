"""The settings of a project: their names, types and defaults.

The sections of the configuration file belong here, and questions that they alone can answer. Reading a file and reporting
its mistakes is in `accel_ci.config.loading`. Checks that need the outside world (does the repository answer, is that Python
installed) are made by the code that uses a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from accel_ci.config.executor_settings import Executor, InProcessExecutor
from accel_ci.config.github_settings import GitHub, PullRequests
from accel_ci.config.notify_settings import Notify
from accel_ci.config.pool_settings import Pool
from accel_ci.config.relay_settings import Relay
from accel_ci.config.release_settings import Release
from accel_ci.config.scope_settings import Criteria, RulesPath, Scope
from accel_ci.config.section import Section
from accel_ci.config.stack_settings import Command, Stack
from accel_ci.config.values import (
    BazelConfig,
    BazelStrategy,
    BucketName,
    CommitSha,
    Cron,
    DeviceType,
    Endpoint,
    EntryPoint,
    EnvironmentName,
    FindingCode,
    Flag,
    GitRef,
    HeaderName,
    ImageRepository,
    ImportName,
    LibraryPattern,
    Location,
    Name,
    Owner,
    Package,
    PinnedImage,
    PlatformTag,
    PodsAddress,
    Program,
    PythonVersion,
    RelativePath,
    RemoteEndpoint,
    RequirementText,
    Seconds,
    Size,
    TagFilter,
    Target,
    TestTag,
    TorchBackend,
    TorchIndex,
    WheelTag,
    Workspace,
)
from accel_ci.errors import ConfigError
from accel_ci.model import CONFIRM, Trigger, Verdict


class Companion(Section):
    """Another wheel of the backend, such as a runtime for the plugin; `subdirectory` is below the backend's."""

    distribution: Name
    subdirectory: RelativePath
    import_name: ImportName | None = None
    entry_points: tuple[EntryPoint, ...] = ()


class Backend(Section):
    """The package under test and its sources.

    `companions` are further wheels that are built from the same sources and installed with it. Without `submodules` or
    `lfs`, the sources have no submodules, or the pointers in place of the files that Git LFS keeps.
    """

    name: Name
    distribution: Name
    import_name: ImportName
    repository: str
    ref: GitRef = "HEAD"
    subdirectory: RelativePath = "."
    submodules: bool = True
    lfs: bool = True
    entry_points: tuple[EntryPoint, ...] = ()
    companions: tuple[Companion, ...] = ()
    build_environment: dict[EnvironmentName, str] = {}
    pytest_args: tuple[str, ...] = ()
    copy_collected: bool = True
    owners: tuple[Owner, ...] = ()


class Wheels(Section):
    """Rules for building and checking wheels.

    `platform` is the newest platform that a compiled wheel may need (`manylinux_2_28_x86_64`); the default is the wheel's
    own tag. `external_libraries` may be linked without being in the wheel; PyTorch's own always may. `repair` adds the
    others to the wheel (`auditwheel repair`). One of the patterns `tags` must match the wheel's tag. `builder` is an image
    to build in if a Docker engine answers; without one, wheels are built on this machine, in an isolated environment.
    `compiler_cache` is kept between builds. Warnings of checks fail a wheel if `strict` is set. A wheel that unpacks to more
    than `unpacked_budget`, or to more than `expansion_limit` times its size (and 64 MiB), is not unpacked. Files that match
    `foreign_code` may be compiled for another architecture than the wheel's. Builds see no variable of this process but a
    few that hold no secret, and those in `pass_environment`; with a variable of an index there, builds see its password.
    With `only_wheels`, no other package is built from an sdist on this machine or in images, nor taken from an address.
    """

    platform: PlatformTag | None = None
    external_libraries: tuple[LibraryPattern, ...] = ()
    repair: bool = False
    tags: tuple[WheelTag, ...] = ()
    size_budget: Size | None = None
    ignored_findings: tuple[FindingCode, ...] = ()
    patches: RelativePath | None = None
    builder: PinnedImage | None = None
    compiler_cache: Literal["ccache", "sccache"] | None = None
    strict: bool = False
    unpacked_budget: Size = "20g"
    expansion_limit: Annotated[int, Field(ge=1)] = 50
    foreign_code: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    pass_environment: tuple[EnvironmentName, ...] = ()
    only_wheels: bool = False


class ImageBuilder(Section):
    """The program that builds images: a Docker engine, or Buildah, which needs no engine and no privileges.

    Images by Buildah leave it through `registry`. `cache` is a repository where it keeps layers, for pods that have none.
    """

    kind: Literal["docker", "buildah"] = "docker"
    cache: ImageRepository | None = None


class Image(Section):
    """The Docker image that the backend is tested in: two targets of one Dockerfile, `development` and `runtime`.

    Both start from `base`, or `runtime` from `runtime_base`. Packages are those of the distribution (Debian or Ubuntu).
    `stripped` are patterns of files below site-packages that only a compiler needs; `runtime` does not have them. Budgets
    apply to the unpacked size. Both targets are pushed to the repository `registry`. Those of pull requests, and of other
    code that is not trusted, go to `registry_of_pulls` if there is one.
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
    registry: ImageRepository | None = None
    registry_of_pulls: ImageRepository | None = None
    builder: ImageBuilder = ImageBuilder()


class PrebuiltImage(Section):
    """An image that was built elsewhere, in place of the one that a build makes; `reference` is by digest.

    It must have PyTorch, the tests' packages and the build's own wheels. `python` is its interpreter.
    """

    reference: PinnedImage
    python: Annotated[str, Field(pattern=r"^/\S+$")] = "/opt/venv/bin/python"


class Upstream(Section):
    """The repository that the backend follows.

    Suites of the source `upstream` take their files from there, or from `mirror`, another address or folder of the same
    repository: the `folders`, at the commit of the variant's PyTorch, or at `tests_sha` where PyTorch's own cannot be had.
    """

    repository: str = "https://github.com/pytorch/pytorch.git"
    ref: GitRef = "refs/heads/main"
    mirror: str | None = None
    folders: Annotated[tuple[RelativePath, ...], Field(min_length=1)] = ("test", "tools")
    tests_sha: CommitSha | None = None


class Device(Section):
    """The backend's device, for suites of PyTorch's own tests.

    `type` is its name in `torch.device`. `test_base` is a file of the backend's sources that sets `TEST_CLASS`, as PyTorch
    documents it for `TORCH_TEST_DEVICES`; without one, it is PyTorch's `PrivateUse1TestBase`. `disabled_tests` and
    `slow_tests` are files in the format of PyTorch's own (`DISABLED_TESTS_FILE`, `SLOW_TESTS_FILE`). `test_times`, in that
    of `.pytorch-test-times.json`, has the first estimates of the durations of files that have not run yet.
    """

    type: DeviceType
    test_base: RelativePath | None = None
    disabled_tests: RelativePath | None = None
    slow_tests: RelativePath | None = None
    test_times: RelativePath | None = None


class Variant(Section):
    """One cell of the build matrix. `wheels` and `image` replace the sections of that name for this variant.

    With `torch_index`, PyTorch's wheel comes from there alone: from an index of packages, or a page or folder of wheels. In
    it, `{sha}` stands for the commit of the revision's upstream. Other packages come from where they always do.

    In the file, one entry may stand for several variants, one for each combination of the values in its lists.
    """

    name: Name
    python: PythonVersion
    torch: RequirementText
    torch_source: Literal["pinned", "main"] = "pinned"
    torch_index: TorchIndex | None = None
    runtime: Name
    requirements: tuple[RequirementText, ...] = ()
    build_environment: dict[EnvironmentName, str] = {}
    wheels: Wheels | None = None
    image: Image | None = None
    prebuilt_image: PrebuiltImage | None = None
    torch_backend: TorchBackend | None = None


Share = Annotated[float, Field(ge=0, le=1)]


class Budgets(Section):
    """The limits within which a suite's build is complete; shares are of the suite's expected tests, from 0 to 1.

    At least `passed` tests must pass. At most `skipped` and `xfailed` of them may be skipped or fail as expected; the share
    of skips may grow by `more_skipped` from the build before. `vanished` is the share of the tests expected before that may
    be gone without a reason, and `left_out` the number of tests or files that pytest's own means may leave out.
    """

    passed: Annotated[int, Field(ge=0)] = 1
    skipped: Share = 0.5
    more_skipped: Share = 0.2
    xfailed: Share = 0.5
    vanished: Share = 0.05
    left_out: Annotated[int, Field(ge=0)] = 0


UPSTREAM_TESTS, OWN_TESTS = "upstream", "pytorch_tests"
"""The folders beside the backend's tests: of upstream's repository, and of accel-ci's own files for PyTorch's tests."""


Stage = Literal["deviceless", "smoke", "device"]
"""A phase of testing."""


class Suite(Section):
    """A named set of tests. Suites of the stage `smoke` gate the others. Each test holds `cards` cards at once.

    Suites of the stage `deviceless` run before the others and hold no card; in pull requests they gate the others. They may
    have `commands` instead of paths: each is a test, which runs in the backend's sources and passes with the exit status 0.

    A suite is run as `pytest <backend.pytest_args> <pytest_args> <paths>` runs it, by itself; with `isolate: file`, as that
    runs each of its files in a new process. That is the default for pull requests, whose tests are a stranger's, and for the
    source `upstream`, PyTorch's repository, whose files PyTorch runs so too. The kinds `op_db`, `opinfo`, `module_db` have
    tests made from PyTorch's own tables of operators and modules, and need no paths. `instances` chooses for which device
    PyTorch's tests are instantiated: the backend's or the CPU. A suite with `variants` is run in these alone.
    """

    stage: Stage = "device"
    kind: Literal["files", "op_db", "opinfo", "module_db"] = "files"
    source: Literal["backend", "upstream"] = "backend"
    paths: tuple[RelativePath, ...] = ()
    commands: tuple[Command, ...] = ()
    instances: Literal["device", "cpu"] = "device"
    environment: dict[EnvironmentName, str] = {}
    test_timeout_seconds: Seconds | None = None
    variants: tuple[str, ...] = ()
    pytest_args: tuple[str, ...] = ()
    scope: Scope = Scope()
    cards: Annotated[int, Field(ge=1, le=64)] = 1
    budgets: Budgets = Budgets()
    isolate: Literal["file", "none"] | None = None

    def is_isolated(self, trigger: Trigger) -> bool:
        """True if each file has its own process in builds of this trigger."""
        by_default = "file" if trigger == "pr" or self.source == "upstream" else "none"
        return (self.isolate or by_default) == "file"

    @property
    def places(self) -> tuple[str, ...]:
        """The paths of the tests below the folder that tests run in."""
        if self.kind != "files":
            return (f"{OWN_TESTS}/test_{self.kind}.py",)
        return tuple(f"{UPSTREAM_TESTS}/{path}" for path in self.paths) if self.source == "upstream" else self.paths

    def runs_in(self, variant: str) -> bool:
        """True if builds of this variant run the suite."""
        return not self.variants or variant in self.variants

    @property
    def is_of_pytorch(self) -> bool:
        """True if the tests are PyTorch's own: files of its repository, or made from its tables."""
        return self.source == "upstream" or self.kind != "files"


class TimeLimits(Section):
    """Time limits in seconds, after which work is stopped."""

    test_timeout_seconds: Seconds = 300
    silence_seconds: Seconds = 300
    startup_seconds: Seconds = 600
    probe_seconds: Seconds = 120
    build_seconds: Seconds = 3600
    install_seconds: Seconds = 3600
    git_seconds: Seconds = 30


class CronJob(Section):
    """A job that starts at the times of a cron expression."""

    cron: Cron
    variants: tuple[str, ...] = ()
    enabled: bool = False


class ScheduledJob(CronJob):
    """A job that cron starts, with the suites that it runs."""

    suites: tuple[str, ...] = Field(min_length=1)


class MainJob(Section):
    """The job that a new upstream commit starts."""

    suites: tuple[str, ...] = Field(min_length=1)
    variants: tuple[str, ...] = ()
    minimum_interval_minutes: Annotated[float, Field(ge=0)] = 60
    check_every_seconds: Annotated[int, Field(ge=5)] = 60
    enabled: bool = False


class PullRequestJob(Section):
    """The job that a pull request of the backend starts.

    Of its suites, `tests: changed` runs those tests that the change may concern: of changed files and ops, those that failed
    in the last build of main or nightly or are new there, and of other ops a sample of at most `sample_card_seconds`. With
    `changed_first`, these but the sample run before all others. The change is the difference to the merge base with the
    branch `target`, by default `backend.ref`.
    """

    suites: tuple[str, ...] = Field(min_length=1)
    variants: tuple[str, ...] = ()
    tests: Literal["all", "changed", "changed_first"] = "all"
    target: GitRef | None = None
    sample_card_seconds: Seconds = 600

    @property
    def enabled(self) -> bool:
        """Always true: it runs only on request."""
        return True


class Jobs(Section):
    """The jobs, each with its suites and variants; no variants means all of them."""

    nightly: ScheduledJob
    nightly_rbe: CronJob | None = None
    intraday: ScheduledJob
    main: MainJob
    pr: PullRequestJob

    @property
    def manual(self) -> ScheduledJob:
        """The nightly's job: a manual revision is tested like a nightly one."""
        return self.nightly


class MultiCard(Section):
    """Test targets that need several cards at once: the tag that marks them, and the strategy that Bazel runs them with."""

    tag: TestTag = "multi-card"
    strategy: BazelStrategy = "local"
    flags: tuple[Flag, ...] = ()


class Rbe(Section):
    """The source build: a Bazel workspace, its targets, and the place where its actions run."""

    workspace: Workspace = "backend"
    patches: RelativePath | None = None
    submodules: bool = True
    bazel: Program = "bazel"
    targets: tuple[Target, ...] = Field(min_length=1)
    configs: tuple[BazelConfig, ...] = ()
    test_tag_filters: tuple[TagFilter, ...] = ()
    flaky_test_attempts: Annotated[int, Field(ge=1, le=10)] = 1
    keep_going: bool = True
    executor: RemoteEndpoint | None = None
    cache: RemoteEndpoint | None = None
    event_service: RemoteEndpoint | None = None
    event_results_url: Endpoint | None = None
    instance_name: str | None = None
    headers: dict[HeaderName, EnvironmentName] = {}
    pass_environment: tuple[EnvironmentName, ...] = ()
    multi_card: MultiCard | None = None
    flags: tuple[Flag, ...] = ()
    image: PinnedImage | None = None
    timeout_seconds: Seconds = 7200


class Quarantine(Section):
    """The flaky tests that are muted (they run, and gate nothing) or disabled (they do not run).

    `file` lists the decisions of people, below the folder of the configuration file. With `automatic`, a rule adds the
    tests whose flakiness is sure: `accel_ci.quality.quarantine.QuarantineRules` says what the thresholds mean.
    """

    file: RulesPath | None = None
    automatic: bool = False
    budget: Share = 0.01
    least_flakes: Annotated[int, Field(ge=1)] = 2
    mute_above: Share = 0.01
    disable_above: Share = 0.5
    release_below: Share = 0.02
    days: Annotated[int, Field(ge=1, le=365)] = 30


class QuarantinedTest(Section):
    """A person's decision on a test, in all variants or in one, until it expires."""

    suite: Name
    test: Annotated[str, Field(min_length=1)]
    state: Literal["active", "muted", "disabled"] = "muted"
    reason: Annotated[str, Field(min_length=1)]
    since: date
    expires: date
    variant: str | None = None
    owner: str | None = None
    issue: Endpoint | None = None


class QuarantineFile(Section):
    """The file of people's decisions."""

    tests: tuple[QuarantinedTest, ...] = ()


class OwnerRule(Criteria):
    """The owner of the failures of some tests, if their cause is one of `causes`."""

    owner: Annotated[str, Field(min_length=1, max_length=200)]
    causes: Annotated[tuple[Literal["infra", "flaky", "upstream", "backend", "unknown"], ...], Field(min_length=1)] = (
        "flaky", "upstream", "backend", "unknown",
    )  # fmt: skip


class Confirm(Section):
    """The job that runs failures of a build again: those that it tells most about, for at most `card_seconds` of a build.

    A failure runs up to `reruns` times. If it is `enabled`, the job starts by itself: every `check_every_seconds`, a sensor
    looks for a finished build with such failures.
    """

    enabled: bool = False
    card_seconds: Seconds = 600
    reruns: Annotated[int, Field(ge=2, le=10)] = 4
    check_every_seconds: Annotated[int, Field(ge=5)] = 300

    @property
    def variants(self) -> tuple[str, ...]:
        """Always none, which means all of them."""
        return ()


class Quality(Section):
    """The history that flakiness is measured over, and an accepted reason for collecting fewer tests.

    `level` is the backend's level with the cross-repository relay, which it has had since `level_since`. Of `owners`, the
    first rule that matches a test names who looks after its failures.
    """

    window_days: Annotated[int, Field(ge=1, le=3650)] = 30
    fewer_tests_reason: str | None = None
    level: Literal["L1", "L2", "L3", "L4"] | None = None
    level_since: date | None = None
    quarantine: Quarantine = Quarantine()
    owners: tuple[OwnerRule, ...] = ()
    confirm: Confirm = Confirm()


class RampStage(Section):
    """A stage of the ramp: it is reached with a `share` of the tests in scope enabled, on so many cards, so often."""

    name: Name
    cards: Annotated[int, Field(ge=1)]
    share: Share
    frequency: Annotated[str, Field(min_length=1)]


class Sweep(CronJob):
    """The job that runs tests which are not enabled, to find those that pass: at most `card_hours` of them."""

    cron: Cron = "0 4 * * 6"
    card_hours: Annotated[float, Field(gt=0)] = 24


class Ramp(Section):
    """The growth of the enabled share of the tests in scope: its stages, and the sweep that finds tests to enable.

    A proposal looks back `window_days`. A build whose enabled share fell is incomplete without a `lower_share_reason`.
    """

    stages: tuple[RampStage, ...] = (
        RampStage(name="first-cards", cards=24, share=0, frequency="nightly"),
        RampStage(name="nightly", cards=128, share=0.05, frequency="nightly"),
        RampStage(name="quarter", cards=512, share=0.25, frequency="nightly"),
        RampStage(name="half", cards=1024, share=0.5, frequency="4 times a day"),
        RampStage(name="pull-requests", cards=2048, share=0.8, frequency="every pull request"),
    )
    sweep: Sweep = Sweep()
    window_days: Annotated[int, Field(ge=1, le=3650)] = 90
    lower_share_reason: str | None = None

    @field_validator("stages")
    @classmethod
    def _growing(cls, stages: tuple[RampStage, ...]) -> tuple[RampStage, ...]:
        if list(stages) != sorted(stages, key=lambda stage: (stage.share, stage.cards)):
            raise ValueError("stages must be in the order of their shares and cards")
        return stages


class Results(Section):
    """The place where attempts are stored: the data folder, or a bucket of any S3 with conditional PUT.

    Runs wait for a bucket that is away, for `patience_seconds`.
    """

    bucket: BucketName | None = None
    prefix: str = "results"
    endpoint: Endpoint | None = None
    region: str | None = None
    patience_seconds: Annotated[float, Field(ge=0)] = 300


class Addresses(Section):
    """The places where people find the Dagster UI and the HUD, if not by `accel-ci dev`: pages and metadata link there.

    The folder `artifacts` of the store is served beside that of the HUD. `pods` is where the logs of a pod are found, with
    `{namespace}` and `{pod}` in their places.
    """

    ui: Endpoint
    hud: Endpoint
    pods: PodsAddress | None = None


class Store(Section):
    """A bucket through which several machines share a project: manifests, artifacts, the HUD, and by default all results.

    With it, the data folder of each machine is a copy, which any step can begin with empty. Runs wait for a bucket that is
    away, for `patience_seconds`.
    """

    bucket: BucketName
    prefix: str = "accel-ci"
    endpoint: Endpoint | None = None
    region: str | None = None
    patience_seconds: Annotated[float, Field(ge=0)] = 300


class Retention(Section):
    """The builds that `accel-ci prune` keeps. If this section is present, a schedule prunes too.

    Kept are the builds of the last `days` days, the newest `last_green` green builds of each variant and trigger, and
    revisions whose key matches a pattern in `pinned`.
    """

    days: Annotated[int, Field(ge=1, le=36500)] = 30
    last_green: Annotated[int, Field(ge=0)] = 3
    pinned: tuple[str, ...] = ()
    cron: Cron = "30 5 * * *"


class Settings(Section):
    """The whole file. A run fails, after everything is stored, if a test has a verdict in `fail_run_on`.

    `location` is the name of the code location where several projects share one Dagster instance. It keeps their assets,
    partitions and runs apart; a project that has an instance to itself needs none.
    """

    backend: Backend
    location: Location | None = None
    upstream: Upstream = Upstream()
    device: Device | None = None
    wheels: Wheels = Wheels()
    image: Image | None = None
    prebuilt_image: PrebuiltImage | None = None
    variants: tuple[Variant, ...] = Field(min_length=1)
    stack: Stack | None = None
    suites: dict[Name, Suite] = Field(min_length=1)
    pool: Pool = Field(discriminator="kind")
    limits: TimeLimits = TimeLimits()
    jobs: Jobs
    rbe: Rbe | None = None
    quality: Quality = Quality()
    ramp: Ramp = Ramp()
    relay: Relay | None = None
    github: GitHub | None = None
    pull_requests: PullRequests | None = None
    notify: Notify | None = None
    release: Release | None = None
    results: Results = Results()
    store: Store | None = None
    addresses: Addresses | None = None
    executor: Executor = Field(default=InProcessExecutor(), discriminator="kind")
    retention: Retention | None = None
    fail_run_on: tuple[Verdict, ...] = ()

    @field_validator("pool", mode="before")
    @classmethod
    def _local_by_default(cls, pool: Any) -> Any:
        return {"kind": "local", **pool} if isinstance(pool, dict) else pool

    @field_validator("executor", mode="before")
    @classmethod
    def _in_process_by_default(cls, executor: Any) -> Any:
        return {"kind": "in_process", **executor} if isinstance(executor, dict) else executor

    @property
    def place_of_results(self) -> Results:
        """The place of the attempts: that of `results`, which is in the bucket of `store` if it names no other."""
        if self.results.bucket is not None or self.store is None:
            return self.results
        store = self.store
        return Results(
            bucket=store.bucket, prefix=f"{store.prefix}/results", endpoint=store.endpoint, region=store.region,
            patience_seconds=store.patience_seconds,
        )  # fmt: skip

    @property
    def identity(self) -> str:
        """The name by which shared clusters and buckets tell this project from others: its location, else its backend."""
        return self.location or self.backend.name

    def variant(self, name: str) -> Variant:
        """The variant of that name. Raises `ConfigError` with the known names."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ConfigError(f"there is no variant {name!r}; known: {', '.join(v.name for v in self.variants)}")

    def wheels_of(self, variant: Variant) -> Wheels:
        """The rules for the wheels of a variant."""
        return variant.wheels or self.wheels

    def prebuilt_image_of(self, variant: Variant) -> PrebuiltImage | None:
        """The image of a variant that was built elsewhere; None if builds make their own."""
        return variant.prebuilt_image or (self.prebuilt_image if variant.image is None else None)

    def image_of(self, variant: Variant) -> Image | None:
        """The Docker image that builds of a variant make; None if they make none."""
        return None if self.prebuilt_image_of(variant) else variant.image or self.image

    def releases(self, variant: str) -> bool:
        """True if builds of a variant can be released."""
        return self.release is not None and variant in (self.release.variants or [each.name for each in self.variants])

    @property
    def longest_test_s(self) -> float:
        """The longest of the limits for one test, of all suites."""
        own = [suite.test_timeout_seconds for suite in self.suites.values() if suite.test_timeout_seconds is not None]
        return max([self.limits.test_timeout_seconds, *own])

    @property
    def code_user(self) -> str | None:
        """The user that code of the sources runs as on this machine; None for the user of this process."""
        return getattr(self.pool, "user", None)

    @property
    def has_sweep(self) -> bool:
        """True if a suite has a file of enabled tests, so that others are left to sweep."""
        return any(suite.scope.enabled_file for suite in self.suites.values())

    @property
    def swept_suites(self) -> tuple[str, ...]:
        """The suites of a sweep: those with a file of enabled tests, and the nightly's smoke suites, which gate them."""
        smoke = [name for name in self.jobs.nightly.suites if self.suites[name].stage == "smoke"]
        return (*smoke, *(name for name, suite in self.suites.items() if suite.scope.enabled_file))

    @property
    def has_deviceless(self) -> bool:
        """True if a suite needs no card."""
        return any(suite.stage == "deviceless" for suite in self.suites.values())

    @property
    def confirmed_suites(self) -> tuple[str, ...]:
        """The suites whose failures can run again: those of the stage `device`, without which no build has any."""
        return tuple(name for name, suite in self.suites.items() if suite.stage == "device")

    def suites_of(
        self, trigger: Trigger, stage: Stage, chosen: Sequence[str] = (), variant: str | None = None
    ) -> dict[str, Suite]:
        """The suites that a trigger runs in a stage, or those of the `chosen` ones; with `variant`, those that run in it."""
        if trigger == "sweep":
            own = self.swept_suites
        else:
            own = self.confirmed_suites if trigger == CONFIRM else getattr(self.jobs, trigger).suites
        names = chosen or own
        found = {name: self.suites[name] for name in names if self.suites[name].stage == stage}
        return {name: suite for name, suite in found.items() if variant is None or suite.runs_in(variant)}


@dataclass(frozen=True)
class Project:
    """The settings, with the folders that depend on the location of the file."""

    settings: Settings
    config_path: Path
    home: Path
    """The data folder: builds, artifacts, results, HUD and Dagster's own storage."""

    @property
    def root(self) -> Path:
        """The folder of the configuration file, which its relative paths refer to."""
        return self.config_path.parent
