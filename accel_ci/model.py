"""The nouns: what passes between assets, as frozen dataclasses.

Here belong the shapes of things that more than one package speaks of, with their units. No effects, no Dagster, no
configuration (that is `config.py`), and nothing that only one module needs. All durations are seconds, all sizes bytes, all
times UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args
from urllib.parse import unquote

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "crashed", "timeout", "not_run"]
"""How one attempt ended."""

Verdict = Literal["passed", "failed", "flaky", "skipped", "xfailed", "xpassed", "infra", "not_run"]
"""What all attempts of a test in one build amount to."""

Trigger = Literal["nightly", "intraday", "main", "pr", "manual"]
"""What asked for a revision to be tested."""

BAZEL_SUITE = "bazel"
"""The suite of the source build's tests; a test of it is `<label>::…`."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FAILING_OUTCOMES: frozenset[Outcome] = frozenset({"failed", "error", "crashed", "timeout"})
BAD_VERDICTS: tuple[Verdict, ...] = ("failed", "flaky", "infra", "not_run")
"""The verdicts that somebody has to look at; all but `flaky` keep a build from passing."""


@dataclass(frozen=True)
class Source:
    """The exact state of one repository.

    `sha` is the commit, `None` when the remote could not be asked (then `note` says why). `tree` is the git tree of
    `subdirectory` and is known for local checkouts alone; `dirty` says that the tree holds changes that no commit has.
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
        """A PEP 440 local version label that names this state: `g<sha12>`, and `.d<tree12>` for uncommitted changes."""
        if self.sha is None:
            return "unknown"
        label = f"g{self.sha[:12]}"
        return f"{label}.d{self.tree[:12]}" if self.dirty and self.tree else label


@dataclass(frozen=True)
class Revision:
    """The source states that are tested together, and what asked for it."""

    key: str
    trigger: Trigger
    created_at: datetime
    backend: Source
    upstream: Source

    @property
    def sources(self) -> tuple[Source, str | None]:
        """What makes two revisions the same: the backend's state and upstream's commit."""
        return self.backend, self.upstream.sha


@dataclass(frozen=True)
class Build:
    """Revision × variant: what is built, tested, shown and released."""

    revision: str
    variant: str

    @property
    def name(self) -> str:
        """`<revision>~<variant>`: how a build is written in file names, on the command line and in links."""
        return f"{self.revision}~{self.variant}"


@dataclass(frozen=True)
class Artifact:
    """A large thing in the artifact store, by address and digest."""

    uri: str
    sha256: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The file's name."""
        return unquote(self.uri.rpartition("/")[2])


@dataclass(frozen=True)
class CheckResult:
    """What one check of a wheel or an image found; `findings` has a line per fault."""

    name: str
    passed: bool
    summary: str
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wheel:
    """A built wheel with its sdist, and what the checks said of it. `work_s` is 0 when an earlier build was reused.

    `companions` are the other wheels of the backend. `repository` and `source` (a commit, None for what no commit has) say
    what it was built from, `patches` what was changed in it, `built_in` the builder: an image by digest, or `host`.
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

    @property
    def wheels(self) -> tuple[Artifact, ...]:
        """All wheels of the backend, the companions first: the plugin needs its runtime."""
        return (*self.companions, self.wheel)


@dataclass(frozen=True)
class ImageLayer:
    """A layer of a Docker image: the instruction that made it, shortened, and its size unpacked."""

    made_by: str
    size_bytes: int


@dataclass(frozen=True)
class ContainerImage:
    """One target of a Docker image. `id` is the engine's; `reference` is what `docker run` takes: by digest once pushed."""

    target: Literal["development", "runtime"]
    id: str
    reference: str
    size_bytes: int
    layers: tuple[ImageLayer, ...]


@dataclass(frozen=True)
class RuntimeImage:
    """Where tests run: a virtual environment, or a Docker image, with the wheel, PyTorch and what the tests need.

    `python` is its interpreter, `digest` names its exact content (wheel digest + every installed package), and
    `torch_sha` is the upstream commit that the installed PyTorch was built from. `sbom` is a CycloneDX document. Of a Docker
    image, `containers` are the targets, `cached_steps` and `steps` count what the engine had and all that there was to do.
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

    def container(self, target: str) -> ContainerImage | None:
        """The target of that name; None where the image has none."""
        return next((each for each in self.containers if each.target == target), None)


@dataclass(frozen=True)
class SelectedTest:
    """A test that is in scope: its suite and its pytest node id, relative to the root of the backend's sources."""

    suite: str
    test: str

    @property
    def file(self) -> str:
        """The file that pytest collects it from."""
        return self.test.split("::", 1)[0]


@dataclass(frozen=True)
class SuiteSelection:
    """What was collected for a suite, and what the scope rules left out, counted by reason."""

    suite: str
    collected: int
    selected: int
    out_of_scope: dict[str, int]
    collection_errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class TestSelection:
    """The tests in scope of a build; `tests` is a JSON artifact: a list of `SelectedTest`."""

    __test__ = False

    tests: Artifact
    suites: tuple[SuiteSelection, ...]
    work_s: float

    @property
    def collected(self) -> int:
        """Tests collected in all suites."""
        return sum(suite.collected for suite in self.suites)

    @property
    def selected(self) -> int:
        """Tests in scope in all suites."""
        return sum(suite.selected for suite in self.suites)


