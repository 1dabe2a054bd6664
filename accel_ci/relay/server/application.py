"""The HTTP side of the server: what is read from a connection, and the answers.

The checks are in `webhook` and `callback`; here are the limits of size and time, and the order of checking, storing and
answering.
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
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from accel_ci.relay.allowlist import AllowlistFile
from accel_ci.relay.server.callback import REPORTS, CallbackError, parse_callback
from accel_ci.relay.server.database import RelayDatabase, brief
from accel_ci.relay.server.identity import NotIdentified
from accel_ci.relay.server.jobs import Call, Outcome, Refused
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.monitoring import monitoring_routes
from accel_ci.relay.server.settings import CallbackSettings, WebhookLimits
from accel_ci.relay.server.webhook import EVENTS, Delivery, Refusal, decide, is_known_event
from accel_ci.relay.strict_json import JsonError, parse_object

_LOG = logging.getLogger(__name__)
_NOT_STORED = (SQLAlchemyError, asyncio.TimeoutError, TimeoutError)
_IGNORED = ("ignored", JSONResponse({"ok": True, "status": "ignored"}))


@dataclass(frozen=True)
class CallbackReceiver:
    """All that callbacks need.

    `identify` gets the header `Authorization` and the time, and returns the repository, or raises `NotIdentified`. `take`
    returns once a step and its forwards are durable.
    """

    identify: Callable[[str | None, float], Awaitable[str]]
    allowlist: AllowlistFile
    limits: CallbackSettings
    take: Callable[[Call], Awaitable[Outcome]]


@dataclass(frozen=True)
class Receiver:
    """All that the webhook needs. `store` returns once a delivery is durable."""

    secret: bytes
    upstream: str
    limits: WebhookLimits
    store: Callable[[Delivery], Awaitable[None]]
    database: RelayDatabase
    metrics: RelayMetrics
    callbacks: CallbackReceiver


def make_application(
    receiver: Receiver,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    pages: ASGIApp | None = None,
) -> Starlette:
    """Make the application. `pages` answers below `/hud/`."""

    async def webhook(request: Request) -> Response:
        began = time.perf_counter()
        event = request.headers.get("x-github-event", "")
        response = await _answer(request, receiver)
        receiver.metrics.answered(event if event in EVENTS else "other", response.status_code, time.perf_counter() - began)
        return response

    async def callback(request: Request) -> Response:
        status, response = await _answer_callback(request, receiver)
        receiver.metrics.called_back(status)
        return response

    async def refused(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _detail(status, {404: "Not found", 405: "Method not allowed"}.get(status, "refused"))

    application = Starlette(
        routes=[
            Route("/github/webhook", webhook, methods=["POST"]),
            Route("/github/callback", callback, methods=["POST"]),
            *monitoring_routes(receiver.database, receiver.metrics),
            *([Mount("/hud", pages)] if pages is not None else []),
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
    body = await _read_in_time(request, limits.body_bytes, limits.request_s)
    if isinstance(body, Response):
        return body
    decision = decide(request.headers, body, receiver.secret, receiver.upstream, limits.json_depth)
    if isinstance(decision, Refusal):
        _LOG.warning("refused a webhook with %d: %s", decision.status, decision.detail)
        return _detail(decision.status, decision.detail)
    if not isinstance(decision, Delivery):
        return JSONResponse({"ignored": True})
    try:
        await receiver.store(decision)
    except _NOT_STORED as error:
        _LOG.error("delivery %s was not stored: %s", decision.id, _why(error))
        return _detail(503, "the delivery was not stored; deliver it again")
    if decision.left_out:
        _LOG.info("delivery %s was cut down: %s", decision.id, ", ".join(decision.left_out))
    return JSONResponse({"ok": True, "queued": True, "delivery_id": decision.id}, 202)


async def _answer_callback(request: Request, receiver: Receiver) -> tuple[str, Response]:
    """Answer a callback; return also the outcome for the metrics: a step, `ignored`, or the status of the answer."""
    parts, limits = receiver.callbacks, receiver.callbacks.limits
    try:
        caller = await parts.identify(request.headers.get("authorization"), time.time())
    except NotIdentified as error:
        _LOG.warning("refused a callback with %d: %s", error.status, error.detail)
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        return _refused(error.status, error.detail, {**headers, "Connection": "close"})
    # Every repository of GitHub has such tokens: nothing is read for those that may not report.
    downstream = parts.allowlist.current().find(caller)
    if downstream is None or downstream.level == "L1":
        return _IGNORED
    body = await _read_in_time(request, limits.body_bytes, limits.request_s)
    if isinstance(body, Response):
        _LOG.warning("refused a callback of %s with %d", caller, body.status_code)
        return str(body.status_code), body
    try:
        document = parse_object(body, limits.json_depth)
        event = document.get("event_type")
        if any(event == one for one in REPORTS - downstream.events):
            return _IGNORED
        call = Call(parse_callback(document, receiver.upstream), downstream, time.time())
    except (JsonError, CallbackError) as error:
        _LOG.warning("refused a callback of %s with 400: %s", caller, error)
        return _refused(400, f"the body is refused: {error}")
    one = call.callback
    job = f"{caller} {one.delivery_id} {one.run_id}/{one.run_attempt} {one.job_name}"
    try:
        end = await parts.take(call)
    except _NOT_STORED as error:
        _LOG.error("the callback of %s was not stored: %s", job, _why(error))
        return _refused(503, "the callback was not stored; send it again")
    if isinstance(end, Refused):
        _LOG.warning("refused a callback of %s with %d: %s", job, end.status, end.detail)
        return _refused(end.status, end.detail, {"Retry-After": str(end.retry_after_s)} if end.retry_after_s else None)
    receiver.metrics.stepped(end)
    _LOG.info("%s: %s%s", job, end.step, f", {one.conclusion}" if one.conclusion else "")
    return end.step, JSONResponse({"ok": True, "status": "known" if end.step == "known" else one.status})


def _why(error: Exception) -> str:
    return brief(error) if isinstance(error, SQLAlchemyError) else "the database does not answer in time"


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> tuple[str, Response]:
    return str(status), JSONResponse({"detail": detail}, status, headers)


async def _read_in_time(request: Request, limit: int, seconds: float) -> bytes | Response:
    """Read the body; the answer where that takes too long, or the body is too large or ends early."""
    try:
        body = await asyncio.wait_for(_read(request, limit), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        return _detail(408, "the body took too long", close=True)
    except ClientDisconnect:
        return _detail(400, "the body is incomplete", close=True)
    return _detail(413, f"the body has more than {limit} bytes", close=True) if body is None else body


async def _read(request: Request, limit: int) -> bytes | None:
    """Read the body; None if it is larger than the limit. An announced size is believed only when it is far too large.

    Of a body that is too large, as much again is read and dropped: a client whose body is not taken may see a connection
    that is reset in place of the answer.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > (limit if "expect" in request.headers else 2 * limit):
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > 2 * limit:
            return None
        if size <= limit:
            parts.append(part)
    return b"".join(parts) if size <= limit else None


def _detail(status: int, text: str, close: bool = False) -> Response:
    return JSONResponse({"detail": text}, status, headers={"Connection": "close"} if close else None)
