"""The `collect` command: have another process collect, and find the files of which it dies or at which it hangs.

The other process (`collect.py`) reports each file before it imports it, and waits until that is recorded. A file that ends
the process costs only itself: it becomes an error that says how the process ended, and the rest is collected without it. The
record is a file beside the output, so that even a file that ends this process is known when the command is run again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .collect import COLLECTED, INCOMPLETE
from .ending import adopt_orphans, describe_end, end_group, end_leftovers
from .outcomes import bounded

PYTEST_MISSING, ROOT_MISSING = 3, 4
STATE = ".state"  # added to the name of the output
MOST_HANGS = 5  # after so many hanging files the rest is given up, which bounds the time of the command
_GRACE_S = 2.0  # for a process that hangs to print where
_LOOK_S = 0.1
_PRINTED_BYTES = 4096


def collect_apart(root: str, output: str, pytest_args: Sequence[str], paths: Sequence[str], limit_s: float) -> int:
    """Write what `collect` finds, and `collect_s`, to `output`; return the exit code, 0 when the file was written.

    `limit_s` is for the start of pytest and for the collection of each file.
    """
    if importlib.util.find_spec("pytest") is None:
        sys.stderr.write(f"pytest is not installed for {sys.executable}; install it there\n")
        return PYTEST_MISSING
    if not Path(root).is_dir():
        sys.stderr.write(f"{root} is not a folder; --root names the root of the tests\n")
        return ROOT_MISSING
    adopt_orphans()
    began, target = time.monotonic(), Path(output).resolve()
    state = target.with_name(target.name + STATE)
    lost = _lost_before(state)
    empty: dict[str, Any] = {"skipped": {}, "deselected": {}, "ignored": {}, "facts": {}}
    record: dict[str, Any] = {"tests": [], "groups": {}, "errors": [], **empty}
    hangs = 0
    while left := [path for path in paths if path not in lost]:
        arguments = [*pytest_args, *(f"--ignore={Path(root).resolve() / place}" for place in lost)]
        options = ["--root", root, "--output", str(target), *(f"--pytest-arg={each}" for each in arguments), *left]
        end = _run(options, limit_s, lambda place: _write(state, {"at": place, "lost": lost}))
        if end.status == 0 and end.place == COLLECTED:
            record = json.loads(target.read_text("utf-8"))
            break
        hangs += end.problem == HANGS
        place = end.place if end.place not in lost and hangs < MOST_HANGS else None
        lost.update(dict.fromkeys([place] if place else left, end.message(limit_s)))
    record["errors"] += [{"path": path, "message": message} for path, message in lost.items()]
    record["ignored"] = {path: who for path, who in record["ignored"].items() if path not in lost}
    record["collect_s"] = time.monotonic() - began
    _write(target, record)
    return 0


def _lost_before(state: Path) -> dict[str, str]:
    """Return the files that are lost already, with messages: those of a command here that one of them has ended."""
    if not state.exists():
        return {}
    record = json.loads(state.read_text("utf-8"))
    lost: dict[str, str] = record["lost"]
    if record["at"]:
        lost[record["at"]] = f"the process that collects the tests was ended while pytest collected {record['at']}"
    return lost


def _write(path: Path, content: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content), "utf-8")
    part.replace(path)


HANGS = "did not get past it within the limit"


@dataclass(frozen=True)
class _End:
    """The end of the other process.

    `place` is the file at which it was, or the folder of a conftest. `problem` is why it was ended, `printed` the end of its
    output.
    """

    place: str | None
    status: int
    problem: str | None
    printed: str

    def message(self, limit_s: float) -> str:
        """Return the message of the file that is to blame."""
        if self.problem is None and self.status == INCOMPLETE:
            return bounded(self.printed)
        limit = f" of {limit_s:g} s" if self.problem == HANGS else ""
        how = f"{self.problem or describe_end(self.status)}{limit}"
        return bounded(f"pytest {how} while it collected {self.place or 'the tests'}\n{self.printed}".strip())


def _run(options: Sequence[str], limit_s: float, record: Callable[[str], None]) -> _End:
    """Collect in another process, record each place that it reports, and end all that it leaves."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as output:
        with theirs:
            command = [sys.executable, sys.argv[0], "collect-here", str(theirs.fileno()), str(os.getpid()), *options]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        place, problem = _follow(process, ours, limit_s, record)
        status = end_group(process, _GRACE_S)
        end_leftovers(process.pid)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _PRINTED_BYTES))
        printed = output.read().decode("utf-8", "replace").replace("\0", "").strip()
    return _End(place, status, problem, printed)


def _follow(
    process: subprocess.Popen[bytes], report: socket.socket, limit_s: float, record: Callable[[str], None]
) -> tuple[str | None, str | None]:
    """Record what the process reports until it ends; return the last place, and why the process must be ended."""
    place: str | None = None
    line = b""
    deadline, is_open = time.monotonic() + limit_s, True
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if is_open and select.select([report], [], [], 0 if ended else _LOOK_S)[0]:
            try:
                data = report.recv(1 << 16)
            except ConnectionError:
                data = b""
            is_open, line = bool(data), line + data
            if line.endswith(b"\n"):
                try:
                    place = str(json.loads(line))
                except ValueError:
                    return place, "wrote to the socket of the runner"
                record(place)
                report.sendall(b"\n")
                deadline, line = time.monotonic() + limit_s, b""
        elif ended:
            return place, None
        elif not is_open:
            time.sleep(_LOOK_S / 2)
    return place, HANGS
