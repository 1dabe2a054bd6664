"""An emulated accelerator, `emu`, as an out-of-tree PyTorch backend.

Only the entry point for PyTorch's autoload and the version belong here. Nothing here may import torch at the top level,
because torch imports this package while torch itself is being imported.
"""

__all__ = ["__version__"]


def _autoload() -> None:
    """Register the device; PyTorch calls this through the entry point group `torch.backends`."""
    # If this package is imported before torch, this line runs the autoload, and so calls this function again.
    import torch  # noqa: F401
    from torch_emu.registration import register

    register()


def __getattr__(name: str) -> str:
    """Look up the version on demand: the look-up costs more than the rest of this module."""
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-emu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_autoload()
