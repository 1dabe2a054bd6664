"""How near plans come to the bound that no schedule beats: `python -m benchmarks.plan_simulation [NIGHT.json …] [--json]`.

The planner, the choice of a worker and what the driver hands on are the real ones; simulated are the clock, the cards and
the store of claims, which decides some time after a worker looked, so that workers race. A card that dies takes its running
test along. A night says what the planner may know and how long everything then takes (`benchmarks.nights`); without one,
small ones are drawn.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_ci.model import Batch, SelectedTest
from accel_ci.plan.guided import Plan, make_plan
from accel_ci.rounds.driver import lost_batches
from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch
from benchmarks.nights import Night, make_night

SUITE = "pytorch"
NOTICE_S = 2.0
"""After this time the driver has noticed that a card died."""

LONG_FILE_S = 600.0
"""PyTorch's continuous integration splits files that take longer than this."""

GOALS = {24: 1.03, 128: 1.03, 512: 1.05, 1024: 1.08, 2048: 1.08}
"""The mean ratio to the lower bound, by cards, of 200,000 tests in 900 files."""

DEATHS_COST = 0.03
"""How much the mean ratio may grow where cards die."""


@dataclass
class Outcome:
    """The result of a night: claims won and tried, and `collections`, the number of workers that ran a test."""

    makespan_s: float = 0.0
    claims: int = 0
    tried: int = 0
    collections: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """How often each test was run to its end."""


def names_of(night: Night) -> list[list[str]]:
    """The test ids of each file."""
    return [
        [f"test_{number:04}.py::test_{place}" for place in range(len(of_file))]
        for number, of_file in enumerate(night["files"])
    ]


def known_tests(night: Night) -> tuple[list[SelectedTest], dict[tuple[str, str], float]]:
    """All that a planner may know of the tests: which there are, and the recorded durations."""
    tests, durations = [], {}
    for names, recorded in zip(names_of(night), night["files"], strict=True):
        for name, duration in zip(names, recorded, strict=True):
            tests.append(SelectedTest(SUITE, name))
            if duration is not None:
                durations[SUITE, name] = duration
    return tests, durations


def plan_night(night: Night) -> Plan:
    """The real plan of a night."""
    tests, durations = known_tests(night)
    return make_plan(tests, durations, len(night["ready_s"]), collect_s=night["collect_s"])


def actual_durations(night: Night) -> dict[str, float]:
    """How long each test takes tonight."""
    return {
        name: duration
        for names, actual in zip(names_of(night), night["actual"], strict=True)
        for name, duration in zip(names, actual, strict=True)
    }


@dataclass
class _Worker:
    choice: Choice
    ready_s: float
    dies_s: float
    suite: str | None = None


class Simulation:
    """One night of a plan: workers claim, run and die by the clock of the night."""

    def __init__(self, night: Night, plan: Plan, publish_s: float = 0.0) -> None:
        """Prepare. Workers learn of the others' claims at once, or every `publish_s` seconds."""
        self.outcome = Outcome()
        self._claim_s, self._collect_s, self._publish_s = night["claim_s"], night["collect_s"], publish_s
        self._actual = actual_durations(night)
        self._batches = list(plan.batches)
        self._known = FreeBatches(_planned(batch, place < plan.urgent) for place, batch in enumerate(plan.batches))
        self._claimed: dict[str, str] = {}
        self._news: list[tuple[str, str]] = []
        self._living = {
            f"w{number}": _Worker(Choice(self._known, number), ready_s, math.inf if dies_s is None else dies_s)
            for number, (ready_s, dies_s) in enumerate(zip(night["ready_s"], night["dies_s"], strict=True))
        }
        self._idle: list[str] = []
        self._open = {(SUITE, test) for test in self._actual}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def run(self) -> Outcome:
        """Run to the end of the last test."""
        for name, worker in self._living.items():
            self._at(min(worker.ready_s, worker.dies_s), self._look, name)
        if self._publish_s:
            self._at(self._publish_s, self._publish)
        while self._events:
            self._now, _, what, about = heapq.heappop(self._events)
            what(*about)
        return self.outcome

    def _at(self, time_s: float, what: Callable[..., None], *about: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, what, about))

    def _look(self, name: str) -> None:
        """A worker chooses, and its claim is on its way."""
        worker = self._living[name]
        if worker.dies_s <= self._now:
            self._at(self._now + NOTICE_S, self._notice, name)
            return
        batch = worker.choice.next(worker.suite)
        if batch is None:
            self._idle.append(name)
        else:
            self._at(self._now + self._claim_s, self._claim, name, batch)

    def _claim(self, name: str, batch: PlannedBatch) -> None:
        """The store decides a claim; who wins runs the batch."""
        worker = self._living[name]
        won = batch.id not in self._claimed
        self.outcome.tried += 1
        worker.choice.record(batch, won)
        if not won:
            self._look(name)
            return
        self.outcome.claims += 1
        self._claimed[batch.id] = name
        self._news.append((batch.id, name))
        if not self._publish_s:
            self._publish()
        clock = self._now
        if worker.suite is None:
            worker.suite = batch.suite
            self.outcome.collections += 1
            clock += self._collect_s
        for test in batch.tests:
            clock += self._actual[test]
            if clock > worker.dies_s:
                break
            self._open.discard((SUITE, test))
            self.outcome.ended[test] += 1
            self.outcome.makespan_s = max(self.outcome.makespan_s, clock)
        self._at(min(clock, worker.dies_s), self._look, name)

    def _publish(self) -> None:
        """All workers learn of the claims so far; those that had nothing to claim look again."""
        for batch, owner in self._news:
            self._known.remove(batch, owner)
        if self._publish_s:
            if self._news:
                self._wake()
            if self._events:
                self._at(self._now + self._publish_s, self._publish)
        self._news.clear()

    def _notice(self, name: str) -> None:
        """The driver hands on what a dead worker had."""
        del self._living[name]
        fresh = lost_batches(self._batches, self._claimed, self._open, {worker: worker for worker in self._living})
        for batch in fresh:
            self._number += 1
            requeued = replace(batch, id=f"h{self._number}")
            self._batches.append(requeued)
            self._known.add([_planned(requeued, True)])
        if fresh:
            self._wake()

    def _wake(self) -> None:
        idle, self._idle = self._idle, []
        for name in idle:
            self._look(name)


