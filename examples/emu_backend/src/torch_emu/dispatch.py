"""Run operators on the CPU, on the memory of the cards, and put their results back on the device.

The path of an operator from PyTorch's dispatcher to the memory and back belongs here. It is the same for all operators;
none has its own implementation.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch_emu import cards, exchange, injection
from torch_emu.tensor import NAME, EmuTensor

_KEYS, _EXCLUDED = torch.DispatchKey, torch._C._SetExcludeDispatchKeyGuard
CPU = torch.device("cpu")

MOVES = frozenset(
    {
        "_copy_from",
        "_copy_from_and_resize",
        "_local_scalar_dense",
        "_to_copy",
        "clone",
        "copy",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "lift",
        "new_empty",
        "new_empty_strided",
        "resize",
        "set",
    }
)
"""Operators that allocate, move or describe data and compute nothing."""

TAKES_HOST_TENSORS = frozenset(
    {"_copy_from_and_resize", "_index_put_impl", "_unsafe_index", "_unsafe_index_put", "copy", "index", "index_put"}
)
"""Operators that accept tensors of the host and of the device together."""


@dataclass(frozen=True)
class Operator:
    """The properties that the path of an operator depends on."""

    name: str
    computes: bool
    mixes: bool


@cache
def operator(func: Any) -> Operator:
    """Return the properties of an overload; all overloads, in-place and out variants share one name."""
    name = func._schema.name.partition("::")[2]
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    arguments = func._schema.arguments
    is_view = any(given.alias_info is not None and not given.alias_info.is_write for given in arguments)
    return Operator(name=name, computes=not is_view and name not in MOVES, mixes=name in TAKES_HOST_TENSORS)


class _Call:
    """The arguments of one call, moved to the host, and their origin."""

    __slots__ = ("host", "index", "op", "target", "wrappers")

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.index: int | None = None
        self.target: torch.device | None = None
        self.wrappers: list[EmuTensor] = []
        self.host: torch.Tensor | None = None

    def to_host(self, value: Any) -> Any:
        """Return the value with the memory in place of each tensor of the device."""
        if isinstance(value, EmuTensor):
            index = value.device.index
            if self.index is None:
                self.index = index
            elif index != self.index and not self.op.mixes:
                raise self._scattered(torch.device(NAME, index))
            self.wrappers.append(value)
            return value._memory
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.to_host(part) for part in value])
        if isinstance(value, torch.Tensor):
            if value.device.type == NAME:  # it was handed over, or made from a storage
                return self.to_host(EmuTensor(exchange.on_host(value), value.device.index))
            if value.dim() > 0 and self.host is None:
                self.host = value
        elif kind is torch.device:
            self.target = value
            return CPU if value.type == NAME else value
        elif kind is torch.UntypedStorage and value.device.type == NAME:
            return exchange.storage_on_host(value)
        return value

    def check(self) -> None:
        """Raise if an operator that no card could run gets tensors of both host and device."""
        if self.host is not None and self.index is not None and not self.op.mixes:
            raise self._scattered(self.host.device)

    def _scattered(self, other: torch.device) -> RuntimeError:
        return RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but found at least two devices, {NAME}:{self.index} and {other}! (aten::{self.op.name})"
        )

    def result_index(self) -> int | None:
        """Return the device index for new tensors, or None if they belong on another device."""
        if self.target is None:
            return self.index
        if self.target.type != NAME:
            return None
        return self.target.index or 0

    def to_device(self, value: Any, index: int | None) -> Any:
        """Return a result with a tensor of the device in place of each memory."""
        if isinstance(value, torch.Tensor):
            for wrapper in self.wrappers:
                if wrapper._memory is value:
                    return wrapper
            return value if index is None else EmuTensor(value, index)
        if isinstance(value, list | tuple):
            return type(value)([self.to_device(part, index) for part in value])
        return value


def _has_moved(wrapper: EmuTensor) -> bool:
    memory = wrapper._memory
    return (
        wrapper.shape != memory.shape
        or wrapper.stride() != memory.stride()
        or wrapper.storage_offset() != memory.storage_offset()
    )


def _written(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found.extend(part for part in (value if isinstance(value, list | tuple) else [value]) if part is not None)
    return found


def _run_on_host(func: Any, args: tuple, kwargs: dict) -> Any:
    # PyTorch has these keys off while it dispatches to Python. A kernel made of other operators, such as that of
    # `linalg.pinv`, would then take its own conjugate and negative views for what is in their memory.
    with _EXCLUDED(_KEYS.Conjugate, False), _EXCLUDED(_KEYS.Negative, False):
        return func(*args, **kwargs)


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run one overload on the memory of its arguments and return its results on the device."""
    op = operator(func)
    call = _Call(op)
    host_args = tuple([call.to_host(value) for value in args])
    host_kwargs = {name: call.to_host(value) for name, value in kwargs.items()} if kwargs else kwargs
    call.check()
    index = call.result_index()
    runs_on = index if index is not None else call.index
    card = cards.physical(runs_on or 0)
    if FAULTY:
        result = injection.run(
            op.name,
            card,
            op.computes,
            lambda: _run_on_host(func, host_args, host_kwargs),
            _written(func, host_args, host_kwargs),
        )
    else:
        result = _run_on_host(func, host_args, host_kwargs)
    if func._schema.is_mutable:
        for wrapper in call.wrappers:
            if _has_moved(wrapper):
                wrapper.describe_memory_again()
    return call.to_device(result, index)


def fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has no tensor of the device as argument, only the device itself."""
    return run(func, args, kwargs)


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy into an existing tensor; PyTorch calls this by name when `torch.tensor` fills a tensor."""
    return run(torch.ops.aten.copy_.default, (target, source, non_blocking), {})


EmuTensor.run_operator = staticmethod(run)
FAULTY = injection.wanted()
