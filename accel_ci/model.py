"""The nouns: frozen dataclasses for the data that passes between assets.

Data that more than one package uses belongs here, with its units. No effects, no Dagster, no configuration (that is
`accel_ci.config`), and nothing that only one module needs. All durations are in seconds, all sizes in bytes, all times in
UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args
from urllib.parse import unquote

from pydantic import model_validator

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "crashed", "timeout", "not_run"]
"""The result of one attempt."""

Verdict = Literal["passed", "failed", "flaky", "skipped", "xfailed", "xpassed", "infra", "not_run"]
"""The result of a test in one build, from all its attempts."""

Trigger = Literal["nightly", "intraday", "main", "pr", "manual", "sweep", "confirm"]
"""The event that a revision is tested for."""

CONFIRM: Trigger = "confirm"
"""The trigger whose builds run failures of another build again, on the same image and sources."""

INFORMATIVE: tuple[Trigger, ...] = ("sweep", CONFIRM)
"""The triggers whose builds run tests to learn of them: they may fail, and are other ones each time."""

BAZEL_SUITE = "bazel"
"""The suite of the source build; its tests are named `<label>::…`."""

TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FAILING_OUTCOMES: frozenset[Outcome] = frozenset({"failed", "error", "crashed", "timeout"})
BAD_VERDICTS: tuple[Verdict, ...] = ("failed", "flaky", "infra", "not_run")
"""The verdicts that need attention; all but `flaky` keep a build from passing."""


@dataclass(frozen=True)
class Source:
    """The exact state of one repository.

    `sha` is the commit, or `None` if the remote could not be reached (`note` has the reason). `tree` is the git tree of
    `subdirectory` and is only known for local checkouts; `dirty` means that the tree has uncommitted changes.
    """

    repository: str
    ref: str
    sha: str | None
    subdirectory: str = "."
    tree: str | None = None
    dirty: bool = False
    note: str | None = None

    @property
    def label(self) -> str:
        """A PEP 440 local version label for this state: `g<sha12>`, plus `.d<tree12>` for uncommitted changes."""
        if self.sha is None:
            return "unknown"
        label = f"g{self.sha[:12]}"
        return f"{label}.d{self.tree[:12]}" if self.dirty and self.tree else label


@dataclass(frozen=True)
class Revision:
    """The source states that are tested together, and the trigger. `suites`, if any, are tested instead of the trigger's.

    `confirms` is the key of the revision whose failures run again; its sources are those of that revision. `stack` has the
    states of the software stack's components by their names, in the order in which they are built. `target` is the branch
    (`refs/heads/…`) that a pull request is for, None for the configured one.
    """

    key: str
    trigger: Trigger
    created_at: datetime
    backend: Source
    upstream: Source
    suites: tuple[str, ...] = ()
    confirms: str | None = None
    stack: dict[str, Source] = field(default_factory=dict, hash=False)
    target: str | None = None

    @property
    def identity(self) -> tuple[Source, str | None, tuple[str, ...], tuple[tuple[str, Source], ...]]:
        """The parts that make two revisions equal: the sources' states, upstream's commit and the chosen suites."""
        return self.backend, self.upstream.sha, self.suites, tuple(self.stack.items())

    @property
    def tested_as(self) -> Trigger:
        """The trigger by whose rules tests run: that of the revision whose failures are confirmed, else its own."""
        return (trigger_of_key(self.confirms) if self.confirms is not None else None) or self.trigger


def trigger_of_key(key: str) -> Trigger | None:
    """Return the trigger that a revision's key begins with."""
    first = key.partition("-")[0]
    return next((trigger for trigger in TRIGGERS if trigger == first), None)


@dataclass(frozen=True)
class Build:
    """A revision in one variant: the unit that is built, tested, shown and released."""

    revision: str
    variant: str

    @property
    def name(self) -> str:
        """The name of a build in file names, on the command line and in links: `<revision>~<variant>`."""
        return f"{self.revision}~{self.variant}"


