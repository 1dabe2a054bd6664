"""The processes of the relay: the server with its workers, and workers alone.

Putting the parts together, signals, and their order at the end belong here: first no new connections, then all requests that
are under way, then the workers, then the database.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext

import uvicorn
from starlette.applications import Starlette

from accel_ci.relay.listening import listen, timed_protocol
from accel_ci.relay.pages.files import PagesFiles
from accel_ci.relay.server.application import CallbackReceiver, Receiver, make_application
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.group_commit import GroupCommit
from accel_ci.relay.server.identity import Identities
from accel_ci.relay.server.jobs import Call, Outcome
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.monitoring import monitoring_routes
from accel_ci.relay.server.pages_loop import with_pages
from accel_ci.relay.server.settings import RelayProject
from accel_ci.relay.server.webhook import Delivery
from accel_ci.relay.server.workers import Workers, open_state

_LOG = logging.getLogger(__name__)
_MONITORING_S = 10.0
_MONITORING_CONNECTIONS = 20


def serve(project: RelayProject, with_workers: bool, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `say` gets the address once it answers.

    Raises `AccelCiError` where a secret, the allowlist, the database or the address cannot be used.
    """
    settings, secret = project.settings, project.webhook_secret()
    state = open_state(project)
    workers = Workers(project, state) if with_workers else None
    listener = listen(settings.listen)
    inbox: GroupCommit[tuple[Delivery, float], None] = GroupCommit(state.queue.store)
    callbacks: GroupCommit[Call, Outcome] = GroupCommit(state.jobs.take)
    identities = Identities(settings.issuers, settings.oidc)

    async def store(delivery: Delivery) -> None:
        await inbox.submit((delivery, time.time()), settings.webhook.request_s)
        if workers is not None:
            workers.wake()

    async def take(call: Call) -> Outcome:
        return await callbacks.submit(call, settings.callback.request_s)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        say(f"{_url(listener)}/github/webhook")
        working = asyncio.create_task(workers.run()) if workers is not None else None
        yield
        if workers is not None and working is not None:
            workers.stop()
            await working
        await identities.close()

    called = CallbackReceiver(identities.identify, state.allowlist, settings.callback, take)
    receiver = Receiver(secret, settings.upstream, settings.webhook, store, state.database, state.metrics, called)
    config = uvicorn.Config(
        make_application(
            receiver, with_pages(project, lifespan), PagesFiles(project.pages_folder) if settings.pages else None
        ),
        http=timed_protocol(settings.webhook.request_s),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.webhook.connections,
        timeout_graceful_shutdown=int(settings.webhook.request_s) + 5,
    )
    try:
        _Server(config).run(sockets=[listener])
    finally:
        listener.close()
        inbox.close()
        callbacks.close()
        state.database.close()


def work(project: RelayProject, monitoring: str | None, say: Callable[[str], None]) -> None:
    """Dispatch and forward what servers store, until SIGTERM or SIGINT. Raises `AccelCiError` as `serve`.

    With `monitoring` (`HOST:PORT`), `/metrics` and `/healthz` are there. `say` gets their address.
    """
    state = open_state(project)
    workers = Workers(project, state)
    listener = None if monitoring is None else listen(monitoring)

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, workers.stop)
        async with _monitored(listener, state.database, state.metrics):
            if listener is not None:
                say(f"{_url(listener)}/metrics")
            await workers.run()

    try:
        asyncio.run(run())
    finally:
        state.database.close()


@asynccontextmanager
async def _monitored(listener: socket.socket | None, database: RelayDatabase, metrics: RelayMetrics) -> AsyncIterator[None]:
    """Answer to `/metrics` and `/healthz` meanwhile, in the loop that works: one that hangs does not answer."""
    if listener is None:
        yield
        return
    server = _InnerServer(
        uvicorn.Config(
            Starlette(routes=monitoring_routes(database, metrics)),
            http=timed_protocol(_MONITORING_S),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MONITORING_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn, which ends with 0 when it is asked to end: by default it raises the signal again afterwards."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._handled_signals()

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _InnerServer(uvicorn.Server):
    """uvicorn inside of something else, which has the signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
