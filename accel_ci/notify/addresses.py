"""The addresses of routes: apprise URLs out of a variable or a file. They hold secrets, which the redactor learns here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from accel_ci.config.notify_settings import Route
from accel_ci.errors import AccelCiError
from accel_ci.redaction import OF_THIS_PROCESS

_LARGEST_FILE = 64 << 10
_LEAST_SECRET = 8
"""Characters of the shortest part of an address that may be a token."""
_SERVICE = re.compile(r"([a-z][a-z0-9]{0,15})://")
_HOST = re.compile(r".*[.\[].*|[a-z0-9-]{0,20}(:\d{1,5})?")
"""Names and addresses of hosts, whatever their port. A longer name without a dot is rather a token."""


def addresses_of(name: str, route: Route) -> tuple[str, ...]:
    """Return the apprise URLs of a route. Raises `AccelCiError` if there are none; the message never has an address."""
    if route.urls_from is not None:
        place, text = f"${route.urls_from}", os.environ.get(route.urls_from, "")
    else:
        path = Path(route.urls_file or "")
        place = str(path)
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise AccelCiError(f"{place} is too large to be a list of addresses; see notify.routes.{name}.urls_file")
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise AccelCiError(f"the addresses of the route {name} cannot be read from {place}: {error}") from None
    found = tuple(dict.fromkeys(text.split()))
    OF_THIS_PROCESS.learn(part for url in found for part in _secrets(url))
    if not found:
        raise AccelCiError(f"the route {name} has no address: put apprise URLs, such as slack://…, into {place}")
    return found


def shown_address(addresses: Sequence[str], url: str) -> str:
    """Return words for an address of a route that show no secret: its place in the list, and its service."""
    service = _SERVICE.match(url)
    return f"address {addresses.index(url) + 1}" + (f" ({service[0]}…)" if service else "")


def _secrets(url: str) -> Iterator[str]:
    """The address, and its parts that may be tokens, also as a service gets them.

    These are the user's, and those of the path and the query that have a digit. So are those of the host where it is none,
    such as `tgram://123456789:token/`.
    """
    yield url
    _, _, rest = url.partition("://")
    before, *query = re.split(r"[?&]", rest)
    place, _, path = before.partition("/")
    user, _, host = place.rpartition("@")
    parts = [part for each in query for part in each.split("=")] + path.split("/")
    parts += [] if _HOST.fullmatch(host) else [host, *host.split(":")]
    found = [*user.split(":"), *(part for part in parts if re.search(r"\d", part))]
    yield from (part for each in found for part in (each, unquote(each)) if len(part) >= _LEAST_SECRET)
