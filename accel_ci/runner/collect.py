"""The `collect-here` command: list the tests that pytest finds under some paths as JSON.

A file that cannot be imported costs only itself; one that ends the process is left out by `collect_apart.py` the next time.
The sources are not written to.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .ending import end_with_parent
from .outcomes import bounded, skip_reason

INCOMPLETE = 5  # the exit code when the collection did not get to its end
COLLECTED = ""  # the place that is reported when all files are collected


@dataclass
class _Found:
    """Tests in order, those that must stay together, and what cannot be collected.

    `facts` are those of the tests (`test_facts.py`). `skipped` are files that skip themselves, with the reasons.
    `deselected` has the numbers of tests that were left out, and `ignored` the paths of files that were, by who did it.
    """

    tests: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    deselected: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


def collect(report_fd: int, parent: int, root: str, output: str, pytest_args: Sequence[str], paths: Sequence[str]) -> int:
    """Write what is `_Found` to `output`; return the exit code, unless the file was written.

    `groups` has, for tests that must not run at the same time as others, the name that these have in common. A collection
    that does not get to its end writes no file, but why to standard error. One that does ends this process, with the threads
    that files have started.
    """
    end_with_parent(parent, signal.SIGKILL)
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    target, root = Path(output).resolve(), str(Path(root).resolve())
    import pytest

    from .collection_report import CollectionReport
    from .left_out import LeftOut
    from .quiet_pytest import QuietPytest, run_pytest
    from .test_facts import facts_of
    from .test_ids import TestIds, groups_of

    class Recorder:
        def __init__(self) -> None:
            self.found = _Found()
            self.ids = TestIds(root, root)
            self.stopped: list[str] = []

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionstart(self, session: Any) -> None:
            self.ids = TestIds(root, str(session.config.rootpath))

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                path = self.ids.of_node(report.nodeid) or "."
                self.found.errors.append({"path": path, "message": bounded(report.longreprtext)})
            elif report.skipped and (path := self.ids.of_node(report.nodeid)):
                self.found.skipped[path] = bounded(skip_reason(report.longrepr))

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: Any) -> None:
            items = self.ids.of_items(session.items)
            self.found.tests = list(items)
            self.found.groups = groups_of(items, quiet.dist)
            self.found.deselected = left_out.deselected(session)
            self.found.ignored = left_out.ignored
            self.found.facts = facts_of(items.values())

        def pytest_internalerror(self, excrepr: Any) -> None:
            self.stopped.append(str(excrepr))

        def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
            self.stopped.append(f"the collection was ended by {excinfo.exconly()}")

    sys.dont_write_bytecode = True
    os.chdir(root)
    recorder, report, left_out = Recorder(), CollectionReport(report_fd, root), LeftOut(root)
    sys.argv = ["pytest"]  # tests may read it
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(printed), redirect_stdout(printed):
        quiet = QuietPytest(root, Path(scratch))
        status = run_pytest(
            root, Path(scratch), ["--collect-only", *pytest_args, *paths], [quiet, recorder, report, left_out]
        )
    if not report.complete:
        sys.stderr.write(
            "\n".join(recorder.stopped) or printed.getvalue().strip() or f"pytest ended with exit code {status}"
        )
        return INCOMPLETE
    target.write_text(json.dumps(vars(recorder.found)), "utf-8")
    os._exit(0)
