"""The limits of a connection that no request of the relay's servers can show."""

from __future__ import annotations

import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accel_ci.relay.listening import listen, timed_protocol
from accel_ci_tests.fixtures.processes import wait_for


def test_a_connection_that_does_not_read_its_answer_is_closed() -> None:
    def answer(_: Request) -> Response:
        return Response(b"x" * (64 << 20))

    application = Starlette(routes=[Route("/", answer)])
    with listen("127.0.0.1:0") as listener:
        config = uvicorn.Config(application, http=timed_protocol(1.0), ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            wait_for(lambda: not server.server_state.connections)
        server.should_exit = True
        thread.join(30)
