"""Fixtures: whole nightlies of the example backend, run by the command line in their own data folder.

A run takes most of a minute, so the tests of this folder share a few. They run a part of the op suite.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import Bench, make_bench


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time for a whole run, which takes minutes on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A project with the example backend in a repository of its own, and an upstream repository."""
    return make_bench(tmp_path_factory.mktemp("nightly"))


@pytest.fixture(scope="session")
def faulty_nightly(bench: Bench) -> Build:
    """A finished nightly in which one op is flaky, one crashes, and one hangs."""
    faults = "flaky:atan2,crash:tan,hang:erfinv"
    bench.configure(pool__environment__EMU_FAULTS=faults, limits__test_timeout_seconds=25)
    output = bench.accel_ci("run", "nightly")
    bench.configure()
    assert "index.html" in output
    [build] = ManifestStore(bench.project.home).list_builds()
    return build


@pytest.fixture(scope="session")
def bad_card_run(bench: Bench, faulty_nightly: Build) -> Build:
    """A finished build in which card 1 goes bad after its first kernels."""
    bench.configure(pool__environment__EMU_FAULTS="bad_card:1@5")
    bench.accel_ci("run", "manual", "--name", "bad card", "--strict", status=1)  # to_sparse fails for real
    bench.configure()
    return Build("manual-bad-card", faulty_nightly.variant)
