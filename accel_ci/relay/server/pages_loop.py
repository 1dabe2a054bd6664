"""Have the pages written while a server runs, by a process that ends when it has written them.

Rendering takes seconds of a core, and memory for all results of two months: in the server's process, webhooks would wait.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from starlette.applications import Starlette

from accel_ci.redaction import redact
from accel_ci.relay.results_store import ResultsStore
from accel_ci.relay.server.settings import PagesSettings, RelayProject

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]

_LOG = logging.getLogger(__name__)
_DAY_S = 86400.0
_LONGEST_S = 1800.0


def with_pages(project: RelayProject, lifespan: Lifespan) -> Lifespan:
    """Return a lifespan during which the pages are written too, if the settings have them.

    Raises `AccelCiError` where the store of results cannot be opened.
    """
    settings = project.settings.pages
    if settings is None:
        return lifespan
    store = project.open_results()

    @asynccontextmanager
    async def both(application: Starlette) -> AsyncIterator[None]:
        async with lifespan(application):
            loop = asyncio.create_task(_keep_writing(project, settings, store))
            try:
                yield
            finally:
                loop.cancel()
                with suppress(asyncio.CancelledError):
                    await loop

    return both


async def _keep_writing(project: RelayProject, settings: PagesSettings, store: ResultsStore) -> None:
    """Write the pages when there are new results, another allowlist, or a new day."""
    written = None
    while True:
        began = time.monotonic()
        try:
            state = await asyncio.to_thread(_state, project, store)
            if state != written and await _write(project):
                written = state
        except Exception:
            _LOG.exception("the pages were not written")
        await asyncio.sleep(max(settings.every_s, (time.monotonic() - began) * (1 / settings.busy_share - 1)))


def _state(project: RelayProject, store: ResultsStore) -> tuple[str, int, int]:
    now = time.time()
    with suppress(OSError):
        return store.version(now - _DAY_S, now + _DAY_S), int(now // _DAY_S), project.allowlist.stat().st_mtime_ns
    return "", 0, 0


async def _write(project: RelayProject) -> bool:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "accel_ci.cli", "relay", "pages", "--config", str(project.file),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _LONGEST_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        _LOG.error("the pages were not written: %s", redact(output.decode(errors="replace")).strip()[-1000:])
    return process.returncode == 0
