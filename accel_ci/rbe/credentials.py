"""Hand credentials to Bazel by a named pipe, so that they are never on a disk.

Bazel reads options from a file alone; a command line can be read by every user of the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


class CredentialsPipe:
    """A pipe at `path` that gives Bazel's options with the headers to each process of this user that opens it."""

    def __init__(self, path: Path, secrets: Mapping[str, str], events: bool) -> None:
        """With `events`, the service that takes build events gets the headers, too."""
        flags = ("remote_header", "bes_header") if events else ("remote_header",)
        options = [f"--{flag}={name}={value}" for name, value in secrets.items() for flag in flags]
        lines = (f"build {json.dumps(option, ensure_ascii=False)}\n" for option in options)  # quoted, for Bazel
        self.path, self._content = path, "".join(lines).encode()

    def serve(self) -> None:
        """Write the options if a process waits for them."""
        with suppress(OSError):  # nobody has the pipe open, or its reader is gone
            end = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.set_blocking(end, True)
                os.write(end, self._content)
            finally:
                os.close(end)


@contextmanager
def credentials_pipe(folder: Path, secrets: Mapping[str, str], events: bool) -> Iterator[CredentialsPipe]:
    """Make a pipe that only this user can read; it is removed after the context."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    pipe = CredentialsPipe(folder / "credentials.bazelrc", secrets, events)
    os.mkfifo(pipe.path, 0o600)
    try:
        yield pipe
    finally:
        pipe.path.unlink(missing_ok=True)
