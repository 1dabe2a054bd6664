"""The base class of PyTorch's tests on the backend's device. PyTorch runs this file itself (`TORCH_TEST_DEVICES`).

The class is the backend's own, else PyTorch's for devices out of its tree. PyTorch would add it to its list of bases beside
its own one, so that each test were instantiated twice, and would call the first class of a process `TestXPRIVATEUSE1` and the
others by the name of the device. Here the name is the device's from the beginning, in every process.

`ACCEL_CI_TOLERANCES` has rules in JSON, each with patterns of `ops` and perhaps `dtypes`, `atol` and `rtol`. The operators
get them as decorators before tests are made of them, as they get those of `op_overrides`.
"""

import copy
import json
import os
import runpy
from fnmatch import fnmatchcase

import torch


def _test_class(found):
    device, path = os.environ["ACCEL_CI_DEVICE"], os.environ.get("ACCEL_CI_TEST_BASE")
    if path:
        base = runpy.run_path(path, init_globals=found)["TEST_CLASS"]
    elif torch._C._get_privateuse1_backend_name() == device:
        base = found["PrivateUse1TestBase"]
    else:
        raise RuntimeError(
            f"PyTorch knows no device {device!r}: check that the backend's wheel has an entry point of the group "
            "torch.backends, and device.type of the configuration"
        )
    base.device_type = device
    others = (base, found.get("PrivateUse1TestBase"))
    found["device_type_test_bases"][:] = [each for each in found["device_type_test_bases"] if each not in others]
    tolerances = json.loads(os.environ.get("ACCEL_CI_TOLERANCES", "[]"))
    return _with_tolerances(base, tolerances) if tolerances else base


def _with_tolerances(base, rules):
    if not hasattr(base, "_apply_op_overrides"):
        raise RuntimeError(f"scope.tolerances need PyTorch 2.13 or newer: {torch.__version__} has no op_overrides")

    class WithTolerances(base):
        @classmethod
        def _apply_op_overrides(cls, ops, test=None):
            # Not by `op_overrides`: it has no patterns, and copies the whole table of operators for each test (0.8 s).
            super()._apply_op_overrides(ops, test)
            ops.op_list = [_tolerant(op, rules) for op in ops.op_list]

    return WithTolerances


def _tolerant(op, rules):
    """Return an operator with the tolerances of the rules that are for it."""
    # They are imported late: PyTorch is still importing the first of these when it runs this file.
    from torch.testing._internal.common_device_type import tol, toleranceOverride
    from torch.testing._internal.opinfo.core import DecorateInfo

    mine = [rule for rule in rules if _matches(op.full_name, rule["ops"])]
    if not mine:
        return op
    op = copy.copy(op)
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for rule in reversed(mine):  # for PyTorch, the last one counts
        dtypes = {each for each in every if _matches(str(each).rpartition(".")[2], rule.get("dtypes", ["*"]))}
        override = toleranceOverride({each: tol(atol=rule["atol"], rtol=rule["rtol"]) for each in dtypes})
        op.decorators = (*op.decorators, DecorateInfo(override, dtypes=dtypes))
    return op


def _matches(name, patterns):
    """True if a pattern matches; in these, only `*` and `?` are wildcards."""
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


TEST_CLASS = _test_class(dict(globals()))
