"""Ask the services of remote execution whether they answer and take the credentials, before Bazel is started."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from accel_ci.config.settings import Rbe
from accel_ci.errors import BuildError

_LIMIT_S = 5.0
_CAPABILITIES = "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities"
_PORTS = {"grpcs": 443, "grpc": 80, "https": 443, "http": 80}


def check_remote(rbe: Rbe, secrets: Mapping[str, str]) -> str | None:
    """Return the services that answer; None where none is configured. Raises `BuildError` for the first that does not."""
    named = {"executor": rbe.executor, "cache": rbe.cache, "event_service": rbe.event_service}
    places = {name: endpoint for name, endpoint in named.items() if endpoint is not None}
    for name, endpoint in places.items():
        problem = _problem(endpoint, name == "event_service", rbe.instance_name or "", secrets)
        if problem is not None:
            raise BuildError(f"rbe.{name}: {endpoint} {problem}")
    return ", ".join(f"{endpoint} answers" for endpoint in dict.fromkeys(places.values())) or None


def _problem(endpoint: str, takes_events: bool, instance: str, secrets: Mapping[str, str]) -> str | None:
    """Return what is wrong with a service and what to do; None when it answers."""
    address = urlsplit(endpoint)
    away = "does not answer ({}); see that it runs and that this machine reaches it"
    if address.scheme == "unix":
        return None if Path(address.path).exists() else away.format("there is no such socket")
    port = address.port or _PORTS.get(address.scheme, 443)
    if takes_events or address.scheme not in ("grpc", "grpcs"):
        try:
            with socket.create_connection((address.hostname or "", port), _LIMIT_S):
                return None
        except OSError as error:
            return away.format(error)
    target = f"{address.hostname}:{port}"
    secure = address.scheme == "grpcs"
    with grpc.secure_channel(target, grpc.ssl_channel_credentials()) if secure else grpc.insecure_channel(target) as channel:
        ask = channel.unary_unary(_CAPABILITIES, request_serializer=_request, response_deserializer=bytes)
        try:
            ask(instance, timeout=_LIMIT_S, metadata=[(header.lower(), value) for header, value in secrets.items()])
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return "does not take the credentials; look at the variables that rbe.headers names"
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return away.format(" ".join((error.details() or code.name).split()))
    return None  # a service that does not know the question answers, too


def _request(instance: str) -> bytes:
    """Encode a `GetCapabilitiesRequest`, whose field 1 is the name of the instance."""
    name = instance.encode()[:127]
    return bytes([0x0A, len(name)]) + name if name else b""
