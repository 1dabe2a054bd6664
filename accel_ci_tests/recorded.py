"""Recorded runs of Bazel on the example backend, and a script that plays one of them.

The pipeline itself recorded them (Bazel 7.7.1, remote execution, `examples/emu_backend`):

* `faults`: all targets, including those that fail on purpose, with two attempts each and a limit of 3 s per test;
* `cached`: a second run of an unchanged revision, entirely from the remote cache;
* `broken`: the shim lacks a semicolon;
* `down`: nothing listened at the address of remote execution.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

RECORDED = Path(__file__).resolve().parent / "recorded_bazel"
STATUS = {"faults": 3, "cached": 0, "broken": 1, "down": 34}

_PLAYER = """#!{python}
import pathlib, shutil, sys

options = dict(option.partition("=")[::2] for option in sys.argv[1:])
credentials = pathlib.Path(options["--bazelrc"])
mode, said = oct(credentials.stat().st_mode & 0o777), credentials.read_text()  # they go once the events begin
case = pathlib.Path({case!r})
events = pathlib.Path(options["--build_event_json_file"])
with events.open("ab") as stream:
    stream.write((case / "bep.ndjson").read_bytes())
if (case / "testlogs").is_dir():
    link = pathlib.Path(options["--symlink_prefix"] + "testlogs")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(case / "testlogs")
if (case / "actions").is_dir():
    actions = pathlib.Path(options["--output_base"], "execroot/emu_backend/bazel-out/_tmp/actions")
    shutil.copytree(case / "actions", actions, dirs_exist_ok=True)
{extra}
sys.exit({status})
"""


def player(folder: Path, case: str, extra: str = "", *, python: str = sys.executable, recorded: Path = RECORDED) -> Path:
    """Write a script that plays a recorded run of Bazel; `extra` is Python code that it runs before it ends."""
    path = folder / f"bazel-{case}"
    path.write_text(_PLAYER.format(python=python, case=str(recorded / case), extra=extra, status=STATUS[case]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
