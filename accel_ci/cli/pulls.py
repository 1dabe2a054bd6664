"""Commands about the backend's pull requests: `pulls status`, `pulls answer`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace
from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.workspace import Workspace


@click.group()
def pulls() -> None:
    """The backend's pull requests: which are built, and the answer to each."""


@pulls.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@with_workspace
def show(workspace: Workspace, as_json: bool) -> None:
    """Show the open pull requests as of the sensor's last look, what was decided on each, and the answer so far."""
    from accel_ci.pull_requests.answer import title
    from accel_ci.pull_requests.progress import Bases, look_at_builds
    from accel_ci.pull_requests.watched import read_watched, targets_now

    rows, watched = [], read_watched(workspace)
    bases = Bases(workspace, targets_now(workspace, watched))
    for number, head in sorted(watched.heads.items()):
        built = look_at_builds(workspace, head, bases) if head.revision is not None else []
        answers = {f"{one.pipeline} / {one.variant}": title(one) for one in built}
        rows.append((number, head.sha, head.state, head.reason, answers))
    if as_json:
        names = ("number", "head", "state", "reason", "answers")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    print_table(
        ("pull request", "commit", "state", "answer"),
        [
            (number, sha[:12], state, "; ".join(f"{name}: {words}" for name, words in answers.items()) or reason)
            for number, sha, state, reason, answers in rows
        ],
    )


@pulls.command()
@with_workspace
def answer(workspace: Workspace) -> None:
    """Send the check runs and comments that have changed, as the sensor does."""
    from accel_ci.pull_requests.publish import publish_answers

    for line in publish_answers(workspace, datetime.now(timezone.utc)) or ["no answer has changed"]:
        click.echo(line)
