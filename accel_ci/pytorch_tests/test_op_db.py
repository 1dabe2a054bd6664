"""PyTorch's table of operators on the device: the forward result of each operator, compared with the CPU's.

Each operator has one test, in float32 or, if it has no float32, in the first type that PyTorch tests it with.
"""

import itertools
import time
import zlib

import torch
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils import _pytree as pytree

SAMPLES = 3
SAMPLING_SECONDS = 2.0
"""No further sample is taken after this time."""


def samples(op, device, dtype):
    """Yield the first few sample inputs of an operator, on the device."""
    start = time.perf_counter()
    # Not op.sample_inputs: it inspects the whole stack for each operator, which takes longer than everything else here.
    for sample in itertools.islice(op.sample_inputs_func(op, device, dtype, False), SAMPLES):
        yield sample
        if time.perf_counter() - start > SAMPLING_SECONDS:
            return


def on_cpu(value):
    """Return the value with each tensor copied to the CPU and each device replaced by it."""

    def move(part):
        if isinstance(part, torch.Tensor):
            base = part._base
            # An operator may reach beyond a view, into its base.
            if base is not None and base.is_contiguous() and base.dtype == part.dtype and not part.is_conj():
                return base.to("cpu", copy=True).as_strided(part.shape, part.stride(), part.storage_offset())
            return part.to("cpu", copy=True)
        return torch.device("cpu") if isinstance(part, torch.device) else part

    moved = pytree.tree_map(move, value)
    if isinstance(moved, dict) and "device" in moved:
        moved["device"] = torch.device("cpu")
    return moved


class TestOpDb(TestCase):
    """One test for each operator."""

    def result(self, op, seed, sample):
        """Run the operator on one sample and return the parts of its result."""
        given, args, kwargs = sample
        torch.manual_seed(seed)
        return pytree.tree_leaves(op(given, *args, **kwargs))

    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_op(self, device, dtype, op):
        """The operator has the same result on the device and on the CPU."""
        seed = zlib.crc32(op.full_name.encode())
        torch.manual_seed(seed)
        compared = 0
        for sample in samples(op, device, dtype):
            whole = (sample.input, sample.args, sample.kwargs)
            reference = tuple(on_cpu(part) for part in whole)
            # What is in memory that was never written to means nothing.
            self.compare(
                self.result(op, seed, whole), self.result(op, seed, reference), device, values="empty" not in op.name
            )
            compared += 1
        if not compared:
            self.skipTest(f"PyTorch makes no sample input for {op.full_name} in {dtype} on this device")

    def compare(self, found, expected, device, values):
        """Check that a result is on the device and equals the CPU's."""
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            if not isinstance(other, torch.Tensor):
                self.assertEqual(one, other)
                continue
            self.assertEqual(one.device.type, torch.device(device).type)
            self.assertEqual(one.dtype, other.dtype)
            self.assertEqual(one.shape, other.shape)
            if values:
                self.assertEqual(one.cpu(), other)


instantiate_device_type_tests(TestOpDb, globals())

if __name__ == "__main__":
    run_tests()
