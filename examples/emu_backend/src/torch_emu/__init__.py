"""An emulated accelerator, `emu`, as an out-of-tree PyTorch backend.

Here belongs only the way in: what PyTorch's autoload calls, and the version. Nothing here may import torch at the
top, because torch imports this package while it is itself being imported.
"""

__all__ = ["__version__"]


def _autoload() -> None:
    """Register the device; PyTorch calls this through the entry point group `torch.backends`."""
    # Where this package is imported before torch, this line runs the autoload, and with it a whole inner call.
    import torch  # noqa: F401
    from torch_emu.registration import register

    register()


def __getattr__(name: str) -> str:
    """Look the version up only when somebody asks: the look-up costs more than the rest of this module."""
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-emu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_autoload()
