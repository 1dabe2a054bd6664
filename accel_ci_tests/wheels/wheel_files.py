"""Small wheels with a right RECORD, and whatever else a test wants wrong in them."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nSummary: A toy\nDescription-Content-Type: text/plain\n\nA toy.\n"
PURE = "py3-none-any"


def wheel_fields(tag: str = PURE) -> str:
    """The text of WHEEL for a tag that is expanded."""
    purelib = "true" if tag.endswith("-any") else "false"
    return f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {purelib}\nTag: {tag}\n"


def write_wheel(
    folder: Path,
    tag: str = PURE,
    *,
    name: str = "toy-1.0",
    files: Mapping[str, bytes | None] | None = None,
    record: Mapping[str, str | None] | None = None,
) -> Path:
    """Write a wheel of the package `toy`; `files` replaces or removes some of its files, `record` lines of its RECORD."""
    info = f"{name}.dist-info"
    entries: dict[str, bytes | None] = {
        "toy/__init__.py": b"answer = 42\n",
        f"{info}/METADATA": METADATA.encode(),
        f"{info}/WHEEL": wheel_fields(tag).encode(),
        **(files or {}),
    }
    present = {path: content for path, content in entries.items() if content is not None}
    lines: dict[str, str | None] = {path: record_line(path, content) for path, content in present.items()}
    lines |= {f"{info}/RECORD": f"{info}/RECORD,,", **(record or {})}
    wheel = folder / f"{name}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in present.items():
            archive.writestr(path, content)
        if f"{info}/RECORD" not in entries:
            archive.writestr(f"{info}/RECORD", "".join(f"{line}\n" for line in lines.values() if line is not None))
    return wheel


def record_line(path: str, content: bytes, algorithm: str = "sha256") -> str:
    """The line of RECORD for a file."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
    quoted = f'"{path}"' if "," in path else path
    return f"{quoted},{algorithm}={digest},{len(content)}"


def elf(machine: int = 62, *, kind: int = 3, text: bytes = b"") -> bytes:
    """The header of an ELF file of 64 bits (62 is x86_64; the kind 3 is a library), and a text as if in its tables."""
    return b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HH", kind, machine) + bytes(44) + text
