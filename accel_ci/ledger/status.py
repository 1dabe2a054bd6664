"""A build's status: its verdicts, where its time went, and what stopped it. From the manifests alone.

The rules by which a build passes, and by which it has lost tests, belong here; they are pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, Build, DeviceTestResults, Ledger, Verdict
from accel_ci.pipelines import DEVICE_TEST_RESULTS, LEDGER, next_stage, stages_of
from accel_ci.storage.manifests import ManifestStore

ALLOWED_DROP = 0.05
"""The share of the collected tests that a build may lose without a reason."""

_NAMED = 3
"""So many of the tests that nobody expected are named in a build's state."""


@dataclass(frozen=True)
class BuildStatus:
    """A build in numbers.

    `wall_s` is the time from the request to the end, `work_s` the part of it that went into building, installing and
    testing, and `overhead_s` the rest, which is our own. All in seconds; None while they are not known.
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
    unexpected_failures: tuple[str, ...] = ()

    @property
    def overhead_s(self) -> float | None:
        """Wall time less the time in builds, installations and tests."""
        return None if self.wall_s is None else round(self.wall_s - self.work_s, 3)

    def as_json(self) -> str:
        """The status for programs."""
        numbers = ("infra_attempts", "wall_s", "overhead_s", "makespan_s", "lower_bound_s")
        return json.dumps(
            {
                "build": self.build.name,
                "state": self.state,
                "verdicts": {"expected": self.expected, **self.counts} if self.expected is not None else None,
                "unexpected_failures": self.unexpected_failures,
                **{name: getattr(self, name) for name in numbers},
            }
        )


def find_build(manifests: ManifestStore, name: str | None) -> Build:
    """The build of that name: `<revision>~<variant>` or a revision with one variant; without a name, the newest.

    Raises `AccelCiError` naming the known ones.
    """
    newest = list(islice(manifests.list_builds(), 8))
    if not newest:
        raise AccelCiError("nothing has been built yet; `accel-ci run nightly` makes the first build")
    if name is None:
        return newest[0]
    known = (build for key in {name, name.rpartition("~")[0]} - {""} for build in manifests.builds_of(key))
    matches = [build for build in known if name in (build.name, build.revision)]
    if len(matches) != 1:
        some = ", ".join(build.name for build in reversed(matches or newest))
        raise AccelCiError(f"{name!r} names {len(matches)} builds; {'choose of' if matches else 'the newest are'}: {some}")
    return matches[0]


def read_status(manifests: ManifestStore, build: Build) -> BuildStatus:
    """The status of a build."""
    paths = {stage: manifests.path(stage, build.revision, build.variant) for stage in stages_of(manifests.pipelines)}
    made = [stage for stage, path in paths.items() if path.is_file()]
    work = sum(json.loads(paths[stage].read_bytes()).get("work_s", 0.0) for stage in made)
    cards = manifests.read(paths[DEVICE_TEST_RESULTS], DeviceTestResults).cards if DEVICE_TEST_RESULTS in made else ()
    ledger = manifests.read(paths[LEDGER], Ledger) if LEDGER in made else None
    bad = shortcomings(ledger) if ledger else ()
    state = ", ".join(bad) or "passed"
    if ledger is None:
        last = manifests.last_begun(build)
        missing = [stage for stage in (last.stages if last else ()) if stage not in made]
        state = f"stopped at {missing[0] if missing else next_stage(made, manifests.begun(build), manifests.pipelines)}"
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
        unexpected_failures=ledger.unexpected_failures if ledger else (),
    )


def collected_drop(collected: int, previous: int | None, reason: str | None = None) -> str | None:
    """Report a number of collected tests that is too low against the variant's last build; None when it is not.

    A build may lose tests for a reason that somebody gave, or up to `ALLOWED_DROP`. A variant's first build (`previous`
    is None) has nothing to lose; a build that collects nothing is always wrong.
    """
    if collected <= 0:
        return "no tests were collected"
    if previous is None or reason or previous - collected <= previous * ALLOWED_DROP:
        return None
    share = (previous - collected) / previous
    return f"{collected} tests were collected, {share:.1%} fewer than the last build's {previous}; fix it, or give a reason"


def shortcomings(ledger: Ledger) -> tuple[str, ...]:
    """The reasons why a build does not pass, in a few words each; empty for one that passes.

    A build without tests, or with nothing but skips, never passes.
    """
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    bad = [
        f"{counts[verdict]:,} {verdict.replace('_', ' ')}" for verdict in ("failed", "infra", "not_run") if counts[verdict]
    ]
    if ledger.unexpected_failures:
        bad.append(f"failed beside the expected tests: {_some(ledger.unexpected_failures)}")
    if ledger.expected <= 0:
        bad.append("no tests")
    elif sum(counts.values()) != ledger.expected:
        bad.append("does not balance")
    elif counts["skipped"] == ledger.expected:
        bad.append("all skipped")
    if ledger.missing_suites:
        bad.append(f"no results from {', '.join(ledger.missing_suites)}")
    return tuple(bad)


def _some(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    return ", ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])])
