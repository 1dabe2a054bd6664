"""A pytest child as the worker knows it from its messages; its process and pipes are in `pytest_child.py`."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .captured import CapturedOutput
from .child_messages import ProtocolError
from .copies import CopyError
from .events import EventLog, now
from .outcomes import FAILING, bounded, output_text
from .pytest_child import PytestChild
from .round_folder import PlannedBatch, RoundPlan, SuiteArguments

POLL_S = 0.1
SESSION = "(session)"  # stands for a test in the record of an error that belongs to none

_CUT_OFF_S = 2.0  # after which a process that has closed its pipe is not just about to end
_OFFENCES_TOLD = 5  # of one child, which may write thousands
_OF_TESTS = frozenset({"start", "result"})
_OF_UNRUN = frozenset({"error", "skipped", "not_run"})  # outcomes of a test that cannot be run
_BEFORE_READY = frozenset({"captures", "collecting", "collected"})
_OUTPUT_KEPT = FAILING | {"xpassed", "not_run"}


@dataclass(frozen=True)
class RunningTest:
    """The test that a child runs; `since_s` is in the child's `observed_s`."""

    test: str
    number: int
    since_s: float
    started_at: str


@dataclass(frozen=True)
class Problem:
    """The reason why a child cannot go on; `outcome` is for the test that it was running."""

    outcome: str
    description: str


