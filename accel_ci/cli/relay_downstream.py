"""Commands of a backend's end of the relay: `relay dispatch`, `receive`, `poll`, `report` and `rows`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import chosen_build, with_workspace

if TYPE_CHECKING:
    from accel_ci.relay.downstream.deliveries import CallingWorkflow
    from accel_ci.relay.downstream.report import Subject
    from accel_ci.workspace import Workspace

_REPORT_EVERY_S = 15.0


@click.command()
@click.option("--report", is_flag=True, help="Stay until the builds have ended, and report them from here.")
@click.option("--hours", type=click.FloatRange(0.01, 24), default=6.0, show_default=True, help="The time for --report.")
@with_workspace
def dispatch(workspace: Workspace, report: bool, hours: float) -> None:
    """Take a dispatch of the relay from standard input, and have it built.

    It is the event of a repository_dispatch, as the file $GITHUB_EVENT_PATH has it in GitHub Actions, or its client_payload.
    The sensors of the daemon start the builds. One that is known already is not built again.

    \b
      accel-ci relay dispatch < "$GITHUB_EVENT_PATH"
    """  # noqa: D301 - click takes the control character
    from accel_ci.relay.downstream.deliveries import deliveries_of, read_dispatch
    from accel_ci.relay.downstream.relayed_builds import relay_settings
    from accel_ci.relay.messages import LARGEST_DISPATCH

    settings = relay_settings(workspace)
    document = sys.stdin.buffer.read(LARGEST_DISPATCH + 1)
    delivery = read_dispatch(document, settings.repository, datetime.now(timezone.utc), calling_workflow(os.environ))
    is_new = deliveries_of(workspace).add(delivery)
    click.echo(
        f"{delivery.id}: {delivery.change.ref} {delivery.change.sha[:12]}{'' if is_new else ', which is known already'}"
    )
    if report:
        _report_until_the_end(workspace, delivery.id, hours)


def calling_workflow(environment: Mapping[str, str]) -> CallingWorkflow | None:
    """Return the run of GitHub Actions that this process belongs to; None elsewhere."""
    from accel_ci.relay.downstream.deliveries import CallingWorkflow

    names = ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    run, attempt, server, repository = (environment.get(name, "") for name in names)
    if not (run.isdecimal() and run.isascii() and attempt.isdecimal() and attempt.isascii()):
        return None
    return CallingWorkflow(run, attempt, f"{server}/{repository}/actions/runs/{run}")


def _report_until_the_end(workspace: Workspace, delivery_id: str, hours: float) -> None:
    import logging

    from accel_ci.config.extras import require_extra
    from accel_ci.errors import AccelCiError
    from accel_ci.process.waiting import poll

    require_extra("relay", "relay.callbacks")
    from accel_ci.relay.downstream.deliveries import deliveries_of
    from accel_ci.relay.downstream.report import new_sender, report_deliveries

    for _ in poll(logging.getLogger(__name__), f"the builds of {delivery_id}", _REPORT_EVERY_S, hours * 3600):
        try:
            progress = report_deliveries(workspace, new_sender(workspace), datetime.now(timezone.utc), only=delivery_id)
        except AccelCiError as error:  # the next time there may be a token
            click.echo(f"accel-ci: {error}", err=True)
            continue
        for line in progress.lines:
            click.echo(line)
        if progress.is_complete:
            kept = deliveries_of(workspace).find(delivery_id)
            if kept is not None and kept.outcome.reason:
                click.echo(f"{delivery_id}: {kept.outcome.reason}")
            return
    raise AccelCiError(
        f"the builds of {delivery_id} have not ended within {hours:g} hours; `accel-ci relay report` can still report"
    )


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8766, show_default=True, help="The port to listen on.")
@with_workspace
def receive(workspace: Workspace, host: str, port: int) -> None:
    """Receive dispatches as webhooks of GitHub, at /github/webhook, until the process ends.

    The secret of the webhook is in $ACCEL_CI_RELAY_WEBHOOK_SECRET. Put a proxy with TLS in front of it.
    """
    from accel_ci.config.extras import require_extra
    from accel_ci.errors import AccelCiError

    require_extra("relay", "accel-ci relay receive")
    import uvicorn

    from accel_ci.relay.downstream.receive import PATH, SECRET, server_settings
    from accel_ci.relay.listening import listen

    secret = os.environ.get(SECRET, "").strip()
    if len(secret) < 16:
        raise AccelCiError(f"${SECRET} must hold the secret of the webhook, at least 16 characters")
    with listen(f"{host}:{port}") as listener, suppress(KeyboardInterrupt):
        click.echo(f"receiving dispatches at http://{host}:{port}{PATH}")
        uvicorn.Server(server_settings(workspace, secret.encode())).run(sockets=[listener])


@click.command()
@with_workspace
def poll(workspace: Workspace) -> None:
    """Ask GitHub once what has changed upstream, and have it built: for a CI that no dispatch can reach.

    A token in $ACCEL_CI_RELAY_GITHUB_TOKEN allows more requests. The first time, this only remembers where it begins.
    """
    from accel_ci.config.extras import require_extra

    require_extra("relay", "accel-ci relay poll")
    from accel_ci.relay.downstream.poll import poll_upstream

    lines = poll_upstream(workspace, datetime.now(timezone.utc))
    click.echo("\n".join(lines) or "nothing has changed")


@click.command()
@click.argument("build", required=False)
@click.option("--dry-run", is_flag=True, help="Print the callbacks, one JSON object a line, and send nothing.")
@with_workspace
def report(workspace: Workspace, build: str | None, dry_run: bool) -> None:
    """Report BUILD to the relay, by default the newest: what was not sent yet.

    A build that came from a delivery is reported for that, a nightly one as such.
    """
    from accel_ci.config.extras import require_extra
    from accel_ci.errors import AccelCiError

    require_extra("relay", "accel-ci relay report")
    from accel_ci.relay.downstream.relayed_builds import relay_settings
    from accel_ci.relay.downstream.report import due_callbacks, new_sender, report_build
    from accel_ci.relay.messages import callback_body

    chosen, now, settings = chosen_build(workspace, build), datetime.now(timezone.utc), relay_settings(workspace)
    subjects = _subjects(workspace, chosen.revision, chosen.variant)
    if not subjects:
        raise AccelCiError(
            f"{chosen.name} came from no dispatch of a relay, and is no nightly of PyTorch's main: nobody waits for it"
        )
    if not dry_run and not settings.callbacks:
        raise AccelCiError("relay.callbacks names no place to report to")
    for subject in subjects:
        if dry_run:
            for callback in due_callbacks(workspace, chosen, subject, now)[0]:
                click.echo(json.dumps(json.loads(callback_body(subject.client_payload, callback.make()))))
        else:
            lines = report_build(workspace, settings, chosen, subject, new_sender(workspace), now).lines
            click.echo("\n".join(lines) or f"{chosen.name}: nothing is due for {subject.id}")


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="The store; <home>/relay_results by default."
)
@click.option("--repository", metavar="OWNER/NAME", help="The name of the backend; local/<its name> by default.")
@click.option("--days", type=click.IntRange(1, 1000), default=30, show_default=True, help="Only builds of the last days.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows, one JSON object a line, and store nothing.")
@with_workspace
def rows(workspace: Workspace, folder: Path | None, repository: str | None, days: int, as_json: bool) -> None:
    """Store the backend's own builds with the columns of the relay's results, so that its pages can be made of them.

    Rows that are there already change nothing.
    """
    from accel_ci.relay.downstream.rows import own_rows
    from accel_ci.relay.results_store import ResultsStore

    now = datetime.now(timezone.utc)
    name = repository or f"local/{workspace.project.settings.backend.name}"
    found = own_rows(workspace, name, now - timedelta(days=days), now)
    if as_json:
        for row in found:
            click.echo(json.dumps(asdict(row)))
        return
    place = folder or workspace.project.home / "relay_results"
    ResultsStore(place).add(found)
    click.echo(f"{len(found)} rows are in {place}")


def _subjects(workspace: Workspace, revision_key: str, variant: str) -> list[Subject]:
    """Return what a build is reported for."""
    from accel_ci.model import Build
    from accel_ci.relay.downstream.deliveries import deliveries_of
    from accel_ci.relay.downstream.relayed_builds import relay_settings
    from accel_ci.relay.downstream.report import nightly_subject, subject_of

    own = [
        subject_of(kept)
        for kept in deliveries_of(workspace).all()
        if kept.outcome.revision == revision_key and variant in kept.outcome.variants and not kept.delivery.is_polled
    ]
    if own or (revision := workspace.manifests.revision(revision_key)) is None:
        return own
    nightly = nightly_subject(workspace, relay_settings(workspace), revision, Build(revision_key, variant))
    return [nightly] if nightly is not None else []
