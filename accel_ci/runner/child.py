"""The `child` command: one pytest session for one suite, which runs the batches that the worker sends.

pytest collects the whole suite first, as in any session: all files are imported in one order, before a test runs. Commands
and results use separate file descriptors, one JSON line each.

The child asks for the next batch while it tears down the last test of the current one. So a fixture outlives a batch when
the next test still needs it, and no batch is claimed before it can run.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .captured import capture_files, cut_to_end, names_of
from .copies import may_copy, serve_copies, standard_output
from .ending import end_with_parent
from .outcomes import TEST_MARK, bounded, captured_output, outcome_of, skip_reason
from .quiet_pytest import QuietPytest, run_pytest
from .test_ids import TestIds
from .test_modes import TestModes
from .tries import Tries
from .wheel_modules import WheelModules

_OUTPUT_KEPT = frozenset({"failed", "error", "xpassed"})


class WorkerPipes:
    """The child's ends of its two pipes to the worker."""

    def __init__(self, commands_fd: int, results_fd: int) -> None:
        self._owner = os.getpid()
        for descriptor in (commands_fd, results_fd):
            os.set_inheritable(descriptor, False)  # to programs that tests start
        self._commands = open(commands_fd, encoding="utf-8")  # noqa: SIM115 - open until the process ends
        self._results = open(results_fd, "wb", buffering=0)  # noqa: SIM115
        self._output = os.dup(1)

    def take_over(self) -> None:
        """Make this process the owner: it is a copy that has its own pipes."""
        self._owner = os.getpid()

    def receive(self) -> dict[str, Any] | None:
        """Return the worker's next command, None when there will be no more. A fork of this process ends here."""
        if os.getpid() != self._owner:
            os._exit(1)
        line = self._commands.readline()
        command: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return command

    def send(self, kind: str, **fields: object) -> None:
        """Send the worker a message; a fork of this process sends nothing."""
        if os.getpid() == self._owner:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            data = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode("ascii") + b"\n"
            while data:
                data = data[self._results.write(data) :]

    def send_start(self, test: str, number: int) -> None:
        """Send that a test starts, mark the beginning of its output, and wait until the worker has recorded the start.

        So whatever the test does to the worker, the record names this test as the last one.
        """
        self.send("start", test=test, number=number)
        os.write(self._output, TEST_MARK + b"%d\0\n" % number)
        if self.receive() is None:
            os._exit(1)


class _NextItem:
    """A stand-in for the item after the last one of a batch; it finds that item only when pytest tears down."""

    def __init__(self, session: _BatchSession) -> None:
        self._session = session

    def listchain(self) -> list[Any]:
        node = self._session.next_node()
        return [] if node is None else list(node.listchain())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.next_node(), name)


