"""Compiled wheels, made with the machine's own compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from .wheel_files import wheel_fields, write_wheel

EXTENSION = '#include <stdio.h>\n#include <stdlib.h>\nint own(void) { puts(getenv("HOME")); return 0; }\n'


def compiled_wheel(
    folder: Path,
    tag: str = "cp311-cp311-linux_x86_64",
    *,
    vendor: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A wheel of the package `toy` with one extension, which links a vendor's library if one is given."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed: compiled wheels cannot be made")
    source = folder / "own.c"
    source.write_text(EXTENSION)
    links = []
    if vendor is not None:
        (folder / "vendor.c").write_text('#include <stdio.h>\nint vendor(void) { return puts("vendor"); }\n')
        run([compiler, "-shared", "-fPIC", "-o", f"lib{vendor}.so.1", f"-Wl,-soname,lib{vendor}.so.1", "vendor.c"], folder)
        source.write_text("int vendor(void);\n" + EXTENSION.replace("return 0", "return vendor()"))
        links = [f"-l:lib{vendor}.so.1", "-L."]
    run([compiler, "-shared", "-fPIC", "-o", "_own.abi3.so" if "abi3" in tag else "_own.so", "own.c", *links], folder)
    extension = next(folder.glob("_own*.so"))
    not_pure = {"toy-1.0.dist-info/WHEEL": wheel_fields(tag).replace("true", "false").encode()}
    return write_wheel(folder, tag, files={f"toy/{extension.name}": extension.read_bytes(), **(files or {}), **not_pure})


def run(command: list[str], folder: Path) -> None:
    """Run a compiler."""
    subprocess.run(command, cwd=folder, check=True, timeout=60)
