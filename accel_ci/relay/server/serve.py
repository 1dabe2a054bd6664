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
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from accel_ci.errors import AccelCiError
from accel_ci.relay.allowlist import AllowlistFile
from accel_ci.relay.server.app_tokens import authorization_for
from accel_ci.relay.server.application import CallbackReceiver, Receiver, make_application
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.fan_out import FanOut, FanOutParts
from accel_ci.relay.server.forward import Forwarder, Lane, check_runs, rows_for
from accel_ci.relay.server.group_commit import GroupCommit
from accel_ci.relay.server.identity import Identities
from accel_ci.relay.server.jobs import Call, Jobs, Outcome
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.outbox import Outbox
from accel_ci.relay.server.queue import Queue
from accel_ci.relay.server.settings import RelayProject
from accel_ci.relay.server.webhook import Delivery

_LOG = logging.getLogger(__name__)
_BACKLOG = 2048


def serve(project: RelayProject, with_workers: bool, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `say` gets the address once it answers.

    Raises `AccelCiError` where a secret, the allowlist, the database or the address cannot be used.
    """
    settings = project.settings
    secret, authorization = project.webhook_secret(), authorization_for(project)
    allowlist = AllowlistFile(project.allowlist)
    database = RelayDatabase(project.database_url())
    queue, outbox = Queue(database), Outbox(database)
    jobs = Jobs(database, settings.upstream, settings.callback)
    metrics = RelayMetrics(queue, jobs, outbox)
    stores = _stores(project)
    listener = _listen(settings.listen)
    inbox: GroupCommit[tuple[Delivery, float], None] = GroupCommit(queue.store)
    callbacks: GroupCommit[Call, Outcome] = GroupCommit(jobs.take)
    identities = Identities(settings.issuers, settings.oidc)
    woken: list[FanOut] = []

    async def store(delivery: Delivery) -> None:
        await inbox.submit((delivery, time.time()))
        for fan_out in woken:
            fan_out.wake()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        host, port = listener.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}/github/webhook")
        if not with_workers:
            yield
            await identities.close()
            return
        github = GitHubClient(settings.github.api, authorization, settings.fan_out.timeout_s)
        fan_out = FanOut(FanOutParts(queue, allowlist, github, settings.fan_out, metrics))
        forwarder = _forwarder(project, outbox, github, stores, metrics)
        woken.append(fan_out)
        working = asyncio.gather(fan_out.run(), forwarder.run())
        yield
        fan_out.stop()
        forwarder.stop()
        await working
        await github.close()
        await authorization.close()
        await identities.close()

    called = CallbackReceiver(identities.identify, allowlist, settings.callback, callbacks.submit)
    receiver = Receiver(secret, settings.upstream, settings.webhook, store, database, metrics, called)
    config = uvicorn.Config(
        make_application(receiver, lifespan),
        http=_timed_protocol(settings.webhook.request_s),
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
        database.close()


def work(project: RelayProject) -> None:
    """Dispatch what servers store, until SIGTERM or SIGINT. Raises `AccelCiError` as `serve`."""
    settings = project.settings
    authorization, allowlist = authorization_for(project), AllowlistFile(project.allowlist)
    database = RelayDatabase(project.database_url())
    queue, outbox = Queue(database), Outbox(database)
    jobs = Jobs(database, settings.upstream, settings.callback)
    stores = _stores(project)

    async def run() -> None:
        github = GitHubClient(settings.github.api, authorization, settings.fan_out.timeout_s)
        metrics = RelayMetrics(queue, jobs, outbox)
        fan_out = FanOut(FanOutParts(queue, allowlist, github, settings.fan_out, metrics))
        forwarder = _forwarder(project, outbox, github, stores, metrics)

        def stop() -> None:
            fan_out.stop()
            forwarder.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await asyncio.gather(fan_out.run(), forwarder.run())
        await github.close()
        await authorization.close()

    try:
        asyncio.run(run())
    finally:
        database.close()


def _stores(project: RelayProject) -> tuple[Lane, ...]:
    """The lanes of the stores of results. ClickHouse gets a row once the store has it."""
    from accel_ci.relay.results_store import ResultsStore

    settings = project.settings
    at_a_time = settings.forwards.batch
    results = rows_for(ResultsStore(project.results_folder))
    if settings.clickhouse is None:
        return (Lane("results", results, at_a_time),)
    from accel_ci.relay.server.clickhouse_sink import ClickHouseSink

    clickhouse = ClickHouseSink(
        settings.clickhouse, project.clickhouse_password(), project.folder, settings.forwards.timeout_s
    )
    return (
        Lane("results", results, at_a_time, then=("clickhouse",)),
        Lane("clickhouse", rows_for(clickhouse), at_a_time),
    )


def _forwarder(
    project: RelayProject, outbox: Outbox, github: GitHubClient, stores: tuple[Lane, ...], metrics: RelayMetrics
) -> Forwarder:
    forwards = project.settings.forwards
    to_github = Lane("check_run", check_runs(github, forwards), forwards.in_flight)
    return Forwarder(outbox, (to_github, *stores), forwards, metrics)


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


def _timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Make a protocol that closes a connection whose request line and headers take too long; uvicorn has no such limit."""

    class TimedProtocol(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
                self._expect_headers()
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._cancel()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._close)

        def _cancel(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _close(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return TimedProtocol


def _listen(address: str) -> socket.socket:
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
