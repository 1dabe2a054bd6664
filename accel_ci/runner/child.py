"""`child`: one pytest session that lives as long as its process and runs the batches that the worker sends.

pytest collects folders and conftest files once, as it would for all files of the plan; the files themselves are held
back and collected when their first batch comes. Commands arrive and results leave on file descriptors of their own, one
JSON line each; standard output belongs to the tests.

What comes after the last test of a batch is asked for when that test is torn down, so a fixture outlives the batch when
the next test still needs it, and nothing is claimed before it can run.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .ending import end_with_parent
from .events import now
from .messages import TEST_MARK, bounded, judge

Batch = dict[str, Any]


class Line:
    """The child's end of its two pipes to the worker."""

    def __init__(self, commands_fd: int, results_fd: int) -> None:
        """Take over the descriptors; programs that tests start do not inherit them."""
        self._owner = os.getpid()
        for descriptor in (commands_fd, results_fd):
            os.set_inheritable(descriptor, False)
        self._commands = open(commands_fd, encoding="utf-8")  # noqa: SIM115 - as long as the process
        self._results = open(results_fd, "wb", buffering=0)  # noqa: SIM115
        self._output = os.dup(1)

    def receive(self) -> dict[str, Any] | None:
        """The worker's next command; None when there will be no more. A fork of this process ends here."""
        if os.getpid() != self._owner:
            os._exit(1)
        line = self._commands.readline()
        command: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return command

    def send(self, kind: str, **fields: object) -> None:
        """Tell the worker; a fork of this process has nothing to tell."""
        if os.getpid() == self._owner:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            data = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode("ascii") + b"\n"
            while data:
                data = data[self._results.write(data) :]

    def mark_output(self, number: int) -> None:
        """Mark in the output where the output of a test begins."""
        os.write(self._output, TEST_MARK + b"%d\0\n" % number)


class Next:
    """Stands for the item after the last one of a batch, and finds out which it is when pytest tears down.

    What pytest asks of it is its chain of collectors: of the next item, where that is collected, else of its file.
    """

    def __init__(self, session: BatchSession) -> None:
        """Ask that session."""
        self._session = session

    def listchain(self) -> list[Any]:
        """The collectors that stay set up."""
        node = self._session.node_to_come()
        return [] if node is None else list(node.listchain())

    def __getattr__(self, name: str) -> Any:
        """Whatever else plugins ask is of the node to come."""
        return getattr(self._session.node_to_come(), name)


