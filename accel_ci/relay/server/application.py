"""The HTTP side of the server: what is read from a connection, and the answers.

The checks are in `webhook`; here are the limits of size and time, and the order of storing and answering.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accel_ci.redaction import redact
from accel_ci.relay.server.database import RelayDatabase, brief
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.settings import WebhookLimits
from accel_ci.relay.server.webhook import EVENTS, Delivery, Refusal, decide, is_known_event

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Receiver:
    """All that the webhook needs. `store` returns once a delivery is durable."""

    secret: bytes
    upstream: str
    limits: WebhookLimits
    store: Callable[[Delivery], Awaitable[None]]
    database: RelayDatabase
    metrics: RelayMetrics


def make_application(
    receiver: Receiver, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None
) -> Starlette:
    """Make the application."""

    async def webhook(request: Request) -> Response:
        began = time.perf_counter()
        event = request.headers.get("x-github-event", "")
        response = await _answer(request, receiver)
        receiver.metrics.answered(event if event in EVENTS else "other", response.status_code, time.perf_counter() - began)
        return response

    async def metrics(_: Request) -> Response:
        try:
            text = await asyncio.to_thread(receiver.metrics.text)
        except SQLAlchemyError:
            return _detail(503, "the database does not answer")
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(_: Request) -> Response:
        try:
            await asyncio.to_thread(receiver.database.ping)
        except SQLAlchemyError:
            return _detail(503, "the database does not answer")
        return JSONResponse({"ok": True})

    async def refused(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _detail(status, {404: "Not found", 405: "Method not allowed"}.get(status, "refused"))

    application = Starlette(
        routes=[
            Route("/github/webhook", webhook, methods=["POST"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/healthz", health, methods=["GET"]),
        ],
        exception_handlers={404: refused, 405: refused},
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    return application


async def _answer(request: Request, receiver: Receiver) -> Response:
    if not is_known_event(request.headers):
        return JSONResponse({"ignored": True})
    limits = receiver.limits
    try:
        body = await asyncio.wait_for(_read(request, limits.body_bytes), limits.request_s)
    except (TimeoutError, asyncio.TimeoutError):
        return _detail(408, "the body took too long", close=True)
    except ClientDisconnect:
        return _detail(400, "the body is incomplete", close=True)
    if body is None:
        return _detail(413, f"the body has more than {limits.body_bytes} bytes", close=True)
    decision = decide(request.headers, body, receiver.secret, receiver.upstream, limits.json_depth)
    if isinstance(decision, Refusal):
        _LOG.warning("refused a webhook with %d: %s", decision.status, decision.detail)
        return _detail(decision.status, decision.detail)
    if not isinstance(decision, Delivery):
        return JSONResponse({"ignored": True})
    try:
        await receiver.store(decision)
    except SQLAlchemyError as error:
        _LOG.error("delivery %s was not stored: %s", decision.id, redact(brief(error)))
        return _detail(503, "the delivery was not stored; deliver it again")
    if decision.left_out:
        _LOG.info("delivery %s was cut down: %s", decision.id, ", ".join(decision.left_out))
    return JSONResponse({"ok": True, "queued": True, "delivery_id": decision.id}, 202)


async def _read(request: Request, limit: int) -> bytes | None:
    """Read the body; None once it is larger than the limit. An announced size is believed only when it is too large."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _detail(status: int, text: str, close: bool = False) -> Response:
    return JSONResponse({"detail": text}, status, headers={"Connection": "close"} if close else None)
