"""The routes by which others watch a server or a worker: `/metrics` for Prometheus, and `/healthz`."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.metrics import RelayMetrics

_ANSWER_S = 5.0
_NO_ANSWER = (SQLAlchemyError, asyncio.TimeoutError, TimeoutError)


def monitoring_routes(database: RelayDatabase, metrics: RelayMetrics) -> list[Route]:
    """Make the routes. Both answer with 503 while the database does not, within some seconds."""

    async def show_metrics(_: Request) -> Response:
        try:
            text = await asyncio.wait_for(asyncio.to_thread(metrics.text), _ANSWER_S)
        except _NO_ANSWER:
            return _unavailable()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show_health(_: Request) -> Response:
        try:
            await asyncio.wait_for(asyncio.to_thread(database.ping), _ANSWER_S)
        except _NO_ANSWER:
            return _unavailable()
        return JSONResponse({"ok": True})

    return [Route("/metrics", show_metrics, methods=["GET"]), Route("/healthz", show_health, methods=["GET"])]


def _unavailable() -> Response:
    return JSONResponse({"detail": "the database does not answer"}, 503)