class ChildSession:
    """One pytest child and its state.

    `batch` is the id of the last batch that it was sent. `wants_batch` is set while it waits for one. `stopped` is why
    pytest ended the session, in pytest's words.
    """

    def __init__(
        self,
        plan: RoundPlan,
        suite: str,
        arguments: SuiteArguments,
        ignored: Iterable[str],
        log: EventLog,
        folder: Path,
        ended: ChildSession | None = None,
    ) -> None:
        """Start the child, which keeps files in `folder`. Raises `OSError` when no process can be started.

        It is a copy of the original of the session that has `ended`, if that can still be copied.
        """
        self.suite, self.arguments, self.ignored = suite, arguments, tuple(ignored)
        self._folder: str | None = None  # that no test of another child can have prepared
        if arguments.isolate:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = tempfile.mkdtemp(dir=folder.resolve())
        request = {**vars(arguments), "ignored": self.ignored, "scratch": self._folder or str(folder.resolve())}
        self._captured = CapturedOutput()
        self._captures: list[str] = []
        self.original: PytestChild | None = None
        if ended is not None and ended.can_be_copied_for(self):
            with contextlib.suppress(CopyError):
                self.child = PytestChild(plan.root, request, ended.original)
                self.original, self._captures = ended.original, ended._captures
                self._captured.open(self._captures)
        if self.original is None:
            if ended is not None:
                ended.end_original()
            self.child = PytestChild(plan.root, request)
        self._left = ""  # what was captured when the child ended
        self._printed = ""  # what was captured of the test that ended the session
        self.wants_batch = False
        self.batch: str | None = None
        self.running: RunningTest | None = None
        self._started = 0
        self.stopped: str | None = None
        self._offences = 0
        self._collecting: tuple[str, float] | None = None  # the file, and since when in the child's `observed_s`
        self._limits, self._log = plan.limits, log
        self._test_timeout_s = arguments.test_timeout_s or plan.limits.test_timeout_s

    @property
    def importing(self) -> str | None:
        """The file or folder that the child is collecting."""
        return self._collecting[0] if self._collecting is not None else None

    def await_ready(self, on_poll: Callable[[], None]) -> str | None:
        """Wait until the child can run tests, calling `on_poll` every 0.1 s; return what went wrong, else None."""
        limit_s = self._limits.startup_s
        while True:
            child = self.child
            try:
                message = child.receive(POLL_S)
                if message is not None and message["kind"] == "original":
                    self._start_first_copy()
                    continue
            except CopyError as error:
                return str(error)
            except ProtocolError as error:
                self.report(error)
                return str(error)
            if message is not None and message["kind"] == "ready":
                pid, setup_s = child.process.pid, child.observed_s
                self._log.write("child_started", pid=pid, setup_s=setup_s, suite=self.suite)
                return None
            if message is not None:
                self.note(message)
            elif child.finished:
                return f"pytest {child.ended_how()} before it could run a test"
            elif (problem := self.problem()) is not None:
                return problem.description
            elif self._collecting is None and child.observed_s - child.last_sign_s > limit_s:
                return f"pytest was not ready within {limit_s:g} s"
            on_poll()

    def _start_first_copy(self) -> None:
        """Have the process that has collected the suite run the session in a copy of itself. Raises `CopyError`."""
        self.original = self.child
        self.child = PytestChild("", {}, self.original)
        self.child.observed_s = self.child.last_sign_s = self.original.observed_s

    def can_be_copied_for(self, other: ChildSession) -> bool:
        """Return whether the original of this session, which has ended, can run the other one.

        A session that pytest has ended by itself has cleaned up what its original holds, such as temporary folders.
        """
        known = (self.suite, self.arguments, self.ignored) == (other.suite, other.arguments, other.ignored)
        return self.original is not None and known and self.stopped is None and self.original.process.poll() is None

    def end_original(self) -> None:
        """End the process that has collected the suite, if this session is of a copy of it."""
        original, self.original = self.original, None
        if original is not None:
            original.end(0.0)

    def attend(self, timeout_s: float) -> bool:
        """Take in a message of a child that waits for a batch; return False when the child is of no use any more."""
        try:
            message = self.child.receive(timeout_s)
            if message is not None:
                self._note_without_tests(message)
        except ProtocolError as error:
            self.report(error)
            return False
        return not self.child.finished

    def send(self, batch: PlannedBatch, tests: Iterable[str]) -> None:
        """Have the child run tests of a batch."""
        self.wants_batch = False
        self.batch = batch.id
        self.child.send({"tests": list(tests)})

    def start_test(self, message: dict[str, Any], expected: Container[str]) -> None:
        """Note that a test starts, which must be one of the `expected` ones. Raises `ProtocolError`."""
        test, number = message["test"], message["number"]
        if self.running is not None or number != self._started + 1 or test not in expected:
            raise ProtocolError(f"the start of a test that cannot start now was written to the worker's pipe: {test:.200}")
        self._started, self.running = number, RunningTest(test, number, self.child.observed_s, now())

    def let_run(self) -> None:
        """Let the child run the test that starts, once its start is recorded."""
        self.child.send({"go": self._started})

    def end_test(self, message: dict[str, Any], expected: Container[str]) -> list[dict[str, Any]]:
        """Note the result of the running test, or of an `expected` one that cannot be run; return its attempts.

        Raises `ProtocolError` for a result of another test. Times are the worker's own, since tests can turn the child's:
        only how the tries of one test share its time is the child's account.
        """
        test, running = message["test"], self.running
        if test != running.test if running is not None else test not in expected or message["outcome"] not in _OF_UNRUN:
            raise ProtocolError(f"a result of a test that is not running was written to the worker's pipe: {test:.200}")
        self.running = None
        left_s = self.child.observed_s - running.since_s if running is not None else 0.0
        attempts = []
        for each in (*message.get("earlier", ()), message):
            is_last = each is message
            duration_s = left_s if is_last else min(left_s, max(0.0, each["duration_s"]))
            left_s -= duration_s
            known: dict[str, Any] = {"outcome": each["outcome"], "message": each["message"] and bounded(each["message"])}
            if running is not None:
                known |= {"started_at": running.started_at, "duration_s": duration_s}
                printed = self.child.output.of_test(running.number) if is_last else ""
                if each["outcome"] in _OUTPUT_KEPT:
                    known["output_tail"] = "\n".join(filter(None, (_bounded_output(each.get("output")), printed))) or None
            attempts.append(known)
        return attempts

    def is_at_last(self, expected: Collection[str]) -> bool:
        """Return True if no test is expected but the running one."""
        return not expected or (self.running is not None and len(expected) == 1 and self.running.test in expected)

    def output(self) -> str:
        """Return the last output of a child that has ended."""
        return "\n".join(filter(None, (self._left, self.child.output.of_child().strip())))

    def output_of(self, running: RunningTest) -> str | None:
        """Return the output of a test that the child died of, with what pytest had captured in its last phase."""
        return "\n".join(filter(None, (self._printed, self._left, self.child.output.of_test(running.number)))) or None

    def note(self, message: dict[str, Any]) -> None:
        """Note a message that is not about a test."""
        kind = message["kind"]
        if kind == "want":
            self.wants_batch = True
        elif kind == "captures":
            self._captures = message["files"]
            self._captured.open(self._captures)
        elif kind == "collecting":
            self._collecting = (message["file"], self.child.observed_s)
        elif kind == "collected":
            if self._collecting is not None:
                seconds = self.child.observed_s - self._collecting[1]
                self._log.write("collected", file=self._collecting[0], seconds=seconds, tests=message["tests"])
            self._collecting = None
        elif kind == "stopped":
            self.stopped, self._printed = bounded(message["message"]), bounded(message["output"])
        elif kind == "session_error":
            self.end_in_error("error", bounded(message["message"]))

    def note_between_tests(self, message: dict[str, Any], expected: Collection[str], batch: str) -> None:
        """Note a message of a child that runs or ran the batch of that id. Raises `ProtocolError` when it cannot be due."""
        kind = message["kind"]
        if kind in _BEFORE_READY or (kind == "session_error" and self.running is not None):
            raise ProtocolError(f"a message that cannot be due was written to the worker's pipe: {kind}")
        if kind == "want" and self.batch == batch and not self.is_at_last(expected):
            raise ProtocolError("a batch was asked for in the middle of another one")
        self.note(message)

    def _note_without_tests(self, message: dict[str, Any]) -> None:
        """Note a message of a child that has no test to run. Raises `ProtocolError` for one about a test."""
        if message["kind"] in _OF_TESTS:
            raise ProtocolError(
                f"something of a test that is not running was written to the worker's pipe: {message['test']:.200}"
            )
        self.note(message)

    def _note_at_end(self, message: dict[str, Any]) -> None:
        try:
            self._note_without_tests(message)
        except ProtocolError as error:
            if not self._offences:
                self.end_in_error("error", str(error))
            self.report(error)

    def report(self, error: ProtocolError, test: str | None = None) -> None:
        """Record that the child wrote what cannot be true, while it ran the test if there is one."""
        self._offences += 1
        if self._offences <= _OFFENCES_TOLD:
            self._log.write(
                "offence", suite=self.suite, test=test or ", ".join(self.arguments.paths)[:200], message=str(error)
            )

    def end_in_error(self, outcome: str, message: str, output_tail: str | None = None) -> None:
        """Record an error that belongs to no test, but to the session of its suite."""
        known = {"output_tail": output_tail} if output_tail else {}
        self._log.write("attempt", suite=self.suite, test=SESSION, outcome=outcome, message=message, **known)

    def problem(self) -> Problem | None:
        """Return the problem of a child that has ended or is past a limit, else None."""
        limits, clock_s = self._limits, self.child.observed_s
        if self.child.finished:
            return Problem("crashed", f"pytest {self.child.ended_how()}")
        if self.child.cut_off_s is not None and clock_s - self.child.cut_off_s > _CUT_OFF_S:
            return Problem("crashed", "pytest's pipe to the worker was closed")
        if self.running is not None and clock_s - self.running.since_s > self._test_timeout_s:
            return Problem("timeout", f"the test did not end within {self._test_timeout_s:g} s")
        if self._collecting is not None and clock_s - self._collecting[1] > limits.startup_s:
            return Problem("timeout", f"{self._collecting[0]} was not collected within {limits.startup_s:g} s")
        if self._captured.has_grown():
            self.child.last_sign_s = clock_s
        if clock_s - self.child.last_sign_s > limits.silence_s and self._collecting is None:
            return Problem("timeout", f"pytest gave no sign for {limits.silence_s:g} s")
        return None

    def end(self, *, gently: bool, grace_s: float) -> None:
        """End the child and all that it left; one that is ended gently may tear its fixtures down first."""
        limit_s = self._test_timeout_s
        in_time = self.child.close(limit_s, self._note_at_end, self.report) if gently else True
        code = self.child.end(grace_s)
        if gently and not in_time:
            self.end_in_error("timeout", f"the session did not end within {limit_s:g} s", self.child.output.of_child())
        elif gently and code:
            ending = f"the session's end failed: {self.stopped or f'pytest {self.child.ended_how()}'}"
            self.end_in_error("crashed" if code < 0 else "error", ending, self.child.output.of_child())
        self._log.write("child_ended", pid=self.child.process.pid, exit_code=code)
        self._left = output_text(self._captured.close())
        if self._folder is not None and self.original is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _bounded_output(text: str | None) -> str | None:
    return text and bounded(text, 16 * 1024)
