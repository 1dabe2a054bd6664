"""The worker's side of a pytest child: process, pipes and output. What the messages mean is in `child_session.py`."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .child_messages import LONGEST, ProtocolError, parse_message
from .copies import CopiedProcess, CopyError
from .ending import describe_end, end_group, end_leftovers
from .outcomes import OutputTail

_READ_BYTES = 64 * 1024
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup 2 and 1


class PytestChild:
    """One pytest child.

    `observed_s` is the time for which its worker has watched it, so that a machine that is suspended or stalls uses up no
    limit, nor does the time until a command that it waits for. `last_sign_s` is `observed_s` at its last output or command.
    `finished` is set when it has ended and all its messages have been received, `cut_off_s` is `observed_s` when it closed
    its pipe.
    """

    def __init__(self, root: str, request: dict[str, Any], original: PytestChild | None = None) -> None:
        """Start a child in the folder `root` with its request, or a copy of `original`, which has had the same request.

        Raises `OSError` when no process can be started, `CopyError` when the original makes no copy.
        """
        self.original = original
        self.output = OutputTail()
        self.finished = False
        self.cut_off_s: float | None = None
        self.observed_s = self.last_sign_s = 0.0
        self._looked = time.monotonic()
        self._memory_kills = _memory_kills()
        commands, self._commands = os.pipe()
        self._results, results = os.pipe()
        self._printed, printed = os.pipe()
        self.control: socket.socket | None = None
        # no test of another file may have left a module there that this process imports at its start
        own = {"PYTHONNOUSERSITE": "1"} if request.get("isolate") else {}
        environment = {**os.environ, **own, **request.get("environment", {})}
        try:
            if original is None:
                self.control, control = socket.socketpair()
                with control:
                    numbers = commands, results, control.fileno()
                    self.process: subprocess.Popen[bytes] | CopiedProcess = subprocess.Popen(
                        [sys.executable, "-u", sys.argv[0], "child", *map(str, numbers), str(os.getpid())],
                        cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                        pass_fds=numbers, start_new_session=True,
                    )  # fmt: skip
            else:
                self.process = original.copy((commands, results, printed))
        except BaseException:
            for descriptor in (self._commands, self._results, self._printed):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (commands, results, printed):
                os.close(descriptor)
        self._partial, self._outbox = bytearray(), bytearray()
        self._inbox: deque[bytes] = deque()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._results, self._printed):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._commands, False)
        if original is None:
            self.send({"root": root, **request})

    def copy(self, descriptors: Sequence[int]) -> CopiedProcess:
        """Have this child, which has collected its suite, make a copy with these pipes. Raises `CopyError`."""
        if self.control is None:
            raise CopyError("a copy makes no copies")
        return CopiedProcess(self.control, descriptors)

    def send(self, command: dict[str, Any]) -> None:
        """Send one command, unless the child has ended. What its pipe cannot take yet is sent by `receive`."""
        self._looked, self.last_sign_s = time.monotonic(), self.observed_s
        self._outbox += json.dumps(command).encode("ascii") + b"\n"
        self._send_more()

    def _send_more(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(self._commands, self._outbox)]
        except BlockingIOError:
            if self._commands not in self._selector.get_map():
                self._selector.register(self._commands, selectors.EVENT_WRITE)
        except BrokenPipeError:
            self._outbox.clear()
        if not self._outbox and self._commands in self._selector.get_map():
            self._selector.unregister(self._commands)

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the child's next message, None when none comes within the timeout or the child has finished.

        Raises `ProtocolError` for something that is no message.
        """
        if not self._inbox and not self.finished:
            gone = self.process.poll() is not None
            self._listen(0 if gone else timeout_s)
            self.finished = gone and not self._inbox
        return parse_message(self._inbox.popleft()) if self._inbox else None

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
        self.last_sign_s = self.observed_s
        if self._commands in ready:
            self._send_more()
        if self._results in ready:
            self._take_lines(self._read(self._results))
        self.output.feed(self._read(self._printed))

    def _take_lines(self, data: bytes) -> None:
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._inbox.append(bytes(self._partial + end))
            self._partial.clear()
        self._partial += rest
        if len(self._partial) > LONGEST:  # it is refused as what it is: no message
            self._inbox.append(bytes(self._partial))
            self._partial.clear()
        if self._results not in self._selector.get_map():
            self.cut_off_s = self.observed_s

    def _read(self, descriptor: int) -> bytes:
        """Read what is there, about 1 MB at most; a closed pipe is no longer watched."""
        data = b""
        while len(data) < 16 * _READ_BYTES and descriptor in self._selector.get_map():
            try:
                part = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            if not part:
                self._selector.unregister(descriptor)
            data += part
        return data

    def ended_how(self) -> str:
        """Describe the end of a process that has ended: "pytest …"."""
        code = self.process.returncode or 0
        out_of_memory = code == -signal.SIGKILL and _memory_kills() > self._memory_kills
        return f"{describe_end(code)}{': out of memory' if out_of_memory else ''}"

    def close(self, limit_s: float, take: Callable[[dict[str, Any]], None], refuse: Callable[[ProtocolError], None]) -> bool:
        """Let the session tear its fixtures down and end by itself; return whether it did so within the limit.

        `take` gets the messages that still come, `refuse` what is none.
        """
        self._close_commands()
        deadline = time.monotonic() + limit_s
        while not self.finished and time.monotonic() < deadline:
            try:
                if (message := self.receive(0.05)) is not None:
                    take(message)
            except ProtocolError as error:
                refuse(error)
        return self.finished

    def end(self, grace_s: float) -> int:
        """End the child and all that it started, by SIGTERM and after `grace_s` seconds by SIGKILL; return its exit code.

        The worker must have no other child process than its original. The output is complete afterwards.
        """
        self._close_commands()
        code = end_group(self.process, grace_s)
        end_leftovers(self.process.pid, self.original.process.pid if self.original is not None else None)
        self._listen(0)
        self._selector.close()
        self.finished = True
        os.close(self._results)
        os.close(self._printed)
        if self.control is not None:
            self.control.close()
        return code

    def _close_commands(self) -> None:
        if self._commands >= 0:
            if self._commands in self._selector.get_map():
                self._selector.unregister(self._commands)
            os.close(self._commands)
            self._commands = -1


def _memory_kills() -> int:
    """Return the number of processes that the kernel ended because this container was out of memory; 0 if unknown."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            words = Path(path).read_text("ascii").split()
            return int(words[words.index("oom_kill") + 1])
    return 0
