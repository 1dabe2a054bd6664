"""The collection of PyTorch's files beside `pytest --collect-only` of the same files, each in a process of its own.

    python -m benchmarks.collection --config accel_ci.yaml BUILD SUITE [FILE …] [--json]

The build must have finished: its image and sources are used again. FILEs replace those of the suite, such as
`test/test_ops.py`. *Cold* is a build that knows no file yet, *warm* the next one. Files that cannot be collected are tried
again each time, so leave them out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import click

from accel_ci.pool.choose_pool import pool_for
from accel_ci.scope.each_file import CollectionCache, files_below
from accel_ci.scope.selection import read_selection, select_tests
from accel_ci.storage.artifacts import ArtifactStore
from benchmarks.upstream import UpstreamSuite, open_suite


def plain_seconds(opened: UpstreamSuite, files: list[str], arguments: tuple[str, ...]) -> float:
    """Collect files by plain pytest, one after the other, and return the seconds."""
    began = time.perf_counter()
    for file in files:
        subprocess.run(
            [opened.image.python, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *arguments, file],
            cwd=opened.folder, env=dict(opened.environment), capture_output=True, timeout=1800, check=False,
        )  # fmt: skip
    return time.perf_counter() - began


def main() -> None:
    """Print the seconds of plain pytest, and of a selection without and with what is known."""
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
        pool, seconds, tests, errors = pool_for(settings), dict[str, float](), 0, list[str]()
        for state in ("cold", "warm"):
            began = time.perf_counter()
            selection = select_tests(
                {given.suite: suite}, opened.spec, opened.workspace.runner, artifacts, pool.execute, 600, cache
            )
            seconds[state] = time.perf_counter() - began
            tests = len(read_selection(selection.tests, artifacts))
            errors = [error.partition(":")[0] for suite_found in selection.suites for error in suite_found.collection_errors]
        seconds["pytest --collect-only"] = plain_seconds(
            opened, files_below(opened.folder, suite.places), session.pytest_args
        )
    found = {"tests": tests, **{name: round(each, 1) for name, each in seconds.items()}, "cannot be collected": errors}
    click.echo(json.dumps(found) if given.as_json else "\n".join(f"{name}: {each}" for name, each in found.items()))


if __name__ == "__main__":
    main()
