"""The facts of tests at collection: read from objects like PyTorch's, and from PyTorch's own where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accel_ci.process.environment import clean_environment
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.fixtures.suite import Write

LIKE_PYTORCH = """
import functools, unittest
class onlyOn:
    def __init__(self, device_type): self.device_type = device_type
    def __call__(self, fn):
        @functools.wraps(fn)
        def only_fn(slf, *args, **kwargs):
            return self.device_type and fn(slf, *args, **kwargs)
        return only_fn
class skipIf:
    def __init__(self, dep, reason): self.dep, self.reason = dep, reason
    def __call__(self, fn):
        @functools.wraps(fn)
        def dep_fn(slf, *args, **kwargs):
            return self.dep or fn(slf, *args, **kwargs)
        return dep_fn
class skipCPUIf(skipIf): pass
def onlyCUDA(fn): return onlyOn("cuda")(fn)
def onlyNativeDeviceTypes(fn):
    @functools.wraps(fn)
    def only_fn(self, *args, **kwargs): return fn(self, *args, **kwargs)
    return only_fn
def unwrapped(fn):
    def inner(self, *args, **kwargs): return fn(self, *args, **kwargs)
    return inner
class dtype:
    def __init__(self, name): self.name = name
    def __repr__(self): return "torch." + self.name
float32, int64 = dtype("float32"), dtype("int64")
class OpInfo:
    name = "nn.functional.linear"
    full_name = "nn.functional.linear.variant"
class ModuleInfo:
    name = "nn.Linear"
class DeviceBase(unittest.TestCase):
    device_type = "emu"
    @classmethod
    def instantiate(cls, name, test, **kwargs):
        @functools.wraps(test)
        def instantiated_test(self, param_kwargs=kwargs): return test(self, **param_kwargs)
        setattr(cls, name, instantiated_test)
class TestOps(unittest.TestCase): pass
TestOpsEMU = type("TestOpsEMU", (DeviceBase, TestOps), {"__module__": __name__})
"""
TESTS = """
@onlyCUDA
def test_cuda(self, device): pass
@onlyNativeDeviceTypes
@skipCPUIf(True, "no")
def test_linear(self, device, dtype, op): pass
@onlyOn(["cuda", "xpu"])
@unwrapped
@unittest.expectedFailure
def test_pair(self, device, dtypes): pass
def test_module(self, device, module_info, training): pass
TestOpsEMU.instantiate("test_cuda_emu", test_cuda, device="emu:0")
TestOpsEMU.instantiate("test_linear_emu_float32", test_linear, device="emu:0", dtype=float32, op=OpInfo())
TestOpsEMU.instantiate("test_pair_emu_float32_int64", test_pair, device="emu:1", dtypes=(float32, int64))
TestOpsEMU.instantiate("test_module_emu", test_module, device="emu:0", module_info=ModuleInfo(), training=True)
del test_cuda, test_linear, test_pair, test_module
"""
EXPECTED: dict[str, dict[str, Any]] = {
    "test_cuda_emu": {"method": "test_cuda", "decorators": ["onlyCUDA"]},
    "test_linear_emu_float32": {
        "method": "test_linear", "op": "nn.functional.linear.variant", "dtypes": ["float32"],
        "decorators": ["onlyNativeDeviceTypes", "skipCPUIf"],
    },
    "test_pair_emu_float32_int64": {
        "method": "test_pair", "dtypes": ["float32", "int64"], "decorators": ["onlyOn(cuda,xpu)", "unwrapped"],
    },
    "test_module_emu": {"method": "test_module", "module": "nn.Linear", "markers": ["training"]},
}  # fmt: skip


def facts_by_test(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the facts in a collection's document by the end of a test's id."""
    found: dict[str, dict[str, Any]] = {}
    for place, test in enumerate(document["tests"]):
        facts = {name: (column["values"], column["of"][place]) for name, column in document["facts"].items()}
        found[test.partition("::")[2]] = {name: values[number] for name, (values, number) in facts.items() if number >= 0}
    return found


def collected(runner: Path, root: Path, python: str, paths: Sequence[str]) -> dict[str, Any]:
    output = root.parent / "collected.json"
    command = [python, str(runner), "collect", "--root", str(root), "--output", str(output), "--limit", "300", *paths]
    subprocess.run(command, cwd=root, timeout=600, check=True, env=clean_environment({}))
    document: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return document


def test_facts_of_instantiated_tests(runner: Path, write: Write, root: Path) -> None:
    write("test_ops.py", LIKE_PYTORCH + TESTS)
    found = facts_by_test(collected(runner, root, sys.executable, ["test_ops.py"]))
    common = {"class_name": "TestOps", "device": "emu"}
    assert {name.partition("::")[2]: facts for name, facts in found.items()} == {
        name: {**common, **facts} for name, facts in EXPECTED.items()
    }