class BatchSession:
    """The pytest plugin that holds files back, runs batches and tells the worker of them."""

    def __init__(self, line: Line) -> None:
        """Speak with the worker on `line`."""
        self._line = line
        self._began = time.monotonic()
        self._held: dict[str, list[Any]] = {}
        self._release: set[str] = set()
        self._items: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._collecting: list[tuple[str, str]] = []
        self._folder_problem: tuple[str, str] | None = None
        self._reports: list[Any] = []
        self._session: Any = None
        self._wanted = False
        self._to_come: Batch | None = None
        self._over = False
        self._waited_s = 0.0
        self._tests = 0

    # --- collection ---------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: Any) -> None:
        """Print nothing: the output is the tests'.

        At the end of a session pytest collects garbage five times to find exceptions that nobody raised. They would be of no
        test, and with PyTorch loaded that takes a third of a second.
        """
        if config.pluginmanager.has_plugin("terminalreporter"):
            config.pluginmanager.unregister(name="terminalreporter")
        with contextlib.suppress(ImportError):  # pytest before 8.4
            from _pytest.unraisableexception import gc_collect_iterations_key

            config.stash[gc_collect_iterations_key] = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: Any) -> Any:
        """Give an empty report for a file whose first batch has not come."""
        if not isinstance(collector, pytest.File) or collector.nodeid in self._release:
            return None
        held = self._held.setdefault(collector.nodeid, [])
        if collector not in held:
            held.append(collector)
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_collectreport(self, report: Any) -> None:
        """Keep why something of the file could not be collected."""
        if report.failed:
            self._collecting.append(("error", bounded(report.longreprtext)))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._collecting.append(("skipped", bounded(str(reason).removeprefix("Skipped: "))))

    def _collect(self, file: str) -> dict[str, Any]:
        """The items of a file by node id, collected at the first call."""
        if file in self._items:
            return self._items[file]
        began = time.monotonic()
        self._line.send("collecting", file=file)
        self._release.add(file)
        self._collecting = []
        session = self._session
        items: list[Any] = []
        for collector in self._held.get(file, []):
            items.extend(session.genitems(collector))
        session.items = items
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        session.testscollected += len(items)
        self._items[file] = {item.nodeid: item for item in items}
        if self._collecting:
            self._problems[file] = min(self._collecting)  # an error before a skip
        elif file not in self._held:
            self._problems[file] = self._folder_problem or ("not_run", f"pytest finds nothing to collect at {file}")
        self._line.send("collected", file=file, seconds=time.monotonic() - began, tests=len(items))
        return self._items[file]

    # --- batches ------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        """Run batches until the worker closes its end."""
        self._session = session
        self._folder_problem = min((problem for problem in self._collecting if problem[0] == "error"), default=None)
        self._line.send("ready", seconds=time.monotonic() - self._began)
        while (batch := self._next_batch()) is not None:
            self._run(batch)
        return True

    def _ask(self) -> None:
        """Ask for the next batch, once, without waiting for one that does not exist yet."""
        if self._wanted:
            return
        self._wanted = True
        began = time.monotonic()
        self._line.send("want")
        reply = self._line.receive()
        self._waited_s = time.monotonic() - began
        self._over = reply is None
        self._to_come = reply if reply and "tests" in reply else None

    def _next_batch(self) -> Batch | None:
        self._ask()
        while self._to_come is None and not self._over:
            self._to_come = self._line.receive()
            self._over = self._to_come is None
        batch, self._to_come, self._wanted = self._to_come, None, False
        return batch

    def node_to_come(self) -> Any:
        """The node whose set-up the next test shares: its item, its file, or the session when no test is known."""
        self._ask()
        if self._over:
            return None
        if self._to_come is not None:
            file = self._to_come["file"]
            for test in self._to_come["tests"]:
                if test in self._items.get(file, {}):
                    return self._items[file][test]
            for collector in self._held.get(file, []):
                return collector
        return self._session

    def _run(self, batch: Batch) -> None:
        found = self._collect(batch["file"])
        items = [found[test] for test in batch["tests"] if test in found]
        for test in batch["tests"]:
            if test not in found:
                outcome, message = self._problems.get(
                    batch["file"], ("not_run", f"pytest does not find this test in {batch['file']} any more")
                )
                self._line.send("result", test=test, outcome=outcome, message=message, started_at=None, duration_s=None)
        if items:
            self._tear_down_to(items[0])
        for place, item in enumerate(items):
            self._run_item(item, items[place + 1] if place + 1 < len(items) else Next(self))

    def _tear_down_to(self, item: Any) -> None:
        """Tear down what was kept for a batch of which no test could be run; usually nothing."""
        try:
            self._session._setupstate.teardown_exact(item)
        except Exception as error:
            self._line.send("teardown_failed", message=bounded(f"{type(error).__name__}: {error}"))

    def _run_item(self, item: Any, nextitem: Any) -> None:
        self._tests += 1
        self._reports, self._waited_s = [], 0.0
        self._line.send("start", test=item.nodeid, number=self._tests)
        self._line.mark_output(self._tests)
        started_at = now()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        outcome, message = judge(self._reports)
        duration_s = sum(report.duration for report in self._reports if report.when != "call" or _is_whole(report))
        self._line.send(
            "result",
            test=item.nodeid,
            outcome=outcome,
            message=message,
            started_at=started_at,
            duration_s=max(0.0, duration_s - self._waited_s),
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the reports of the running test."""
        self._reports.append(report)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        """Say why a test ended the whole session."""
        self._line.send("stopped", message=bounded(f"the test ended the pytest session: {excinfo.exconly()}"))

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Say what broke pytest."""
        self._line.send("stopped", message=bounded(f"pytest broke: {excrepr}"))


def _is_whole(report: Any) -> bool:
    return not hasattr(report, "context")


def _existing(root: str, files: list[str]) -> Iterator[str]:
    return (file for file in files if Path(root, file).exists())


def run(commands_fd: int, results_fd: int, parent: int) -> int:
    """Run the session; gives back pytest's exit code, 0 when tests failed as tests do."""
    end_with_parent(parent, signal.SIGKILL)
    faulthandler.register(signal.SIGTERM, file=os.dup(2), all_threads=True, chain=True)
    line = Line(commands_fd, results_fd)
    request = line.receive()
    if request is None:
        return 0
    sys.path[:] = [entry for entry in sys.path if entry != sys.argv[0]]
    sys.argv = ["pytest"]  # tests may read it
    root = request["root"]
    arguments = [f"--rootdir={root}", "-p", "no:cacheprovider", "--capture=no", *request["pytest_args"]]
    files = list(_existing(root, request["files"]))
    status = pytest.main([*arguments, *files], plugins=[BatchSession(line)]) if files else _run_nothing(line)
    return _leave(0 if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else int(status))


def _leave(status: int) -> NoReturn:
    """End the process with what is registered for its end, but do not take the interpreter apart.

    With PyTorch loaded that takes a second or two, and nothing of it matters to a session that is over.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _run_nothing(line: Line) -> int:
    """Answer for batches when not one file of the plan exists."""
    line.send("ready", seconds=0.0)
    while True:
        line.send("want")
        batch = line.receive()
        while batch is not None and "tests" not in batch:
            batch = line.receive()
        if batch is None:
            return 0
        for test in batch["tests"]:
            message = f"{batch['file']} does not exist"
            line.send("result", test=test, outcome="not_run", message=message, started_at=None, duration_s=None)
