"""The `collect-each` command: collect each file apart from the others, several files at a time.

So a suite whose files are run apart from each other is collected: no file has what another one has imported or changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .collect_apart import HANGS, MOST_HANGS, STATE
from .ending import adopt_orphans, describe_end, end_leftovers
from .outcomes import bounded

MOST_JOBS = 16  # each holds the modules of a whole test session
_TRIES = 3  # of a collection whose own process a file ends


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect_each(root: str, output: str, pytest_args: Sequence[str], files: Sequence[str], limit_s: float) -> int:
    """Write `files`, the document of `collect` for each file, and `collect_s` to `output`; return the exit code.

    `limit_s` is for the start of pytest and for the collection of a file.
    """
    adopt_orphans()
    began, target = time.monotonic(), Path(output).resolve()
    hangs: list[str] = []

    def collect(number_and_file: tuple[int, str]) -> dict[str, Any]:
        number, file = number_and_file
        if len(hangs) >= MOST_HANGS:
            return _lost(file, f"given up, because {', '.join(hangs)} {HANGS}")
        document = _collect_file(root, Path(scratch, f"{number}.json"), pytest_args, file, limit_s)
        if any(HANGS in error["message"] for error in document["errors"]):
            hangs.append(file)
        return document

    with (
        tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        ThreadPoolExecutor(min(usable_cores(), MOST_JOBS)) as jobs,
    ):
        documents = dict(zip(files, jobs.map(collect, enumerate(files))))  # noqa: B905 - not in Python 3.9
    end_leftovers(os.getpid() + (1 << 30))  # no group: only what collecting processes that were killed have left
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps({"files": documents, "collect_s": time.monotonic() - began}), "utf-8")
    part.replace(target)
    return 0


def _collect_file(root: str, output: Path, pytest_args: Sequence[str], file: str, limit_s: float) -> dict[str, Any]:
    command = [
        sys.executable, sys.argv[0], "collect", "--limit", str(limit_s), "--root", root, "--output", str(output),
        *(f"--pytest-arg={argument}" for argument in pytest_args), file,
    ]  # fmt: skip
    for _ in range(_TRIES):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if output.exists():
            document: dict[str, Any] = json.loads(output.read_text("utf-8"))
            return document
        if not output.with_name(output.name + STATE).exists():
            break  # else the file has ended the command, which leaves it out the next time
    printed = done.stdout.decode("utf-8", "replace").replace("\0", "").strip()
    return _lost(file, f"the process that collects the tests {describe_end(done.returncode)}\n{printed}")


def _lost(file: str, message: str) -> dict[str, Any]:
    return {"tests": [], "errors": [{"path": file, "message": bounded(message)}]}