class _BatchSession:
    """The pytest plugin that runs batches and sends the worker their results."""

    def __init__(self, worker: WorkerPipes, root: str, ignored: Sequence[str], modes: Sequence[dict[str, Any]]) -> None:
        self._worker, self._root = worker, root
        self._ignored = {str(Path(root, path)) for path in ignored}
        self._began = time.monotonic()
        self._ids = TestIds(root, root)
        self._items: dict[str, Any] = {}
        self._modes = TestModes(modes)
        self._problems: dict[str, tuple[str, str]] = {}  # of files and folders that cannot be collected, or skip themselves
        self._collecting: tuple[str, float, int] | None = None  # a file, since when, and the number of tests before it
        self._collected = 0
        self._tries = Tries()
        self._captures: list[int] = []
        self._session: Any = None
        self._asked = False
        self._next: dict[str, Any] | None = None  # the worker's reply: a batch, `idle`, or None when there will be none
        self._tests = 0
        self._last = ""  # the test that ran last
        self._modules = WheelModules()
        self.copy_by: Callable[[], None] | None = None  # returns in copies of this process
        self._item: Any = None

    # Collection

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: Any) -> None:
        """Tell the worker where pytest keeps the output of the running test, which is lost here in a crash."""
        self._session, self._ids = session, TestIds(self._root, str(session.config.rootpath))
        self._captures = capture_files(session.config)
        self._worker.send("captures", files=names_of(self._captures))

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the files at whose import earlier children died."""
        return True if os.path.realpath(collection_path) in self._ignored else None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Any:
        """Tell the worker which file is imported now, so that it knows which one the child dies of."""
        if isinstance(collector, pytest.File):
            self._end_file()
            self._collecting = (self._ids.of_node(collector.nodeid), time.monotonic(), self._collected)
            self._worker.send("collecting", file=self._collecting[0])
        yield

    def _end_file(self) -> None:
        if self._collecting is not None:
            file, since, tests = self._collecting
            self._worker.send("collected", file=file, seconds=time.monotonic() - since, tests=self._collected - tests)
            self._collecting = None

    def pytest_itemcollected(self) -> None:
        self._collected += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._problems[self._ids.of_node(report.nodeid)] = ("error", bounded(report.longreprtext))
        elif report.skipped:
            self._problems.setdefault(self._ids.of_node(report.nodeid), ("skipped", skip_reason(report.longrepr)))

    # Batches

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        """Run batches until the worker closes its pipe."""
        self._end_file()
        self._items = self._ids.of_items(session.items)
        self._modes.mark(self._items)
        if self.copy_by is not None and may_copy():
            self._worker.send("original")
            self.copy_by()
            self._worker.take_over()
            for descriptor in self._captures:
                os.ftruncate(descriptor, 0)  # it is shared, and may hold the output of a copy that has ended
        self._worker.send("ready", seconds=time.monotonic() - self._began)
        while (batch := self._next_batch()) is not None:
            self._run(batch["tests"])
            self._check_modules()
        self._tear_down(None)
        self._check_modules()
        return True

    def _check_modules(self) -> None:
        """Report modules that are not those of the wheel under test: what has passed with them proves nothing."""
        for difference in self._modules.differences():
            self._worker.send("session_error", message=bounded(f"the wheel is not what was tested: {difference}"))

    def _ask(self) -> None:
        """Ask for the next batch once; the answer may be that there is none yet."""
        if self._asked:
            return
        self._asked = True
        self._worker.send("want")
        self._next = self._worker.receive()

    def _next_batch(self) -> dict[str, Any] | None:
        self._ask()
        while self._next is not None and "tests" not in self._next:
            self._next = self._worker.receive()
        batch, self._next, self._asked = self._next, None, False
        return batch

    def next_node(self) -> Any:
        """Return the node whose set-up the next test shares: its item, else the session, and None at the end."""
        self._ask()
        if self._next is None:
            return None
        return next((self._items[test] for test in self._next.get("tests", ()) if test in self._items), self._session)

    def _run(self, tests: Sequence[str]) -> None:
        for test in tests:
            if test not in self._items:
                outcome, message = self._why_missing(test)
                self._worker.send("result", test=test, outcome=outcome, message=message)
        found = [(test, self._items[test]) for test in tests if test in self._items]
        if found:
            self._tear_down(found[0][1])  # what was kept for a batch that could not run any test; usually nothing
        followers = [*(item for _, item in found[1:]), _NextItem(self)]
        for place, (test, item) in enumerate(found):
            self._run_item(test, item, followers[place])

    def _tear_down(self, nextitem: Any) -> None:
        """Tear down what the next item does not need; a failure belongs to the session, since its test has ended."""
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except BaseException as error:
            after = f" after {self._last}" if self._last else ""
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._worker.send("session_error", message=bounded(f"a fixture failed at its end{after}:\n{lines}"))

    def _run_item(self, test: str, item: Any, nextitem: Any) -> None:
        self._tests += 1
        self._tries, self._last, self._item = Tries(), test, item
        self._worker.send_start(test, self._tests)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        *earlier, last = (self._result_of(test, reports) for reports in self._tries.end())
        self._worker.send("result", test=test, earlier=earlier, **last)

    def _result_of(self, test: str, reports: Sequence[Any]) -> dict[str, Any]:
        outcome, message = self._modes.outcome(test, *outcome_of(reports))
        whole = (report for report in reports if report.when != "call" or not hasattr(report, "context"))
        seconds = sum(report.duration for report in whole)  # subtests have a context, and are part of their test
        output = captured_output(reports) if outcome in _OUTPUT_KEPT else None
        return {"outcome": outcome, "message": message, "duration_s": seconds, "output": output}

    def _why_missing(self, test: str) -> tuple[str, str]:
        """Return the outcome and message of a test that this process does not have."""
        place = test
        while place:
            if place in self._problems:
                return self._problems[place]
            place = place.rpartition("::" if "::" in place else "/")[0]
        if "" in self._problems:
            return self._problems[""]
        file = test.partition("::")[0]
        if not Path(self._root, file).exists():
            if Path(self._root, _with_bytes(file)).exists():
                return "error", "the name of this file is not UTF-8; rename it"
            return "not_run", f"{file} does not exist"
        before = test.partition("[")[0]
        now_there = [name for name in self._items if name.partition("[")[0] == before]
        if now_there and test != before:
            return "not_run", (
                f"the parameters of {before} have other ids in this process, such as {bounded(now_there[0], 512)}: "
                f"{_changing(test)}; give them ids that do not change (pytest.param(…, id=…))"
            )
        return "not_run", f"pytest no longer finds this test in {file}: its name differs from process to process"

    @property
    def failures(self) -> int:
        """The number of failures that pytest has counted."""
        return int(self._session.testsfailed) if self._session is not None else 0

    # Reports

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Any:
        yield from self._phase()

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Any:
        yield from self._phase()

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Any:
        yield from self._phase()

    def _phase(self) -> Any:
        """Run a phase of a test, then cut its output before pytest reads it into memory."""
        with self._tries.phase():
            yield
        for descriptor in self._captures:
            cut_to_end(descriptor)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Any:
        outcome = yield
        with contextlib.suppress(Exception):
            self._tries.made(outcome.get_result())

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._tries.logged(report)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        printed = "".join(content for _, _, content in getattr(self._item, "_report_sections", ()))
        message = bounded(f"the test ended the pytest session: {excinfo.exconly()}")
        self._worker.send("stopped", message=message, output=bounded(printed))

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._worker.send("stopped", message=bounded(f"pytest had an internal error: {excrepr}"), output="")


def _with_bytes(path: str) -> str:
    r"""Return a path that holds the bytes which are written as `\udcff` where text must be UTF-8."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), path)