def _planned(batch: Batch, urgent: bool) -> PlannedBatch:
    return PlannedBatch(batch.id, batch.suite, batch.file, batch.tests, batch.estimate_s, batch.avoid_cards, urgent)


# --- the rules of others, on the same nights ------------------------------------------------------------------------


def run_shards(night: Night, shards: Sequence[Sequence[str]]) -> Outcome:
    """Run tests that were dealt out beforehand, a list for each card; what a card leaves when it dies, nobody runs."""
    outcome, actual = Outcome(), actual_durations(night)
    for tests, ready_s, dies_s in zip(shards, night["ready_s"], night["dies_s"], strict=True):
        clock = ready_s + night["collect_s"]
        for test in tests:
            clock += actual[test]
            if dies_s is not None and clock > dies_s:
                break
            outcome.ended[test] += 1
            outcome.makespan_s = max(outcome.makespan_s, clock)
        outcome.collections += bool(tests)
    return outcome


def deal(groups: Mapping[int, Sequence[str]], estimate_s: Mapping[int, float], cards: int) -> list[list[str]]:
    """Groups of tests, longest first, each to the card with the least so far; a card keeps the order of the groups."""
    least = [(0.0, card) for card in range(cards)]
    of_card: list[list[int]] = [[] for _ in range(cards)]
    for group in sorted(groups, key=lambda group: -estimate_s[group]):
        total_s, card = least[0]
        of_card[card].append(group)
        heapq.heapreplace(least, (total_s + estimate_s[group], card))
    return [[test for group in sorted(of_groups) for test in groups[group]] for of_groups in of_card]


def longest_first(night: Night) -> Outcome:
    """Our batches, dealt out beforehand."""
    batches = dict(enumerate(plan_night(night).batches))
    groups = {number: batch.tests for number, batch in batches.items()}
    estimate_s = {number: batch.estimate_s for number, batch in batches.items()}
    return run_shards(night, deal(groups, estimate_s, len(night["ready_s"])))


def least_duration(night: Night) -> Outcome:
    """pytest-split's `least_duration`: single tests, one without a record taken for an average one."""
    tests, durations = known_tests(night)
    average_s = statistics.fmean(durations.values())
    groups = {number: (test.test,) for number, test in enumerate(tests)}
    estimate_s = {number: durations.get((SUITE, test.test), average_s) for number, test in enumerate(tests)}
    return run_shards(night, deal(groups, estimate_s, len(night["ready_s"])))


def pytorch_shards(night: Night) -> Outcome:
    """PyTorch's `calculate_shards`: whole files, and of those over ten minutes parts by the hash of a test's name."""
    groups: dict[int, list[str]] = {}
    estimate_s: dict[int, float] = {}
    for names, recorded in zip(names_of(night), night["files"], strict=True):
        total_s = sum(duration for duration in recorded if duration is not None)
        parts, first = max(1, math.ceil(total_s / LONG_FILE_S)), len(groups)
        for part in range(first, first + parts):
            groups[part], estimate_s[part] = [], total_s / parts
        for name in names:
            groups[first + int(hashlib.sha256(name.encode()).hexdigest(), 16) % parts].append(name)
    return run_shards(night, deal(groups, estimate_s, len(night["ready_s"])))


