"""`notify`: tell people what has changed, show what would be told, or try the routes."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace

if TYPE_CHECKING:
    from accel_ci.notify.messages import Message
    from accel_ci.workspace import Workspace


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the messages that would be made; keep and send nothing.")
@click.option(
    "--test", "is_test", is_flag=True, help="Send a test message to each address instead; fail if one does not take it."
)
@with_workspace
def notify(workspace: Workspace, dry_run: bool, is_test: bool) -> None:
    """Tell people of troubles that have begun or ended since the last time, once each.

    The sensors of 'notify.enabled' do the same. A message that cannot be sent now is kept for later. The exit status is 1 if
    something went wrong and nothing was sent.
    """
    from accel_ci.config.extras import require_extra
    from accel_ci.defs.notify import all_troubles
    from accel_ci.notify.current import notify as tell
    from accel_ci.notify.current import notify_settings, preview

    notify_settings(workspace)
    if is_test:
        require_extra("notify", "accel-ci notify --test")
        sys.exit(_test(workspace, dry_run))
    now = datetime.now(timezone.utc)
    troubles = all_troubles(workspace, now)
    if dry_run:
        _print(preview(workspace, troubles, now))
        return
    done = tell(workspace, troubles, now)
    _print(done.messages)
    for step in done.issues:
        click.echo(step)
    for fault in done.faults:
        click.echo(fault, err=True)
    click.echo(f"new messages: {len(done.messages)}; posts sent: {len(done.sent)}; messages that wait: {done.waiting}")
    if done.has_failed:
        sys.exit(1)


def _print(messages: tuple[Message, ...] | list[Message]) -> None:
    for message in messages:
        click.echo(f"{message.route}: {message.title}")
        for line in message.text.splitlines():
            click.echo(f"    {line}")
    if not messages:
        click.echo("nothing has changed")


def _test(workspace: Workspace, dry_run: bool) -> int:
    """Send a test message to each address of each route, and print what came of it; return the exit status."""
    from accel_ci.errors import AccelCiError
    from accel_ci.notify.addresses import addresses_of, shown_address
    from accel_ci.notify.current import notify_settings
    from accel_ci.notify.deliver import check_address, send
    from accel_ci.notify.outbox import Post

    failed = 0
    backend, routes = workspace.project.settings.backend.name, notify_settings(workspace).routes
    if not routes:
        click.echo("notify.routes is empty: nobody is told anything", err=True)
        return 2
    for name, route in routes.items():
        try:
            addresses = addresses_of(name, route)
        except AccelCiError as error:
            click.echo(f"{name}: {error}", err=True)
            failed += 1
            continue
        post = Post("test", name, f"A test of the route {name}", f"accel-ci for {backend} can reach you.", "info", False, ())
        taken = 0
        for address in addresses:
            try:
                if dry_run:
                    check_address(address)
                elif not send(address, post):
                    raise AccelCiError("it did not take the message")
                taken += 1
            except AccelCiError as error:
                click.echo(f"{name}: {shown_address(addresses, address)}: {error}", err=True)
        verb = "would get" if dry_run else "took"
        click.echo(f"{name}: {taken} of {len(addresses)} addresses {verb} the message")
        failed += taken < len(addresses)
    return 1 if failed else 0
