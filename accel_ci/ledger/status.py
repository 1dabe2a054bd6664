"""A build's status: its verdicts, where its time went, and what stopped it. From the manifests alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice

from accel_ci.errors import AccelCiError
from accel_ci.ledger.shortcomings import shortcomings
from accel_ci.model import Build, DeviceTestResults, Ledger, Verdict
from accel_ci.pipelines import DEVICE_TEST_RESULTS, LEDGER, next_stage, stages_of
from accel_ci.storage.manifests import ManifestStore


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

    @property
    def overhead_s(self) -> float | None:
        """Wall time less the time in builds, installations and tests."""
        return None if self.wall_s is None else round(self.wall_s - self.work_s, 3)

    def as_json(self) -> str:
        """The status for programs."""
        return json.dumps(
            {
                "build": self.build.name,
                "state": self.state,
                "verdicts": {"expected": self.expected, **self.counts} if self.expected is not None else None,
                "infra_attempts": self.infra_attempts,
                "wall_s": self.wall_s,
                "overhead_s": self.overhead_s,
                "makespan_s": self.makespan_s,
                "lower_bound_s": self.lower_bound_s,
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
    common = {
        "infra_attempts": 0,
        "cards": tuple(card.card for card in cards),
        "unhealthy_cards": tuple(f"{card.card} ({card.reason})" for card in cards if not card.healthy),
        "wall_s": manifests.wall_seconds(build),
        "work_s": round(work, 3),
    }
    if LEDGER not in made:
        begun = manifests.begun(build)
        state = f"stopped at {next_stage(made, begun, manifests.pipelines)}"
        return BuildStatus(build, state, False, None, {}, makespan_s=None, lower_bound_s=None, **common)
    ledger = manifests.read(paths[LEDGER], Ledger)
    common["infra_attempts"] = ledger.infra_attempts
    bad = shortcomings(ledger)
    return BuildStatus(
        build,
        ", ".join(bad) or "passed",
        not bad,
        ledger.expected,
        ledger.counts,
        makespan_s=round(ledger.makespan_s, 3),
        lower_bound_s=round(ledger.lower_bound_s, 3),
        **common,
    )
