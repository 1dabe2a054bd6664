"""Add up the events of workers: rows of attempts, the health of cards, and times. No effects but the callback."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from accel_ci.model import FAILING_OUTCOMES, OUTCOMES, Batch, CardReport, Outcome, RoundReport
from accel_ci.redaction import redact
from accel_ci.rounds.engine import cards_in, groups_of
from accel_ci.rounds.events import Event

TestKey = tuple[str, str]

OnProgress = Callable[[int, Mapping[Outcome, int]], None]
"""Called with the number of tests that have their first attempt since the last call, and all tests counted by their last
outcome."""

OnFailure = Callable[[TestKey], None]
"""Called with a test at each failing attempt, before it is known whether the card is to blame."""

_TYPES: dict[str, pa.DataType] = {
    "suite": pa.string(), "test": pa.string(), "round": pa.int32(), "outcome": pa.string(),
    "started_at": pa.timestamp("us", tz="UTC"), "duration_s": pa.float64(), "message": pa.string(),
    "output_tail": pa.string(), "card": pa.string(), "host": pa.string(), "worker": pa.string(), "infra": pa.string(),
}  # fmt: skip
ROWS = pa.schema(_TYPES)  # a row per attempt, in the order in which the driver read them; see `accel_ci.model.Attempt`
_UNFAILED = frozenset(OUTCOMES) - FAILING_OUTCOMES
_ENDED = _UNFAILED - {"not_run"}
_PASSED = frozenset[Outcome | None]({"passed", "xpassed"})
_CHUNK_ROWS = 1 << 15
_MOST_HOSTS = 4096
_DRIVER_CHARS = 100


@dataclass
class _Card:
    healthy: bool = True
    reason: str | None = None
    attempts: int = 0
    busy_s: float = 0.0
    setup_s: float = 0.0


@dataclass
class _Round:
    tests: int = 0
    work_s: float = 0.0  # of all cards
    longest_s: float = 0.0
    cards: set[str] = field(default_factory=set)


@dataclass
class _Worker:
    """A worker by its own account. `heard` is the driver's clock at its last event, None before the first one."""

    card: str | None = None
    host: str | None = None
    attempts: int = 0
    running: Event | None = None  # the start of the test that it runs, or was running when its child ended
    testing: bool = False  # a child runs that test
    idle: bool = False  # it waits for a batch
    heard: float | None = None


