"""The folder of one round: the names of its files, the plan, and the requeued batches.

    plan.json            limits and batches
    claims/<batch id>    the name of the worker that runs the batch
    requeued/<n>.json    more batches of the same round
    charged/<n>.json     attempts that the driver charges to the tests that lost workers were running
    round_over           there will be no more batches
    workers/<worker>/    events.jsonl, log, alive (locked while the worker lives)
    rooms/<worker>/      the worker's own: scratch files of its pytest, output of the last health probe

All of it is written by the driver alone, except for the rooms: whatever is in one may be a test's doing, so the driver reads
nothing there. The driver's side is in `accel_ci.rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PLAN = "plan.json"
CLAIMS = "claims"
REQUEUED = "requeued"
CHARGED = "charged"
ROUND_OVER = "round_over"
WORKERS = "workers"
EVENTS = "events.jsonl"
EVENT_CHUNKS = "events"
LOG = "log"
ALIVE = "alive"
ROOMS = "rooms"
PROBE = "probe"


@dataclass(frozen=True)
class PlannedBatch:
    """Tests of one file or group to run together; workers take `urgent` batches first, whatever file they are at."""

    id: str
    suite: str
    file: str
    tests: tuple[str, ...]
    estimate_s: float
    avoid_cards: tuple[str, ...]
    urgent: bool

    @property
    def files(self) -> tuple[str, ...]:
        """The files of its tests: several where it is a group's."""
        return tuple(dict.fromkeys(map(file_of, self.tests)))


def file_of(test: str) -> str:
    """Return the file of a node id."""
    return test.partition("::")[0]


@dataclass(frozen=True)
class SuiteArguments:
    """The arguments of a suite's pytest: paths relative to the root, and options; with `copies`, it may be forked.

    With `isolate`, each file has its own process, since a test can do anything to others in its process. `modes` say what is
    expected of some tests (`test_modes.py`). `environment` is added to the worker's, and `test_timeout_s` replaces the limit
    of all suites.
    """

    paths: tuple[str, ...]
    pytest_args: tuple[str, ...]
    copies: bool = True
    isolate: bool = False
    modes: tuple[dict[str, Any], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    test_timeout_s: float | None = None


@dataclass(frozen=True)
class TimeLimits:
    """Limits in seconds: for one test, for silence, for a child's start or a file's collection, and for a health probe."""

    test_timeout_s: float
    silence_s: float
    startup_s: float
    probe_timeout_s: float


@dataclass(frozen=True)
class RoundPlan:
    """The content of `plan.json`; `suites` has the arguments of each suite's pytest."""

    round: int
    root: str
    suites: dict[str, SuiteArguments]
    probe: tuple[str, ...]
    limits: TimeLimits
    batches: tuple[PlannedBatch, ...]


def batch_of(record: dict[str, Any]) -> PlannedBatch:
    """Read a batch from its record in a plan."""
    return PlannedBatch(
        record["id"], record["suite"], record["file"], tuple(record["tests"]), record["estimate_s"],
        tuple(record["avoid_cards"]), record["urgent"],
    )  # fmt: skip


def plan_of(record: dict[str, Any]) -> RoundPlan:
    """Read a plan from its document. Raises `ValueError`, `KeyError` or `TypeError` for another document."""
    batches = tuple(map(batch_of, record["batches"]))
    suites = {
        name: SuiteArguments(**{**given, **{key: tuple(given.get(key, ())) for key in ("paths", "pytest_args", "modes")}})
        for name, given in record["suites"].items()
    }
    files: dict[str, dict[str, None]] = {}
    for batch in batches:
        files.setdefault(batch.suite, {}).update(dict.fromkeys(batch.files))
    suites = {suite: suites.get(suite, SuiteArguments(tuple(files[suite]), ())) for suite in files}
    return RoundPlan(
        record["round"], record["root"], suites,
        tuple(record["probe"]), TimeLimits(**record["limits"]), batches,
    )  # fmt: skip
