"""The worker's side of its pytest child: start it, speak with it, keep the end of its output, end it.

Here belong pipes and processes. What the messages mean for a batch is the worker's business (`worker.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from .ending import end_group, end_leftovers
from .memory import memory_kills
from .messages import TEST_MARK

TAIL_LIMIT = 16 * 1024
_READ = 64 * 1024


class OutputTail:
    """The last output of a child, cut at the marks that it sets before each test."""

    def __init__(self) -> None:
        """Start empty."""
        self._recent = b""

    def feed(self, data: bytes) -> None:
        """Take more output in; what is older than 64 KB is forgotten."""
        self._recent = (self._recent + data)[-4 * TAIL_LIMIT :]

    def of_test(self, number: int | None) -> str:
        """The output of the test of that number (None: since the child started), at most 16 KB of its end."""
        text = self._recent
        if number is not None:
            begin = text.rfind(TEST_MARK + b"%d\0\n" % number)
            text = text if begin < 0 else text[begin + len(TEST_MARK) :].partition(b"\n")[2]
            text = text.partition(TEST_MARK)[0]
        text = text[-TAIL_LIMIT:]
        return text.decode("utf-8", "replace").replace("\0", "")


class PytestChild:
    """One running pytest child.

    `observed_s` is for how long its worker has looked at it, and `sign_s` when that was at its last sign or command: a
    machine that is suspended or stalled for a while counts against no limit. `finished` says that it has ended and that
    all that it said has been read.
    """

    def __init__(self, root: str, files: Sequence[str], pytest_args: Sequence[str]) -> None:
        """Start a child for the given files, relative to the root. Raises `OSError` when no process can be started."""
        self.files = tuple(files)
        self.collected: set[str] = set()
        self.output = OutputTail()
        self.wants = False
        self.finished = False
        self.observed_s = self.sign_s = 0.0
        self._looked = time.monotonic()
        self._memory_kills = memory_kills()
        commands, self._commands = os.pipe()
        self._results, results = os.pipe()
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-u", sys.argv[0], "child", str(commands), str(results), str(os.getpid())],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(commands, results),
                start_new_session=True,
            )
        finally:
            os.close(commands)
            os.close(results)
        self._printed = cast(Any, self.process.stdout).fileno()
        self._partial = b""
        self._inbox: deque[dict[str, Any]] = deque()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._results, self._printed):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        self.send({"root": root, "files": self.files, "pytest_args": list(pytest_args)})

    def send(self, command: dict[str, Any]) -> None:
        """Send one command; a child that has ended does not get it."""
        self.sign_s = self.observed_s
        data = json.dumps(command).encode("ascii") + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._commands, data) :]

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The child's next message, waiting for it up to the timeout; None when none came or it has finished."""
        if not self._inbox and not self.finished:
            gone = self.ended()
            self._listen(0 if gone else timeout_s)
            self.finished = gone
        return self._inbox.popleft() if self._inbox else None

    def _listen(self, timeout_s: float) -> None:
        if self._selector.get_map():
            ready = {key.fd for key, _ in self._selector.select(timeout_s)}
        else:
            ready = set()
            time.sleep(min(timeout_s, 0.02))
        clock = time.monotonic()
        self.observed_s += min(clock - self._looked, 2 * timeout_s)
        self._looked = clock
        if not ready:
            return
        self.sign_s = self.observed_s
        if self._results in ready:
            lines = (self._partial + self._read(self._results)).split(b"\n")
            self._partial = lines.pop()
            self._inbox.extend(json.loads(line) for line in lines)
        self.output.feed(self._read(self._printed))

    def _read(self, descriptor: int) -> bytes:
        """What can be read now, about 1 MB at most; a closed end is forgotten."""
        data = b""
        while len(data) < 16 * _READ and descriptor in self._selector.get_map():
            try:
                part = os.read(descriptor, _READ)
            except BlockingIOError:
                break
            if not part:
                self._selector.unregister(descriptor)
            data += part
        return data

    def ended(self) -> bool:
        """Whether the process has ended; its last messages may still be there to receive, see `finished`."""
        return self.process.poll() is not None

    def ended_how(self) -> str:
        """How the ended process ended, in words."""
        code = self.process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        out_of_memory = code == -signal.SIGKILL and memory_kills() > self._memory_kills
        return f"was ended by {name}{': out of memory' if out_of_memory else ''}"

    def close(self, limit_s: float) -> None:
        """Let the session end by itself (its fixtures are torn down) within the limit."""
        self._close_commands()
        deadline = time.monotonic() + limit_s
        while not self.ended() and time.monotonic() < deadline:
            self.receive(0.05)

    def end(self, grace_s: float) -> int:
        """End the child and all that it started, gently for `grace_s` seconds; gives back its return code.

        The worker must have no other child process. What was printed until the end is in `output`, and what was said can
        be received.
        """
        self._close_commands()
        code = end_group(self.process, grace_s)
        end_leftovers(self.process.pid)
        self._listen(0)
        self._selector.close()
        self.finished = True
        os.close(self._results)
        cast(Any, self.process.stdout).close()
        return code

    def _close_commands(self) -> None:
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1
