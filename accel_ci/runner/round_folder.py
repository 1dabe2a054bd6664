"""The folder of one round as a worker sees it: where things are, the plan, and what is requeued.

    plan.json            limits and batches, written once by the driver
    claims/<batch id>    who runs a batch
    requeued/<n>.json   more batches of the same round, written by the driver
    round_over           the driver's word that nothing more will come
    workers/<worker>/    events.jsonl, log, alive (locked while the worker lives), child (process id of its pytest),
                         probe (what the last health probe printed)

Here belong names and reading. Writing a plan and reading events is the driver's part (`accel_ci.pool`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLAN = "plan.json"
CLAIMS = "claims"
REQUEUED = "requeued"
ROUND_OVER = "round_over"
WORKERS = "workers"
EVENTS = "events.jsonl"
EVENT_CHUNKS = "events"
LOG = "log"
ALIVE = "alive"
CHILD = "child"
PROBE = "probe"


@dataclass(frozen=True)
class PlannedBatch:
    """Tests of one file to run together; `urgent` ones are taken first whatever file a worker is at."""

    id: str
    suite: str
    file: str
    tests: tuple[str, ...]
    estimate_s: float
    avoid_cards: tuple[str, ...]
    urgent: bool


@dataclass(frozen=True)
class PlannedLimits:
    """Limits in seconds: of one test, of silence, of a child's start or a file's collection, and of a health probe."""

    test_timeout_s: float
    silence_s: float
    startup_s: float
    probe_timeout_s: float


@dataclass(frozen=True)
class RoundPlan:
    """What `plan.json` says."""

    round: int
    root: str
    pytest_args: tuple[str, ...]
    probe: tuple[str, ...]
    limits: PlannedLimits
    batches: tuple[PlannedBatch, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the plan, each once, in the order of the plan."""
        return tuple(dict.fromkeys(batch.file for batch in self.batches))


def batch_of(record: dict[str, Any]) -> PlannedBatch:
    """The batch that a record of a plan describes."""
    return PlannedBatch(
        id=record["id"],
        suite=record["suite"],
        file=record["file"],
        tests=tuple(record["tests"]),
        estimate_s=record["estimate_s"],
        avoid_cards=tuple(record["avoid_cards"]),
        urgent=record["urgent"],
    )


def read_plan(folder: Path) -> RoundPlan:
    """Read the round's plan; raises `OSError` or `ValueError` when there is none that can be read."""
    return plan_of(json.loads((folder / PLAN).read_text("utf-8")))


def plan_of(record: dict[str, Any]) -> RoundPlan:
    """The plan that a document describes; raises `ValueError`, `KeyError` or `TypeError` when it describes none."""
    return RoundPlan(
        round=record["round"],
        root=record["root"],
        pytest_args=tuple(record["pytest_args"]),
        probe=tuple(record["probe"]),
        limits=PlannedLimits(**record["limits"]),
        batches=tuple(map(batch_of, record["batches"])),
    )


class Requeued:
    """The batches that the driver hands on in the course of a round, each given out once."""

    def __init__(self, folder: Path) -> None:
        """Watch `requeued/` of the round's folder."""
        self._folder = folder / REQUEUED
        self._seen: set[str] = set()

    def fresh(self) -> list[PlannedBatch]:
        """The batches that came since the last call."""
        names = sorted({path.name for path in self._folder.glob("*.json")} - self._seen)
        self._seen.update(names)
        return [batch_of(record) for name in names for record in json.loads((self._folder / name).read_text("utf-8"))]


def is_over(folder: Path) -> bool:
    """Whether the driver said that the round is over."""
    return (folder / ROUND_OVER).exists()
