"""The driver's ends of the channels of workers on this machine: record their events, grant claims, answer with news.

A channel belongs to one worker, so it says who speaks. Workers have no access to the driver's records: a thread writes them,
and checks what comes in for its form and its amount. Whether an event can be true is checked in `admission.py`. The worker's
end is in `accel_ci.runner.channel`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from accel_ci.errors import PoolError
from accel_ci.rounds.events import QUARANTINED
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.runner import round_folder
from accel_ci.runner.channel import ASK, LONGEST_LINE
from accel_ci.runner.events import EventFile, line_of

_READ_BYTES = 1 << 18
_MOST_UNREAD_BYTES = 64 << 20  # of answers
_PER_TEST_BYTES, _FREE_BYTES = 256 << 10, 64 << 20  # the amount of events that one worker may write
_DRAIN_S = 10.0
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
_LOG = logging.getLogger(__name__)


@dataclass
class _End:
    """The driver's end of one channel."""

    worker: str
    file: EventFile
    ended: threading.Event
    listener: socket.socket | None = None
    connection: socket.socket | None = None
    partial: bytearray = field(default_factory=bytearray)
    answers: bytearray = field(default_factory=bytearray)
    received: int = 0  # bytes
    told: int = 0  # claims that the worker has been told of
    requeued: int = 0  # batches that it has been told of