def careless(night: Night) -> Outcome:
    """Our batches and claims, but by what files take on average, as if no test were long or never seen."""
    tests, durations = known_tests(night)
    everything_s = statistics.fmean(durations.values())
    of_file = {
        names[0].partition("::")[0]: statistics.fmean([value for value in recorded if value is not None] or [everything_s])
        for names, recorded in zip(names_of(night), night["files"], strict=True)
    }
    means = {(test.suite, test.test): of_file[test.file] for test in tests}
    return Simulation(night, make_plan(tests, means, len(night["ready_s"]), collect_s=night["collect_s"])).run()


PEERS: dict[str, Callable[[Night], Outcome]] = {
    "static longest-first": longest_first,
    "PyTorch's calculate_shards": pytorch_shards,
    "pytest-split's least_duration": least_duration,
    "file affinity alone": careless,
}
OURS = "accel_ci"


# --- the command ----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print and give an exit code: 1 when a test was lost or, with --check, a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_simulation", description=__doc__)
    parser.add_argument("nights", nargs="*", type=Path, metavar="NIGHT.json", help="default: small nights, drawn here")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--peers", action="store_true", help="the rules of others beside ours")
    parser.add_argument("--publish-s", type=float, default=0.0, help="workers learn of claims that often (default: at once)")
    parser.add_argument(
        "--check", action="store_true", help="hold the means against the goals; give nights with and without deaths apart"
    )
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    try:
        for name, night in _nights(options.nights):
            rows.append(_row(name, OURS, night, Simulation(night, plan_night(night), options.publish_s).run()))
            if options.peers:
                rows += [_row(name, rule, night, run(night)) for rule, run in PEERS.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"not a night: {error}; `benchmarks/nights.py` says what one holds")
    means = _means(rows)
    missed = [f"{row['night']}: {row['lost_tests']} tests lost" for row in rows if row["rule"] == OURS and row["lost_tests"]]
    if options.check:
        missed += _missed(means)
    if options.json:
        print(json.dumps({"nights": rows, "means": means, "missed": missed}))  # noqa: T201
    else:
        _print("nights", rows)
        _print("means", means)
        Console().print("\n".join(missed), markup=False)
    return int(bool(missed))


def _nights(paths: Sequence[Path]) -> Iterator[tuple[str, Night]]:
    for path in paths:
        yield path.stem, json.loads(path.read_text("utf-8"))
    if not paths:
        for cards in (8, 64, 256):
            for deaths in (0.0, 0.02):
                for seed in (1, 2):
                    yield f"{cards} cards, deaths {deaths:g}, seed {seed}", make_night(seed=seed, cards=cards, deaths=deaths)


def _row(name: str, rule: str, night: Night, outcome: Outcome) -> dict[str, Any]:
    return {
        "night": name,
        "rule": rule,
        "cards": len(night["ready_s"]),
        "deaths": sum(dies_s is not None for dies_s in night["dies_s"]),
        "makespan_s": round(outcome.makespan_s, 1),
        "lower_bound_s": round(night["lower_bound_s"], 1),
        "ratio": round(outcome.makespan_s / night["lower_bound_s"], 4),
        "claims": outcome.claims,
        "tried": outcome.tried,
        "collections": outcome.collections,
        "lost_tests": sum(map(len, night["files"])) - len(outcome.ended),
        "run_twice": sum(times > 1 for times in outcome.ended.values()),
    }


def _means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the nights that have the same number of cards."""
    groups: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["rule"], row["cards"]].append(row)
    return [
        {
            "rule": rule,
            "cards": cards,
            "nights": len(group),
            "deaths": sum(row["deaths"] for row in group),
            "ratio": round(statistics.fmean(row["ratio"] for row in group), 4),
            "claims": round(statistics.fmean(row["claims"] for row in group)),
            "tries_per_claim": round(sum(row["tried"] for row in group) / max(1, sum(row["claims"] for row in group)), 2),
            "lost_tests": sum(row["lost_tests"] for row in group),
        }
        for (rule, cards), group in sorted(groups.items(), key=lambda entry: entry[0][1])
    ]


def _missed(means: Sequence[dict[str, Any]]) -> list[str]:
    missed = []
    for row in means:
        goal = GOALS.get(row["cards"], math.inf) + (DEATHS_COST if row["deaths"] else 0.0)
        if row["rule"] == OURS and row["ratio"] > goal:
            missed.append(f"{row['cards']} cards: {row['ratio']}, the goal is {goal:.2f}")
    return missed


def _print(title: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name in ("night", "rule") else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if type(value) in (int, float) else str(value) for value in row.values()))
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
