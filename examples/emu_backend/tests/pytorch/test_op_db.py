"""PyTorch's own operator database on the device: compare each operator's forward result with the CPU's.

There is one test for each OpInfo. Its id is only the name of the operator and of its variant, so it is the same in all
runs and processes. An operator is tested in float32 or, if it does not support that, in the first type of `DTYPES`
that it supports, because a bitwise operator can be as wrong as any other.
"""

import itertools
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

DEVICE = torch.device("emu", 0)
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float16)
SAMPLES = 3
SAMPLING_SECONDS = 2.0
"""No further sample is taken after this time, so that slow samples do not delay everything."""


def id_of(op: OpInfo) -> str:
    """Return the id of an operator's test."""
    return f"{op.name}-{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_of(op: OpInfo) -> torch.dtype | None:
    """Return the type that an operator is tested in, or None if the CPU has none to compare with."""
    supported = op.supported_dtypes("cpu")
    return next((dtype for dtype in DTYPES if dtype in supported), None)


def samples(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    """Yield the first few sample inputs of an operator, on the device."""
    start = time.perf_counter()
    # Not op.sample_inputs: it inspects the whole stack for each operator, which takes longer than everything else here.
    for sample in itertools.islice(op.sample_inputs_func(op, DEVICE, dtype, False), SAMPLES):
        yield sample
        if time.perf_counter() - start > SAMPLING_SECONDS:
            return


def on_cpu(value: Any) -> Any:
    """Return the value with each tensor copied to the CPU and each device replaced by it."""

    def move(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            base = part._base
            # An operator may reach beyond a view, into its base.
            if base is not None and base.is_contiguous() and base.dtype == part.dtype and not part.is_conj():
                return base.to(CPU, copy=True).as_strided(part.shape, part.stride(), part.storage_offset())
            return part.to(CPU, copy=True)
        return CPU if isinstance(part, torch.device) else part

    moved = pytree.tree_map(move, value)
    if isinstance(moved, dict) and "device" in moved:
        moved["device"] = CPU
    return moved


def seed_everything(seed: int) -> None:
    """Seed the generator that the CPU and the device share.

    torch.manual_seed does no more here, but formats a stack for each kind of device that this machine does not have.
    """
    torch.default_generator.manual_seed(seed)


def result(op: OpInfo, seed: int, sample: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """Run the operator once on one sample and return the parts of its result."""
    given, args, kwargs = sample
    seed_everything(seed)
    return pytree.tree_leaves(op(given, *args, **kwargs))


def compare(found: list[Any], expected: list[Any], values: bool) -> None:
    """Check that a result is on the device and equals the CPU's."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other or (one != one and other != other)
            continue
        assert one.device.type == DEVICE.type
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if values:
            torch.testing.assert_close(one.cpu(), other, equal_nan=True)


IDS = [id_of(op) for op in op_db]
assert len(set(IDS)) == len(IDS), "two operators of op_db would share one test id"


# PyTorch warns of its own deprecations and corner cases here, some dozens of times and never about the device.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("op", op_db, ids=IDS)
def test_op(op: OpInfo) -> None:
    """The operator has the same result on the device and on the CPU."""
    dtype = dtype_of(op)
    if dtype is None:
        pytest.skip(f"the CPU runs {id_of(op)} in none of the types of this test")
    seed = zlib.crc32(id_of(op).encode())
    seed_everything(seed)
    compared = 0
    for sample in samples(op, dtype):
        whole = (sample.input, sample.args, sample.kwargs)
        reference = tuple(on_cpu(part) for part in whole)
        # The contents of memory that was never written to are arbitrary.
        compare(result(op, seed, whole), result(op, seed, reference), values="empty" not in op.name)
        compared += 1
    if not compared:
        pytest.skip(f"PyTorch makes no sample input for {id_of(op)} in {dtype} on this device")
