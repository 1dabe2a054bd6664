"""PyTorch's table of modules on the device: the forward result of each module in float32, compared with the CPU's."""

import copy

import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils import _pytree as pytree


def moved(value, device):
    """Return the value with each tensor copied to a device."""
    return pytree.tree_map(lambda part: part.to(device, copy=True) if isinstance(part, torch.Tensor) else part, value)


class TestModuleDb(TestCase):
    """One test for each module."""

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_forward(self, device, dtype, module_info, training):
        """The module has the same result on the device and on the CPU."""
        torch.manual_seed(0)
        given = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for each in given:
            if each.forward_input is None:
                continue
            args, kwargs = each.constructor_input.args, each.constructor_input.kwargs
            reference = module_info.module_cls(*args, **kwargs).to(dtype).train(training)
            args, kwargs = each.forward_input.args, each.forward_input.kwargs
            if any(is_lazy(parameter) for parameter in reference.parameters()):
                reference(*args, **kwargs)  # its parameters are made at the first call
            module = copy.deepcopy(reference).to(device)
            args_on_device, kwargs_on_device = moved(args, device), moved(kwargs, device)
            torch.manual_seed(1)
            expected = pytree.tree_leaves(reference(*args, **kwargs))
            torch.manual_seed(1)
            found = pytree.tree_leaves(module(*args_on_device, **kwargs_on_device))
            self.assertEqual(len(found), len(expected))
            for one, other in zip(found, expected):
                self.assertEqual(one.device.type, torch.device(device).type)
                self.assertEqual(one.cpu(), other)


instantiate_device_type_tests(TestModuleDb, globals())

if __name__ == "__main__":
    run_tests()
