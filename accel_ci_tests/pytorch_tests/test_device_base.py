"""The base class of PyTorch's tests is the device's alone, by its own name from the first class on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.pool.sessions import FILES

TORCH = "class _C:\n    @staticmethod\n    def _get_privateuse1_backend_name():\n        return 'emu'\n"
LIKE_PYTORCH = """
import os, runpy

class DeviceTypeTestBase: pass
class CPUTestBase(DeviceTypeTestBase): device_type = "cpu"
class PrivateUse1TestBase(DeviceTypeTestBase):
    device_type = "privateuse1"

device_type_test_bases = [CPUTestBase, PrivateUse1TestBase]
mod = runpy.run_path(os.environ["TORCH_TEST_DEVICES"], init_globals=globals())
device_type_test_bases.append(mod["TEST_CLASS"])
print([(each.__name__, each.device_type) for each in device_type_test_bases])
"""
"""The part of `torch.testing._internal.common_device_type` that runs the file."""


def bases(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "torch.py").write_text(TORCH)
    (folder / "common.py").write_text(LIKE_PYTORCH)
    given = {"TORCH_TEST_DEVICES": str(FILES / "device_base.py"), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run([sys.executable, "common.py"], cwd=folder, env=given, capture_output=True, text=True, timeout=60)


def test_without_a_base_of_the_backend_it_is_pytorchs_by_the_name_of_the_device(tmp_path: Path) -> None:
    done = bases(tmp_path, ACCEL_CI_DEVICE="emu")
    assert done.stdout.strip() == "[('CPUTestBase', 'cpu'), ('PrivateUse1TestBase', 'emu')]"


@pytest.mark.parametrize("removes", ["", "device_type_test_bases.remove(PrivateUse1TestBase)"])
def test_the_base_of_the_backend_is_the_only_one_of_its_device(tmp_path: Path, removes: str) -> None:
    base = tmp_path / "base.py"
    base.write_text(f"class EmuTestBase(PrivateUse1TestBase): pass\nTEST_CLASS = EmuTestBase\n{removes}\n")
    done = bases(tmp_path, ACCEL_CI_DEVICE="emu", ACCEL_CI_TEST_BASE=str(base))
    assert done.stdout.strip() == "[('CPUTestBase', 'cpu'), ('EmuTestBase', 'emu')]"


def test_a_device_that_no_backend_has_registered_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = bases(tmp_path, ACCEL_CI_DEVICE="spyre")
    assert done.returncode != 0
    assert "PyTorch knows no device 'spyre': check that the backend's wheel has an entry point" in done.stderr
