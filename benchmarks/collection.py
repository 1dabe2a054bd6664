"""The collection of PyTorch's files beside `pytest --collect-only` of the same files, each in a process of its own.

    python -m benchmarks.collection --config accel_ci.yaml [--json] BUILD SUITE [FILE …]

The build must have finished: its image and sources are used again. FILEs replace those of the suite, such as
`test/test_ops.py`. *Cold* is a build that knows no file yet, *warm* the next one. Files that cannot be collected are tried
again each time, so leave them out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

from accel_ci.pool.choose_pool import pool_for
from accel_ci.scope.each_file import CollectionCache, files_below
from accel_ci.scope.selection import read_selection, select_tests
from accel_ci.storage.artifacts import ArtifactStore
from benchmarks.upstream import UpstreamSuite, open_suite


@dataclass(frozen=True)
class Clock:
    """The wall time, and the processor time of this process and of its children that have ended."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clock:
        """Read both."""
        return cls(time.perf_counter(), sum(os.times()[:4]))

    def since(self) -> dict[str, float]:
        """The seconds that have passed."""
        now = Clock.now()
        return {"wall": round(now.wall - self.wall, 2), "processor": round(now.processor - self.processor, 2)}


def plain_seconds(opened: UpstreamSuite, files: list[str], arguments: tuple[str, ...]) -> dict[str, float]:
    """Collect files by plain pytest, one after the other, and return the seconds."""
    began = Clock.now()
    for file in files:
        subprocess.run(
            [opened.image.python, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *arguments, file],
            cwd=opened.folder, env=dict(opened.environment), capture_output=True, timeout=1800, check=False,
        )  # fmt: skip
    return began.since()


def main() -> None:
    """Print the seconds of plain pytest, and of a selection without and with known files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("build")
    parser.add_argument("suite")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args()
    opened = open_suite(given.config, given.build, given.suite)
    settings, session = opened.workspace.project.settings, opened.spec.sessions[given.suite]
    suite = settings.suites[given.suite]
    if given.files:
        suite = suite.model_copy(update={"paths": tuple(given.files)})
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        cache, artifacts = CollectionCache(scratch / "collections", "image"), ArtifactStore(scratch / "artifacts")
        pool, seconds, tests, errors = pool_for(settings), dict[str, dict[str, float]](), 0, list[str]()
        for state in ("cold", "warm"):
            began = Clock.now()
            selection = select_tests(
                {given.suite: suite}, opened.spec, opened.workspace.runner, artifacts, pool.execute, 600, cache
            )
            seconds[state] = began.since()
            tests = len(read_selection(selection.tests, artifacts))
            errors = [error.partition(":")[0] for suite_found in selection.suites for error in suite_found.collection_errors]
        seconds["pytest --collect-only"] = plain_seconds(
            opened, files_below(opened.folder, suite.places), session.pytest_args
        )
    found = {"tests": tests, **seconds, "cannot be collected": errors}
    click.echo(json.dumps(found) if given.as_json else "\n".join(f"{name}: {each}" for name, each in found.items()))


if __name__ == "__main__":
    main()
