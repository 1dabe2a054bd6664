"""The base class of PyTorch's own tests on the device.

PyTorch runs this file when the variable `TORCH_TEST_DEVICES` names it, with its names at hand (`PrivateUse1TestBase`).
"""


class EmuTestBase(PrivateUse1TestBase):  # type: ignore[name-defined]  # noqa: F821
    """Instantiates tests for `emu`; PyTorch's own base would have another name until its first class is set up."""

    device_type = "emu"


device_type_test_bases.remove(PrivateUse1TestBase)  # type: ignore[name-defined]  # noqa: F821
TEST_CLASS = EmuTestBase
