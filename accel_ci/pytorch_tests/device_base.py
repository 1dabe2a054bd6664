"""The base class of PyTorch's tests on the backend's device. PyTorch runs this file itself (`TORCH_TEST_DEVICES`).

The class is the backend's own, else PyTorch's for devices out of its tree. PyTorch would add it to its list of bases beside
its own one, so that each test were instantiated twice, and would call the first class of a process `TestXPRIVATEUSE1` and the
others by the name of the device. Here the name is the device's from the beginning, in every process.
"""

import os
import runpy

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
    return base


TEST_CLASS = _test_class(dict(globals()))
