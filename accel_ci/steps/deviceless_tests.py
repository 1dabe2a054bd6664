"""Run the suites that need no card: lint and other commands, and tests on an emulated device.

They run where the pool's workers run, in processes that hold no card. Their attempts are stored as those of other suites,
without a card.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.config.settings import Settings, Suite
from accel_ci.model import DeviceTestResults, SelectedTest, WorkerSpec
from accel_ci.plan.guided import make_plan
from accel_ci.pool.choose_pool import pool_for
from accel_ci.progress import Step
from accel_ci.rounds.driver import PoolRun
from accel_ci.rounds.tally import ROWS
from accel_ci.scope.modes import with_modes
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.source.checkout import checkout_root
from accel_ci.steps.device_tests import StageContext, collect_tests, driven_rounds, store_attempts
from accel_ci.storage.scratch_folder import scratch_folder

_SHOWN_COMMAND = 160
_RUN = """
import os, shutil, subprocess, sys
copy, folder, limit, *words = sys.argv[1:]
os.chdir(os.path.join(copy, folder))
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
words[0] = sys.executable if words[0] == "python" else words[0]
try:
    status = subprocess.run(words, stdin=subprocess.DEVNULL, timeout=float(limit)).returncode
except OSError as error:
    status = f"{words[0]} cannot be started: {error.strerror}"
except subprocess.TimeoutExpired:
    status = f"it did not end within {limit} s"
shutil.rmtree(copy, ignore_errors=True)
sys.exit(status)
"""
"""Runs a command in a folder of a copy of the sources, and removes the copy, so that a pod does not send it back.

Programs of the interpreter's own environment come first, and `python` is the interpreter.
"""


def run_deviceless_stage(
    settings: Settings, suites: Mapping[str, Suite], spec: WorkerSpec, sources: Path, context: StageContext, step: Step
) -> DeviceTestResults:
    """Run the suites of commands, then the tests of the others, and store their attempts; failed tests run once more.

    Commands run in copies of `sources`, the backend's. Raises `SelectionError` for a suite without tests, and `PoolError`.
    """
    started = time.monotonic()
    tested = {name: suite for name, suite in suites.items() if not suite.commands}
    selection = collect_tests(settings, tested, spec, context)
    spec = with_modes(spec, selection.scope, context.artifacts)
    tests = read_selection(selection.tests, context.artifacts)
    commanded = {name: suite for name, suite in suites.items() if suite.commands}
    step.total(len(tests) + sum(len(suite.commands) for suite in commanded.values()))
    rows = [
        row
        for name, suite in commanded.items()
        for row in _run_commands(settings, name, suite, spec, sources, context, step)
    ]
    expected = write_selection([*(SelectedTest(row["suite"], row["test"]) for row in rows), *tests], context.artifacts)
    plan, processes = (
        make_plan(tests, {}, settings.pool.processes),
        [str(number) for number in range(settings.pool.processes)],
    )

    def stored(run: PoolRun) -> DeviceTestResults:
        found = pa.concat_tables([_without_cards(run.rows), pa.Table.from_pylist(rows, schema=ROWS)])
        run = replace(run, rows=found, cards=())
        return replace(store_attempts(expected, tuple(suites), run, plan, started, context), selections=selection.suites)

    if not tests:
        return stored(PoolRun(ROWS.empty_table(), (), (), 0.0, 0.0))
    with driven_rounds(settings, plan, processes, spec, context, step, rounds=settings.pool.rounds, tests=tests) as run:
        return stored(run)


def _run_commands(
    settings: Settings, name: str, suite: Suite, spec: WorkerSpec, sources: Path, context: StageContext, step: Step
) -> list[dict[str, Any]]:
    """Run the commands of a suite one after another, each in its own copy of the sources; return a row for each."""
    pool = pool_for(settings, context.run, with_cards=context.with_cards)
    own = replace(spec, environment={**spec.environment, **spec.sessions[name].environment})
    limit_s = suite.test_timeout_seconds or settings.limits.test_timeout_seconds
    whole, rows = checkout_root(sources), []
    folder = sources.relative_to(whole)
    for number, command in enumerate(suite.commands, 1):
        with scratch_folder("command") as scratch:
            copy = shutil.copytree(whole, scratch / "sources", symlinks=True)
            began, began_at = time.monotonic(), datetime.now(timezone.utc)
            words = [spec.python, "-c", _RUN, str(copy), str(folder), str(limit_s), *command]
            done = pool.execute(words, own, scratch, limit_s + settings.limits.startup_seconds)
        failed = done.status != 0
        rows.append({
            "suite": name, "test": name_of_command(number, command), "round": 1,
            "outcome": "failed" if failed else "passed",
            "message": f"the exit status is {done.status}\n{done.tail}" if failed else None,
            "started_at": began_at, "duration_s": round(time.monotonic() - began, 3),
        })  # fmt: skip
        step.advance(f"{name}: {shlex.join(command)[:_SHOWN_COMMAND]}: {rows[-1]['outcome']}")
    return rows


def name_of_command(number: int, command: Sequence[str]) -> str:
    """Return the name of the test that a command is."""
    return f"command {number}: {shlex.join(command)[:_SHOWN_COMMAND]}"


def _without_cards(rows: pa.Table) -> pa.Table:
    """The rows without the numbers of processes, which stand where cards' are."""
    place = rows.schema.get_field_index("card")
    return rows.set_column(place, "card", pa.nulls(len(rows), pa.string()))
