"""The pipelines: their stages, their jobs, and what each tests.

A new pipeline is an entry in `PIPELINES` and a module with its Dagster assets. Here belongs what is known of a pipeline
without running it. How its stages work is in `steps`, `rbe` and the packages below; its assets are in `defs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from accel_ci.model import BAZEL_SUITE, CONFIRM, Revision, Trigger

if TYPE_CHECKING:
    from accel_ci.config.settings import Confirm, CronJob, MainJob, PullRequestJob, Settings, Stage

REVISION = "revision"
"""The manifest that every pipeline begins with."""

LEDGER = "ledger"
"""The manifest that every pipeline ends in."""

STACK = "stack"
STACK_TEST_RESULTS = "stack_test_results"
WHEEL = "wheel"
RUNTIME_IMAGE = "runtime_image"
DEVICELESS_RESULTS = "deviceless_results"
SMOKE_RESULTS = "smoke_results"
TEST_SELECTION = "test_selection"
TEST_PLAN = "test_plan"
DEVICE_TEST_RESULTS = "device_test_results"
SOURCE_BUILD = "source_build"
BAZEL_TEST_RESULTS = "bazel_test_results"

STAGES_OF_SUITES: tuple[Stage, ...] = ("deviceless", "smoke", "device")
"""The phases in which a build's suites run, in order."""

STACK_SUITE = "stack:"
"""The beginning of the names of the suites of the stack's components, which no configured suite has."""


@dataclass(frozen=True)
class Job:
    """A Dagster job of a pipeline.

    `command` is its name in `accel-ci run`, in the section `jobs` and, with `_schedule`, of its schedule. The first of
    `triggers` is that of the revisions that it makes; each further one is a separate command.
    """

    name: str
    command: str
    triggers: tuple[Trigger, ...]
    settings: Callable[[Settings], CronJob | MainJob | PullRequestJob | Confirm | None]
    description: str
    skip_while_running: bool = False

    def variants(self, settings: Settings) -> tuple[str, ...]:
        """Return the names of the variants that the job builds: all, unless its settings name some."""
        own = self.settings(settings)
        return (own.variants if own else ()) or tuple(variant.name for variant in settings.variants)


@dataclass(frozen=True)
class OptionalStages:
    """Stages that come before the stage `before`, in configurations for which `configured` is true."""

    stages: tuple[str, ...]
    before: str
    configured: Callable[[Settings], bool]


@dataclass(frozen=True)
class Pipeline:
    """The stages that a build goes through between its revision and its ledger.

    `name` is also the Dagster group of its assets and, where it must be configured, the section of its settings. `stages`
    are its assets and their manifests, in order; `assets` names the function that makes them from a `Workspace`, as
    `module:function`. It has at most one job for each trigger. `suites` are those that a revision is tested with; `outline`,
    a line, is what a trigger asks for.
    A pipeline that `follows` tests the revision that the day's nightly has resolved, rather than a new one. Only some
    configurations have the stages `optional`.
    """

    name: str
    stages: tuple[str, ...]
    assets: str
    jobs: tuple[Job, ...]
    suites: Callable[[Settings, Revision], tuple[str, ...]]
    outline: Callable[[Settings, Trigger], str]
    configured: Callable[[Settings], bool] = lambda settings: True
    follows: bool = False
    optional: tuple[OptionalStages, ...] = ()

    @property
    def optional_stages(self) -> tuple[str, ...]:
        """The stages that only some configurations have."""
        return tuple(stage for one in self.optional for stage in one.stages)

    @property
    def first(self) -> str:
        """The first stage that the pipeline has in every configuration: the files of its runs are named after it."""
        return next(stage for stage in self.stages if stage not in self.optional_stages)

    @property
    def every_stage(self) -> tuple[str, ...]:
        """The stages with all optional ones, in order."""
        return self._with(self.optional)

    def as_configured(self, settings: Settings) -> Pipeline:
        """Return the pipeline with the optional stages that a configuration asks for."""
        stages = self._with(one for one in self.optional if one.configured(settings))
        return self if stages == self.stages else replace(self, stages=stages)

    def _with(self, chosen: Iterable[OptionalStages]) -> tuple[str, ...]:
        before = {one.before: one.stages for one in chosen}
        always = (stage for stage in self.stages if stage not in self.optional_stages)
        return tuple(each for stage in always for each in (*before.get(stage, ()), stage))

    def job_for(self, trigger: Trigger) -> Job:
        """Return the job that a trigger starts. Raises `KeyError`."""
        return {trigger: job for job in self.jobs for trigger in job.triggers}[trigger]

    def expected(self, settings: Settings, revision: Revision, variant: str) -> bool:
        """Return whether every such build has this pipeline, so that it is missed where it has not run.

        A pipeline that follows is expected where its job is enabled.
        """
        if not self.follows:
            return True
        jobs = [job for job in self.jobs if revision.trigger in job.triggers and variant in job.variants(settings)]
        return any(own.enabled for job in jobs if (own := job.settings(settings)) is not None)