def _changing(test: str) -> str:
    """Name what changes in an id from process to process."""
    if re.search(r"0x[0-9a-f]{6,}", test):
        return "they hold a memory address"
    return "they depend on the process, such as by a time, a process id, a random number or the order of a set"


def run(commands_fd: int, results_fd: int, control_fd: int, parent: int) -> int:
    """Run the session; return pytest's exit code, but 0 when tests failed."""
    end_with_parent(parent, signal.SIGKILL)
    faulthandler.register(signal.SIGTERM, file=os.dup(2), all_threads=True, chain=True)
    worker = WorkerPipes(commands_fd, results_fd)
    output = standard_output()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    request = worker.receive()
    if request is None:
        return 0
    sys.path[:] = [entry for entry in sys.path if entry != sys.argv[0]]
    sys.argv = ["pytest"]  # tests may read it
    root = request["root"]
    ignored = request["ignored"]
    paths = [path for path in request["paths"] if Path(root, path).exists() and path not in ignored]
    if not paths:
        return _run_nothing(worker)
    scratch = Path(request["scratch"])
    batches = _BatchSession(worker, os.path.realpath(root), ignored, request.get("modes", ()))
    if request["copies"]:
        batches.copy_by = lambda: serve_copies(control, commands_fd, results_fd, output, parent)
    plugins = [QuietPytest(root, scratch), batches]
    status = run_pytest(root, scratch, [*request["pytest_args"], *paths], plugins)
    if status == pytest.ExitCode.TESTS_FAILED and not batches.failures:
        worker.send("session_error", message=f"no test failed, but a plug-in had pytest end with exit code {status}")
    return _leave(0 if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else status)


def _leave(status: int) -> NoReturn:
    """Call the functions registered for the process's end, then end it without tearing down the interpreter.

    With PyTorch loaded the teardown takes a second or two, and a session that is over does not need it.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _run_nothing(worker: WorkerPipes) -> int:
    """Answer for batches when none of the plan's files exists."""
    worker.send("ready", seconds=0.0)
    worker.send("want")
    while (batch := worker.receive()) is not None:
        if "tests" in batch:
            for test in batch["tests"]:
                file = test.partition("::")[0]
                worker.send("result", test=test, outcome="not_run", message=f"{file} does not exist")
            worker.send("want")
    return 0
