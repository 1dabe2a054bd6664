"""The tensor of the device: a wrapper that PyTorch sees on `emu`, around a CPU tensor that acts as the card's memory.

Operators on it are in `dispatch`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils.dlpack import DLDeviceType
from torch_emu import exchange

NAME = "emu"


class EmuTensor(torch.Tensor):
    """A tensor on an emulated card."""

    run_operator: ClassVar[Callable[[Any, tuple, dict], Any]]
    """Run one operator; `dispatch` sets it, so that this class never uses a module that was imported again."""

    _memory: torch.Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, memory: torch.Tensor, index: int, requires_grad: bool = False) -> "EmuTensor":
        """Wrap the memory as a tensor on the device with this index."""
        if memory.layout is not torch.strided:
            raise NotImplementedError(f"{NAME} has no tensors of layout {memory.layout}, only torch.strided")
        if memory._is_zerotensor():
            memory = torch.zeros(memory.shape, dtype=memory.dtype)
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            memory.shape,
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=torch.device(NAME, index),
            requires_grad=requires_grad,
        )
        # Pending conjugations and negations are resolved outside this device, so the wrapper must show them.
        if memory.is_conj():
            torch._C._set_conj(wrapper, True)
        if memory.is_neg():
            torch._C._set_neg(wrapper, True)
        wrapper._memory = memory
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run an operator with at least one tensor of this device."""
        return EmuTensor.run_operator(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        """Return the same values without autograd, as for every tensor."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, other)
        # PyTorch only replaces its own half of the wrapper, shape and dtype.
        self._memory = other._memory if isinstance(other, EmuTensor) else other

    def describe_memory_again(self) -> None:
        """Update shape and strides from the memory after an operator changed them in place."""
        torch.Tensor.data.__set__(self, EmuTensor(self._memory, self.device.index))

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        """Return the representation of a CPU tensor with these values, plus the device."""
        autograd = f", grad_fn=<{self.grad_fn.name()}>" if self.grad_fn else ", requires_grad=True"
        shown = repr(self.detach().cpu()).removesuffix(")")
        return f"{shown}, device='{self.device}'{autograd if self.requires_grad else ''})"

    def __format__(self, spec: str) -> str:
        """Format a tensor without dimensions as its number, as for every tensor."""
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory as bytes on the device, shared with the tensor and its views."""
        return exchange.storage_on_device(self._memory, self.device.index)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        """Return the device for DLPack, which calls those that it has no number for an extension."""
        return DLDeviceType.kDLExtDev, self.device.index

    def __dlpack__(self, **options: Any) -> Any:
        """Return a capsule over the memory; raise BufferError for what DLPack cannot express."""
        if self.requires_grad or self.is_conj() or self.is_neg():
            raise BufferError("DLPack has no gradients and no pending conjugation or negation: use detach(), clone()")
        return exchange.on_device(self._memory, self.device.index).__dlpack__(**options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the values and the name of the device, which every loader of PyTorch understands."""
        values = self.detach().cpu()
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, (
            values,
            self.dtype,
            str(self.device),
            self.requires_grad,
        )
