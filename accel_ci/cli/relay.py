"""The commands of `relay`: those of the server of the cross-repository CI relay; a backend's are in `relay_downstream`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.relay_downstream import dispatch, poll, receive, report, rows
from accel_ci.errors import AccelCiError

if TYPE_CHECKING:
    from accel_ci.relay.server.database import RelayDatabase
    from accel_ci.relay.server.settings import RelayProject

_settings = click.option(
    "--config",
    "settings",
    type=click.Path(path_type=Path, dir_okay=False),
    default="relay.yaml",
    show_default=True,
    help="The settings of the relay's server.",
)


@click.group()
def relay() -> None:
    """Relay an upstream's events to the CI of its backends, and their results back."""


@relay.command()
@_settings
@click.option("--workers/--no-workers", default=True, show_default=True, help="Dispatch in this process, too.")
def serve(settings: Path, workers: bool) -> None:
    """Take webhooks at /github/webhook, store them, and dispatch them to the downstreams.

    Ends with 0 on SIGTERM, when all requests under way are finished. Metrics for Prometheus are at /metrics.
    """
    project = _load(settings)
    from accel_ci.relay.server.serve import serve as run

    _log_everything()
    run(project, workers, partial(click.echo, err=True))


@relay.command()
@_settings
@click.option("--metrics", metavar="HOST:PORT", help="Answer to /metrics (Prometheus) and /healthz there.")
def work(settings: Path, metrics: str | None) -> None:
    """Dispatch what `relay serve` stores, in a separate process, here or on another machine."""
    project = _load(settings)
    if metrics is not None:
        from accel_ci.relay.server.settings import check_address

        try:
            check_address(metrics)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--metrics") from None
    from accel_ci.relay.server.serve import work as run

    _log_everything()
    run(project, metrics, partial(click.echo, err=True))


@relay.command("check-allowlist")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def check_allowlist(file: Path) -> None:
    """Check an allowlist, and print each mistake with its line."""
    from accel_ci.relay.allowlist import LEVELS, read_allowlist

    found = read_allowlist(file).downstreams
    counts = {level: sum(one.level == level for one in found) for level in LEVELS}
    click.echo(f"{file.name} is good: {', '.join(f'{count} at {level}' for level, count in counts.items())}")


@relay.command()
@_settings
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(settings: Path, as_json: bool) -> None:
    """Show the dispatches of each downstream: waiting, sent and dead; its jobs; and the forwards to each destination."""
    import time

    from accel_ci.relay.server.jobs import Jobs
    from accel_ci.relay.server.outbox import Outbox
    from accel_ci.relay.server.queue import GITHUB, Queue

    project = _load(settings)
    with _opened(project) as database:
        queue = Queue(database)
        found, waiting = queue.status(time.time()), queue.unexpanded()
        jobs = Jobs(database, project.settings.upstream, project.settings.callback).status()
        destinations = Outbox(database).status(time.time())
    if as_json:
        document = {
            "deliveries_waiting": waiting,
            "downstreams": [asdict(one) for one in found],
            "jobs": [asdict(one) for one in jobs],
            "forwards": [asdict(one) for one in destinations],
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"deliveries without dispatches yet: {waiting}")
    for one in found:
        pause = f"; paused for {one.paused_s:.0f} s more" if one.paused_s else ""
        if one.repository == GITHUB:
            click.echo(f"GitHub's API{pause or ' is open'}")
            continue
        error = f"; an error: {one.error}" if one.error else ""
        click.echo(
            f"{one.repository}: {one.waiting} waiting (the oldest for {one.oldest_wait_s:.0f} s), "
            f"{one.sent} sent, {one.dead} dead{pause}{error}"
        )
    for each in jobs:
        click.echo(
            f"{each.repository}: jobs: {each.in_progress} in progress, {each.completed} completed; "
            f"forwards: {each.forwards_waiting} waiting, {each.forwards_dead} dead"
        )
    for end in destinations:
        error = f"; an error: {end.error}" if end.error else ""
        click.echo(
            f"forwards to {end.destination}: {end.waiting} waiting (the oldest for {end.oldest_wait_s:.0f} s), "
            f"{end.sent} sent, {end.dead} dead{error}"
        )


@relay.command()
@_settings
@click.option("--delivery", help="Only those of this delivery.")
@click.option("--downstream", metavar="OWNER/NAME", help="Only those to this repository, and of its jobs.")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
def replay(settings: Path, delivery: str | None, downstream: str | None, everything: bool) -> None:
    """Queue dead letters again: dispatches and forwards that failed too often or waited too long."""
    import time

    if not everything and delivery is None and downstream is None:
        raise click.UsageError("choose --delivery, --downstream or --all")
    from accel_ci.relay.server.outbox import Outbox
    from accel_ci.relay.server.queue import Queue

    with _opened(_load(settings)) as database:
        count = sum(each.replay(time.time(), delivery, downstream) for each in (Queue(database), Outbox(database)))
    click.echo(f"queued {count} again")


@relay.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@_settings
def pages(folder: Path | None, settings: Path) -> None:
    """Write the pages on backends, pull requests and levels to FOLDER, by default that of the settings.

    Only pages that have changed are written. With `pages` in the settings, the server does it itself, and serves them at
    /hud/.
    """
    import time

    project = _load(settings)
    from accel_ci.relay.allowlist import read_allowlist
    from accel_ci.relay.pages.write import PagesSource, site_of_api, write_pages
    from accel_ci.relay.server.settings import PagesSettings

    chosen, now, place = project.settings, time.time(), folder or project.pages_folder
    store = project.open_results()
    store.tidy(now, chosen.results.keep_days)
    source = PagesSource(
        store,
        read_allowlist(project.allowlist),
        chosen.upstream,
        site_of_api(chosen.github.api),
        (chosen.pages or PagesSettings()).pull_days,
    )
    click.echo(f"wrote {write_pages(source, place, now)} pages to {place}")


def _load(settings: Path) -> RelayProject:
    from accel_ci.config.extras import require_extra

    require_extra("relay", "accel-ci relay")
    from accel_ci.relay.server.settings import load_relay

    return load_relay(settings)


@contextmanager
def _opened(project: RelayProject) -> Iterator[RelayDatabase]:
    """The database for a command, which may count for minutes. An error inside is told in the database's own words."""
    from sqlalchemy.exc import SQLAlchemyError

    from accel_ci.relay.server.database import RelayDatabase, brief

    database = RelayDatabase(project.database_url(), statement_s=600)
    try:
        yield database
    except SQLAlchemyError as error:
        raise AccelCiError(f"the relay's database refuses: {brief(error)}; try again once it can be used") from None
    finally:
        database.close()


def _log_everything() -> None:
    """Print what the relay does: it runs unattended, and its log is read later. uvicorn's own lines go the same way."""
    handlers = logging.getLogger("accel_ci").handlers
    for handler in handlers:
        handler.setLevel(min(handler.level, logging.INFO))
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = handlers
        logger.setLevel(logging.WARNING)
        logger.propagate = False


for _command in (dispatch, poll, receive, report, rows):
    relay.add_command(_command)
