"""PyTorch's checks of operators on the device: each in all dtypes, with wrong inputs, with `out=`, and in all variants.

The class and its tests have the names of those in PyTorch's `test_ops.py`. So the skips and tolerances for them in PyTorch's
table of operators apply here, and so do those that a backend adds (`op_overrides`). Only what PyTorch expects to fail on
every device is run: it concerns more than is tested here. The CPU says what is right, also where that is an error.
"""

import copy
import sys
import unittest
import zlib
from pathlib import Path

import torch
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.opinfo.core import DecorateInfo
from torch.utils import _pytree as pytree

sys.path.append(str(Path(__file__).parent))  # pytest's import mode `importlib` leaves it out

from compared_with_cpu import ComparedWithCpu, on_cpu, samples


def compared(op):
    """Return an operator without what PyTorch expects to fail on every device, or on the CPU."""

    def fails(each):
        general = isinstance(each, DecorateInfo) and each.device_type in (None, "cpu")
        return general and unittest.expectedFailure in each.decorators

    op = copy.copy(op)
    op.decorators = tuple(each for each in op.decorators if not fails(each))
    return op


def variants(op):
    """Return the other ways to call an operator by name: methods, operators, aliases, and all that write to their input."""
    found = {"operator": op.operator_variant, "operator in place": op.inplace_operator_variant}
    for each in (op, *op.aliases):
        found.update({each.name: each.op, f"Tensor.{each.name}": each.method_variant, f"{each.name}_": each.inplace_variant})
    return {name: call for name, call in found.items() if call is not None and call is not op.op}


def call_variant(variant, takes_kwargs):
    """Return a call that also tells whether the result is the input itself."""

    def call(_, given, *args, **kwargs):
        result = variant(given, *args, **(kwargs if takes_kwargs else {}))
        return result, result is given

    return call


def write_to_views(op):
    """Return a call that writes to those parts of the result that are views, and returns the input as well."""

    def call(_, given, *args, **kwargs):
        result = op(given, *args, **kwargs)
        for part in pytree.tree_leaves(result):
            if isinstance(part, torch.Tensor) and part._is_view():
                part.fill_(True)
        return result, given

    return call


def write_to_out(op, like, kind):
    """Return a call that writes to new tensors, and returns them with their strides."""

    def out(part, where):
        if kind == "empty":
            return torch.empty((0,), dtype=part.dtype, device=where)
        dtype = torch.long if kind == "of another dtype" else part.dtype
        whole = torch.full((*part.shape, 2), float("nan") if dtype.is_floating_point else 1, dtype=dtype, device=where)
        return whole[..., 0] if kind == "with gaps" else whole[..., 0].contiguous()

    def call(where, *args, **kwargs):
        given = pytree.tree_map(lambda part: out(part, where), like)
        op(*args, **kwargs, out=given)
        return given, [part.stride() for part in pytree.tree_leaves(given)]

    return call


COMPARED = [compared(op) for op in op_db]


class TestCommon(ComparedWithCpu):
    """Tests of each operator."""

    def call(self, call, op, where, sample):
        """Return the result of a call with a copy of a sample, and the exception that it raises."""
        given, args, kwargs = sample
        given = pytree.tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, given)
        torch.manual_seed(zlib.crc32(op.full_name.encode()))
        try:
            return call(where, given, *args, **kwargs), None
        except Exception as error:
            return None, error

    def check(self, op, device, dtype, calls):
        """Compare the calls that `calls` makes for a sample and the CPU's result, which may be errors."""
        done = 0
        torch.manual_seed(zlib.crc32(op.full_name.encode()))
        for sample in samples(op, device, dtype):
            on_device = sample.input, sample.args, sample.kwargs
            reference = tuple(on_cpu(part) for part in on_device)
            result, error = self.call(lambda _, *args, **kwargs: op(*args, **kwargs), op, "cpu", reference)
            if error is not None:
                continue  # the CPU has no kernel for this
            for name, call in calls(sample, result).items():
                expected, refused = self.call(call, op, "cpu", reference)
                found, error = self.call(call, op, device, on_device)
                done += 1
                try:
                    if refused is not None:
                        self.assertIsNotNone(error, f"this is an error on the CPU: {refused}")
                    elif error is not None:
                        raise error
                    else:
                        self.compare(found, expected, device)
                except Exception as error:
                    raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        if not done:
            self.skipTest(f"the CPU can compute no sample of {op.full_name} in {dtype}")

    @ops(COMPARED, dtypes=OpDTypes.supported)
    def test_compare_cpu(self, device, dtype, op):
        """The result is the CPU's, in each dtype that PyTorch says the device supports."""
        self.check(op, device, dtype, lambda *_: {"forward": lambda _, *args, **kwargs: op(*args, **kwargs)})

    @ops([op for op in op_db if op.error_inputs_func is not None], dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        """Wrong inputs have the errors that PyTorch expects."""
        for each in op.error_inputs(device):
            given = each.sample_input
            with self.assertRaisesRegex(each.error_type, each.error_regex):
                self.assertIsNot(op(given.input, *given.args, **given.kwargs), NotImplemented)

    @ops([op for op in COMPARED if op.supports_out], dtypes=OpDTypes.any_one)
    def test_out(self, device, dtype, op):
        """An `out` gets the CPU's result and keeps its strides; an `out` of another dtype is an error where it is one on the CPU."""
        kinds = ("full", "with gaps", "empty", "of another dtype")
        self.check(op, device, dtype, lambda _, like: {f"out {kind}": write_to_out(op, like, kind) for kind in kinds})

    @ops([op for op in COMPARED if variants(op)], dtypes=OpDTypes.any_one)
    def test_variant_consistency_eager(self, device, dtype, op):
        """Variants have the CPU's result, write to their input where the CPU does, and have views of the same."""

        def calls(sample, _):
            found = {
                name: call_variant(call, "operator" not in name)
                for name, call in variants(op).items()
                if not (sample.kwargs and "operator" in name)
            }
            return {**found, "view": write_to_views(op)}

        self.check(op, device, dtype, calls)


instantiate_device_type_tests(TestCommon, globals())

if __name__ == "__main__":
    run_tests()
