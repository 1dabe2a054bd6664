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
from .outcomes import bounded, outcome_of, skip_reason
from .output_tail import TEST_MARK

Batch = dict[str, Any]


class WorkerPipes:
    """The child's ends of its two pipes to the worker."""

    def __init__(self, commands_fd: int, results_fd: int) -> None:
        """Take over the descriptors, which programs that tests start do not inherit."""
        self._owner = os.getpid()
        for descriptor in (commands_fd, results_fd):
            os.set_inheritable(descriptor, False)
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

    def mark_output(self, number: int) -> None:
        """Mark the beginning of a test's output."""
        os.write(self._output, TEST_MARK + b"%d\0\n" % number)


class NextItem:
    """A stand-in for the item after the last one of a batch; it finds that item only when pytest tears down.

    pytest asks for its chain of collectors: that of the next item if it is collected, else of its file.
    """

    def __init__(self, session: BatchSession) -> None:
        """Find the item in that session."""
        self._session = session

    def listchain(self) -> list[Any]:
        """Return the collectors that stay set up."""
        node = self._session.next_node()
        return [] if node is None else list(node.listchain())

    def __getattr__(self, name: str) -> Any:
        """Get any attribute that plugins ask for from the next node."""
        return getattr(self._session.next_node(), name)


class BatchSession:
    """The pytest plugin that delays the collection of files, runs batches and sends the worker their results."""

    def __init__(self, worker: WorkerPipes) -> None:
        """Exchange messages with `worker`."""
        self._worker = worker
        self._began = time.monotonic()
        self._delayed: dict[str, list[Any]] = {}
        self._released: set[str] = set()
        self._items: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._collect_problems: list[tuple[str, str]] = []
        self._folder_problem: tuple[str, str] | None = None
        self._reports: list[Any] = []
        self._session: Any = None
        self._asked = False
        self._next: Batch | None = None
        self._over = False
        self._waited_s = 0.0
        self._tests = 0

    # --- collection ---------------------------------------------------------------------------------------------

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
        """Keep the reason why a part of the file could not be collected."""
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
        items: list[Any] = []
        for collector in self._delayed.get(file, []):
            items.extend(session.genitems(collector))
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

    # --- batches ------------------------------------------------------------------------------------------------

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
        reply = self._worker.receive()
        self._waited_s = time.monotonic() - began
        self._over = reply is None
        self._next = reply if reply and "tests" in reply else None

    def _next_batch(self) -> Batch | None:
        self._ask()
        while self._next is None and not self._over:
            self._next = self._worker.receive()
            self._over = self._next is None
        batch, self._next, self._asked = self._next, None, False
        return batch

    def next_node(self) -> Any:
        """Return the node whose set-up the next test shares: its item, its file, or the session when no test is known."""
        self._ask()
        if self._over:
            return None
        if self._next is not None:
            file = self._next["file"]
            for test in self._next["tests"]:
                if test in self._items.get(file, {}):
                    return self._items[file][test]
            for collector in self._delayed.get(file, []):
                return collector
        return self._session

    def _run(self, batch: Batch) -> None:
        found = self._collect(batch["file"])
        items = [found[test] for test in batch["tests"] if test in found]
        for test in batch["tests"]:
            if test not in found:
                outcome, message = self._problems.get(
                    batch["file"], ("not_run", f"pytest no longer finds this test in {batch['file']}")
                )
                self._worker.send("result", test=test, outcome=outcome, message=message, started_at=None, duration_s=None)
        if items:
            self._tear_down_to(items[0])
        for place, item in enumerate(items):
            self._run_item(item, items[place + 1] if place + 1 < len(items) else NextItem(self))

    def _tear_down_to(self, item: Any) -> None:
        """Tear down what was kept for a batch that could not run any test; usually nothing."""
        try:
            self._session._setupstate.teardown_exact(item)
        except Exception as error:
            self._worker.send("teardown_failed", message=bounded(f"{type(error).__name__}: {error}"))

    def _run_item(self, item: Any, nextitem: Any) -> None:
        self._tests += 1
        self._reports, self._waited_s = [], 0.0
        self._worker.send("start", test=item.nodeid, number=self._tests)
        self._worker.mark_output(self._tests)
        started_at = now()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        outcome, message = outcome_of(self._reports)
        whole = (report for report in self._reports if report.when != "call" or not hasattr(report, "context"))
        duration_s = sum(report.duration for report in whole)  # subtests have a context, and are part of their test
        self._worker.send(
            "result",
            test=item.nodeid,
            outcome=outcome,
            message=message,
            started_at=started_at,
            duration_s=max(0.0, duration_s - self._waited_s),
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep a report of the running test."""
        self._reports.append(report)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        """Report that a test ended the whole session."""
        self._worker.send("stopped", message=bounded(f"the test ended the pytest session: {excinfo.exconly()}"))

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Report an internal error of pytest."""
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
    status = pytest.main([*arguments, *files], plugins=[BatchSession(worker)]) if files else _run_nothing(worker)
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
    while True:
        worker.send("want")
        batch = worker.receive()
        while batch is not None and "tests" not in batch:
            batch = worker.receive()
        if batch is None:
            return 0
        for test in batch["tests"]:
            message = f"{batch['file']} does not exist"
            worker.send("result", test=test, outcome="not_run", message=message, started_at=None, duration_s=None)
