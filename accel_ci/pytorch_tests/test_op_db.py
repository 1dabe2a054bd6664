"""PyTorch's table of operators on the device: the forward result of each operator, compared with the CPU's.

Each operator has one test, in float32 or, if it has no float32, in the first type that PyTorch tests it with.
"""

import sys
import zlib
from pathlib import Path

import torch
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import run_tests

sys.path.append(str(Path(__file__).parent))  # pytest's import mode `importlib` leaves it out

from compared_with_cpu import ComparedWithCpu, on_cpu, samples


class TestOpDb(ComparedWithCpu):
    """One test for each operator."""

    def result(self, op, seed, sample):
        """Run the operator on one sample and return its result."""
        given, args, kwargs = sample
        torch.manual_seed(seed)
        return op(given, *args, **kwargs)

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


instantiate_device_type_tests(TestOpDb, globals())

if __name__ == "__main__":
    run_tests()
