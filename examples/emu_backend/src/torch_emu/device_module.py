"""The module `torch.emu`: the interface of a device for PyTorch and its users.

Only functions of that interface belong here.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch_emu import cards
from torch_emu.tensor import NAME

_current: ContextVar[int] = ContextVar("_current", default=0)


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
    """Return the index that `emu` without an index means: 0, and that of the card in `with torch.emu.device(card)`."""
    return _current.get()


class device(TorchFunctionMode):
    """Have `emu` without an index mean another card, in this thread and while the context lasts.

    PyTorch's device guard for backends in Python knows only device 0, so the index is added before PyTorch sees the
    device. What asks the guard itself, such as `torch.accelerator` and backward, still gets 0.
    """

    def __init__(self, device: int | str | torch.device) -> None:
        """Choose a card; raise RuntimeError if it does not exist."""
        super().__init__()
        self.idx = _index(device)
        cards.physical(self.idx)

    def __enter__(self) -> "device":
        """Begin the context."""
        self._token = _current.set(self.idx)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """End the context."""
        super().__exit__(*error)
        _current.reset(self._token)

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call a function of PyTorch with the index in place."""
        names = func is torch.Tensor.to  # the only one that takes the name of a device without saying so
        args = tuple([self._with_index(value, names) for value in args])
        return func(*args, **{key: self._with_index(value, key == "device") for key, value in (kwargs or {}).items()})

    def _with_index(self, value: Any, may_be_name: bool) -> Any:
        if isinstance(value, torch.device):
            return torch.device(NAME, self.idx) if value.type == NAME and value.index is None else value
        return f"{NAME}:{self.idx}" if may_be_name and isinstance(value, str) and value == NAME else value


def _index(device: int | str | torch.device) -> int:
    return device if isinstance(device, int) else (torch.device(device).index or 0)


def set_device(device: int | str | torch.device) -> None:
    """Accept device 0, and refuse all others, which cannot be current."""
    index = _index(device)
    cards.physical(index)
    if index != 0:
        raise RuntimeError(
            f"emu:{index} cannot be made the current device: PyTorch's device guard for backends in Python knows only "
            f"device 0; use `with torch.emu.device({index}):`, or choose the card by {cards.VISIBLE_VARIABLE}"
        )


def get_device_name(device: int | str | torch.device = 0) -> str:
    """Return a readable name, with the physical id of the card."""
    return f"emulated card {cards.physical(_index(device))}"


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