@dataclass(frozen=True)
class Artifact:
    """A large file in the artifact store, identified by digest and name."""

    sha256: str
    name: str
    size_bytes: int

    @model_validator(mode="before")
    @classmethod
    def _named_by_uri(cls, value: Any) -> Any:
        """Read manifests of earlier versions, which have the absolute `uri` of the file."""
        if not isinstance(value, dict) or "uri" not in value:
            return value
        return {"name": unquote(str(value["uri"]).rpartition("/")[2]), **{k: v for k, v in value.items() if k != "uri"}}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of a wheel or an image: a line per fault, and one per warning, which does not fail it."""

    name: str
    passed: bool
    summary: str
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wheel:
    """A built wheel with its sdist and the results of its checks. `work_s` is 0 if an earlier build was reused.

    `companions` are the other wheels of the backend. It was built from `source` (a commit, None for uncommitted changes) of
    `repository` with `patches` applied; `built_in` is the builder, an image by digest, or `host`. `torch` is the requirement
    with a digest of the PyTorch that it was built and checked with and will be tested with, None if the configuration pins
    it. A `public` one has a version without the state of its sources, as a release has.
    """

    name: str
    version: str
    wheel: Artifact
    sdist: Artifact
    checks: tuple[CheckResult, ...]
    reused: bool
    work_s: float
    companions: tuple[Artifact, ...] = ()
    repository: str = ""
    source: str | None = None
    patches: tuple[str, ...] = ()
    built_in: str = "host"
    torch: str | None = None
    public: bool = False

    @property
    def wheels(self) -> tuple[Artifact, ...]:
        """All wheels of the backend, companions first: the plugin needs its runtime."""
        return (*self.companions, self.wheel)


@dataclass(frozen=True)
class StackComponent:
    """A component of the software stack as it was built; `key` names its build, and `work_s` is 0 for a reused one."""

    name: str
    source: Source
    key: str
    reused: bool
    work_s: float


@dataclass(frozen=True)
class SoftwareStack:
    """The components that the backend runs on, installed together.

    `archive` has all installed files, and `digest` names them and where they are: `prefix`, a folder of the machine that
    built them. `environment` is what uses of the stack need.
    """

    components: tuple[StackComponent, ...]
    archive: Artifact
    digest: str
    prefix: str
    environment: dict[str, str]
    work_s: float


@dataclass(frozen=True)
class ImageLayer:
    """A layer of a Docker image: the shortened instruction that made it, and its unpacked size."""

    made_by: str
    size_bytes: int


@dataclass(frozen=True)
class ContainerImage:
    """One target of a Docker image. `id` is the engine's; `docker run` takes `reference`, a digest once it is pushed."""

    target: Literal["development", "runtime"]
    id: str
    reference: str
    size_bytes: int
    layers: tuple[ImageLayer, ...]


