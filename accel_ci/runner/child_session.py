"""A pytest child as the worker knows it from its messages; its process and pipes are in `pytest_child.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import round_folder
from .captured import CapturedOutput
from .events import EventLog
from .outcomes import FAILING, output_text
from .pytest_child import PytestChild
from .round_folder import PlannedBatch, RoundPlan, SuiteArguments

POLL_S = 0.1
SESSION = "(session)"  # stands for a test in the record of an error that belongs to none

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
        self, plan: RoundPlan, suite: str, arguments: SuiteArguments, ignored: Iterable[str], log: EventLog, folder: Path
    ) -> None:
        """Start the child, which keeps files in `folder`. Raises `OSError` when no process can be started."""
        request = {**vars(arguments), "ignored": list(ignored), "scratch": str(folder.resolve())}
        self.child = PytestChild(plan.root, request)
        self.suite, self.arguments = suite, arguments
        self._captured = CapturedOutput()
        self._left = ""  # what was captured when the child ended
        self._printed = ""  # what was captured of the test that ended the session
        self.wants_batch = False
        self.batch: str | None = None
        self.running: RunningTest | None = None
        self.stopped: str | None = None
        self._collecting: tuple[str, float] | None = None  # the file, and since when in the child's `observed_s`
        self._limits, self._log, self._pid_file = plan.limits, log, folder / round_folder.CHILD
        self._pid_file.write_text(str(self.child.process.pid), "ascii")

    @property
    def importing(self) -> str | None:
        """The file or folder that the child is collecting."""
        return self._collecting[0] if self._collecting is not None else None

    def await_ready(self, on_poll: Callable[[], None]) -> str | None:
        """Wait until the child can run tests, calling `on_poll` every 0.1 s; return what went wrong, else None."""
        child, limit_s = self.child, self._limits.startup_s
        while True:
            message = child.receive(POLL_S)
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

    def send(self, batch: PlannedBatch, tests: Iterable[str]) -> None:
        """Have the child run tests of a batch."""
        self.wants_batch = False
        self.batch = batch.id
        self.child.send({"tests": list(tests)})

    def end_test(self, outcome: str, captured: str | None = None) -> str | None:
        """Note that the running test, if there is one, has ended; return its output if the outcome asks for it.

        `captured` is what pytest has captured of it.
        """
        running, self.running = self.running, None
        if running is None or outcome not in _OUTPUT_KEPT:
            return None
        return "\n".join(filter(None, (captured, self.child.output.of_test(running.number)))) or None

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
            self._captured.open(message["files"])
        elif kind == "collecting":
            self._collecting = (message["file"], self.child.observed_s)
        elif kind == "collected":
            self._collecting = None
            self._log.write("collected", file=message["file"], seconds=message["seconds"], tests=message["tests"])
        elif kind == "stopped":
            self.stopped, self._printed = message["message"], message["output"]
        elif kind == "session_error":
            self.end_in_error("error", message["message"])

    def end_in_error(self, outcome: str, message: str, output_tail: str | None = None) -> None:
        """Record an error that belongs to no test, but to the session of its suite."""
        known = {"output_tail": output_tail} if output_tail else {}
        self._log.write("attempt", suite=self.suite, test=SESSION, outcome=outcome, message=message, **known)

    def problem(self) -> Problem | None:
        """Return the problem of a child that has ended or is past a limit, else None."""
        limits, clock_s = self._limits, self.child.observed_s
        if self.child.finished:
            return Problem("crashed", f"pytest {self.child.ended_how()}")
        if self.running is not None and clock_s - self.running.since_s > limits.test_timeout_s:
            return Problem("timeout", f"the test did not end within {limits.test_timeout_s:g} s")
        if self._collecting is not None and clock_s - self._collecting[1] > limits.startup_s:
            return Problem("timeout", f"{self._collecting[0]} was not collected within {limits.startup_s:g} s")
        if self._captured.has_grown():
            self.child.last_sign_s = clock_s
        if clock_s - self.child.last_sign_s > limits.silence_s and self._collecting is None:
            return Problem("timeout", f"pytest gave no sign for {limits.silence_s:g} s")
        return None

    def end(self, *, gently: bool, grace_s: float, take: Callable[[dict[str, Any]], None] | None = None) -> None:
        """End the child and all that it left, and hand its last messages to `take`.

        A child that is ended gently has the time of one test to tear its fixtures down.
        """
        limit_s = self._limits.test_timeout_s
        in_time = self.child.close(limit_s, self.note) if gently else True
        code = self.child.end(grace_s)
        while take is not None and (message := self.child.receive(0)) is not None:
            take(message)
        if gently and not in_time:
            self.end_in_error("timeout", f"the session did not end within {limit_s:g} s", self.child.output.of_child())
        elif gently and code:
            ending = f"the session's end failed: {self.stopped or f'pytest {self.child.ended_how()}'}"
            self.end_in_error("crashed" if code < 0 else "error", ending, self.child.output.of_child())
        self._log.write("child_ended", pid=self.child.process.pid, exit_code=code)
        self._left = output_text(self._captured.close())
        self._pid_file.unlink()
