"""Data as scripts, which pages may load from `file://`: one call of one function, with a name and compressed content.

    accelCi("names/0","eJxLTEpOSU1LBwAIYgJN")

The content is JSON or text, compressed (zlib) and in base64: no character of a test's name or message is part of a script.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from pathlib import Path

from accel_ci.errors import DamagedError
from accel_ci.storage.atomic_file import write_whole_file

_LEVEL = 4
_SCRIPT = re.compile(rb'accelCi\("([\w/.~-]+)","([A-Za-z0-9+/=]+)"\)\n')


def encode_script(name: str, content: bytes) -> bytes:
    """Make a script of content."""
    return b'accelCi("%s","%s")\n' % (name.encode(), base64.b64encode(zlib.compress(content, _LEVEL)))


def decode_script(script: bytes) -> bytes:
    """Return the content of a script. Raises `DamagedError` for anything else."""
    match = _SCRIPT.fullmatch(script)
    try:
        return zlib.decompress(base64.b64decode(match[2], validate=True) if match else b"")
    except (binascii.Error, zlib.error):
        raise DamagedError("no script of the HUD's data") from None


def write_script(folder: Path, name: str, content: bytes) -> int:
    """Write the script `<name>.js` below a folder, unless it is there already; return its size in bytes."""
    path, script = folder / f"{name}.js", encode_script(name, content)
    try:
        if path.read_bytes() == script:
            return len(script)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, script)
    return len(script)