@dataclass(frozen=True)
class RuntimeImage:
    """The environment for tests: a virtual environment or a Docker image with the wheel, PyTorch and the tests' packages.

    `python` is its interpreter, `digest` identifies its exact content (the wheels' digests and every installed package), and
    `torch_sha` is the upstream commit that the installed PyTorch was built from. `sbom` is a CycloneDX document. For a
    Docker image, `containers` are the targets; `cached_steps` of the `steps` were in the engine's cache. `environment` is
    what its programs need of the software stack.
    """

    kind: Literal["venv", "docker"]
    python: str
    digest: str
    python_version: str
    torch_version: str
    torch_sha: str | None
    packages: tuple[str, ...]
    reused: bool
    work_s: float
    sbom: Artifact | None = None
    containers: tuple[ContainerImage, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    cached_steps: int = 0
    steps: int = 0
    environment: dict[str, str] = field(default_factory=dict, hash=False)

    def container(self, target: str) -> ContainerImage | None:
        """The target of that name; None if the image has none."""
        return next((each for each in self.containers if each.target == target), None)


@dataclass(frozen=True)
class SelectedTest:
    """A test in scope: its suite, and its pytest node id relative to the root of the backend's sources.

    Tests of one `group` of a suite must run one after another, in the order of their collection and on one card: they depend
    on each other, or share what only one may hold.
    """

    suite: str
    test: str
    group: str | None = None

    @property
    def file(self) -> str:
        """The file that pytest collects it from."""
        return self.test.split("::", 1)[0]

    @property
    def class_id(self) -> str | None:
        """The node id of its class, the innermost one; None for a test outside of classes."""
        file, _, name = self.test.partition("::")
        front, _, _ = name.partition("[")  # parameters may have colons
        owner, _, _ = front.rpartition("::")
        return f"{file}::{owner}" if owner else None


@dataclass(frozen=True)
class AppliedTolerance:
    """A tolerance that a rule gives to PyTorch's tests of operators, and the number of collected tests that have it.

    `criteria` are the rule's patterns of operators and dtypes, `reason` its words.
    """

    rule: str
    criteria: Mapping[str, tuple[str, ...]]
    atol: float
    rtol: float
    reason: str
    tests: int


@dataclass(frozen=True)
class SuiteSelection:
    """The numbers of tests collected and selected for a suite, and those left out by the scope rules, by reason.

    `not_enabled` counts tests in scope that do not run yet, and `not_chosen` enabled ones that the build's subset has not.
    With `selected` and `out_of_scope`, they sum to `collected`.
    `left_out` has the numbers of tests, or of files, that pytest's own means left out, by who did it. `skipped_files` are
    files that skip themselves: each is expected under its own name, as are those with `collection_errors`. `tolerances` are
    those that replace PyTorch's own. In `empty_files`, pytest finds no test.
    """

    suite: str
    collected: int
    selected: int
    out_of_scope: dict[str, int]
    collection_errors: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    skipped_files: dict[str, str] = field(default_factory=dict)
    not_enabled: dict[str, int] = field(default_factory=dict)
    not_chosen: int = 0
    tolerances: tuple[AppliedTolerance, ...] = ()
    empty_files: tuple[str, ...] = ()

    @property
    def enabled(self) -> int:
        """The tests that run in a build of the whole suite."""
        return self.selected + self.not_chosen

    @property
    def in_scope(self) -> int:
        """The tests that run, and those that will one day."""
        return self.enabled + sum(self.not_enabled.values())

    @property
    def expected(self) -> int:
        """The tests that must have a verdict, among them files that cannot be collected or skip themselves."""
        return self.selected + len(self.collection_errors) + len(self.skipped_files)


@dataclass(frozen=True)
class Subset:
    """The part of a build's enabled tests that runs, or runs first, or the reason why there is none, in `words`.

    `reasons` are the numbers of tests by the reason why they run, and `tests` is a Parquet file with the columns `suite`,
    `test` and `reason`, None where all run. `base` is the commit that the sources were compared with, None if not known.
    If these tests `are_first`, all others run after them. `change` is the digest of the changed lines, None if not known.
    """

    words: str
    reasons: dict[str, int] = field(default_factory=dict)
    tests: Artifact | None = None
    base: str | None = None
    are_first: bool = False
    change: str | None = None


@dataclass(frozen=True)
class TestSelection:
    """The tests in scope of a build; `tests` is a JSON artifact with a list of `SelectedTest`.

    `scope` is a Parquet file with a row for each collected test (`accel_ci.scope.table`), None in earlier versions. `subset`
    is there where the job asks for the tests that a change may concern, or for failures to confirm.
    """

    __test__ = False

    tests: Artifact
    suites: tuple[SuiteSelection, ...]
    work_s: float
    scope: Artifact | None = None
    subset: Subset | None = None

    @property
    def collected(self) -> int:
        """Tests collected in all suites."""
        return sum(suite.collected for suite in self.suites)

    @property
    def in_scope(self) -> int:
        """Tests in scope in all suites, enabled or not."""
        return sum(suite.in_scope for suite in self.suites)

    @property
    def enabled(self) -> int:
        """Tests in scope and enabled in all suites, whether or not they are in the build's subset."""
        return sum(suite.enabled for suite in self.suites)

    @property
    def selected(self) -> int:
        """Tests that run in all suites: those in scope, enabled and in the build's subset."""
        return sum(suite.selected for suite in self.suites)


@dataclass(frozen=True)
class Limits:
    """The time limits of the runner, in seconds.

    `test_timeout_s` is for one test with its fixtures, `silence_s` for a pytest that neither prints nor reports,
    `startup_s` for the start of pytest and for the collection of a file, `probe_timeout_s` for a health probe.
    """

    test_timeout_s: float = 60
    silence_s: float = 300
    startup_s: float = 300
    probe_timeout_s: float = 120


@dataclass(frozen=True)
class ExpectedMode:
    """The mode that a rule gives to tests (`xfail`, `xfail_strict`, `skip`, `flaky_known`), and the words for its reason."""

    mode: str
    reason: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class SuiteSession:
    """A suite's pytest session: its paths below the root of the sources, and all of pytest's other arguments.

    With `copies`, it may be a fork of a process that has collected the suite. With `isolate`, each file has its own session.
    `modes` say what is expected of some tests. `environment` is added to the worker's. `test_timeout_s` replaces the limit
    of that name.
    """

    paths: tuple[str, ...]
    pytest_args: tuple[str, ...] = ()
    copies: bool = True
    isolate: bool = False
    modes: tuple[ExpectedMode, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    test_timeout_s: float | None = None


@dataclass(frozen=True)
class WorkerSpec:
    """The parameters for starting a worker.

    `python` is the interpreter of the runtime image, `root` the folder that node ids are relative to. `environment` is
    the whole environment of a worker and its tests (made by `accel_ci.process.environment.clean_environment`);
    `card_environment` is the name of the variable that selects a process's card. `image` is the Docker image of a pool of
    containers that does not set its own. `probe` is the argv of the health probe, empty for none; `python` as its first
    element stands for the worker's interpreter. `sessions` are pytest's arguments by suite; a suite without an entry is
    started with the files of its tests.
    """

    python: str
    root: str
    environment: Mapping[str, str]
    card_environment: str
    probe: tuple[str, ...] = ()
    sessions: Mapping[str, SuiteSession] = field(default_factory=dict)
    image: str | None = None


@dataclass(frozen=True)
class Batch:
    """Tests of one file, or of one `group`, that a worker claims and runs together, in order.

    A group is in one batch, which is run again as a whole; `file` is that of its first test. `avoid_cards` lists cards that
    must not run it while another healthy card can (a retry goes to another card). `cards` is the number of cards that a
    worker must hold to run it; with several, `avoid_cards` lists groups of cards (`0,1`).
    """

    id: str
    suite: str
    file: str
    tests: tuple[str, ...]
    estimate_s: float
    avoid_cards: tuple[str, ...] = ()
    cards: int = 1
    group: str | None = None


@dataclass(frozen=True)
class TestPlan:
    """A plan for the selected tests; `batches` is a JSON artifact with the `Plan` of `accel_ci.plan.guided`.

    `lower_bound_s` = max(longest test, sum of estimates / cards): no schedule ends earlier. `unknown` counts tests
    without a recorded duration, which are estimated by the median of their file, else of their suite. `predicted_s` is the
    expected makespan, None in plans of earlier versions.
    """

    __test__ = False

    batches: Artifact
    batch_count: int
    tests: int
    unknown: int
    cards: int
    estimated_s: float
    lower_bound_s: float
    predicted_s: float | None = None

    @property
    def has_history(self) -> bool:
        """True when most tests have a recorded duration; without that, the seconds of the plan mean nothing."""
        return self.unknown * 2 <= self.tests


@dataclass(frozen=True)
class Attempt:
    """One execution of one test.

    `round` counts from 1. `infra` is the pool's reason if the infrastructure caused the failure (such as an unhealthy
    card), else None. `started_at` is None if the test never began. `cached` means that the result is from an earlier
    build.
    """

    suite: str
    test: str
    round: int
    outcome: Outcome
    started_at: datetime | None
    duration_s: float | None
    message: str | None
    output_tail: str | None
    card: str | None
    host: str | None
    worker: str | None
    infra: str | None = None
    cached: bool = False


@dataclass(frozen=True)
class CardReport:
    """The work of a card in a build, alone or in a group, and the result of its last health probe."""

    card: str
    healthy: bool
    reason: str | None
    attempts: int
    busy_s: float
    setup_s: float


@dataclass(frozen=True)
class WorkerPod:
    """The pod that a worker was, in a pool of pods. Its name comes from the pod: it is hostile text."""

    round: str
    worker: str
    card: str
    namespace: str
    pod: str


@dataclass(frozen=True)
class RoundReport:
    """One pass of workers over a plan. `lower_bound_s` is computed from the measured durations and the cards that ran."""

    round: int
    tests: int
    cards: int
    makespan_s: float
    lower_bound_s: float


@dataclass(frozen=True)
class DeviceTestResults:
    """All attempts of the suites of a stage.

    The attempts are rows of the results store: `digest` names their content. `expected` is a JSON artifact, a list of
    `SelectedTest`. `selections` describe the suites of a stage that makes its own selection. `drivers` has the version of
    the cards' driver by host, where the health probe prints one. `pods` are those of the last driver of the rounds.
    """

    expected: Artifact
    suites: tuple[str, ...]
    counts: dict[Outcome, int]
    rounds: tuple[RoundReport, ...]
    cards: tuple[CardReport, ...]
    makespan_s: float
    lower_bound_s: float
    work_s: float
    digest: str = ""
    selections: tuple[SuiteSelection, ...] = ()
    drivers: dict[str, str] = field(default_factory=dict)
    pods: tuple[WorkerPod, ...] = ()

    @property
    def mean_setup_s(self) -> float | None:
        """The mean time for setup and collection of the cards that ran tests; None if no card did."""
        spent = [card.setup_s for card in self.cards if card.attempts]
        return sum(spent) / len(spent) if spent else None

    @property
    def ratio(self) -> float | None:
        """The makespan without set-up divided by the lower bound: the part that a plan can influence. 1 is the best."""
        return _ratio(self.makespan_s, self.mean_setup_s, self.lower_bound_s)


def _ratio(makespan_s: float, setup_s: float | None, lower_bound_s: float) -> float | None:
    return round(max(1.0, (makespan_s - setup_s) / lower_bound_s), 3) if setup_s is not None and lower_bound_s else None


@dataclass(frozen=True)
class SourceBuild:
    """The sources that Bazel builds, with the backend's patches applied.

    `workspace` is the folder of the Bazel workspace, and `digest` identifies the sources and the patches. `patches` are the
    names of the series in order; the sources already contained those in `already_applied`.
    """

    workspace: str
    digest: str
    backend: str
    upstream: str | None
    patches: tuple[str, ...]
    already_applied: tuple[str, ...]
    reused: bool
    work_s: float


@dataclass(frozen=True)
class BazelTarget:
    """The result of a target: `status` is Bazel's. `logs` are those of its attempts, the last one first.

    `message` is the compiler's message for a target that failed to build.
    """

    label: str
    status: str
    cached: bool
    logs: tuple[Artifact, ...]
    message: str | None = None


@dataclass(frozen=True)
class BazelActions:
    """The numbers of Bazel's actions: those that ran, and those with results from the local or the remote cache."""

    created: int
    executed: int
    local_cache_hits: int
    remote_cache_hits: int


@dataclass(frozen=True)
class BazelTestResults:
    """All attempts of the tests of the source build, which are rows of the results store: `digest` names their content.

    `targets` is a JSON artifact with a list of `BazelTarget`. `events` and `log` are Bazel's own. `expected` counts the
    tests, `counts` the attempts by outcome. `infra` describes what could not be reached, `None` if everything could.
    """

    targets: Artifact
    events: Artifact
    log: Artifact
    expected: int
    counts: dict[Outcome, int]
    cached: int
    statuses: dict[str, int]
    actions: BazelActions
    infra: str | None
    makespan_s: float
    work_s: float
    digest: str = ""


@dataclass(frozen=True)
class TestVerdict:
    """A test's verdict in a build, with the message of the last attempt if it did not pass."""

    __test__ = False

    suite: str
    test: str
    verdict: Verdict
    attempts: tuple[Outcome, ...]
    duration_s: float | None
    cards: tuple[str, ...]
    message: str | None

    @property
    def identity(self) -> tuple[str, str]:
        """Suite and test."""
        return self.suite, self.test


@dataclass(frozen=True)
class Acceptance:
    """A person's word that tests may be gone; `tests` is a JSON artifact, a list of `SelectedTest`."""

    tests: Artifact
    reason: str
    accepted_at: datetime


@dataclass(frozen=True)
class Ledger:
    """The account of a build: every expected test has exactly one verdict.

    `counts` has every verdict as a key and sums to `expected`. `digest` names the content of its attempts.
    `infra_attempts` counts failures caused by the infrastructure, including those of tests that passed elsewhere.
    `unexpected` lists what reported without being expected, as `<suite>: <test>`, and `unexpected_failures` those that
    failed or were lost, such as `<suite>: (session)` for the end of a pytest session; they are in no count. `missing_suites`
    lists the suites that have not reported yet. `setup_s` is the part of the makespan for set-up, None while not known.

    `incomplete` has the reasons, in words, why too little was tested: too few passes, too many skips. `vanished` are the
    tests that were expected before and are gone without a reason (a JSON artifact, a list of `SelectedTest`): later builds
    still expect them, until somebody has `accepted` that. `vanished_reasons` say of which suites too many are gone. In an
    `informative` build (`INFORMATIVE`), tests may fail. `muted` are failed tests, as `<suite>: <test>`, that the quarantine
    keeps from making the build fail; they count as failed.
    """

    build: Build
    expected: int
    counts: dict[Verdict, int]
    suites: dict[str, dict[Verdict, int]]
    missing_suites: tuple[str, ...]
    unexpected: tuple[str, ...]
    infra_attempts: int
    makespan_s: float
    lower_bound_s: float
    digest: str = ""
    unexpected_failures: tuple[str, ...] = ()
    setup_s: float | None = None
    incomplete: tuple[str, ...] = ()
    vanished: Artifact | None = None
    vanished_reasons: tuple[str, ...] = ()
    accepted: Acceptance | None = None
    informative: bool = False
    muted: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The ratio of the device tests, as in `DeviceTestResults`."""
        return _ratio(self.makespan_s, self.setup_s, self.lower_bound_s)
