"""The supervisor of one card: claim batches and have a pytest child run them.

It alone writes its events. Every test of a batch that it begins gets one attempt, whatever the child does: a child that dies
or hangs costs the test that was running, and a new child continues with the rest. A worker whose probe finds the card
unhealthy stops at once; the driver requeues what it had claimed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import round_folder
from .card_health import CardHealth, UnhealthyCardError
from .child_messages import ProtocolError
from .child_session import POLL_S, ChildSession, Problem
from .choice import Choice, FreeBatches
from .ending import Termination
from .long_wait import LongWait
from .outcomes import FAILING, bounded
from .round import ChannelRound
from .round_folder import PlannedBatch, SuiteArguments, file_of

if TYPE_CHECKING:
    from .signed_round import SignedRound

_GRACE_S = 2.0


class Worker:
    """One worker: a card, at most one pytest child, and the batch that it runs."""

    def __init__(self, joined: ChannelRound | SignedRound, termination: Termination) -> None:
        self._round, self._plan, self._log = joined, joined.plan, joined.log
        self._termination = termination
        self._free = FreeBatches(joined.plan.batches, joined.card)
        self._choice = Choice(self._free, joined.rank)
        self._health = CardHealth(joined.plan, joined.log, joined.folder / round_folder.PROBE)
        self._session: ChildSession | None = None
        self._ended: ChildSession | None = None  # the one before it, whose original can be copied again
        self._suite = self._batch = ""  # of the running batch: its suite and its id
        self._open: dict[str, None] = {}  # its tests without an attempt
        self._next: PlannedBatch | None = None  # claimed while another batch was ending
        self._importing: str | None = None  # the file at whose import the last child died
        # suites that need a child for each file: since it is asked for, or since one of all files was not ready
        self._one_file = {suite for suite, arguments in self._plan.suites.items() if arguments.isolate}
        self._broken: dict[str, dict[str, str]] = {}  # by suite: files for which no child runs a test, and why

    def run(self) -> str:
        """Work until nothing is left; return why the worker finished."""
        self._log.write(
            "worker_started", worker=self._round.worker, card=self._round.card, host=self._round.host, pid=os.getpid(),
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
            self._end_child()
            if self._ended is not None:
                self._ended.end_original()
            self._log.write("worker_finished", reason=reason)
        return reason

    def _claim(self) -> PlannedBatch | None:
        """Claim the best free batch, None when there is none."""
        self._free.add(self._round.requeued())
        while True:
            self._free.update(self._round.claims.taken())
            batch = self._choice.next(self._session.suite if self._session is not None else None)
            if batch is None:
                return None
            won = self._round.claims.take(batch.id)
            self._choice.record(batch, won)
            if won:
                self._log.write("claimed", batch=batch.id, tests=len(batch.tests))
                return batch

    def _wait_for_batch(self) -> PlannedBatch | None:
        """Claim a batch, if need be after one is requeued; None when the round is over."""
        wait: LongWait | None = None
        while True:
            over = self._round.is_over()
            batch = self._claim()
            if batch is not None or over:
                return batch
            if wait is None:
                wait = LongWait("a batch to be requeued or the round to end")
                self._log.write("waiting")
            wait.still_waiting()
            if self._session is None:
                time.sleep(POLL_S / 2)
            elif not self._session.attend(POLL_S / 2):
                self._end_child()
            self._termination.check_parent()

    def _run_batch(self, batch: PlannedBatch) -> None:
        """Run a batch to its end: an attempt for each of its tests."""
        self._begin(batch)
        broken = self._broken.setdefault(batch.suite, {})
        deaths: Counter[str] = Counter()  # by file: children in a row that died of it and ran no test of the batch
        while file := self._leave_out_broken(broken):
            before = len(self._open)
            self._importing = None
            problem = self._ready_child(batch) or self._follow(batch)
            if len(self._open) < before:
                deaths.clear()
                if problem is not None:
                    self._check_card()
            elif problem is not None:
                culprit = self._importing or file
                deaths[culprit] += 1
                if deaths[culprit] >= 2:
                    broken[file if culprit in broken else culprit] = problem
        if deaths:
            self._check_card()

    def _leave_out_broken(self, broken: Mapping[str, str]) -> str | None:
        """Record the errors of open tests in broken files; return the file of the first of the others, else None."""
        for test in [test for test in self._open if file_of(test) in broken]:
            self._attempt(test, "error", message=broken[file_of(test)])
        return next(map(file_of, self._open), None)

    def _begin(self, batch: PlannedBatch) -> None:
        self._suite, self._batch, self._open, self._next = batch.suite, batch.id, dict.fromkeys(batch.tests), None

    def _follow(self, batch: PlannedBatch) -> str | None:
        """Record what the child does until the batch is done or the child is gone; return what went wrong, else None."""
        while self._open and (session := self._session) is not None:
            if session.wants_batch and session.batch != batch.id:
                session.send(batch, self._open)
            try:
                with self._termination.delayed() as termination:  # or a message could be lost on the way to its event
                    message = session.child.receive(POLL_S)
                    if message is not None and not termination.is_asked_for:  # perhaps by the test that is running
                        self._take(session, message)
                problem = session.problem()
            except ProtocolError as error:
                problem = Problem("crashed", str(error))
                session.report(error, session.running.test if session.running is not None else batch.file)
            if problem is not None:
                self._give_up(session, problem)
                return problem.description
            if message is not None and message["kind"] == "want" and session.batch == batch.id:
                self._send_next(session, batch)
            if self._health.is_in_doubt():
                self._check_card()
            self._termination.check_parent()
        return None

    def _send_next(self, session: ChildSession, batch: PlannedBatch) -> None:
        """Answer a child that has reached the end of its batch."""
        self._next = self._claim()
        if self._next is not None and self._suits(session, self._next):
            broken = self._broken[self._next.suite]
            if tests := [test for test in self._next.tests if file_of(test) not in broken]:
                session.send(self._next, tests)
                return
        session.child.send({"idle": True})

    def _take(self, session: ChildSession, message: dict[str, Any]) -> None:
        """Record a message of the child that runs the batch. Raises `ProtocolError`."""
        if message["kind"] == "start":
            session.start_test(message, self._open)
            self._log.write("started", suite=self._suite, test=message["test"])
            session.let_run()
        elif message["kind"] == "result":
            for attempt in session.end_test(message, self._open):
                self._attempt(message["test"], **attempt)
        else:
            session.note_between_tests(message, self._open, self._batch)

    def _attempt(self, test: str, outcome: str, **details: object) -> None:
        """Record the one attempt of a test; details that are None are left out."""
        self._open.pop(test, None)
        known = {name: value for name, value in details.items() if value is not None}
        self._log.write("attempt", suite=self._suite, test=test, outcome=outcome, **known)
        if outcome in FAILING and self._session is not None:
            self._health.count_failure()

    def _ready_child(self, batch: PlannedBatch) -> str | None:
        """Have a child that can run the batch; return what went wrong, else None."""
        if self._session is not None and not self._suits(self._session, batch):
            self._end_child(gently=True)
        if self._session is not None:
            return None
        suite, broken = batch.suite, self._broken[batch.suite]
        arguments = self._plan.suites.get(suite, SuiteArguments(batch.files, ()))
        if suite in self._one_file:
            arguments = replace(arguments, paths=batch.files)
        with self._termination.delayed():  # or the child could be started and not be known
            session = self._session = ChildSession(
                self._plan, suite, arguments, broken, self._log, self._round.folder, self._ended
            )
            self._ended = None
        if (problem := session.await_ready(self._termination.check_parent)) is None:
            return None
        self._end_child(grace_s=_GRACE_S)
        if session.importing is not None and Path(self._plan.root, session.importing).is_file():
            self._importing = session.importing
        elif suite not in self._one_file:
            self._one_file.add(suite)
            self._log.write("one_process_per_file", suite=suite, message=problem)
        return bounded(f"{problem}\n{session.stopped or session.output()}")

    def _suits(self, session: ChildSession, batch: PlannedBatch) -> bool:
        """True if the child can run the batch."""
        return session.suite == batch.suite and (batch.suite not in self._one_file or session.arguments.paths == batch.files)

    def _give_up(self, session: ChildSession, problem: Problem) -> None:
        """End a child that has died or hangs; the test that it was running gets its attempt."""
        self._end_child(grace_s=_GRACE_S if problem.outcome == "timeout" else 0.0)
        running, child = session.running, session.child
        if running is not None:
            self._attempt(
                running.test, problem.outcome,
                started_at=running.started_at, duration_s=child.observed_s - running.since_s,
                message="; ".join(filter(None, (problem.description, session.stopped))),
                output_tail=session.output_of(running),
            )  # fmt: skip

    def _end_child(self, *, gently: bool = False, grace_s: float = 0.0) -> None:
        """End the child, if there is one, and all that it left."""
        self._health.stop_background_probe()
        session, self._session = self._session, None
        if session is not None:
            session.end(gently=gently, grace_s=grace_s)
            self._ended = session

    def _check_card(self) -> None:
        """Probe the card while nothing else runs on it, if the plan has a probe. Raises `UnhealthyCardError`."""
        if self._plan.probe:
            self._end_child()
            self._health.check()
