"""The parts of the wall time of builds: the queue, each stage and the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accel_ci.hud.records import BuildRecord
from accel_ci.model import Build, Trigger, trigger_of_key

PARTS = ("queue", "wheel", "image", "smoke", "selection", "tests", "the rest")
"""The parts of a build's wall time. The rest is what the CI itself costs: starts of processes, reading and writing."""


@dataclass(frozen=True)
class Times:
    """A build's wall time in seconds, from the request to the end, and the seconds in a queue; None where unknown."""

    wall_s: float | None
    queue_s: float | None


@dataclass(frozen=True)
class BuildSpeed:
    """A build with the seconds of each of `PARTS`, which sum to `wall_s`.

    `ratio` is the makespan of the device tests without set-up over its lower bound; 1 is the best.
    """

    build: Build
    wall_s: float | None
    parts: dict[str, float]
    tests: int
    ratio: float | None

    @property
    def trigger(self) -> Trigger | None:
        """The trigger of the build."""
        return trigger_of_key(self.build.revision)

    def bar(self, longest_s: float) -> dict[str, tuple[float, float]]:
        """The parts of a bar in percent of the longest build: where each starts and how wide it is."""
        start, found = 0.0, {}
        for name, seconds in self.parts.items():
            width = 100 * seconds / longest_s if longest_s else 0.0
            found[name] = (round(start, 2), round(width, 2))
            start += width
        return found


@dataclass(frozen=True)
class SpeedPage:
    """The builds, the newest first."""

    builds: tuple[BuildSpeed, ...]

    @property
    def longest_s(self) -> float:
        """The seconds of the longest build."""
        return max((sum(build.parts.values()) for build in self.builds), default=0.0)


def make_speed(builds: Sequence[BuildSpeed]) -> SpeedPage:
    """Make the page of finished builds, in their order."""
    return SpeedPage(tuple(builds))


def speed_of(record: BuildRecord, times: Times) -> BuildSpeed:
    """Divide the wall time of a finished build into its parts."""
    device, smoke = record.device_test_results, record.smoke_results
    parts = {
        "queue": times.queue_s or 0.0,
        "wheel": record.wheel.work_s if record.wheel else 0.0,
        "image": record.runtime_image.work_s if record.runtime_image else 0.0,
        "smoke": smoke.work_s if smoke else 0.0,
        "selection": record.test_selection.work_s if record.test_selection else 0.0,
        "tests": device.work_s if device else 0.0,
    }
    parts["the rest"] = max(0.0, (times.wall_s or 0.0) - sum(parts.values()))
    ledger = record.ledger
    return BuildSpeed(
        record.build, times.wall_s, {name: round(seconds, 1) for name, seconds in parts.items()},
        ledger.expected if ledger else 0, device.ratio if device else None,
    )  # fmt: skip