@dataclass(frozen=True)
class Limits:
    """Limits in seconds.

    `test_timeout_s` is for one test with its fixtures, `silence_s` for a pytest that neither prints nor reports,
    `startup_s` for a pytest's start and for the collection of a file, `probe_timeout_s` for a health probe.
    """

    test_timeout_s: float = 60
    silence_s: float = 300
    startup_s: float = 300
    probe_timeout_s: float = 120


@dataclass(frozen=True)
class WorkerSpec:
    """How a worker is started.

    `python` is the interpreter of the runtime image, `root` the folder that node ids are relative to. `environment` is
    all that a worker and its tests see (`accel_ci.pool.environment.clean_environment` makes it); `card_environment`
    names the variable that tells a process its card. `image` is the Docker image that a pool of containers runs, where the
    pool has none of its own. `probe` is the argv of the health probe, empty for none, where a
    first word `python` stands for the worker's interpreter. `pytest_args` go to every pytest.
    """

    python: str
    root: str
    environment: Mapping[str, str]
    card_environment: str
    probe: tuple[str, ...] = ()
    pytest_args: tuple[str, ...] = ()
    image: str | None = None


@dataclass(frozen=True)
class Batch:
    """Tests of one file that a worker claims and runs together.

    `avoid_cards` names cards that must not run it while another healthy card can (a retry goes to another card). `cards` is
    how many a worker must hold to run it; of several, `avoid_cards` names groups as workers hold them (`0,1`).
    """

    id: str
    suite: str
    file: str
    tests: tuple[str, ...]
    estimate_s: float
    avoid_cards: tuple[str, ...] = ()
    cards: int = 1


@dataclass(frozen=True)
class TestPlan:
    """How the selected tests are spread; `batches` is a JSON artifact: the `Plan` of `plan.guided`.

    `lower_bound_s` = max(longest test, sum of estimates / cards): no schedule ends earlier. `unknown` counts tests
    without a recorded duration, which are estimated by the median of their file, else of their suite. `predicted_s` is the
    makespan that is expected, None in plans of earlier versions.
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


@dataclass(frozen=True)
class Attempt:
    """One execution of one test.

    `round` counts from 1. `infra` holds the pool's word when the attempt's failure is the infrastructure's (an
    unhealthy card), else None. `started_at` is None when the test never began. `cached` says that the attempt was not made
    in this build: an earlier one's result stands for it.
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
    """What a card did in a build, alone or with others, and how its last health probe went."""

    card: str
    healthy: bool
    reason: str | None
    attempts: int
    busy_s: float
    setup_s: float


@dataclass(frozen=True)
class RoundReport:
    """One pass of workers over a plan. `lower_bound_s` is of the measured durations and the cards that took part."""

    round: int
    tests: int
    cards: int
    makespan_s: float
    lower_bound_s: float


@dataclass(frozen=True)
class DeviceTestResults:
    """All attempts of the suites of a stage.

    The attempts are rows of the results store: `digest` names their content. `expected` is a JSON artifact, a list of
    `SelectedTest`.
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

    @property
    def mean_setup_s(self) -> float | None:
        """What a card that ran tests spent on set-up and collection on average; None when none did."""
        spent = [card.setup_s for card in self.cards if card.attempts]
        return sum(spent) / len(spent) if spent else None


@dataclass(frozen=True)
class SourceBuild:
    """The sources that Bazel builds, with the backend's patches applied.

    `workspace` is the folder of the Bazel workspace, `digest` names the sources and the patches; `patches` are the names of
    the series in order, `already_applied` those of them that the sources had already.
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
    """What became of a target: `status` is Bazel's word. `logs` are those of its attempts, the last one first.

    `message` is the compiler's for a target that failed to build.
    """

    label: str
    status: str
    cached: bool
    logs: tuple[Artifact, ...]
    message: str | None = None


@dataclass(frozen=True)
class BazelActions:
    """How much Bazel did: actions that ran, and those whose result was taken from its own or the remote cache."""

    created: int
    executed: int
    local_cache_hits: int
    remote_cache_hits: int


@dataclass(frozen=True)
class BazelTestResults:
    """All attempts of the tests of the source build, which are rows of the results store: `digest` names their content.

    `targets` is a JSON artifact: a list of `BazelTarget`. `events` and `log` are Bazel's own. `expected` counts the tests,
    `counts` the attempts by outcome. `infra` is the word on what was out of reach, `None` when nothing was.
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
    """A test's verdict in a build, with the last attempt's message where it did not pass."""

    __test__ = False

    suite: str
    test: str
    verdict: Verdict
    attempts: tuple[Outcome, ...]
    duration_s: float | None
    cards: tuple[str, ...]
    message: str | None


@dataclass(frozen=True)
class Ledger:
    """The account of a build: every expected test has exactly one verdict.

    `counts` has every verdict as a key and sums to `expected`. `digest` names the content of the attempts that were judged.
    `infra_attempts` counts attempts whose failure was the infrastructure's, also of tests that passed elsewhere.
    `unexpected` names tests that reported without being expected; `missing_suites` those that have not reported yet.
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
