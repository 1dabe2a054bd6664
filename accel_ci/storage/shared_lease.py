"""Take turns between machines, by an object in the bucket that they share.

The object has a new content while somebody has the turn, again every few seconds, and is empty while nobody has it. A holder
whose object does not change any more has been killed, and the next one takes its turn over. Only the time that passes on
the waiting machine counts, so that their clocks may differ. A holder that stood still may have lost its turn: it asks before
each thing that it writes, and begins again if so. What is done in a turn must therefore bear to be done again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from accel_ci.errors import AccelCiError
from accel_ci.process.waiting import poll

if TYPE_CHECKING:
    from accel_ci.storage.object_store import Entry, SharedFiles

STALE_S = 60.0
"""A turn whose holder has shown no life for so many seconds is over."""

LOOK_EVERY_S = 1.0
"""Seconds between two looks of a waiting machine."""

_RENEWALS = 4
"""The number of signs of life in the time after which a turn is over."""

_LOG = logging.getLogger(__name__)


class TurnLostError(AccelCiError):
    """Another machine has taken the turn over, since this one showed no life."""


@contextmanager
def turn(objects: SharedFiles, name: str, stale_s: float = STALE_S) -> Iterator[Callable[[], None]]:
    """Have the turn in the context, after waiting for it; machines that take turns give the same `stale_s`.

    Yields a function that raises `TurnLostError` if the turn was lost.
    """
    holder = _Holder(objects, name, stale_s)
    done = threading.Event()
    keeper = threading.Thread(target=holder.keep, args=(done,), daemon=True)
    keeper.start()
    try:
        yield holder.check
    finally:
        done.set()
        keeper.join()
        holder.leave()


class _Holder:
    """Has a turn from its construction on."""

    def __init__(self, objects: SharedFiles, name: str, stale_s: float) -> None:
        self._objects, self._name, self._stale_s = objects, name, stale_s
        self._contents = (f"{uuid.uuid4()} {number}".encode() for number in count())
        self._lost = False
        self._shown_at = -inf
        self._mine = self._wait()

    def check(self) -> None:
        """Raise `TurnLostError` if the turn was lost, or may be by now."""
        if self._lost or time.monotonic() - self._shown_at >= self._stale_s * (1 - 1 / _RENEWALS):
            place = self._objects.location(self._name)
            raise TurnLostError(f"{place}: this machine showed no life for {self._stale_s:g} s; run the step again")

    def keep(self, done: threading.Event) -> None:
        """Show life until the turn is over or lost."""
        while not self._lost and not done.wait(self._stale_s / _RENEWALS):
            try:
                self._show(self._mine)
            except AccelCiError as error:
                _LOG.warning("no sign of life could be written: %s", error)  # the next one may be

    def leave(self) -> None:
        """End the turn. If that fails, the next one waits until this one counts as over."""
        try:
            if not self._lost:
                self._objects.replace(self._name, b"", self._mine)
        except AccelCiError as error:
            _LOG.warning("the end of a turn could not be written: %s", error)

    def _wait(self) -> Entry:
        seen, since = None, time.monotonic()
        for _ in poll(_LOG, f"another machine's turn at {self._objects.location(self._name)}", LOOK_EVERY_S):
            now = self._objects.find(self._name)
            if now != seen:
                seen, since = now, time.monotonic()
            is_free = now is None or now.size == 0 or time.monotonic() - since >= self._stale_s
            if is_free and (mine := self._show(now)) is not None:
                return mine
        raise AssertionError("poll without a limit does not end")

    def _show(self, seen: Entry | None) -> Entry | None:
        """Write a new content over the one that was seen. Return None, and note it, if that has changed."""
        asked_at = time.monotonic()  # another one cannot have seen the content earlier
        mine = self._objects.replace(self._name, next(self._contents), seen)
        self._lost = mine is None
        if mine is not None:
            self._shown_at, self._mine = asked_at, mine
        return mine