class WorkerChannels:
    """The channels of the workers of one round, served by a thread until `close`."""

    def __init__(self, record: FolderRound) -> None:
        """Serve a round, which the driver has prepared."""
        self._record, self._folder = record, record.path.resolve()
        self._most_bytes = _FREE_BYTES + _PER_TEST_BYTES * sum(len(batch.tests) for batch in record.batches())
        self._granted = list(record.claimed().items())
        self._ends: dict[str, _End] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._calls: deque[Callable[[], None]] = deque()
        self._trouble: Exception | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="worker channels", daemon=True)
        self._thread.start()

    def pair(self, worker: str) -> socket.socket:
        """Make a channel, and return the worker's end, which the worker's process inherits. Raises `PoolError`."""
        ours, theirs = socket.socketpair()
        end = self._new_end(worker)
        end.connection = ours
        self._call(lambda: self._attend(end))
        return theirs

    def listen(self, worker: str, name: str, owner: tuple[int, int]) -> None:
        """Make a channel to which the first process connects that comes to the socket `name` in the worker's room.

        The socket is then deleted. `owner` is the user and group of the worker. Raises `PoolError`.
        """
        room = os.open(self._folder / round_folder.ROOMS / worker, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        end = self._new_end(worker)
        try:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"/proc/self/fd/{room}/{name}")  # the path itself may be too long for a socket
            if owner != (os.getuid(), os.getgid()):
                os.chown(name, *owner, dir_fd=room, follow_symlinks=False)
            listener.listen(1)
            listener.setblocking(False)
        finally:
            os.close(room)
        end.listener = listener
        self._call(lambda: self._selector.register(listener, selectors.EVENT_READ, (end, name)))

    def finish(self, worker: str) -> None:
        """Record the rest of what a worker that has ended had written. Raises `PoolError` when nothing can be recorded."""
        end = self._ends[worker]
        if not end.ended.is_set():
            self._call(lambda: self._stop_listening(end))
            if not end.ended.wait(_DRAIN_S):  # something holds the worker's end that should have ended with it
                self._call(lambda: self._end(end))
        self.check()

    def check(self) -> None:
        """Raise `PoolError` when the thread cannot record anything any more."""
        if self._trouble is not None:
            raise PoolError(
                f"the events of workers cannot be recorded: {self._trouble}; see to the disk and run the same again"
            )

    def close(self) -> None:
        """End all channels; may be called again."""
        if not self._closing:
            self._closing = True
            self._wake.send(b"\0")
            self._thread.join()
            self._wake.close()
            self._woken.close()

    def _new_end(self, worker: str) -> _End:
        self.check()
        own = self._folder / round_folder.WORKERS / worker
        own.mkdir(parents=True, exist_ok=True)
        self._ends[worker] = end = _End(worker, EventFile(own / round_folder.EVENTS), threading.Event())
        return end

    def _call(self, call: Callable[[], Any]) -> None:
        """Have the thread make a call."""
        self._calls.append(call)
        self._wake.send(b"\0")

    # In the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # raised for those who wait for what this thread records
            self._trouble = error
        finally:
            self._end_all()

    def _serve(self) -> None:
        while not self._closing:
            for key, ready in self._selector.select():
                if key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                    continue
                end, name = key.data
                try:
                    if end.listener is key.fileobj:
                        self._accept(end, name)
                    else:
                        self._converse(end, ready)
                except OSError as error:  # a test with the driver's user may have taken the file's place
                    _LOG.warning("worker %s cannot be heard any more: %s", end.worker, error)
                    self._trouble = error if error.errno in _DISK_TROUBLE else self._trouble
                    self._end(end)
            while self._calls:
                self._calls.popleft()()

    def _end_all(self) -> None:
        for end in self._ends.values():
            self._end(end)
            end.file.close()
        self._selector.close()

    def _attend(self, end: _End) -> None:
        if end.connection is not None:
            end.connection.setblocking(False)
            self._selector.register(end.connection, selectors.EVENT_READ, (end, ""))

    def _accept(self, end: _End, name: str) -> None:
        """Take the first connection, and no other one."""
        if end.listener is None:
            return
        with suppress(OSError):
            end.connection, _ = end.listener.accept()
        self._selector.unregister(end.listener)
        end.listener.close()
        end.listener = None
        with suppress(OSError):
            room = os.open(self._folder / round_folder.ROOMS / end.worker, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                os.unlink(name, dir_fd=room)
            finally:
                os.close(room)
        self._attend(end)

    def _stop_listening(self, end: _End) -> None:
        """For a worker that has ended: one that has never connected has nothing to say."""
        if end.listener is not None:
            self._accept(end, self._selector.get_key(end.listener).data[1])
        if end.connection is None:
            end.ended.set()

    def _converse(self, end: _End, ready: int) -> None:
        connection = end.connection
        if connection is None:
            return
        if ready & selectors.EVENT_WRITE:
            self._answer(end, b"")
        if not ready & selectors.EVENT_READ:
            return
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(end)
            return
        end.received += len(data)
        end.partial += data
        *lines, rest = bytes(end.partial).split(b"\n")
        end.partial = bytearray(rest)
        if any(len(line) > LONGEST_LINE for line in (*lines, rest)):
            self._quarantine(end, f"it wrote a line of more than {LONGEST_LINE >> 20} MiB to the driver")
        elif end.received > self._most_bytes:
            self._quarantine(end, f"it wrote more than {self._most_bytes >> 20} MiB to the driver")
        else:
            self._take(end, lines)

    def _take(self, end: _End, lines: Sequence[bytes]) -> None:
        """Record events, and answer what is asked between them."""
        events: list[bytes] = []
        for line in lines:
            if not line.startswith(ASK):
                events += (line, b"\n")
                continue
            if events:
                end.file.append(b"".join(events))
                events = []
            try:
                answer = self._answer_to(end, json.loads(line))
            except (ValueError, RecursionError, LookupError, TypeError):
                self._quarantine(end, f"it asked the driver what nobody asks: {line[:200]!r}")
                return
            self._answer(end, json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")
        if events:
            end.file.append(b"".join(events))

    def _answer_to(self, end: _End, request: Any) -> Any:
        """Answer a request. Raises `ValueError`, `LookupError` or `TypeError` for something that is none."""
        if request["ask"] == "take":
            batch = request["batch"]
            won, owner = self._record.claim(batch, end.worker)
            self._granted.append((batch, owner))
            return {"won": won}
        if request["ask"] != "news":
            raise ValueError(request["ask"])
        over = self._record.is_over
        requeued = self._record.requeued[end.requeued :]
        end.requeued += len(requeued)
        claimed, end.told = dict(self._granted[end.told :]), len(self._granted)
        return {"claimed": claimed, "requeued": requeued, "over": over}

    def _answer(self, end: _End, answer: bytes) -> None:
        connection = end.connection
        if connection is None:
            return
        end.answers += answer
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while end.answers:
                del end.answers[: connection.send(end.answers)]
        if len(end.answers) > _MOST_UNREAD_BYTES:
            self._quarantine(end, "it asks the driver and reads no answer")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if end.answers else 0)
        self._selector.modify(connection, wanted, (end, ""))

    def _quarantine(self, end: _End, reason: str) -> None:
        end.file.append(line_of(QUARANTINED, reason=reason))
        self._end(end)

    def _end(self, end: _End) -> None:
        for each in (end.connection, end.listener):
            if each is not None:
                with suppress(KeyError):
                    self._selector.unregister(each)
                each.close()
        end.connection = end.listener = None
        end.ended.set()
