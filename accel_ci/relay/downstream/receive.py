"""The web server that receives dispatches: webhooks of GitHub for the event `repository_dispatch`, signed with a secret."""

from __future__ import annotations

import asyncio
import hmac
from datetime import datetime, timezone
from hashlib import sha256

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accel_ci.errors import AccelCiError
from accel_ci.redaction import redact
from accel_ci.relay.downstream.deliveries import DispatchError, deliveries_of, read_dispatch
from accel_ci.relay.downstream.relayed_builds import relay_settings
from accel_ci.relay.listening import timed_protocol
from accel_ci.relay.messages import LARGEST_DISPATCH
from accel_ci.workspace import Workspace

PATH = "/github/webhook"

SECRET = "ACCEL_CI_RELAY_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
"""The variable with the secret that GitHub signs webhooks with."""

REQUEST_S = 10.0
"""The time that the headers have to come, and again the body."""

CONNECTIONS = 100
"""Those beyond it get 503: anybody may send a body of 1 MiB and be slow with it."""


def receiver(workspace: Workspace, secret: bytes) -> Starlette:
    """Make the server. A dispatch is answered when it is stored: 202 for a new one, 200 for one that is known."""
    repository = relay_settings(workspace).repository

    async def receive(request: Request) -> Response:
        if request.headers.get("x-github-event") != "repository_dispatch":
            return JSONResponse({"ignored": True})
        try:
            body = await asyncio.wait_for(_body(request), REQUEST_S)
        except (asyncio.TimeoutError, ClientDisconnect):
            return _refused(408, "the body did not come in time")
        if body is None:
            return _refused(413, f"the body is larger than {LARGEST_DISPATCH} bytes")
        if not (signature := request.headers.get("x-hub-signature-256")):
            return _refused(400, "X-Hub-Signature-256 is missing")
        expected = f"sha256={hmac.new(secret, body, sha256).hexdigest()}"
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape")):
            return _refused(401, "the signature is wrong")
        try:
            delivery = read_dispatch(body, repository, datetime.now(timezone.utc))
        except DispatchError as error:
            return _refused(400, redact(str(error)))
        try:
            is_new = await run_in_threadpool(deliveries_of(workspace).add, delivery)
        except (AccelCiError, OSError):
            return _refused(503, "the dispatch could not be stored; send it again")
        return JSONResponse({"ok": True, "delivery_id": delivery.id, "new": is_new}, 202 if is_new else 200)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])])


def server_settings(workspace: Workspace, secret: bytes) -> uvicorn.Config:
    """Return the settings of the web server, with limits of what strangers may keep busy."""
    return uvicorn.Config(
        receiver(workspace, secret),
        http=timed_protocol(REQUEST_S),
        ws="none",
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        log_level="warning",
        server_header=False,
    )


async def _body(request: Request) -> bytes | None:
    """Read the body; None if it is too large."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > LARGEST_DISPATCH:
            return None
    return bytes(found)


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"ok": False, "error": reason}, status)
