"""A suite of PyTorch's files in a finished build beside plain pytest and pytest-xdist: outcomes test by test, and the time.

    python -m benchmarks.upstream --config accel_ci.yaml manual-big~py311-torch2.13-emu upstream

Each file has its own process, as PyTorch runs them. The build must have run with one round. `-n 2` needs pytest-xdist in the
image.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from accel_ci.config.loading import load_project
from accel_ci.ledger.status import find_build
from accel_ci.model import Build, DeviceTestResults, RuntimeImage, TestSelection, Wheel, WorkerSpec
from accel_ci.pipelines import DEVICE_TEST_RESULTS, RUNTIME_IMAGE, TEST_SELECTION, WHEEL
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.scope.each_file import files_below
from accel_ci.steps.test_sources import sources_for_tests
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.plain_pytest import plain_outcomes


@dataclass(frozen=True)
class UpstreamSuite:
    """A suite of a finished build, ready to be collected or run again: its workspace, sources, spec and environment."""

    workspace: Workspace
    build: Build
    image: RuntimeImage
    folder: Path
    spec: WorkerSpec
    environment: Mapping[str, str]


def open_suite(config: Path, name: str, suite: str) -> UpstreamSuite:
    """Open a suite of a finished build. Raises `AccelCiError`, or ends the program if the build is not finished."""
    project = load_project(config)
    workspace, settings = Workspace(project), project.settings
    manifests, build = workspace.manifests, find_build(workspace.manifests, name)
    revision = manifests.revision(build.revision)
    image, wheel = manifests.find(RUNTIME_IMAGE, build, RuntimeImage), manifests.find(WHEEL, build, Wheel)
    if revision is None or image is None or wheel is None:
        raise SystemExit(f"{build.name} is not finished")
    wheels = [workspace.artifacts.path(each) for each in wheel.wheels]
    sources = sources_for_tests(project, revision, settings.variant(build.variant), image, wheels, [settings.suites[suite]])
    spec = worker_spec_for(settings, image, sources.folder)
    environment = {**spec.environment, **spec.sessions[suite].environment, spec.card_environment: "0"}
    return UpstreamSuite(workspace, build, image, sources.folder, spec, environment)


def main() -> None:
    """Run plain pytest and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--xdist", action="store_true", help="also run pytest -n 2")
    parser.add_argument("build")
    parser.add_argument("suite")
    given = parser.parse_args()
    opened = open_suite(given.config, given.build, given.suite)
    manifests, store, build = opened.workspace.manifests, opened.workspace.results, opened.build
    results = manifests.find(DEVICE_TEST_RESULTS, build, DeviceTestResults)
    selection = manifests.find(TEST_SELECTION, build, TestSelection)
    if results is None or selection is None:
        raise SystemExit(f"{build.name} is not finished")
    session = opened.spec.sessions[given.suite]
    files = files_below(opened.folder, session.paths)
    [stored] = [each for each in store.suites(build=build) if each.suite == given.suite]
    rows = store.read(stored, ["test", "outcome"]).to_pylist()
    found = {row["test"]: row["outcome"] for row in rows}
    cards = opened.workspace.project.settings.pool.cards
    click.echo(
        f"accel-ci: {len(found):,} tests, {results.makespan_s:.0f} s on {cards} cards (all suites), "
        f"and {selection.work_s:.0f} s to select the tests"
    )
    for name, arguments in {"pytest": (), **({"pytest -n 2": ("-n", "2")} if given.xdist else {})}.items():
        plain, seconds = plain_outcomes(
            Path(opened.image.python), opened.folder, files, opened.environment, (*session.pytest_args, *arguments)
        )
        click.echo(f"{name}: {len(plain):,} tests, {seconds:.0f} s")
        different = {
            test: (plain.get(test), found.get(test)) for test in plain | found if plain.get(test) != found.get(test)
        }
        for test, (one, other) in sorted(different.items()):
            click.echo(f"  {test}: {one}, {other} by accel-ci")
        equal = sum(found.get(test) == outcome for test, outcome in plain.items())
        click.echo(f"  {equal:,} equal: {dict(Counter(plain.values()))}")


if __name__ == "__main__":
    main()
