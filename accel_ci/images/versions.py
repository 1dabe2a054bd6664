"""Which Python and PyTorch a runtime image has, asked of its own interpreter, whatever kind of image it is."""

from __future__ import annotations

import json

from accel_ci.errors import BuildError
from accel_ci.process.run import Finished

VERSIONS_CODE = """
import json, platform, torch
print(json.dumps([platform.python_version(), torch.__version__, torch.version.git_version]))
"""
"""What the interpreter is to run (`-I -c`)."""


def read_versions(done: Finished, advice: str) -> tuple[str, str, str | None]:
    """The versions of Python and PyTorch and the commit that PyTorch was built from, out of what `VERSIONS_CODE` printed.

    Raises `BuildError` with `advice` when PyTorch did not import.
    """
    try:
        python_version, torch_version, torch_sha = json.loads(done.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise BuildError(f"PyTorch does not import in the runtime image:\n{done.tail}\nCheck {advice}") from None
    return python_version, torch_version, torch_sha
