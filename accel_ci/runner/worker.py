"""`work`: the supervisor of one card, which claims batches and has a pytest child run them.

It is the only writer of its events. Every test of a batch that it begins gets one attempt, whatever the child does: a
child that dies or hangs costs the test that was running, and a new child goes on with the rest. A card that its probe
finds unhealthy stops the worker at once; what it had claimed stays open for the driver to hand on.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import round_folder
from .choice import Choice, Waiting
from .ending import Termination, adopt_orphans, end_with_lock, end_with_parent, hide_memory
from .events import now
from .messages import bounded
from .probe import Health, Probe
from .pytest_child import PytestChild
from .round import FolderRound, Round, hold
from .round_folder import PlannedBatch

FAILING = frozenset({"failed", "error", "crashed", "timeout"})
_FIRST_PROBE_AFTER = 3
_POLL_S = 0.1
_GRACE_S = 2.0
_OUTPUT_KEPT = FAILING | {"xpassed", "not_run"}


class UnhealthyCardError(Exception):
    """The probe found the card unhealthy."""


@dataclass(frozen=True)
class _Running:
    test: str
    number: int
    since_s: float  # as the child's `observed_s`
    started_at: str


class Worker:
    """One worker: a card, a child at a time, and the batch that it runs."""

    def __init__(self, place: Round, parent: int | None, termination: Termination) -> None:
        """Prepare; nothing is started. `parent` is the process whose end is this worker's, None when there is none."""
        self._round, self._plan, self._claims, self._log = place, place.plan, place.claims, place.log
        self._worker, self._card, self._parent = place.worker, place.card, parent
        self._host, self._termination = place.host, termination
        self._waiting = Waiting(place.plan.batches, place.card)
        self._choice = Choice(self._waiting, place.rank)
        self._child: PytestChild | None = None
        self._own = place.own
        self._alone = False  # a child for the files of one batch at a time, after a start with all files failed
        self._broken: dict[str, str] = {}  # files for which no child starts
        self._sent: str | None = None  # the batch that the child has
        self._suite = ""  # of the batch that is run
        self._open: dict[str, None] = {}  # its tests without an attempt
        self._next: PlannedBatch | None = None  # claimed while another batch was ending
        self._running: _Running | None = None
        self._collecting: tuple[str, float] | None = None  # the file, and since when in the child's `observed_s`
        self._stopped: str | None = None  # why the session ended, in the child's words
        self._failures = 0
        self._probe_after = _FIRST_PROBE_AFTER
        self._background: Probe | None = None

    def run(self) -> str:
        """Work until nothing is left; gives back why the worker finished."""
        self._log.write(
            "worker_started", worker=self._worker, card=self._card, host=self._host, pid=os.getpid(),
            round=self._plan.round,
        )  # fmt: skip
        reason = "stopped"
        try:
            self._check_card()
            while (batch := self._next or self._wait_for_batch()) is not None:
                self._run_batch(batch)
            self._end_child(gently=True)
            self._check_card()
            reason = "done"
        except UnhealthyCardError:
            reason = "unhealthy_card"
        finally:
            self._end_child(heard_out=True)
            self._log.write("worker_finished", reason=reason)
        return reason

    # --- claims -------------------------------------------------------------------------------------------------

    def _claim(self) -> PlannedBatch | None:
        """Claim the best batch that is free now."""
        self._waiting.add(self._round.requeued())
        while True:
            self._waiting.learn(self._claims.taken())
            batch = self._choice.next(self._child.collected if self._child is not None else ())
            if batch is None:
                return None
            won = self._claims.take(batch.id)
            self._choice.note(batch, won)
            if won:
                self._log.write("claimed", batch=batch.id, tests=len(batch.tests))
                return batch

    def _wait_for_batch(self) -> PlannedBatch | None:
        """Claim a batch, waiting for one that is requeued; None when the round is over."""
        waiting = False
        while True:
            over = self._round.is_over()
            batch = self._claim()
            if batch is not None or over:
                return batch
            if not waiting:
                waiting = True
                self._log.write("waiting")
            if self._child is None:
                time.sleep(_POLL_S / 2)
            elif (message := self._child.receive(_POLL_S / 2)) is not None:
                self._take_aside(self._child, message)
            elif self._child.finished:
                self._end_child()
            self._mind_parent()

    # --- one batch ----------------------------------------------------------------------------------------------

    def _run_batch(self, batch: PlannedBatch) -> None:
        """Run a batch to its end: an attempt for each of its tests."""
        self._begin_batch(batch)
        deaths = 0  # of children that ran no test of the batch, in a row
        while self._open and batch.file not in self._broken:
            before = len(self._open)
            problem = self._ready_child(batch) or self._follow(batch)
            if len(self._open) < before:
                deaths = 0
                if problem is not None:
                    self._check_card()
            elif problem is not None:
                deaths += 1
                if deaths == 2:
                    self._broken[batch.file] = problem
        for test in list(self._open):
            self._attempt(test, "error", self._broken[batch.file])
        if deaths:
            self._check_card()

    def _begin_batch(self, batch: PlannedBatch) -> None:
        self._suite, self._open, self._next = batch.suite, dict.fromkeys(batch.tests), None

    def _ready_child(self, batch: PlannedBatch) -> str | None:
        """Have a child that can run the batch; gives back what went wrong, else None."""
        if self._child is not None and self._alone and self._child.files != (batch.file,):
            self._end_child(gently=True)
        if self._child is not None:
            return None
        files = (batch.file,) if self._alone else tuple(dict.fromkeys((*self._plan.files, batch.file)))
        self._child = child = PytestChild(self._plan.root, files, self._plan.pytest_args)
        (self._own / round_folder.CHILD).write_text(str(child.process.pid), "ascii")
        while True:
            message = child.receive(_POLL_S)
            if message is not None and message["kind"] == "ready":
                self._log.write("child_started", pid=child.process.pid, setup_s=child.observed_s, files=len(files))
                return None
            if message is not None:
                self._take_aside(child, message)
            elif child.finished:
                problem = f"pytest {child.ended_how()} before it could run a test"
                break
            elif child.observed_s > self._plan.limits.startup_s:
                problem = f"pytest was not ready within {self._plan.limits.startup_s:g} s"
                break
            self._mind_parent()
        stopped = self._stopped
        self._end_child(grace_s=_GRACE_S)
        self._alone = True
        return bounded(f"{problem}\n{stopped or child.output.of_test(None).strip()}")

    def _follow(self, batch: PlannedBatch) -> str | None:
        """Record what the child does until the batch is done or the child is gone; gives back what went wrong."""
        while self._open and (child := self._child) is not None:
            if child.wants and self._sent != batch.id:
                self._send(child, batch, self._open)
            with self._termination.undisturbed():  # else a message is lost between its receipt and its record
                message = child.receive(_POLL_S)
                if message is not None:
                    self._take(child, message)
            if message is None and (trouble := self._trouble(child)) is not None:
                self._lose(child, *trouble)
                return trouble[1]
            if message is not None and message["kind"] == "want" and self._sent == batch.id:
                self._send_next(child, batch)
            if self._card_is_doubtful():
                self._end_child()
                self._check_card()
            self._mind_parent()
        return None

    def _send_next(self, child: PytestChild, batch: PlannedBatch) -> None:
        """Answer a child that comes to the end of its batch."""
        self._next = self._claim()
        if self._next is not None and (not self._alone or self._next.file == batch.file):
            self._send(child, self._next, self._next.tests)
        else:
            child.send({"idle": True})

    def _send(self, child: PytestChild, batch: PlannedBatch, tests: Iterable[str]) -> None:
        child.wants = False
        self._sent = batch.id
        child.send({"file": batch.file, "tests": list(tests)})

    def _take(self, child: PytestChild, message: dict[str, Any]) -> None:
        """Record one message of the child that runs a batch."""
        kind = message["kind"]
        if kind == "start":
            self._running = _Running(message["test"], message["number"], child.observed_s, now())
            self._log.write("started", suite=self._suite, test=message["test"])
        elif kind == "result":
            number = self._running.number if self._running is not None else None
            self._running = None
            kept = number is not None and message["outcome"] in _OUTPUT_KEPT
            self._attempt(
                message["test"], message["outcome"], message["message"],
                started_at=message["started_at"], duration_s=message["duration_s"],
                output_tail=child.output.of_test(number) if kept else None,
            )  # fmt: skip
        else:
            self._take_aside(child, message)

    def _take_aside(self, child: PytestChild, message: dict[str, Any]) -> None:
        """Note a message that is of the child and not of a test."""
        kind = message["kind"]
        if kind == "want":
            child.wants = True
        elif kind == "collecting":
            child.collected.add(message["file"])
            self._collecting = (message["file"], child.observed_s)
        elif kind == "collected":
            self._collecting = None
            self._log.write("collected", file=message["file"], seconds=message["seconds"], tests=message["tests"])
        elif kind == "stopped":
            self._stopped = message["message"]
        elif kind == "teardown_failed":
            self._log.write("teardown_failed", message=message["message"])

    def _attempt(
        self, test: str, outcome: str, message: str | None, *,
        started_at: str | None = None, duration_s: float | None = None, output_tail: str | None = None,
    ) -> None:  # fmt: skip
        """Record the one attempt of a test."""
        self._open.pop(test, None)
        said = {"started_at": started_at, "duration_s": duration_s, "message": message, "output_tail": output_tail or None}
        known = {name: value for name, value in said.items() if value is not None}
        self._log.write("attempt", suite=self._suite, test=test, outcome=outcome, **known)
        if outcome in FAILING:
            self._failures += 1
            wanted = self._plan.probe and self._child is not None and self._failures >= self._probe_after
            if wanted and self._background is None:
                self._background = self._start_probe()

    # --- the child's end ----------------------------------------------------------------------------------------

    def _trouble(self, child: PytestChild) -> tuple[str, str] | None:
        """Outcome and description when the child has ended or is past a limit."""
        limits, clock_s = self._plan.limits, child.observed_s
        if child.finished:
            return "crashed", f"pytest {child.ended_how()}"
        if self._running is not None and clock_s - self._running.since_s > limits.test_timeout_s:
            return "timeout", f"the test did not end within {limits.test_timeout_s:g} s"
        if self._collecting is not None and clock_s - self._collecting[1] > limits.startup_s:
            return "timeout", f"{self._collecting[0]} was not collected within {limits.startup_s:g} s"
        if clock_s - child.sign_s > limits.silence_s and self._collecting is None:
            return "timeout", f"pytest gave no sign for {limits.silence_s:g} s"
        return None

    def _lose(self, child: PytestChild, outcome: str, problem: str) -> None:
        """End a child that has died or hangs; the test that it was running has its attempt."""
        running = self._running
        stopped = self._stopped
        self._end_child(grace_s=_GRACE_S if outcome == "timeout" else 0.0)
        if running is not None:
            self._attempt(
                running.test, outcome, f"{problem}; {stopped}" if stopped else problem,
                started_at=running.started_at, duration_s=child.observed_s - running.since_s,
                output_tail=child.output.of_test(running.number),
            )  # fmt: skip

    def _end_child(self, *, gently: bool = False, grace_s: float = 0.0, heard_out: bool = False) -> None:
        """End the child, if there is one, and all that it left.

        One that is `heard_out` ran tests until now: those that have ended have their attempts.
        """
        if self._background is not None:
            self._background.end()
            self._background = None
        child, self._child = self._child, None
        if child is None:
            return
        if gently:
            child.close(self._plan.limits.test_timeout_s)
        code = child.end(grace_s)
        while heard_out and (message := child.receive(0)) is not None:
            if not self._open and self._next is not None:
                self._begin_batch(self._next)
            self._take(child, message)
        said = child.output.of_test(None)[-2048:] if gently and code else None
        self._log.write("child_ended", pid=child.process.pid, exit_code=code, output_tail=said)
        (self._own / round_folder.CHILD).unlink()
        self._sent = self._running = self._collecting = self._stopped = None

    # --- health -------------------------------------------------------------------------------------------------

    def _check_card(self) -> None:
        """Probe the card while nothing else runs on it; raises `UnhealthyCardError`."""
        if not self._plan.probe:
            return
        self._end_child()
        health = self._start_probe().wait()
        self._record(health)
        if not health.healthy:
            raise UnhealthyCardError(health.reason)

    def _start_probe(self) -> Probe:
        return Probe(self._plan.probe, self._plan.limits.probe_timeout_s, self._own / round_folder.PROBE)

    def _card_is_doubtful(self) -> bool:
        """Whether the probe beside the running child has found fault, be it that the child holds the card."""
        health = self._background.result() if self._background is not None else None
        if health is None:
            return False
        self._background = None
        if health.healthy:
            self._record(health)
            self._probe_after *= 2
        return not health.healthy

    def _record(self, health: Health) -> None:
        self._failures = 0
        self._log.write("probe", healthy=health.healthy, reason=health.reason, seconds=health.seconds)

    def _mind_parent(self) -> None:
        """Stop when the driver is gone, where the kernel does not say so."""
        if self._parent is not None and os.getppid() != self._parent:
            raise SystemExit(1)


