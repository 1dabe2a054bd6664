"""Inject faults when a kernel runs.

Everything that corrupts, slows or ends a kernel belongs here. Without faults, none of it is on the path of a kernel:
`dispatch` calls `wanted()` once, when the device is registered.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch_emu import state
from torch_emu.faults import VARIABLE, FaultError, active

SHORTEST_SLEEP = 0.001
"""Shorter sleeps take longer than requested, so owed time is saved up to this."""

_probing: ContextVar[bool] = ContextVar("_probing", default=False)
_turns: dict[tuple[int, str], bool] = {}
_gone_bad: set[int] = set()
_owed = 0.0


def wanted() -> bool:
    """Return whether this process has any fault that shows when a kernel runs."""
    return active().touches_kernels


def check() -> None:
    """Raise if a fault could never show: its operator reaches no device, or there is no folder for its state."""
    for op in sorted(active().ops):
        packet = getattr(torch.ops.aten, op, None)
        if packet is None:
            raise FaultError(f"{VARIABLE}: aten has no operator {op!r}")
        # An out variant often has its own kernel even if the operator itself is decomposed.
        overloads = [getattr(packet, name) for name in packet.overloads() if "out" not in name]
        if all(_is_composite(overload) for overload in overloads):
            raise FaultError(
                f"{VARIABLE}: PyTorch decomposes {op!r} before it reaches a device; name one of the operators in it"
            )
    if active().remembers:
        state.prepare()


def _is_composite(overload: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")


@contextmanager
def probing() -> Iterator[None]:
    """Let this thread run kernels as a health probe: faults of operators are off, and no kernel is counted."""
    token = _probing.set(True)
    try:
        yield
    finally:
        _probing.reset(token)


def run(op: str, card: int, computes: bool, kernel: Callable[[], Any], written: Sequence[torch.Tensor]) -> Any:
    """Run one kernel on a physical card with the faults of this process and return its result.

    `written` are the tensors that the kernel writes to; `computes` is false if it only moves or describes data, which
    no fault of a card affects.
    """
    faults = active()
    probe = _probing.get()
    if not probe:
        if op in faults.crash:
            _crash()
        if op in faults.hang:
            _hang()
    start = time.perf_counter()
    result = kernel()
    if not probe and op in faults.flaky and _is_wrong_turn(op):
        result = _spoil(result, written)
    if computes and card in faults.bad_cards and _is_bad(card, faults.bad_cards[card], probe):
        result = _spoil(result, written)
    if computes and card in faults.slow_cards:
        _owe((time.perf_counter() - start) * (faults.slow_cards[card] - 1.0))
    return result


def _crash() -> NoReturn:
    signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
    # A handler that swallows the signal must not let the kernel continue.
    os._exit(128 + signal.SIGSEGV)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _is_wrong_turn(op: str) -> bool:
    # Keyed by process, because a forked child takes its own turn.
    key = (os.getpid(), op)
    if key not in _turns:
        _turns[key] = state.count(f"flaky-{op}") % 3 == 1
    return _turns[key]


def _is_bad(card: int, good_kernels: int, probe: bool) -> bool:
    if good_kernels == 0 or card in _gone_bad:
        return True
    name = f"bad_card-{card}"
    bad = state.marked(name)
    if not bad and not probe and state.count(name) > good_kernels:
        state.mark(name)
        bad = True
    if bad:
        _gone_bad.add(card)
    return bad


def _owe(seconds: float) -> None:
    global _owed
    _owed += seconds
    if _owed >= SHORTEST_SLEEP:
        payment, _owed = _owed, 0.0
        time.sleep(payment)


def _spoil(result: Any, written: Sequence[torch.Tensor]) -> Any:
    for tensor in written:
        tensor.copy_(_wrong(tensor))
    return _spoil_result(result, written)


def _spoil_result(result: Any, written: Sequence[torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        return result if any(result is tensor for tensor in written) else _wrong(result)
    if isinstance(result, bool):
        return not result
    if isinstance(result, int | float):
        return result + 1
    if isinstance(result, list | tuple):
        return type(result)(_spoil_result(part, written) for part in result)
    return result


def _wrong(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor + 1
    # Off by more than any tolerance, for numbers of every size, and even if the right answer is not a number.
    wrong = tensor + tensor.abs() + 1
    return torch.where(torch.isfinite(wrong), wrong, 0)
