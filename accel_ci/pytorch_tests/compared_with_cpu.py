"""Compare operators on the device with the CPU: what the tests that are made from PyTorch's table of operators share.

Only the taking of samples and the comparison of results belong here.
"""

import itertools
import time

import torch
from torch.testing._internal.common_utils import TestCase
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


class ComparedWithCpu(TestCase):
    """A test whose results on the device are compared with the CPU's."""

    def compare(self, found, expected, device, values=True):
        """Check that a result is on the device and equals the CPU's."""
        found, expected = pytree.tree_leaves(found), pytree.tree_leaves(expected)
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
