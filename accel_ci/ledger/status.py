"""A build's status: its verdicts, where its time went, and what stopped it. From the manifests alone.

The rules by which a build passes, and by which it has lost tests, belong here; they are pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from accel_ci.errors import AccelCiError
from accel_ci.ledger.activity import read_activity
from accel_ci.model import VERDICTS, Build, DeviceTestResults, Ledger, Outcome, TestSelection, Verdict
from accel_ci.pipelines import DEVICE_TEST_RESULTS, LEDGER, TEST_SELECTION, next_stage, stages_of
from accel_ci.storage.manifests import REPAIR, ManifestStore

ALLOWED_DROP = 0.05
"""The share of the collected tests that a build may lose without a reason."""

_NAMED = 3
"""So many of the tests that nobody expected are named in a build's state."""


@dataclass(frozen=True)
class BuildStatus:
    """A build in numbers.

    `wall_s` is the time from the request to the end of the last run of each pipeline, `work_s` the part of it that went into
    building, installing and testing, and `overhead_s` the rest, which is our own. `setup_s` is the part of the makespan for
    set-up: imports and collection, the mean of the cards. All in seconds. `ratio` is that of `DeviceTestResults`. None while
    not known. `subset` says which part of the enabled tests runs, None where no part was asked for. `muted` are the failed
    tests that gate nothing.
    """

    build: Build
    state: str
    passed: bool
    expected: int | None
    counts: dict[Verdict, int]
    infra_attempts: int
    cards: tuple[str, ...]
    unhealthy_cards: tuple[str, ...]
    wall_s: float | None
    work_s: float
    makespan_s: float | None
    lower_bound_s: float | None
    setup_s: float | None = None
    ratio: float | None = None
    unexpected_failures: tuple[str, ...] = ()
    subset: str | None = None
    muted: tuple[str, ...] = ()

    @property
    def overhead_s(self) -> float | None:
        """Wall time less the time in builds, installations and tests."""
        return None if self.wall_s is None else round(self.wall_s - self.work_s, 3)

    def as_json(self) -> str:
        """The status for programs."""
        numbers = ("infra_attempts", "wall_s", "overhead_s", "makespan_s", "setup_s", "lower_bound_s", "ratio")
        return json.dumps(
            {
                "build": self.build.name,
                "state": self.state,
                "verdicts": {"expected": self.expected, **self.counts} if self.expected is not None else None,
                "unexpected_failures": self.unexpected_failures,
                "muted": self.muted,
                "subset": self.subset,
                **{name: getattr(self, name) for name in numbers},
            }
        )


def find_build(manifests: ManifestStore, name: str | None, ingested: Callable[[], Sequence[Build]] = list) -> Build:
    """The build of that name: `<revision>~<variant>` or a revision with one variant; without a name, the newest.

    `ingested` lists builds of which only results are stored, the newest first; it is asked where no build that ran fits.
    Raises `AccelCiError` naming the known ones.
    """
    newest = list(islice(manifests.list_builds(), 8)) or list(ingested())[:8]
    if not newest:
        raise AccelCiError("nothing has been built yet; `accel-ci run nightly` makes the first build")
    if name is None:
        return newest[0]
    keys = {name, name.rpartition("~")[0]} - {""}
    known = [build for key in keys if manifests.has_revision(key) for build in manifests.builds_of(key)]
    matches = [build for build in known if name in (build.name, build.revision)]
    matches = matches or [build for build in ingested() if name in (build.name, build.revision)]
    if len(matches) != 1:
        some = ", ".join(build.name for build in reversed(matches or newest))
        raise AccelCiError(f"{name!r} names {len(matches)} builds; {'choose of' if matches else 'the newest are'}: {some}")
    return matches[0]


def read_status(manifests: ManifestStore, build: Build) -> BuildStatus:
    """The status of a build."""
    paths = {stage: manifests.path(stage, build.revision, build.variant) for stage in stages_of(manifests.pipelines)}
    made = [stage for stage, path in paths.items() if path.is_file()]
    seconds = {stage: _work_seconds(paths[stage]) for stage in made}
    work = sum(seconds[stage] or 0.0 for stage in made if _is_of_the_last_run(manifests, build, stage))
    tested = manifests.read_history(paths[DEVICE_TEST_RESULTS], DeviceTestResults)
    cards = tested.cards if tested else ()
    ledger = manifests.read_history(paths[LEDGER], Ledger)
    selection = manifests.read_history(paths[TEST_SELECTION], TestSelection)
    read = {DEVICE_TEST_RESULTS: tested, LEDGER: ledger, TEST_SELECTION: selection}
    damaged = [stage for stage in made if seconds[stage] is None or read.get(stage, True) is None]
    bad = shortcomings(ledger) if ledger else ()
    activity = read_activity(manifests, build)
    if ledger is not None:
        state = "; ".join([", ".join(bad) or "passed", *beside_the_ledger(activity)])
    else:
        last = manifests.last_begun(build)
        missing = [stage for stage in (last.stages if last else ()) if stage not in made]
        at = missing[0] if missing else next_stage(made, manifests.begun(build), manifests.pipelines)
        running = [does for does in activity.values() if does.startswith("running")]
        state = "; ".join(dict.fromkeys(running)) or (activity.get(last.name) if last else None) or f"stopped at {at}"
    if damaged:
        state = f"{state}; damaged: {', '.join(damaged)} ({REPAIR})"
    return BuildStatus(
        build,
        state,
        passed=ledger is not None and not bad,
        expected=ledger.expected if ledger else None,
        counts=ledger.counts if ledger else {},
        infra_attempts=ledger.infra_attempts if ledger else 0,
        cards=tuple(card.card for card in cards),
        unhealthy_cards=tuple(f"{card.card} ({card.reason})" for card in cards if not card.healthy),
        wall_s=manifests.wall_seconds(build),
        work_s=round(work, 3),
        makespan_s=round(ledger.makespan_s, 3) if ledger else None,
        lower_bound_s=round(ledger.lower_bound_s, 3) if ledger else None,
        setup_s=ledger.setup_s if ledger else None,
        ratio=ledger.ratio if ledger else None,
        unexpected_failures=ledger.unexpected_failures if ledger else (),
        muted=ledger.muted if ledger else (),
        subset=selection.subset.words if selection and selection.subset else None,
    )


