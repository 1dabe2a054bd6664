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
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_ci.config.loading import load_project
from accel_ci.config.pool_settings import LocalPoolSettings
from accel_ci.config.settings import Project, Suite
from accel_ci.errors import AccelCiError
from accel_ci.model import Limits, RuntimeImage, SelectedTest, SuiteSession, WorkerSpec
from accel_ci.plan.guided import make_plan
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.pool.local import LocalPool
from accel_ci.pool.runner_package import build_runner
from accel_ci.rounds.driver import PoolRun, run_rounds
from accel_ci.scope.selection import read_selection, select_tests
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore

PATH = "tests/pytorch"
POOL = LocalPool(LocalPoolSettings(card_environment="CARD"))
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
    sources = project.root / project.settings.backend.subdirectory
    spec = replace(worker_spec_for(project.settings, newest_image(project), sources), probe=())  # pytest has none either
    spec = replace(spec, sessions={"op": SuiteSession((PATH,))})
    runner = build_runner(folder / "runner.pyz")
    artifacts = ArtifactStore(folder / "artifacts")
    load_before = os.getloadavg()[0]
    began = time.monotonic()
    selection = select_tests({"op": Suite(paths=(PATH,))}, spec, runner, artifacts, POOL.execute, timeout_s=_TIMEOUT_S)
    collection_s = time.monotonic() - began
    tests = read_selection(selection.tests, artifacts)
    xdist = install_xdist(folder / "xdist")
    first = ours(tests, {}, 1, spec, folder / "first")  # warms the caches of all, and gives durations
    known = {(a.suite, a.test): a.duration_s for a in first.attempts if a.duration_s is not None}
    ways = (
        Way("pytest", 1, lambda: pytest_run(spec, len(tests), [])),
        Way("accel_ci", 1, lambda: timed(lambda run_dir: ours(tests, known, 1, spec, run_dir), folder)),
        Way("pytest -n 2", 2, lambda: pytest_run(spec, len(tests), ["-n", "2"], xdist)),
        Way(
            "pytest -n 2 --dist worksteal",
            2,
            lambda: pytest_run(spec, len(tests), ["-n", "2", "--dist", "worksteal"], xdist),
        ),
        Way("accel_ci ", 2, lambda: timed(lambda run_dir: ours(tests, known, 2, spec, run_dir), folder)),
    )
    runs: dict[str, list[Mapping[str, float]]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            runs[way.name].append(way.run())
    found = {
        way.name: {
            "cards": way.cards,
            "seconds": median(run["seconds"] for run in runs[way.name]),
            "processor_s": median(run["processor_s"] for run in runs[way.name]),
            "all": [round(run["seconds"], 3) for run in runs[way.name]],
            **_over_bound([run["over_bound"] for run in runs[way.name] if "over_bound" in run]),
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


def _over_bound(ratios: Sequence[float]) -> dict[str, Any]:
    return {"over_bound": median(ratios), "all_over_bound": [round(ratio, 3) for ratio in ratios]} if ratios else {}


def newest_image(project: Project) -> RuntimeImage:
    """The runtime image of the newest build that has one."""
    manifests = ManifestStore(project.home)
    for build in manifests.list_builds():
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
    tests: Sequence[SelectedTest], known: Mapping[tuple[str, str], float], cards: int, spec: WorkerSpec, run_dir: Path
) -> PoolRun:
    """One round of ours."""
    plan = make_plan(tests, known, cards)
    names = [str(number) for number in range(cards)]
    return run_rounds(POOL, plan.batches, names, spec, Limits(), run_dir, lambda *_: None, 1, urgent=plan.urgent)


def timed(run: Callable[[Path], PoolRun], folder: Path) -> Mapping[str, float]:
    """The seconds of a run of ours, and its wall time over the bound of its own measured work, spread evenly."""
    run_dir = Path(tempfile.mkdtemp(dir=folder))
    with measured() as seconds:
        result = run(run_dir)
    work_s, longest_s = measured_work(run_dir)
    return {**seconds, "over_bound": seconds["seconds"] / max(longest_s, work_s / len(result.cards))}


def measured_work(run_dir: Path) -> tuple[float, float]:
    """The seconds of all workers in set-up, collection and tests (with pytest's reports), and of the longest test."""
    work_s, longest_s = 0.0, 0.0
    for path in run_dir.glob("round-*/workers/*/events.jsonl"):
        started = datetime.min
        for event in map(json.loads, path.read_text("utf-8").splitlines()):
            at = datetime.fromisoformat(event["at"])
            if event["event"] == "started":
                started = at
            elif event["event"] == "attempt":
                spent_s = (at - started).total_seconds()
                work_s, longest_s = work_s + spent_s, max(longest_s, spent_s)
            else:
                work_s += event.get("setup_s", 0.0)
    return work_s, longest_s


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Wall and processor seconds of what is done inside, with its child processes."""
    seconds: dict[str, float] = {}
    began, worked = time.monotonic(), _processor_s()
    yield seconds
    seconds.update(seconds=time.monotonic() - began, processor_s=_processor_s() - worked)


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_run(spec: WorkerSpec, tests: int, arguments: Sequence[str], beside: Path | None = None) -> Mapping[str, float]:
    """The wall time of one pytest over the same tests. Raises `AccelCiError` when it did not run them all."""
    environment = {**spec.environment, spec.card_environment: "0,1" if beside else "0"}
    if beside is not None:
        environment["PYTHONPATH"] = str(beside)
    command = [
        spec.python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        *arguments,
    ]
    with measured() as seconds:
        done = subprocess.run(
            [*command, PATH], cwd=spec.root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-500:]
    counts = [int(word) for word in last.replace(",", "").split() if word.isdecimal()]
    if sum(counts) != tests:
        raise AccelCiError(f"{' '.join(command[1:])} ran other tests than the {tests}: {last}")
    return seconds


def table(results: Mapping[str, Any]) -> Table:
    """The numbers for a person."""
    shown = Table("way", "cards", "wall s", "processor s", "wall / bound", "all wall s", box=None, header_style="bold")
    for name, way in results["ways"].items():
        bound = f"{way['over_bound']:.3f}" if "over_bound" in way else ""
        times = (f"{way['seconds']:.2f}", f"{way['processor_s']:.2f}", bound, " ".join(map(str, way["all"])))
        shown.add_row(name.strip(), str(way["cards"]), *times)
    shown.caption = (
        f"{results['tests']} tests, {results['processors']} processors, load {results['load'][0]} before and "
        f"{results['load'][1]} after; overhead on one card {results['overhead_on_one_card']:+.1%}; "
        f"collection for the plan {results['collection_s']:.1f} s"
    )
    return shown


if __name__ == "__main__":
    sys.exit(main())
