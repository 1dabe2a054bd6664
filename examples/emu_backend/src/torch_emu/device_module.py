"""The module `torch.emu`: the interface of a device for PyTorch and its users.

Only functions of that interface belong here.
"""

import torch
from torch_emu import cards


def is_available() -> bool:
    """Return whether at least one card is visible."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return True: an emulated card needs no start."""
    return True


def device_count() -> int:
    """Return the number of cards that this process sees."""
    return len(cards.visible())


def current_device() -> int:
    """Return the index that `emu` without an index means, always 0.

    PyTorch's device guard for backends in Python knows no other current device.
    """
    return 0


def set_device(device: int | str | torch.device) -> None:
    """Accept device 0, and refuse all others, which cannot be current."""
    index = device if isinstance(device, int) else (torch.device(device).index or 0)
    cards.physical(index)
    if index != 0:
        raise RuntimeError(
            f"emu:{index} cannot be made the current device: PyTorch's device guard for backends in Python knows only "
            f"device 0; name emu:{index} where a tensor is made, or choose the card by {cards.VISIBLE_VARIABLE}"
        )


def get_device_name(device: int | str | torch.device = 0) -> str:
    """Return a readable name, with the physical id of the card."""
    index = device if isinstance(device, int) else (torch.device(device).index or 0)
    return f"emulated card {cards.physical(index)}"


def synchronize(device: int | str | torch.device | None = None) -> None:
    """Return immediately: every kernel has ended when its call returns."""


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the device, which are those of the CPU."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Do nothing: torch.manual_seed, the only caller, has just seeded the generator that the device shares."""


def get_rng_state(device: int | str | torch.device = "emu") -> torch.Tensor:
    """Return the state of the random numbers of the device, which are those of the CPU."""
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: int | str | torch.device = "emu") -> None:
    """Set the state of the random numbers of the device, which are those of the CPU."""
    torch.default_generator.set_state(new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that autocast can use."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False