class Tally:
    """Takes the events of all workers of a run, those of one card in the order in which they happened."""

    def __init__(
        self, cards: Sequence[str], batches: Sequence[Batch], on_progress: OnProgress, on_failure: OnFailure | None = None
    ) -> None:
        """Start with all cards taken for healthy, and no attempt of the tests in `batches`."""
        self._on_failure = on_failure
        self.last_attempt = self.last_event = time.monotonic()
        self.attempts = self.carried_over = 0
        self.lost: list[str] = []  # a line for each worker that ended as it should not have
        self.drivers: dict[str, str] = {}  # by host, the version that a probe printed last
        self.failure_durations: dict[TestKey, float] = {}  # the seconds of the last timed failure of each test
        self._cards = {card: _Card() for card in cards}
        self._doubtful: defaultdict[str, list[int]] = defaultdict(list)  # failing attempts since the last healthy probe
        self._on_progress = on_progress
        self._last: defaultdict[str, dict[str, int]] = defaultdict(dict)  # suite to test to `_code` of its last attempt
        for batch in batches:
            self._last[batch.suite].update(dict.fromkeys(batch.tests, 0))
        self._failed_on: defaultdict[TestKey, set[str]] = defaultdict(set)
        self._unproved: set[TestKey] = set()  # tests that have not passed since they failed or were not found
        self._tries: dict[TestKey, tuple[int, int]] = {}  # the failures and the passes of tests that have failed
        self._dependent: set[TestKey] = set()  # tests that were skipped when they ran again
        self._worker_numbers: dict[tuple[int, str, str], int] = {}  # by round, phase and worker
        self._counts: Counter[Outcome] = Counter()
        self._rounds: defaultdict[int, _Round] = defaultdict(_Round)
        self._workers: defaultdict[tuple[str, str], _Worker] = defaultdict(_Worker)
        self._spans: dict[tuple[str, str], tuple[datetime, datetime]] = {}
        self._chunks: list[pa.RecordBatch] = []
        self._pending: dict[str, list[Any]] = {name: [] for name in ROWS.names}
        self._infra: dict[int, str] = {}  # by row

    def take(self, round_number: int, worker: str, card: str | None, events: Sequence[Event], phase: str = "") -> None:
        """Take in more events of a worker, which are in order.

        A test may have several attempts in a round: those that a plug-in of pytest makes in one session count all. Of those
        that another worker makes, since the first one was lost, only failures count.

        `card` is the worker's card or group of cards, None where only the worker's own events name it. `phase` tells apart
        workers that have one name in different parts of the round.
        """
        if not events:
            return
        self.last_event = time.monotonic()
        span = phase, worker.partition("-")[0]
        first, last = self._spans.get(span, (events[0].at, events[-1].at))
        self._spans[span] = min(first, events[0].at), max(last, events[-1].at)
        number = self._worker_numbers.setdefault((round_number, phase, worker), len(self._worker_numbers))
        codes: dict[str | None, int] = {outcome: _code(round_number, number, outcome) for outcome in OUTCOMES}
        known = self._workers[phase, worker]
        known.heard = self.last_event
        fresh: list[Event] = []
        first_attempts = tests_of_round = 0
        for event in events:
            kind = event.event
            if kind == "attempt":
                known.running, known.testing = None, False
                known.attempts += 1
                tests = self._last[event.suite or ""]
                test = event.test or ""
                before = tests.get(test, 0)
                if _round_in(before) == round_number and before >> _WORKER_BIT != number and event.outcome in _UNFAILED:
                    continue  # another worker has run it in this round
                tests_of_round += _round_in(before) != round_number
                tests[test] = codes.get(event.outcome, codes["error"])
                if before:
                    self._counts[OUTCOMES[before & 15]] -= 1
                else:
                    first_attempts += 1
                if event.outcome in _PASSED:
                    self._note_pass((event.suite or "", test))
                elif event.outcome == "not_run":
                    self._unproved.add((event.suite or "", test))
                    self._failed_on[event.suite or "", test].update(filter(None, (card or known.card,)))
                elif event.outcome not in _UNFAILED:
                    had_passed = bool(before) and OUTCOMES[before & 15] in _PASSED
                    self._note_failure(event, card or known.card, self.attempts + len(fresh), had_passed)
                elif event.outcome == "skipped" and before and (event.suite or "", test) in self._tries:
                    self._dependent.add((event.suite or "", test))
                fresh.append(event)
            elif kind == "started":
                known.running, known.testing = event, True
            elif kind == "child_ended":
                known.testing = False
            elif kind in ("claimed", "waiting"):
                known.idle = kind == "waiting"
            elif kind == "worker_started":
                known.card, known.host = event.card, event.host
            elif kind == "probe":
                self._take_probe(event, card or known.card, known.host)
            elif kind == "child_started":  # its set-up includes collection
                for one in self._of(card or known.card):
                    one.setup_s += event.setup_s or 0.0
        if fresh:
            self._add(round_number, worker, card or known.card, known.host, fresh, tests_of_round)
            self._on_progress(first_attempts, self._counts)

    def _of(self, card: str | None) -> list[_Card]:
        """The card of that name, or those of a group."""
        return [self._cards[name] for name in cards_in(card or "") if name in self._cards]

    def _note_pass(self, key: TestKey) -> None:
        self._unproved.discard(key)
        if (tries := self._tries.get(key)) is not None:
            self._tries[key] = tries[0], tries[1] + 1

    def _note_failure(self, event: Event, card: str | None, row: int, had_passed: bool) -> None:
        key = (event.suite or "", event.test or "")
        failures, passes = self._tries.get(key, (0, int(had_passed)))
        self._tries[key] = failures + 1, passes
        self._unproved.add(key)
        if self._on_failure is not None:
            self._on_failure(key)
        if event.duration_s is not None:
            self.failure_durations[key] = event.duration_s
        if card is not None:
            self._failed_on[key].add(card)
            self._doubtful[card].append(row)

    def _add(
        self, round_number: int, worker: str, card: str | None, host: str | None, attempts: list[Event], tests: int
    ) -> None:
        """Add attempts of one worker to the rows and to the sums of the round and of the worker's cards.

        `tests` of them are the first ones of their tests in the round.
        """
        self.last_attempt = time.monotonic()
        self.attempts += len(attempts)
        outcomes = [_outcome(event.outcome) for event in attempts]
        self._counts.update(outcomes)
        durations = [event.duration_s or 0.0 for event in attempts]
        busy_s, names = sum(durations), cards_in(card or "")
        mine = self._rounds[round_number]
        mine.tests += tests
        mine.work_s += busy_s * len(names)
        mine.longest_s = max(mine.longest_s, *durations)
        mine.cards.update(names)
        for one in self._of(card):
            one.attempts += len(attempts)
            one.busy_s += busy_s
        same = {"round": round_number, "card": card, "host": host, "worker": worker, "infra": None}
        for name, values in self._pending.items():
            if name in same:
                values += [same[name]] * len(attempts)
            else:
                values += outcomes if name == "outcome" else map(attrgetter(name), attempts)
        if len(self._pending["test"]) >= _CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Turn the rows that came in since the last time into Arrow's columns, which are small."""
        columns = {
            name: _moments(values) if name == "started_at" else pa.array(values, ROWS.field(name).type)
            for name, values in self._pending.items()
        }
        self._chunks.append(pa.RecordBatch.from_pydict(columns, schema=ROWS))
        self._pending = {name: [] for name in ROWS.names}

    def _take_probe(self, event: Event, name: str | None, host: str | None) -> None:
        """Take in a probe; one of a group counts for each of its cards, since it does not name the one at fault."""
        if host is not None and (driver := _shown(event.driver or "")) and len(self.drivers) < _MOST_HOSTS:
            self.drivers[host] = driver
        if name is None:
            return
        for card in self._of(name):
            card.healthy, card.reason = bool(event.healthy), event.reason
        doubtful = self._doubtful.pop(name, [])
        if not event.healthy:
            self._infra |= dict.fromkeys(doubtful, f"card {name} is unhealthy: {event.reason}")

    def running(self, phase: str, worker: str) -> Event | None:
        """The start of the test that a worker runs, or ran when it ended."""
        return self._workers[phase, worker].running

    def is_testing(self, phase: str, worker: str) -> bool:
        """True from the start of a test to its end or that of the child that runs it."""
        return self._workers[phase, worker].testing

    def attempts_of(self, phase: str, worker: str) -> int:
        """The number of attempts of a worker, those included that another worker has made before."""
        return self._workers[phase, worker].attempts

    def last_sign(self, phase: str, worker: str) -> float | None:
        """The monotonic time of a worker's last event, None for one that has written none or waits for a batch."""
        known = self._workers[phase, worker]
        return None if known.idle else known.heard

    def open_tests(self, batches: Iterable[Batch], round_number: int) -> set[TestKey]:
        """The tests of these batches that have no attempt in the round."""
        last = self._last
        return {
            (batch.suite, test)
            for batch in batches
            for test in batch.tests
            if _round_in(last[batch.suite].get(test, 0)) != round_number
        }

    def not_run(self, batches: Iterable[Batch]) -> Iterator[TestKey]:
        """The tests of these batches that have no attempt in any round."""
        for batch in batches:
            last = self._last[batch.suite]
            yield from ((batch.suite, test) for test in batch.tests if not last.get(test, 0))

    def to_retry(self, batch: Batch, number: int) -> list[str]:
        """The tests of a batch to run in round `number`: their last attempt failed or was `not_run`, or they have none."""
        last = self._last[batch.suite]
        codes = ((test, last.get(test, 0)) for test in batch.tests)
        return [test for test, code in codes if not code or (OUTCOMES[code & 15] not in _ENDED and _round_in(code) < number)]

    def skipped_after_failure(self, batch: Batch, number: int) -> list[str]:
        """The tests of a batch that failed or were not found, have not passed since, and were skipped before round `number`.

        They ran last then.
        """
        last, skipped = self._last[batch.suite], OUTCOMES.index("skipped")
        codes = ((test, last.get(test, 0)) for test in batch.tests if (batch.suite, test) in self._unproved)
        return [test for test, code in codes if code & 15 == skipped and _round_in(code) < number]

    def to_confirm(self, batch: Batch, number: int, *, in_order: bool) -> list[str]:
        """The tests of a batch that a try in round `number` decides: failed and passed, and a pass more makes them flaky.

        `in_order` chooses those that were skipped when they ran again, and so need the tests before them.
        """
        last = self._last[batch.suite]
        return [
            test
            for test in batch.tests
            if _round_in(last.get(test, 0)) < number
            and (tries := self._tries.get((batch.suite, test))) is not None
            and tries[1] > 0
            and tries[0] - tries[1] in (0, 1)
            and ((batch.suite, test) in self._dependent) == in_order
        ]

    def failed_on(self, test: TestKey) -> Collection[str]:
        """The cards, or groups of cards, on which attempts of the test failed or it could not be found."""
        return self._failed_on.get(test, ())

    def healthy(self) -> list[str]:
        """The cards that the last probe did not find unhealthy."""
        return [name for name, card in self._cards.items() if card.healthy]

    @contextmanager
    def keeping_health(self) -> Iterator[None]:
        """Keep what is known of the cards and their drivers: events that are taken in the block are old."""
        known = {name: (card.healthy, card.reason) for name, card in self._cards.items()}
        drivers = dict(self.drivers)
        yield
        self.drivers |= drivers
        for name, card in self._cards.items():
            card.healthy, card.reason = known[name]

    def groups(self, width: int) -> list[str]:
        """The healthy cards, in groups of `width` where that is more than one."""
        return groups_of(self.healthy(), width)

    def span_s(self, phase: str) -> float:
        """The seconds for which the workers of the phase wrote events, without the time between two drivers."""
        return sum((last - first).total_seconds() for (name, _), (first, last) in self._spans.items() if name == phase)

    def card_reports(self) -> tuple[CardReport, ...]:
        """A report for each card."""
        return tuple(CardReport(name, **vars(card)) for name, card in self._cards.items())

    def round_report(self, round_number: int, makespan_s: float) -> RoundReport:
        """The report of a round; its lower bound is of the measured durations and the cards that ran a test."""
        mine = self._rounds[round_number]
        bound_s = max(mine.longest_s, mine.work_s / max(1, len(mine.cards)))
        return RoundReport(round_number, mine.tests, len(mine.cards), makespan_s, bound_s)

    def rows(self) -> pa.Table:
        """All attempts (columns of `ROWS`), with `infra` set for failures on a card that was then found unhealthy."""
        self._flush()
        rows = pa.Table.from_batches(self._chunks, schema=ROWS)
        if not self._infra:
            return rows
        reasons = list(map(self._infra.get, range(len(rows))))
        return rows.set_column(ROWS.get_field_index("infra"), ROWS.field("infra"), pa.array(reasons, pa.string()))


_WORKER_BIT = 12  # the outcome has the 4 lowest bits of a code, the round the 8 above


def _code(round_number: int, worker_number: int, outcome: Outcome) -> int:
    """A test's last attempt as one number, which tests of one worker share."""
    return worker_number << _WORKER_BIT | round_number << 4 | OUTCOMES.index(outcome)


def _shown(driver: str) -> str:
    """A driver's version as it may be kept and shown: tests can write any."""
    return redact(" ".join("".join(each if each.isprintable() else " " for each in driver).split()))[:_DRIVER_CHARS]


def _round_in(code: int) -> int:
    return code >> 4 & 0xFF


def _outcome(text: str | None) -> Outcome:
    """The outcome that a worker wrote; `error` for anything else."""
    return text if text in OUTCOMES else "error"


def _moments(texts: list[str | None]) -> pa.Array[Any]:
    """ISO 8601 texts as times; null for one that is not."""
    kind = ROWS.field("started_at").type
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.concat_arrays([_moments([text]) for text in texts]) if len(texts) > 1 else pa.nulls(1, kind)
