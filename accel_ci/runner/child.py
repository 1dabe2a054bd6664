"""The `child` command: one pytest session for the life of a process, which runs the batches that the worker sends.

pytest collects folders and conftest files once, as for all files of the plan, but each test file only when its first batch
comes. Commands and results use separate file descriptors, one JSON line each; standard output belongs to the tests.

The child asks for the next batch while it tears down the last test of the current one. So a fixture outlives a batch when
the next test still needs it, and no batch is claimed before it can run.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .ending import end_with_parent
from .events import now
from .outcomes import TEST_MARK, bounded, outcome_of, skip_reason

Batch = dict[str, Any]


class WorkerPipes:
    """The child's ends of its two pipes to the worker."""

    def __init__(self, commands_fd: int, results_fd: int) -> None:
        self._owner = os.getpid()
        for descriptor in (commands_fd, results_fd):
            os.set_inheritable(descriptor, False)  # to programs that tests start
        self._commands = open(commands_fd, encoding="utf-8")  # noqa: SIM115 - open until the process ends
        self._results = open(results_fd, "wb", buffering=0)  # noqa: SIM115
        self._output = os.dup(1)

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

    def send_result(
        self, test: str, outcome: str, message: str | None, started_at: str | None = None, duration_s: float | None = None
    ) -> None:
        """Send the outcome of a test; without times for one that did not run."""
        self.send("result", test=test, outcome=outcome, message=message, started_at=started_at, duration_s=duration_s)

    def send_start(self, test: str, number: int) -> None:
        """Send that a test starts, and mark the beginning of its output."""
        self.send("start", test=test, number=number)
        os.write(self._output, TEST_MARK + b"%d\0\n" % number)


class _NextItem:
    """A stand-in for the item after the last one of a batch; it finds that item only when pytest tears down.

    pytest asks for its chain of collectors: that of the next item if it is collected, else of its file.
    """

    def __init__(self, session: _BatchSession) -> None:
        self._session = session

    def listchain(self) -> list[Any]:
        node = self._session.next_node()
        return [] if node is None else list(node.listchain())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.next_node(), name)


