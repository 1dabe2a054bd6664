"""Admit the events of workers: only what a worker may report, about tests that it has claimed and started.

A worker runs tests, so whatever it writes may be a test's doing. The first event that cannot be true puts it in quarantine:
nothing after it counts. A test can lie about itself, and within one process about others in it; that cannot be seen here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from accel_ci.model import OUTCOMES, Batch
from accel_ci.rounds.events import QUARANTINED, Event, InvalidEvent
from accel_ci.runner.child_session import SESSION

_OF_STARTED = frozenset(OUTCOMES) - {"error", "skipped", "not_run"}  # outcomes that only a test which has started can have
_OF_SESSIONS = frozenset({"error", "crashed", "timeout"})


class Admission:
    """Admits the events of a round's workers.

    `quarantined` is worker to reason. `offences` has a line for each lie of tests that a worker has refused.
    """

    def __init__(self, claimed: Callable[[], Mapping[str, str]], batches: Callable[[], Iterable[Batch]]) -> None:
        """`claimed` returns the owners of batches by id, `batches` all batches that there are; both as of now."""
        self.quarantined: dict[str, str] = {}
        self.offences: list[str] = []
        self._claimed, self._batches = claimed, batches
        self._contents: dict[str, Batch] = {}
        self._known: set[str] = set()  # ids of claimed batches
        self._granted: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)  # worker to suites and tests
        self._suites: defaultdict[str, set[str]] = defaultdict(set)
        self._started: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    def admit(self, worker: str, events: Iterable[Event | InvalidEvent]) -> list[Event]:
        """Return the events of a worker up to the first one that cannot be true."""
        admitted: list[Event] = []
        if worker in self.quarantined:
            return admitted
        for event in events:
            if isinstance(event, InvalidEvent):
                self.quarantined[worker] = event.problem
            elif (problem := self._problem(worker, event)) is not None:
                self.quarantined[worker] = problem
            else:
                admitted.append(event)
                continue
            break
        return admitted

    def _problem(self, worker: str, event: Event) -> str | None:
        kind = event.event
        if kind == QUARANTINED:
            return event.reason or "the driver refused what it wrote"
        if kind == "offence":
            self.offences.append(f"worker {worker}: {event.test or event.suite}: {event.message}")
            return None
        if kind not in ("started", "attempt"):
            return None
        key = event.suite or "", event.test or ""
        if event.test == SESSION and kind == "attempt":
            if key[0] not in self._suites[worker]:
                self._refresh()
            if key[0] in self._suites[worker] and event.outcome in _OF_SESSIONS:
                return None
            return f"it wrote of a session that is not its own: {key[0]:.200} {event.outcome}"
        if key not in self._granted[worker]:
            self._refresh()
            if key not in self._granted[worker]:
                return f"it wrote about a test that is in none of its batches: {key[1]:.200}"
        if kind == "started":
            self._started[worker].add(key)
        elif event.outcome in _OF_STARTED and key not in self._started[worker]:
            return f"it wrote the outcome of a test that had not started: {key[1]:.200}"
        return None

    def _refresh(self) -> None:
        """Learn of new claims."""
        for name, owner in self._claimed().items():
            if name in self._known:
                continue
            if name not in self._contents:
                self._contents = {batch.id: batch for batch in self._batches()}
            batch = self._contents.get(name)
            if batch is None:
                continue
            self._known.add(name)
            self._suites[owner].add(batch.suite)
            self._granted[owner].update((batch.suite, test) for test in batch.tests)
