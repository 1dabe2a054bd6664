"""The state of this machine as runs need it: its cards by their probe, free space, the clock. `doctor` shows it.

What is installed and reachable is in `accel_ci.doctor`; what a run cannot begin without is in `accel_ci.preflight`.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

from accel_ci.config.pool_settings import LocalPoolSettings
from accel_ci.config.settings import Settings
from accel_ci.model import RuntimeImage
from accel_ci.pipelines import RUNTIME_IMAGE
from accel_ci.process.environment import clean_environment
from accel_ci.process.own_user import OwnUser
from accel_ci.process.run import run_tool
from accel_ci.storage.file_lock import is_locked
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

FREE_BYTES = 5 << 30
"""A wheel, PyTorch and the results of a few nights need less."""

CLOCK_S = 60.0
"""A clock that is off by more breaks certificates and the signatures of buckets sooner or later."""

_SERVER_S = 5.0

Check = tuple[bool, str]
"""True where all is well, and the state in a few words."""


def check_cards(workspace: Workspace) -> Check:
    """Run the health probe on each card of a local pool, as workers do. Raises `AccelCiError` and `OSError`."""
    pool = workspace.project.settings.pool
    known = f"{pool.cards} card(s)"
    if not pool.health_probe:
        return True, f"{known}, without a health probe: set pool.health_probe"
    if not isinstance(pool, LocalPoolSettings):
        return True, f"{known}; each worker runs the probe on its own"
    if is_locked(Path(pool.cards_lock or workspace.cards_lock)):
        return True, f"{known}, in use by a run, which runs the probe"
    python = None
    if pool.health_probe[0] == "python" and (python := _newest_python(workspace)) is None:
        return False, f"{known}; the probe needs the environment of a build, and there is none yet"
    limit_s = workspace.project.settings.limits.probe_seconds
    reasons = {card: _probe(pool, card, python, limit_s) for card in range(pool.cards)}
    bad = [f"card {card}: {reason}" for card, reason in reasons.items() if reason]
    return not bad, "; ".join(bad) or f"{known}, the probe succeeds on each"


def _newest_python(workspace: Workspace) -> str | None:
    """The interpreter of the newest trusted build's runtime image that is still there: it runs code of the wheel."""
    manifests = workspace.manifests
    for build in filter(workspace.is_trusted_build, manifests.list_builds()):
        image = manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
        if image is not None and Path(image.python).is_file():
            return image.python
    return None


def _probe(pool: LocalPoolSettings, card: int, python: str | None, limit_s: float) -> str | None:
    """The reason why the probe fails on a card; None when it succeeds."""
    environment = clean_environment(pool.environment, keep=pool.pass_environment) | {pool.card_environment: str(card)}
    command = [python or pool.health_probe[0], *pool.health_probe[1:]]
    done = run_tool(command, timeout_s=limit_s, environment=environment, user=OwnUser.named(pool.user))
    last = done.tail.rpartition("\n")[2]
    return None if done.status == 0 else last or f"the probe ended with {done.status}"


def check_disk(home: Path) -> Check:
    """Check the free space for the data folder, which may not exist yet. Raises `OSError`."""
    place = next(folder for folder in (home, *home.parents) if folder.is_dir())
    usage = shutil.disk_usage(place)
    return usage.free >= FREE_BYTES, f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB are free at {place}"


def check_clock(settings: Settings, manifests: ManifestStore) -> Check:
    """Compare the clock with the newest revision, and with the first configured server that answers by HTTP."""
    now = datetime.now(timezone.utc)
    newest = max((each.seen_at for each in manifests.revisions()), default=now)
    if (newest - now).total_seconds() > CLOCK_S:
        return False, f"it is {now:%Y-%m-%d %H:%M} here, but the newest revision is of {newest:%Y-%m-%d %H:%M} (UTC)"
    servers = (settings.results.endpoint, settings.backend.repository, settings.upstream.repository)
    for server in filter(None, servers):
        if (ahead_s := seconds_ahead(server)) is not None:
            host = urlsplit(server).hostname
            off = abs(ahead_s) > CLOCK_S
            return (
                not off,
                f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} {host}" if off else f"as at {host}",
            )
    return True, "no server to compare it with"


def seconds_ahead(server: str) -> float | None:
    """The seconds by which this clock is ahead of an HTTP server's; None when it gives no time. A second or two is noise."""
    try:
        address = urlsplit(server)
        port = address.port
    except ValueError:
        return None
    if address.scheme not in ("http", "https") or not address.hostname:
        return None
    place = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    where = urlunsplit((address.scheme, place + (f":{port}" if port else ""), "/", "", ""))
    try:
        with urlopen(Request(where, method="HEAD"), timeout=_SERVER_S) as answer:  # noqa: S310
            headers = answer.headers
    except HTTPError as error:
        headers = error.headers
    except (URLError, OSError, ValueError):
        return None
    try:
        return (datetime.now(timezone.utc) - parsedate_to_datetime(headers["Date"])).total_seconds()
    except (TypeError, ValueError):
        return None
