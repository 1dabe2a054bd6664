"""The versions of Python and PyTorch in a runtime image of any kind, as its own interpreter reports them."""

from __future__ import annotations

import json

from accel_ci.errors import BuildError
from accel_ci.process.run import Finished

VERSIONS_CODE = """
import json, platform, torch
print(json.dumps([platform.python_version(), torch.__version__, torch.version.git_version]))
"""
"""The code for the interpreter (`-I -c`)."""


def read_versions(done: Finished, advice: str) -> tuple[str, str, str | None]:
    """Read the versions of Python and PyTorch, and the commit of PyTorch, from the output of `VERSIONS_CODE`.

    Raises `BuildError` with `advice` if PyTorch did not import.
    """
    try:
        python_version, torch_version, torch_sha = json.loads(done.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise BuildError(f"PyTorch does not import in the runtime image:\n{done.tail}\nCheck {advice}") from None
    return python_version, torch_version, torch_sha