class _BatchSession:
    """The pytest plugin that delays the collection of files, runs batches and sends the worker their results."""

    def __init__(self, worker: WorkerPipes) -> None:
        self._worker = worker
        self._began = time.monotonic()
        self._delayed: dict[str, list[Any]] = {}
        self._released: set[str] = set()
        self._items: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._collect_problems: list[tuple[str, str]] = []  # of the file that is being collected
        self._folder_problem: tuple[str, str] | None = None
        self._reports: list[Any] = []
        self._session: Any = None
        self._asked = False
        self._next: dict[str, Any] | None = None  # the worker's reply: a batch, `idle`, or None when there will be none
        self._waited_s = 0.0
        self._tests = 0

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: Any) -> None:
        """Silence pytest, since the output belongs to the tests.

        Also skip the five garbage collections at the end of a session, by which pytest finds unraisable exceptions. These
        would belong to no test, and with PyTorch loaded the collections take a third of a second.
        """
        if config.pluginmanager.has_plugin("terminalreporter"):
            config.pluginmanager.unregister(name="terminalreporter")
        with contextlib.suppress(ImportError):  # pytest before 8.4
            from _pytest.unraisableexception import gc_collect_iterations_key

            config.stash[gc_collect_iterations_key] = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: Any) -> Any:
        """Return an empty report for a file whose first batch has not come."""
        if not isinstance(collector, pytest.File) or collector.nodeid in self._released:
            return None
        collectors = self._delayed.setdefault(collector.nodeid, [])
        if collector not in collectors:
            collectors.append(collector)
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._collect_problems.append(("error", bounded(report.longreprtext)))
        elif report.skipped:
            self._collect_problems.append(("skipped", skip_reason(report.longrepr)))

    def _collect(self, file: str) -> dict[str, Any]:
        """Return the items of a file by node id, collected at the first call."""
        if file in self._items:
            return self._items[file]
        began = time.monotonic()
        self._worker.send("collecting", file=file)
        self._released.add(file)
        self._collect_problems = []
        session = self._session
        items = [item for collector in self._delayed.get(file, ()) for item in session.genitems(collector)]
        session.items = items
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        session.testscollected += len(items)
        self._items[file] = {item.nodeid: item for item in items}
        if self._collect_problems:
            self._problems[file] = min(self._collect_problems)  # an error before a skip
        elif file not in self._delayed:
            self._problems[file] = self._folder_problem or ("not_run", f"pytest finds nothing to collect at {file}")
        self._worker.send("collected", file=file, seconds=time.monotonic() - began, tests=len(items))
        return self._items[file]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        """Run batches until the worker closes its pipe."""
        self._session = session
        self._folder_problem = min((problem for problem in self._collect_problems if problem[0] == "error"), default=None)
        self._worker.send("ready", seconds=time.monotonic() - self._began)
        while (batch := self._next_batch()) is not None:
            self._run(batch)
        return True

    def _ask(self) -> None:
        """Ask for the next batch once; the answer may be that there is none yet."""
        if self._asked:
            return
        self._asked = True
        began = time.monotonic()
        self._worker.send("want")
        self._next = self._worker.receive()
        self._waited_s = time.monotonic() - began

    def _next_batch(self) -> Batch | None:
        self._ask()
        while self._next is not None and "tests" not in self._next:
            self._next = self._worker.receive()
        batch, self._next, self._asked = self._next, None, False
        return batch

    def next_node(self) -> Any:
        """Return the node whose set-up the next test shares: its item, its file, or the session when no test is known."""
        self._ask()
        if self._next is None:
            return None
        file, tests = self._next.get("file", ""), self._next.get("tests", ())
        found = self._items.get(file, {})
        return [*(found[test] for test in tests if test in found), *self._delayed.get(file, ()), self._session][0]

    def _run(self, batch: Batch) -> None:
        file, tests = batch["file"], batch["tests"]
        found = self._collect(file)
        problem = self._problems.get(file, ("not_run", f"pytest no longer finds this test in {file}"))
        for test in tests:
            if test not in found:
                self._worker.send_result(test, *problem)
        items = [found[test] for test in tests if test in found]
        if items:
            try:  # to tear down what was kept for a batch that could not run any test; usually nothing
                self._session._setupstate.teardown_exact(items[0])
            except Exception as error:
                self._worker.send("teardown_failed", message=bounded(f"{type(error).__name__}: {error}"))
        followers = [*items[1:], _NextItem(self)]
        for place, item in enumerate(items):
            self._run_item(item, followers[place])

    def _run_item(self, item: Any, nextitem: Any) -> None:
        self._tests += 1
        self._reports, self._waited_s = [], 0.0
        self._worker.send_start(item.nodeid, self._tests)
        started_at = now()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        outcome, message = outcome_of(self._reports)
        whole = (report for report in self._reports if report.when != "call" or not hasattr(report, "context"))
        duration_s = sum(report.duration for report in whole)  # subtests have a context, and are part of their test
        self._worker.send_result(item.nodeid, outcome, message, started_at, max(0.0, duration_s - self._waited_s))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._reports.append(report)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self._worker.send("stopped", message=bounded(f"the test ended the pytest session: {excinfo.exconly()}"))

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._worker.send("stopped", message=bounded(f"pytest had an internal error: {excrepr}"))


def run(commands_fd: int, results_fd: int, parent: int) -> int:
    """Run the session; return pytest's exit code, but 0 when tests failed."""
    end_with_parent(parent, signal.SIGKILL)
    faulthandler.register(signal.SIGTERM, file=os.dup(2), all_threads=True, chain=True)
    worker = WorkerPipes(commands_fd, results_fd)
    request = worker.receive()
    if request is None:
        return 0
    sys.path[:] = [entry for entry in sys.path if entry != sys.argv[0]]
    sys.argv = ["pytest"]  # tests may read it
    root = request["root"]
    arguments = [f"--rootdir={root}", "-p", "no:cacheprovider", "--capture=no", *request["pytest_args"]]
    files = [file for file in request["files"] if Path(root, file).exists()]
    status = pytest.main([*arguments, *files], plugins=[_BatchSession(worker)]) if files else _run_nothing(worker)
    return _leave(0 if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else int(status))


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
                worker.send_result(test, "not_run", f"{batch['file']} does not exist")
            worker.send("want")
    return 0
