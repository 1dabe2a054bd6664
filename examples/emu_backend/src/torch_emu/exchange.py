"""Hand the memory of a card to others, and take memory that they hand over: DLPack and storages.

PyTorch's own code for these reads the pointer of a tensor, which a wrapper does not have. A plain tensor of the device
has one. It is made here over the same memory, and `dispatch` wraps it again when an operator gets it.
"""

import ctypes

import torch
from torch.utils.dlpack import DLDeviceType

_DEVICE_OFFSET = ctypes.sizeof(ctypes.c_void_p)
"""A `DLTensor` begins with the pointer to the data; its device follows: type and index, each of 32 bits."""

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def on_device(memory: torch.Tensor, index: int) -> torch.Tensor:
    """Return a plain tensor of the device over the memory of a CPU tensor, which it keeps alive."""
    capsule = torch._C._to_dlpack(memory.detach())
    device = (ctypes.c_int32 * 2).from_address(_pointer(capsule, b"dltensor") + _DEVICE_OFFSET)
    device[:] = int(DLDeviceType.kDLExtDev), index
    return torch._C._from_dlpack(capsule)


def on_host(plain: torch.Tensor) -> torch.Tensor:
    """Return the memory of a plain tensor of the device as a CPU tensor, which keeps it alive."""
    storage = storage_on_host(plain.untyped_storage())
    memory = torch.empty(0, dtype=plain.dtype)
    return memory.set_(storage, plain.storage_offset(), plain.shape, plain.stride())


def storage_on_device(memory: torch.Tensor, index: int) -> torch.UntypedStorage:
    """Return the whole storage of a CPU tensor as a storage of the device."""
    return on_device(torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage()), index).untyped_storage()


def storage_on_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a storage of the device as one of the CPU, which keeps it alive."""
    if not storage.nbytes():
        return torch.UntypedStorage(0)
    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    buffer.owner = storage
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
