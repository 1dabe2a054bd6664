"""HTTP connections that strangers make: the address for them, and limits of their time and headers that uvicorn lacks.

The parser puts together a header, the address or a trailer that comes in pieces, which takes longer with each piece: without
a limit, one connection keeps the whole server busy.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from accel_ci.errors import AccelCiError

LARGEST_HEADERS = 64 << 10
"""Bytes of the request line and the headers, and of all else between two parts of a body; an OIDC token has at most 16 KiB.

They are counted by what is received at a time, so that up to 256 KiB more may be taken.
"""

MOST_PIPELINED = 64
"""Requests that one connection has waiting. uvicorn takes more with each answer, whether anybody reads it or not."""

_BACKLOG = 2048
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Make a protocol for uvicorn.

    It closes a connection whose headers take longer than `seconds` or are larger than `LARGEST_HEADERS`, that does not read
    its answer for so long, or that sends more than `MOST_PIPELINED` requests ahead.
    """

    class TimedProtocol(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _write_deadline: asyncio.TimerHandle | None = None
        _without_content = 0
        """Bytes since the last part of a body, or the end of a request."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
                self._expect_headers()
            before = self._without_content = self._without_content + len(data)
            super().data_received(data)
            if self._without_content == before > LARGEST_HEADERS and not self.transport.is_closing():
                if self.cycle is None or self.cycle.response_complete:
                    self.transport.write(_TOO_LARGE)
                self._close()
            if len(self.pipeline) > MOST_PIPELINED:
                self._close()

        def on_headers_complete(self) -> None:
            self._cancel()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._without_content = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._without_content = 0
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._write_deadline is None:
                self._write_deadline = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._cancel_write_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self._cancel_write_deadline()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._close)

        def _cancel(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _cancel_write_deadline(self) -> None:
            if self._write_deadline is not None:
                self._write_deadline.cancel()
                self._write_deadline = None

        def _close(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return TimedProtocol


def listen(address: str) -> socket.socket:
    """Listen on `HOST:PORT`; port 0 stands for a free one. Raises `AccelCiError` where that is not possible."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(OSError):
        # uvicorn sets options and listens itself.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(_BACKLOG)
        return listener
    raise AccelCiError(f"cannot listen on {address}; is the port taken?")
