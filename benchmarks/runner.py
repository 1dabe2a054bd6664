"""What the runner costs beside plain pytest and pytest-xdist: `python -m benchmarks.runner [--json]`.

The operator tests of the example backend, in the image that its last nightly ran in (`make nightly` makes one), on one card
and on two. All ways take turns in every repetition, so that a busy moment of the machine meets each of them; medians count.
pytest-xdist is installed beside the image, for its own runs alone. The wall time of ours is that of the driver, with the
tests and their durations known from the build before, as in a nightly; collecting them anew is measured by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_ci.artifacts import ArtifactStore
from accel_ci.config import Project, Suite, load_project
from accel_ci.errors import AccelCiError
from accel_ci.manifests import ManifestStore
from accel_ci.model import Launch, Limits, RuntimeImage, SelectedTest
from accel_ci.plan.guided import lower_bound, make_plan
from accel_ci.pool.choose_pool import launch_for
from accel_ci.pool.driver import PoolRun, run_rounds
from accel_ci.pool.local import LocalPool
from accel_ci.pool.package import build_runner
from accel_ci.scope.selection import read_selection, select_tests

PATH = "tests/pytorch"
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Way:
    """One way to run the tests: on how many cards, and what runs them."""

    name: str
    cards: int
    run: Callable[[], Mapping[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_argument("--repeats", type=int, default=5, help="how often each way runs")
    chosen = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="accel-ci-runner-") as name:
        results = measure(load_project(), Path(name), chosen.repeats)
    if chosen.json:
        sys.stdout.write(json.dumps(results, indent=1) + "\n")
    else:
        Console().print(table(results))
    return 0


def measure(project: Project, folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds of every way, medians and all. Raises `AccelCiError` when there is no image, or a way runs no tests."""
    launch = launch_for(project.settings, newest_image(project), project.root / project.settings.backend.subdirectory)
    runner = build_runner(folder / "runner.pyz")
    artifacts = ArtifactStore(folder / "artifacts")
    load_before = os.getloadavg()[0]
    began = time.monotonic()
    selection = select_tests(
        {"op": Suite(paths=(PATH,))}, launch, runner, artifacts, LocalPool().execute, timeout_s=_TIMEOUT_S
    )
    collection_s = time.monotonic() - began
    tests = read_selection(selection.tests, artifacts)
    xdist = install_xdist(folder / "xdist")
    first = ours(tests, {}, 1, launch, folder)  # warms the caches of all, and gives durations
    known = {(a.suite, a.test): a.duration_s for a in first.attempts if a.duration_s is not None}
    ways = (
        Way("pytest", 1, lambda: pytest_run(launch, len(tests), [])),
        Way("accel_ci", 1, lambda: timed(lambda: ours(tests, known, 1, launch, folder))),
        Way("pytest -n 2", 2, lambda: pytest_run(launch, len(tests), ["-n", "2"], xdist)),
        Way(
            "pytest -n 2 --dist worksteal",
            2,
            lambda: pytest_run(launch, len(tests), ["-n", "2", "--dist", "worksteal"], xdist),
        ),
        Way("accel_ci ", 2, lambda: timed(lambda: ours(tests, known, 2, launch, folder))),
    )
    runs: dict[str, list[Mapping[str, float]]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            runs[way.name].append(way.run())
    found = {
        way.name: {
            "cards": way.cards,
            "seconds": median(run["seconds"] for run in runs[way.name]),
            "all": [round(run["seconds"], 3) for run in runs[way.name]],
            **({"over_bound": median(run["over_bound"] for run in runs[way.name])} if "accel" in way.name else {}),
        }
        for way in ways
    }
    return {
        "tests": len(tests),
        "processors": os.cpu_count(),
        "load": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "collection_s": collection_s,
        "ways": found,
        "overhead_on_one_card": median(
            mine["seconds"] / plain["seconds"] - 1 for mine, plain in zip(runs["accel_ci"], runs["pytest"], strict=True)
        ),
    }


def newest_image(project: Project) -> RuntimeImage:
    """The runtime image of the newest build that has one."""
    manifests = ManifestStore(project.home)
    for build in reversed(manifests.list_builds()):
        path = manifests.path("runtime_image", build.revision, build.variant)
        if path.is_file():
            return manifests.read(path, RuntimeImage)
    raise AccelCiError(f"no build in {project.home} has a runtime image; `make nightly` makes one")


def install_xdist(folder: Path) -> Path:
    """pytest-xdist in a folder of its own, to be added to the image's path."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        str(folder),
    ]
    subprocess.run([*command, "pytest-xdist==3.8.0", "execnet==2.1.2"], check=True, timeout=_TIMEOUT_S)
    return folder


def ours(
    tests: Sequence[SelectedTest], known: Mapping[tuple[str, str], float], cards: int, launch: Launch, folder: Path
) -> PoolRun:
    """One round of ours."""
    plan = make_plan(tests, known, cards)
    names = [str(number) for number in range(cards)]
    run_dir = Path(tempfile.mkdtemp(dir=folder))
    return run_rounds(
        LocalPool(), plan.batches, names, launch, Limits(), run_dir, lambda attempt: None, 1, urgent=plan.urgent
    )


def timed(run: Callable[[], PoolRun]) -> Mapping[str, float]:
    """The wall time of a run of ours, and over its bound.

    The bound is of its own measured work: each worker's set-up and collection and all tests, spread evenly over the cards.
    """
    began = time.monotonic()
    result = run()
    seconds = time.monotonic() - began
    setup_s = sum(card.setup_s for card in result.cards) / len(result.cards)
    durations = [attempt.duration_s or 0.0 for attempt in result.attempts]
    return {"seconds": seconds, "over_bound": seconds / (setup_s + lower_bound(durations, len(result.cards)))}


def pytest_run(launch: Launch, tests: int, arguments: Sequence[str], beside: Path | None = None) -> Mapping[str, float]:
    """The wall time of one pytest over the same tests. Raises `AccelCiError` when it did not run them all."""
    environment = {**launch.environment, launch.card_environment: "0,1" if beside else "0"}
    if beside is not None:
        environment["PYTHONPATH"] = str(beside)
    command = [launch.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *launch.pytest_args, *arguments]
    began = time.monotonic()
    done = subprocess.run(
        [*command, PATH], cwd=launch.root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    seconds = time.monotonic() - began
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-500:]
    counts = [int(word) for word in last.replace(",", "").split() if word.isdecimal()]
    if sum(counts) != tests:
        raise AccelCiError(f"{' '.join(command[1:])} ran other tests than the {tests}: {last}")
    return {"seconds": seconds}


def table(results: Mapping[str, Any]) -> Table:
    """The numbers for a person."""
    shown = Table("way", "cards", "seconds", "over its lower bound", "all", box=None, header_style="bold")
    for name, way in results["ways"].items():
        bound = f"{way['over_bound']:.3f}" if "over_bound" in way else ""
        shown.add_row(name.strip(), str(way["cards"]), f"{way['seconds']:.2f}", bound, " ".join(map(str, way["all"])))
    shown.caption = (
        f"{results['tests']} tests, {results['processors']} processors, load {results['load'][0]} before and "
        f"{results['load'][1]} after; overhead on one card {results['overhead_on_one_card']:+.1%}; "
        f"collection for the plan {results['collection_s']:.1f} s"
    )
    return shown


if __name__ == "__main__":
    sys.exit(main())
