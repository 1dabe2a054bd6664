"""Register the device with PyTorch.

This happens once per process, whatever is imported, reloaded or called again.
"""

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch_emu import cards, injection
from torch_emu.tensor import NAME


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return bool(cards.visible())

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> None:
    """Register the device and its kernels, unless that was done before."""
    # Check torch instead of this module, which may have been imported again.
    if hasattr(torch, NAME):
        return
    cards.visible()
    injection.check()

    from torch_emu import autocast, device_module, dispatch

    _setup_privateuseone_for_python_backend(NAME, backend_module=device_module, hook=_Hooks())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(dispatch.fallback, "PrivateUse1")
    # PyTorch does this for the autocast of each device that it knows: operators without a rule are left unchanged.
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    # While PyTorch disables Python dispatch, it does not find a fallback, so this kernel is registered by name.
    aten.impl("_copy_from", dispatch.copy_from, "PrivateUse1")
    autocast.register(aten)
    # A library removes its kernels when it is garbage-collected.
    device_module._libraries = (everything, aten)
