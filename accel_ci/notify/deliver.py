"""Send posts by apprise. A service that is away fails nothing but its own post, which is tried again."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from accel_ci.config.extras import require_extra
from accel_ci.errors import AccelCiError
from accel_ci.notify.outbox import Post
from accel_ci.redaction import redact

if TYPE_CHECKING:
    import apprise

_LOG = logging.getLogger(__name__)


def address_digest(url: str) -> str:
    """The name of an address in files, from which it cannot be read."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def check_address(url: str) -> None:
    """Raise `AccelCiError` for an address that no service of apprise knows. Nothing is sent."""
    _service(url)


def send(url: str, post: Post) -> bool:
    """Send a post to an address; return whether the service has taken it.

    apprise waits 4 seconds for a connection and for each answer, unless the address has other values (`?cto=`, `?rto=`).
    Raises `AccelCiError` for an address that no service of apprise knows.
    """
    require_extra("notify", "accel-ci notify")
    import apprise

    service = _service(url)
    kind = {"failure": apprise.NotifyType.FAILURE, "warning": apprise.NotifyType.WARNING, "info": apprise.NotifyType.INFO}
    chosen = apprise.NotifyType.SUCCESS if post.is_recovery else kind[post.severity]
    try:
        return bool(
            service.notify(
                redact(post.text), title=redact(post.title), notify_type=chosen, body_format=apprise.NotifyFormat.TEXT
            )
        )
    except Exception as error:  # a plugin of any service
        _LOG.warning("post %s could not be sent: %s", post.id, redact(f"{type(error).__name__}: {error}"))
        return False


def _service(url: str) -> apprise.Apprise:
    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its messages show addresses
    service = apprise.Apprise(asset=apprise.AppriseAsset(app_id="accel-ci", async_mode=False, secure_logging=True))
    if not service.add(url):
        raise AccelCiError("it is no URL that apprise knows: see the list of services in its documentation")
    return service