def test_facts_of_plain_tests(runner: Path, write: Write, root: Path) -> None:
    write("pytest.ini", "[pytest]\nmarkers =\n  slow: x\n")
    write(
        "test_a.py",
        """
        import pytest
        @pytest.mark.slow
        @pytest.mark.parametrize("op", ["add"])
        @pytest.mark.parametrize("dtype", ["torch.float16"])
        def test_p(op, dtype): pass
        class TestA:
            def test_m(self): pass
        """,
    )
    found = facts_by_test(collected(runner, root, sys.executable, ["test_a.py"]))
    assert found == {
        "test_p[torch.float16-add]": {
            "method": "test_p", "op": "add", "dtypes": ["float16"], "markers": ["parametrize", "slow"],
        },
        "TestA::test_m": {"class_name": "TestA", "method": "test_m"},
    }  # fmt: skip


HOSTILE = {
    "raises": "class Odd:\n    def __getattr__(self, name): raise RuntimeError(name)\n",
    "skips": "class Odd:\n    @property\n    def full_name(self): pytest.skip('no')\n    name = full_name\n",
    "exits": "class Odd:\n    @property\n    def full_name(self): raise SystemExit(3)\n    name = full_name\n",
    "no_text": "class Odd:\n    full_name = name = 7\n",
    "surrogate": "class Odd:\n    full_name = name = '\\udcff'\n",
    "long": "class Odd:\n    full_name = name = 'x' * 10_000_000\n",
    "unhashable": "class Odd:\n    __hash__ = None\n    full_name = name = ['x']\n",
    "loop": "class Odd:\n    pass\ndef f(self): pass\nf.__wrapped__ = f\nDeviceBase.test_loop = f\n",
    "odd_kwargs": "class Odd:\n    pass\ndef f(self, param_kwargs=3): pass\nDeviceBase.test_odd = f\n",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_odd_objects_cost_a_fact_at_most(case: str, runner: Path, write: Write, root: Path) -> None:
    odd = "def test_op(self, device, op): pass\nTestOpsEMU.instantiate('test_op_emu', test_op, device='emu', op=Odd())\n"
    write("test_ops.py", "import pytest\n" + LIKE_PYTORCH + HOSTILE[case] + odd + "del test_op\n")
    document = collected(runner, root, sys.executable, ["test_ops.py"])
    facts = facts_by_test(document)["TestOpsEMU::test_op_emu"]
    assert document["errors"] == []
    assert (facts["method"], facts["device"], facts["class_name"]) == ("test_op", "emu", "TestOps")
    assert len(facts.get("op", "")) <= 1024


WITH_TORCH = """
import torch, unittest
from torch.testing._internal.common_utils import TestCase, parametrize, slowTest, skipIfTorchDynamo
from torch.testing._internal.common_device_type import (
    dtypes, expectedFailure, instantiate_device_type_tests, onlyCUDA, onlyNativeDeviceTypes, onlyOn, ops, skipCPUIf)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
class TestThing(TestCase):
    @onlyCUDA
    @dtypes(torch.float32)
    def test_cuda(self, device, dtype): pass
    @onlyNativeDeviceTypes
    @skipCPUIf(True, "no")
    @slowTest
    def test_native(self, device): pass
    @ops([op for op in op_db if op.name == "addmm"], allowed_dtypes=[torch.float64])
    def test_op(self, device, dtype, op): pass
    @modules([m for m in module_db if m.name == "nn.Linear"], allowed_dtypes=[torch.float32])
    def test_module(self, device, dtype, module_info, training): pass
    @dtypes((torch.float32, torch.int64))
    @onlyOn(["cuda", "xpu"])
    def test_pair(self, device, dtype): pass
instantiate_device_type_tests(TestThing, globals(), only_for="cpu")
"""


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)")
@pytest.mark.timeout(1800)
def test_facts_of_pytorchs_own_objects(runner: Path, write: Write, root: Path, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "python", "torch==2.13.0", "numpy", "expecttest", "hypothesis", "pytest==9.2.0")
    write("test_thing.py", WITH_TORCH)
    found = facts_by_test(collected(runner, root, str(python), ["test_thing.py"]))
    common = {"class_name": "TestThing", "device": "cpu"}
    dynamo = ["skipIfTorchDynamo"]
    assert {name.partition("::")[2]: facts for name, facts in found.items()} == {
        name: {**common, **facts}
        for name, facts in {
            "test_cuda_cpu_float32": {"method": "test_cuda", "dtypes": ["float32"], "decorators": ["onlyCUDA"]},
            "test_native_cpu": {
                "method": "test_native", "decorators": ["onlyNativeDeviceTypes", "skipCPUIf", "slowTest"],
            },
            "test_op_addmm_cpu_float64": {"method": "test_op", "op": "addmm", "dtypes": ["float64"], "decorators": dynamo},
            "test_op_addmm_decomposed_cpu_float64": {
                "method": "test_op", "op": "addmm.decomposed", "dtypes": ["float64"], "decorators": dynamo,
            },
            "test_module_nn_Linear_cpu_float32": {
                "method": "test_module", "module": "nn.Linear", "dtypes": ["float32"], "markers": ["training"],
                "decorators": dynamo,
            },
            "test_pair_cpu_float32_int64": {
                "method": "test_pair", "dtypes": ["float32", "int64"], "decorators": ["onlyOn(cuda,xpu)"],
            },
        }.items()
    }  # fmt: skip
