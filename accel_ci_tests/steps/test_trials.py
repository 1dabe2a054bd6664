"""Suites on which tools of this kind are known to go wrong: the verdicts of a device stage on two cards.

The retry plug-ins have suites here; the other cases are run where a corpus of them lies beside the checkout. Small suites of
the same kinds are in `accel_ci_tests.runner.small_suites`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.process.environment import clean_environment
from accel_ci.steps.device_tests import StageContext
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.fixtures.stages import IMAGE, run_device
from accel_ci_tests.fixtures.stored_attempts import all_verdicts
from accel_ci_tests.fixtures.suite import Write

TRIALS = Path(__file__).parents[2].parent / "shared" / "cases" / "trials"

CASES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "01-assertion-text-lost/input": ({"unit": "."}, {"passed": 2, "failed": 3}),
    "03-cache-provider-off/input/strict": ({"unit": "."}, {"passed": 3}),
    "03-cache-provider-off/input/plain": ({"unit": "."}, {"passed": 3}),
    "04-bracket-in-a-folder-name/input": ({"unit": "."}, {"passed": 2, "failed": 1}),
    "07-failed-then-skipped/input": ({"unit": "."}, {"passed": 2, "failed": 1}),
    "09-session-fixture-fails-at-its-end/input": ({"unit": "."}, {"passed": 2, "failed": 1}),
    "10-two-items-of-one-id/input": ({"unit": "."}, {"passed": 2, "failed": 1}),
    "12-suites-share-one-session/input/m1": ({"a": "tests/a", "b": "tests/b"}, {"passed": 2}),
    "12-suites-share-one-session/input/m2": ({"a": "tests/a", "b": "tests/b"}, {"passed": 2}),
    "12-suites-share-one-session/input/m3": ({"a": "tests/a", "b": "tests/b"}, {"skipped": 1, "failed": 1}),
    "14-exclusive-group/input": ({"unit": "."}, {"passed": 8}),
    "17-ids-with-addresses/input": ({"unit": "."}, {"passed": 3, "not_run": 4}),
    "19-asyncio-modes/input": ({"unit": "."}, {"passed": 4, "failed": 1, "xfailed": 1}),
    "20-unittest-set-up-and-clean-up/input": ({"unit": "."}, {"passed": 1, "failed": 3, "skipped": 3, "xfailed": 1}),
    "21-doctests/input": ({"unit": "."}, {"passed": 4, "failed": 3, "skipped": 1}),
    "22-exit-asked-for-in-a-fixture/input": ({"unit": "."}, {"passed": 2, "failed": 1}),
    "23-children-and-threads-left/input": ({"unit": "."}, {"passed": 10}),
    "44-frozen-clock/input": ({"unit": "."}, {"passed": 9}),
}
"""By folder: the suites with their paths, and the number of tests of each verdict."""

DEVICE_GENERIC: dict[str, dict[str, int]] = {
    "15-device-generic-classes/input/three": {"passed": 6},
    "15-device-generic-classes/input/crash": {"passed": 4, "failed": 2},
}
"""These need PyTorch and the example backend."""

RETRIED = """
import pytest
NUMBERS = iter(range(9))
@pytest.mark.flaky({once_more})
def test_second_time(): assert next(NUMBERS) == 1
@pytest.mark.flaky({once_more})
def test_never(): assert False
def test_plain(): pass
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "python"
    needed = ("pytest-timeout", "pytest-asyncio", "anyio", "pytest-xdist", "freezegun", "psutil")
    return environment_with(folder, "pytest==9.2.0", *needed)


@pytest.fixture(scope="module")
def python_with_emu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emu")
    backend = shutil.copytree(ROOT / "examples" / "emu_backend", folder / "backend")
    python = environment_with(folder / "python", "torch==2.13.0", "numpy", "expecttest", "pytest==9.2.0", str(backend))
    compile_it = [str(python), "-c", "import torch.testing._internal.common_device_type"]
    subprocess.run(compile_it, check=True, timeout=900, env=clean_environment({}))
    return python


def verdicts(
    make_project: Callable[..., Project], python: Path, root: Path, context: StageContext, paths: dict[str, str]
) -> dict[str, int]:
    """Run suites on two cards; return the number of tests of each verdict."""
    project = make_project(
        pool={"cards": 2, "card_environment": "TOY_CARD"},
        limits={"test_timeout_seconds": 60, "startup_seconds": 120},
        suites={"smoke": {"stage": "smoke", "paths": ["."]}, **{name: {"paths": [path]} for name, path in paths.items()}},
        jobs={name: {"suites": ["smoke", *paths]} for name in ("main", "pr")}
        | {name: {"cron": "0 2 * * *", "suites": ["smoke", *paths]} for name in ("nightly", "intraday")},
    )
    run_device(project, root, context, replace(IMAGE, python=str(python)))
    return Counter(verdict.verdict for verdict in all_verdicts(context.results, context.build))


@pytest.mark.skipif(not TRIALS.is_dir(), reason="no corpus of trial cases lies beside the checkout")
@pytest.mark.parametrize("case", CASES)
def test_trial(
    case: str,
    python: Path,
    make_project: Callable[..., Project],
    context: StageContext,
) -> None:
    paths, expected = CASES[case]
    assert verdicts(make_project, python, TRIALS / case, context, paths) == expected


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)")
@pytest.mark.skipif(not TRIALS.is_dir(), reason="no corpus of trial cases lies beside the checkout")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", DEVICE_GENERIC)
def test_trial_with_the_example_backend(
    case: str, python_with_emu: Path, make_project: Callable[..., Project], context: StageContext
) -> None:
    assert verdicts(make_project, python_with_emu, TRIALS / case, context, {"unit": "."}) == DEVICE_GENERIC[case]


@pytest.mark.parametrize(
    ("plugin", "once_more"), [("pytest-rerunfailures", "reruns=2"), ("pytest-retry", "retries=2"), ("flaky", "max_runs=3")]
)
def test_tries_of_plugins_are_attempts(
    plugin: str, once_more: str, make_project: Callable[..., Project], context: StageContext, root: Path,
    write: Write, tmp_path: Path,
) -> None:  # fmt: skip
    write("test_r.py", RETRIED.format(once_more=once_more))
    python = environment_with(tmp_path / "environment", "pytest==8.4.2", plugin)
    found = verdicts(make_project, python, root, context, {"unit": "."})
    assert found == {"flaky": 1, "failed": 1, "passed": 1}
