"""The `collect` command: list the tests that pytest finds under some paths as JSON; a broken file costs only itself.

The sources are not written to. When a broken configuration (a conftest.py that cannot be imported) stops pytest before it
collects anything, each path is collected in a separate process to find the broken one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .outcomes import bounded

PYTEST_MISSING, ROOT_MISSING = 3, 4
_Found = tuple[list[str], list[dict[str, str]]]


def collect(root: str, output: str, pytest_args: Sequence[str], paths: Sequence[str]) -> int:
    """Write `{"tests", "errors", "collect_s"}` to `output`; return the exit code, 0 when the file was written."""
    began = time.monotonic()
    if importlib.util.find_spec("pytest") is None:
        sys.stderr.write(f"pytest is not installed for {sys.executable}; install it there\n")
        return PYTEST_MISSING
    if not Path(root).is_dir():
        sys.stderr.write(f"{root} is not a folder; --root names the root of the tests\n")
        return ROOT_MISSING
    target = Path(output).resolve()
    found = _collect_here(str(Path(root).resolve()), pytest_args, paths)
    tests, errors = _collect_each(root, pytest_args, paths) if found is None else found
    record = {"tests": tests, "errors": errors, "collect_s": time.monotonic() - began}
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(record), "utf-8")
    part.replace(target)
    return 0


def _collect_here(root: str, pytest_args: Sequence[str], paths: Sequence[str]) -> _Found | None:
    """Collect in this process; None when pytest stopped before collecting and any of several paths may be the cause."""
    import pytest

    class Recorder:
        def __init__(self) -> None:
            self.tests: list[str] = []
            self.errors: list[dict[str, str]] = []

        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config: Any) -> None:
            if config.pluginmanager.has_plugin("terminalreporter"):
                config.pluginmanager.unregister(name="terminalreporter")

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self.errors.append({"path": report.nodeid or ".", "message": bounded(report.longreprtext)})

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: Any) -> None:
            self.tests = list(dict.fromkeys(item.nodeid for item in session.items))

    sys.dont_write_bytecode = True
    os.chdir(root)
    recorder = Recorder()
    own_argv, sys.argv = sys.argv, ["pytest"]  # tests may read it
    options = [f"--rootdir={root}", "-p", "no:cacheprovider", "--collect-only", *pytest_args]
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        status = pytest.main([*options, *paths], plugins=[recorder])
    sys.argv = own_argv
    if int(status) in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
        if len(paths) > 1:
            return None
        recorder.errors.append({"path": paths[0], "message": bounded(printed.getvalue().strip() or f"pytest: {status!r}")})
    return recorder.tests, recorder.errors


def _collect_each(root: str, pytest_args: Sequence[str], paths: Sequence[str]) -> _Found:
    tests: list[str] = []
    errors: list[dict[str, str]] = []
    options = [f"--pytest-arg={argument}" for argument in pytest_args]
    with tempfile.TemporaryDirectory() as scratch:
        part = str(Path(scratch, "part.json"))
        for path in paths:
            command = [sys.executable, sys.argv[0], "collect", "--root", root, "--output", part, *options, path]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                errors.append({"path": path, "message": bounded(done.stdout.decode("utf-8", "replace"))})
                continue
            record = json.loads(Path(part).read_text("utf-8"))
            tests += record["tests"]
            errors += record["errors"]
    return list(dict.fromkeys(tests)), errors