def _integration_outline(settings: Settings, trigger: Trigger) -> str:
    deviceless, smoke, device = (", ".join(settings.suites_of(trigger, stage)) for stage in STAGES_OF_SUITES)
    of_change = {
        "all": "",
        "changed": ", the tests that its change may concern",
        "changed_first": ", those tests first that its change may concern",
    }
    chosen = of_change[settings.jobs.pr.tests] if trigger == "pr" else ""
    stack = f"stack [{', '.join(each.name for each in settings.stack.components)}], then " if settings.stack else ""
    without = f"[{deviceless}] without a card, then " if deviceless else ""
    return f"{stack}{without}smoke [{smoke}], then [{device}] on {settings.pool.cards} card(s){chosen}"


def _integration_suites(settings: Settings, revision: Revision) -> tuple[str, ...]:
    components = settings.stack.components if settings.stack is not None else ()
    return (
        *(f"{STACK_SUITE}{component.name}" for component in components if component.test),
        *(suite for stage in STAGES_OF_SUITES for suite in settings.suites_of(revision.trigger, stage, revision.suites)),
    )


def _rbe_outline(settings: Settings, trigger: Trigger) -> str:
    return f"bazel test {' '.join(settings.rbe.targets) if settings.rbe else 'nothing: there is no section rbe'}"


INTEGRATION = Pipeline(
    name="integration",
    stages=(WHEEL, RUNTIME_IMAGE, SMOKE_RESULTS, TEST_SELECTION, TEST_PLAN, DEVICE_TEST_RESULTS),
    assets="accel_ci.defs.integration:build_assets",
    jobs=(
        Job("nightly_integration", "nightly", ("nightly", "manual"), lambda settings: settings.jobs.nightly,
            "Everything in scope, once a night: wheel, runtime image, smoke, device tests, ledger, flakiness, HUD."),
        Job("intraday", "intraday", ("intraday",), lambda settings: settings.jobs.intraday,
            "The nightly's stages several times a day, on what is in scope by day; skipped while one still runs.",
            skip_while_running=True),
        Job("main", "main", ("main",), lambda settings: settings.jobs.main,
            "A new upstream commit starts it: the quick suites, one run for each commit that is tested."),
        Job("pr", "pr", ("pr",), lambda settings: settings.jobs.pr,
            "A pull request of the backend starts it; its result blocks nobody."),
        Job("sweep", "sweep", ("sweep",), lambda settings: settings.ramp.sweep if settings.has_sweep else None,
            "Tests that are not enabled, within a budget of card-hours: what passes can be enabled. It blocks nobody.",
            skip_while_running=True),
        Job(CONFIRM, CONFIRM, (CONFIRM,), lambda settings: settings.quality.confirm,
            "Failures of a build run again on its image, on other cards, where that tells most about their cause: within a "
            "budget of card-seconds. It blocks nobody."),
    ),
    suites=_integration_suites,
    outline=_integration_outline,
    optional=(
        OptionalStages((STACK, STACK_TEST_RESULTS), WHEEL, lambda settings: settings.stack is not None),
        OptionalStages((DEVICELESS_RESULTS,), SMOKE_RESULTS, lambda settings: settings.has_deviceless),
    ),
)  # fmt: skip
"""The wheel as a user would install it, in an image, tested on cards."""

RBE = Pipeline(
    name="rbe",
    stages=(SOURCE_BUILD, BAZEL_TEST_RESULTS),
    assets="accel_ci.defs.rbe:build_assets",
    jobs=(
        Job("nightly_rbe", "nightly_rbe", ("nightly",), lambda settings: settings.jobs.nightly_rbe,
            "The source build of the night's revision: sources, patches, Bazel's build and tests, ledger, flakiness, HUD."),
    ),
    suites=lambda settings, revision: (BAZEL_SUITE,),
    outline=_rbe_outline,
    configured=lambda settings: settings.rbe is not None,
    follows=True,
)  # fmt: skip
"""The backend's and upstream's sources, built and tested by Bazel with remote execution."""

PIPELINES = (INTEGRATION, RBE)
"""Every pipeline; the first is the one that a build without manifests begins with."""


def stages_of(pipelines: Sequence[Pipeline]) -> tuple[str, ...]:
    """Return all manifests that a build can have, in order, its ledger last."""
    found = dict.fromkeys(stage for pipeline in pipelines for stage in pipeline.every_stage)
    return (*found, LEDGER)


EVERY_STAGE = stages_of(PIPELINES)
"""All manifests that a build can have, in order."""

STAGES = tuple(stage for stage in EVERY_STAGE if not any(stage in pipeline.optional_stages for pipeline in PIPELINES))
"""Those that a build has in every configuration of its pipelines."""


def commands(pipelines: Sequence[Pipeline] = PIPELINES) -> dict[str, tuple[Pipeline, Trigger]]:
    """Return what `accel-ci run` can start: the pipeline and the trigger of each command."""
    return {
        job.command if trigger == job.triggers[0] else trigger: (pipeline, trigger)
        for pipeline in pipelines
        for job in pipeline.jobs
        for trigger in job.triggers
    }


def next_stage(present: Collection[str], begun: Collection[str] = (), pipelines: Sequence[Pipeline] = PIPELINES) -> str:
    """Return the stage that comes next in a build without a ledger.

    `present` are the manifests that it has, `begun` the first stages of the pipelines that have begun on it. It is the first
    missing stage of the pipelines that have begun, in the order of `pipelines`; where none has, of the first one.
    """
    started = [one for one in pipelines if one.first in begun or not set(one.stages).isdisjoint(present)]
    missing = [stage for one in started or pipelines[:1] for stage in one.stages if stage not in present]
    return missing[0] if missing else LEDGER