def work(run_dir: str, worker: str, card: str, rank: int, parent: int | None, lock: str | None = None) -> int:
    """Run one worker on a folder; gives back the exit code, 0 when it finished, also of an unhealthy card."""
    termination = _begin(parent)
    if lock is not None:
        end_with_lock(Path(lock))
    place = FolderRound(Path(run_dir), worker, card, rank)
    Worker(place, parent, termination).run()
    place.close()
    return 0


def work_by_invitation(
    url: str, identity: str, host: str, scratch: str | None, card_environment: str | None, parent: int | None
) -> int:
    """Run one worker on the round that a signed URL invites to; gives back the exit code, 0 also when it is not needed.

    `card_environment` names the variable that tells the tests their card, None where whoever started this has seen to it.
    """
    from .signed_round import join
    from .signed_store import StoreError

    termination = _begin(parent)
    hide_memory()
    own = Path(scratch or tempfile.mkdtemp(prefix="accel-ci-worker-"))
    own.mkdir(parents=True, exist_ok=True)
    with hold(own / round_folder.ALIVE):
        try:
            place = join(url, identity, host, own)
            if place is None:
                sys.stderr.write("no slot of the round is free: this worker is not needed\n")
                return 0
            if card_environment is not None:
                os.environ[card_environment] = place.card
            try:
                Worker(place, parent, termination).run()
            except SystemExit:
                place.hurry()
                raise
            finally:
                place.close()
        except StoreError as error:
            sys.stderr.write(f"this worker gives up: {error}\n")
            return 1
    return 0


def _begin(parent: int | None) -> Termination:
    termination = Termination()
    if parent is not None:
        end_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    return termination
