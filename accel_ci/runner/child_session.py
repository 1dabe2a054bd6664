"""A pytest child as the worker knows it from its messages; its process and pipes are in `pytest_child.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .events import EventLog
from .outcomes import FAILING
from .pytest_child import PytestChild
from .round_folder import PlannedBatch, RoundPlan

POLL_S = 0.1

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

    `collected` are its files, `batch` is the id of the last batch that it was sent. `wants_batch` is set while it waits for
    one. `stopped` is why pytest ended the session, in pytest's words.
    """

    def __init__(self, plan: RoundPlan, files: Sequence[str], log: EventLog, pid_file: Path) -> None:
        """Start the child. Raises `OSError` when no process can be started."""
        self.child = PytestChild(plan.root, files, plan.pytest_args)
        self.files = tuple(files)
        self.collected: set[str] = set()
        self.wants_batch = False
        self.batch: str | None = None
        self.running: RunningTest | None = None
        self.stopped: str | None = None
        self._collecting: tuple[str, float] | None = None  # the file, and since when in the child's `observed_s`
        self._limits, self._log, self._pid_file = plan.limits, log, pid_file
        pid_file.write_text(str(self.child.process.pid), "ascii")

    def await_ready(self, on_poll: Callable[[], None]) -> str | None:
        """Wait until the child can run tests, calling `on_poll` every 0.1 s; return what went wrong, else None."""
        child, limit_s = self.child, self._limits.startup_s
        while True:
            message = child.receive(POLL_S)
            if message is not None and message["kind"] == "ready":
                pid, setup_s = child.process.pid, child.observed_s
                self._log.write("child_started", pid=pid, setup_s=setup_s, files=len(self.files))
                return None
            if message is not None:
                self.note(message)
            elif child.finished:
                return f"pytest {child.ended_how()} before it could run a test"
            elif child.observed_s > limit_s:
                return f"pytest was not ready within {limit_s:g} s"
            on_poll()

    def send(self, batch: PlannedBatch, tests: Iterable[str]) -> None:
        """Have the child run tests of a batch."""
        self.wants_batch = False
        self.batch = batch.id
        self.child.send({"file": batch.file, "tests": list(tests)})

    def end_test(self, outcome: str) -> str | None:
        """Note that the running test, if there is one, has ended; return its output if the outcome asks for it."""
        running, self.running = self.running, None
        return self.child.output.of_test(running.number) or None if running and outcome in _OUTPUT_KEPT else None

    def note(self, message: dict[str, Any]) -> None:
        """Note a message that is not about a test."""
        kind = message["kind"]
        if kind == "want":
            self.wants_batch = True
        elif kind == "collecting":
            self.collected.add(message["file"])
            self._collecting = (message["file"], self.child.observed_s)
        elif kind == "collected":
            self._collecting = None
            self._log.write("collected", file=message["file"], seconds=message["seconds"], tests=message["tests"])
        elif kind == "stopped":
            self.stopped = message["message"]
        elif kind == "teardown_failed":
            self._log.write("teardown_failed", message=message["message"])

    def problem(self) -> Problem | None:
        """Return the problem of a child that has ended or is past a limit, else None."""
        limits, clock_s = self._limits, self.child.observed_s
        if self.child.finished:
            return Problem("crashed", f"pytest {self.child.ended_how()}")
        if self.running is not None and clock_s - self.running.since_s > limits.test_timeout_s:
            return Problem("timeout", f"the test did not end within {limits.test_timeout_s:g} s")
        if self._collecting is not None and clock_s - self._collecting[1] > limits.startup_s:
            return Problem("timeout", f"{self._collecting[0]} was not collected within {limits.startup_s:g} s")
        if clock_s - self.child.last_sign_s > limits.silence_s and self._collecting is None:
            return Problem("timeout", f"pytest gave no sign for {limits.silence_s:g} s")
        return None

    def end(self, *, gently: bool, grace_s: float, take: Callable[[dict[str, Any]], None] | None = None) -> None:
        """End the child and all that it left, and hand its last messages to `take`.

        A child that is ended gently has the time of one test to tear its fixtures down.
        """
        if gently:
            self.child.close(self._limits.test_timeout_s)
        code = self.child.end(grace_s)
        while take is not None and (message := self.child.receive(0)) is not None:
            take(message)
        tail = self.child.output.of_child()[-2048:] if gently and code else None
        self._log.write("child_ended", pid=self.child.process.pid, exit_code=code, output_tail=tail)
        self._pid_file.unlink()