def _is_of_the_last_run(manifests: ManifestStore, build: Build, stage: str) -> bool:
    """Return whether the last run of the stage's pipeline made its manifest, and did not take it over."""
    last = manifests.last_runs(build)
    own = [run for pipeline, run in last.items() if stage in pipeline.stages]
    return not last or any(run.began is None or stage in run.began for run in own)


def _work_seconds(manifest: Path) -> float | None:
    """The seconds of work that a manifest names; None when it is damaged."""
    try:
        return float(json.loads(manifest.read_bytes()).get("work_s", 0.0))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def beside_the_ledger(activity: Mapping[str, str]) -> list[str]:
    """Describe what pipelines do, or where they stopped, beside the result of earlier runs."""
    return [
        f"{pipeline} re-{does}" if does.startswith("running") else f"{pipeline} {does}"
        for pipeline, does in activity.items()
    ]


def collected_drop(collected: int, previous: int | None, reason: str | None = None, what: str = "collected") -> str | None:
    """Report a number of tests that is too low against the variant's last build; None when it is not.

    They are collected, or `what` says what they are. A build may lose tests for a reason that somebody gave, or up to
    `ALLOWED_DROP`. A variant's first build (`previous` is None) has nothing to lose; a build without tests is always wrong.
    """
    if collected <= 0:
        return f"no tests were {what}"
    if previous is None or reason or previous - collected <= previous * ALLOWED_DROP:
        return None
    share = (previous - collected) / previous
    return f"{collected} tests were {what}, {share:.1%} fewer than the last build's {previous}; fix it, or give a reason"


def shortcomings(ledger: Ledger) -> tuple[str, ...]:
    """The reasons why a build does not pass, in a few words each; empty for one that passes.

    A build without tests, or with nothing but skips, never passes, nor does one that tested too little
    (`accel_ci.ledger.completeness`). The tests of an informative build may fail, but none may be lost.
    """
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    gating = {**counts, "failed": counts["failed"] - len(ledger.muted)}
    bad = [
        f"{gating[verdict]:,} {verdict.replace('_', ' ')}"
        for verdict in ("failed", "infra", "not_run")
        if gating[verdict] and not (ledger.informative and verdict == "failed")
    ]
    if ledger.unexpected_failures and not ledger.informative:
        bad.append(f"failed beside the expected tests: {_some(ledger.unexpected_failures)}")
    if ledger.expected <= 0:
        bad.append("no tests")
    elif sum(counts.values()) != ledger.expected:
        bad.append("does not balance")
    elif counts["skipped"] == ledger.expected and not ledger.informative:
        bad.append("all skipped")
    if ledger.missing_suites:
        bad.append(f"no results from {', '.join(ledger.missing_suites)}")
    return (*bad, *(f"incomplete: {reason}" for reason in (*ledger.incomplete, *ledger.vanished_reasons)))


def deviceless_shortcoming(account: Ledger) -> str | None:
    """Say why the deviceless suites keep the others from beginning; None when all of their tests passed, or they have none.

    A test that is flaky or in quarantine keeps nothing.
    """
    return "; ".join(shortcomings(account)) or None if account.expected or account.missing_suites else None


def smoke_shortcoming(counts: Mapping[Outcome, int], expected: int, failures: int) -> str | None:
    """Say why the smoke stage keeps the device tests from beginning; None when each expected test passed or is excused.

    A skip and an expected failure are excuses, but something must pass. Nothing is expected of a job without smoke suites.
    """
    passed = sum(counts.get(outcome, 0) for outcome in ("passed", "xpassed"))
    excused = sum(counts.get(outcome, 0) for outcome in ("skipped", "xfailed"))
    if failures:
        return f"{failures} attempts failed"
    if passed + excused != expected:
        return f"{expected} tests were expected, and {passed} passed and {excused} were excused"
    return "no test passed" if expected and not passed else None


def _some(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    return ", ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])])
