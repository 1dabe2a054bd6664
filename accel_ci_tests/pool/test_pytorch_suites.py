"""Ready suites and tolerances with a real PyTorch and the example's device, by plain pytest in a session's environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.pool.sessions import files_of_pytorch_suites, session_of
from accel_ci.quality.feeds import write_feeds
from accel_ci.quality.quarantine import Entry, State
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.fixtures.plain_pytest import plain_outcomes

Outcomes = Callable[..., dict[str, str]]

OFF_BY_A_HALF = """
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

class TestNear(TestCase):
    @ops([op for op in op_db if op.name in ("mm", "linalg.det")], allowed_dtypes=(torch.float16, torch.float32))
    def test_op(self, device, dtype, op):
        sample = next(iter(op.sample_inputs(device, dtype)))
        found = op(sample.input, *sample.args, **sample.kwargs).cpu()
        self.assertEqual(found + 0.5, found)

instantiate_device_type_tests(TestNear, globals())
"""

FED = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestFed(TestCase):
    def test_races(self, device): pass
    def test_hangs(self, device): pass
    def test_takes_long(self, device): pass
    def test_is_quick(self, device): pass

instantiate_device_type_tests(TestFed, globals())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with PyTorch and the example's device."""
    folder = tmp_path_factory.mktemp("python")
    emu = shutil.copytree(ROOT / "examples/emu_backend", folder / "emu")  # a build writes to its sources
    packages = ("torch==2.13.0", "numpy", "expecttest", "hypothesis", "pytest==9.2.0", str(emu))
    return environment_with(folder / "environment", *packages)


@pytest.fixture
def outcomes(make_project: Callable[..., Project], python: Path, tmp_path: Path) -> Outcomes:
    def _outcomes(arguments: tuple[str, ...] = (), device: dict[str, str] | None = None, **suite: Any) -> dict[str, str]:
        suites = {"smoke": {"stage": "smoke", "paths": ["tests"]}, "unit": suite}
        settings = make_project(suites=suites, device={"type": "emu", **(device or {})}).settings
        for name, content in files_of_pytorch_suites(settings.device, settings.suites.values(), tmp_path).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")  # as the example has it
        session = session_of(settings, settings.suites["unit"], tmp_path, "nightly")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **session.environment}
        found, _ = plain_outcomes(python, tmp_path, session.paths, environment, arguments)
        return {test.rpartition("::")[2]: outcome for test, outcome in found.items()}

    return _outcomes


def test_tolerances_reach_the_operators_before_their_tests_are_made(outcomes: Outcomes, tmp_path: Path) -> None:
    (tmp_path / "upstream").mkdir()
    (tmp_path / "upstream/test_near.py").write_text(OFF_BY_A_HALF)
    wide, narrow = {"atol": 1, "rtol": 0, "reason": "upstream_bug"}, {"atol": 0.1, "rtol": 0, "reason": "upstream_bug"}
    rules = [{"ops": ["linalg.*"], **wide}, {"ops": ["mm"], "dtypes": ["*16"], **wide}, {"ops": ["*"], **narrow}]
    assert outcomes(source="upstream", paths=["test_near.py"], scope={"tolerances": rules}) == {
        "test_op_linalg_det_emu_float32": "passed",
        "test_op_mm_emu_float16": "passed",
        "test_op_mm_emu_float32": "failed",
    }


def test_pytorchs_own_harness_takes_the_feeds_of_the_quarantine(outcomes: Outcomes, tmp_path: Path) -> None:
    (tmp_path / "upstream").mkdir()
    (tmp_path / "upstream/test_fed.py").write_text(FED)
    test = "upstream/test_fed.py::TestFedEMU::test_{}_emu"
    day, now = date(2026, 11, 27), datetime(2026, 11, 27, tzinfo=timezone.utc)
    states: dict[str, State] = {"races": "disabled", "hangs": "muted"}
    entries = [
        Entry("unit", test.format(name), "py3", state, "a race", "rule", day, day + timedelta(days=30))
        for name, state in states.items()
    ]
    write_feeds(tmp_path / "feeds", entries, {test.format("takes_long"): 61.0, test.format("is_quick"): 1.0}, now)
    device = {"disabled_tests": "feeds/disabled-tests.json", "slow_tests": "feeds/slow-tests.json"}
    wanted = {"hangs": "passed", "is_quick": "passed", "races": "skipped", "takes_long": "skipped"}
    assert outcomes(device=device, source="upstream", paths=["test_fed.py"]) == {
        f"test_{name}_emu": outcome for name, outcome in wanted.items()
    }
    slow_too = outcomes(device=device, source="upstream", paths=["test_fed.py"], environment={"PYTORCH_TEST_WITH_SLOW": "1"})
    assert slow_too["test_takes_long_emu"] == "passed"
    assert slow_too["test_races_emu"] == "skipped"


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="a minute: ACCEL_CI_LONG not set (make test-nightly)")
def test_operators_are_checked_in_all_dtypes_and_variants(outcomes: Outcomes) -> None:
    names = "test_compare_cpu_select_emu or _sub_emu or test_compare_cpu_empty_emu_int8 or test_out_addmm_emu"
    found = outcomes(("-k", names), kind="opinfo")
    assert {test for test, outcome in found.items() if outcome == "skipped"} == {"test_compare_cpu_empty_emu_int8"}
    assert {*found.values()} == {"passed", "skipped"}
    assert {test.rpartition("_emu")[2] for test in found if test.startswith("test_compare_cpu_select_emu")} == {
        f"_{dtype}" for dtype in (
            "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
            "complex32", "complex64", "complex128",
        )
    }  # fmt: skip
    assert {f"test_{name}_emu_float32" for name in ("out_sub", "out_addmm", "variant_consistency_eager_sub")} <= {*found}
    assert "test_errors_sub_emu" in found
