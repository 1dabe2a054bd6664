"""Mixed precision: the operators that `torch.autocast("emu")` runs in the lower precision or in float32.

The choice and its registration belong here; PyTorch has none for a device that it does not know.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch_emu.tensor import NAME

LOWER = (
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "einsum",
    "linear",
    "matmul",
    "mm",
    "mv",
)
"""Operators that gain from the lower precision: those that multiply matrices."""

FLOAT32 = (
    "binary_cross_entropy_with_logits",
    "cosine_similarity",
    "cross_entropy_loss",
    "cumprod",
    "cumsum",
    "exp",
    "expm1",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax.int",
    "mse_loss",
    "nll_loss",
    "pow.Tensor_Scalar",
    "prod",
    "smooth_l1_loss",
    "softmax.int",
    "softplus",
    "sum",
    "sum.dim_IntList",
)
"""Operators that lose too much in the lower precision: sums of many terms, and powers."""

_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.device.type == NAME and value.dtype != torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, list | tuple):
        return type(value)([_cast(part, dtype) for part in value])
    return value


def _kernel(overload: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def cast_and_run(*args: Any, **kwargs: Any) -> Any:
        wanted = dtype()
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            return overload(*_cast(args, wanted), **{name: _cast(value, wanted) for name, value in kwargs.items()})

    return cast_and_run


def register(library: torch.library.Library) -> None:
    """Register the casts in a library of the namespace `aten`, which must be kept alive."""
    for names, dtype in ((LOWER, lambda: torch.get_autocast_dtype(NAME)), (FLOAT32, lambda: torch.float32)):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _kernel(operator, dtype), "AutocastPrivateUse1")
