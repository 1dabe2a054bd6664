"""The `collect` command: list the tests that pytest finds under some paths as JSON; a broken file costs only itself.

The sources are not written to. When a broken configuration (a conftest.py that cannot be imported) stops pytest before it
collects anything, each path is collected in a separate process to find the broken one.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .outcomes import bounded

PYTEST_MISSING, ROOT_MISSING = 3, 4


@dataclass
class _Found:
    """Tests in order, those that must stay together, and what cannot be collected."""

    tests: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)


def collect(root: str, output: str, pytest_args: Sequence[str], paths: Sequence[str]) -> int:
    """Write `{"tests", "groups", "errors", "collect_s"}` to `output`; return the exit code, 0 when the file was written.

    `groups` has, for tests that must not run at the same time as others, the name that these have in common.
    """
    began = time.monotonic()
    if importlib.util.find_spec("pytest") is None:
        sys.stderr.write(f"pytest is not installed for {sys.executable}; install it there\n")
        return PYTEST_MISSING
    if not Path(root).is_dir():
        sys.stderr.write(f"{root} is not a folder; --root names the root of the tests\n")
        return ROOT_MISSING
    target = Path(output).resolve()
    found = _collect_here(str(Path(root).resolve()), pytest_args, paths)
    if found is None:
        found = _collect_each(root, pytest_args, paths)
    record = {**asdict(found), "collect_s": time.monotonic() - began}
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(record), "utf-8")
    part.replace(target)
    return 0


def _collect_here(root: str, pytest_args: Sequence[str], paths: Sequence[str]) -> _Found | None:
    """Collect in this process; None when pytest stopped before collecting and any of several paths may be the cause."""
    import pytest

    from .quiet_pytest import QuietPytest, run_pytest
    from .test_ids import TestIds, group_of

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

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: Any) -> None:
            items = self.ids.of_items(session.items)
            self.found.tests = list(items)
            groups = {test: group_of(item, test, quiet.dist) for test, item in items.items()}
            self.found.groups = {test: group for test, group in groups.items() if group is not None}

        def pytest_internalerror(self, excrepr: Any) -> None:
            self.stopped.append(str(excrepr))

        def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
            self.stopped.append(f"the collection was ended by {excinfo.exconly()}")

    sys.dont_write_bytecode = True
    os.chdir(root)
    recorder = Recorder()
    own_argv, sys.argv = sys.argv, ["pytest"]  # tests may read it
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(printed), redirect_stdout(printed):
        quiet = QuietPytest(root, Path(scratch))
        status = run_pytest(root, Path(scratch), ["--collect-only", *pytest_args, *paths], [quiet, recorder])
    sys.argv = own_argv
    if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED):
        if recorder.found.tests or recorder.found.errors:  # errors of collection interrupt a session, too
            return recorder.found
        if len(paths) > 1:
            return None
        message = "\n".join(recorder.stopped) or printed.getvalue().strip() or f"pytest: {status!r}"
        recorder.found.errors.append({"path": paths[0], "message": bounded(message)})
    return recorder.found


def _collect_each(root: str, pytest_args: Sequence[str], paths: Sequence[str]) -> _Found:
    found = _Found()
    options = [f"--pytest-arg={argument}" for argument in pytest_args]
    with tempfile.TemporaryDirectory() as scratch:
        part = str(Path(scratch, "part.json"))
        for path in paths:
            command = [sys.executable, sys.argv[0], "collect", "--root", root, "--output", part, *options, path]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                found.errors.append({"path": path, "message": bounded(done.stdout.decode("utf-8", "replace"))})
                continue
            record = json.loads(Path(part).read_text("utf-8"))
            found.tests += record["tests"]
            found.groups.update(record["groups"])
            found.errors += record["errors"]
    found.tests = list(dict.fromkeys(found.tests))
    return found
