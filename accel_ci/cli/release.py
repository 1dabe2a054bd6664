"""Commands about releases: `release check`, `override`, `publish` and `channel`."""

from __future__ import annotations

import getpass
import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import chosen_build, with_workspace
from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.release.gate import Decision
    from accel_ci.workspace import Workspace

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
_TAG = click.option(
    "--tag",
    help="The release tag, such as v1.2.3, or runtime=v1.2.3 of a component [default: the one of the build's start].",
)


@click.group()
def release() -> None:
    """Check and publish builds: their wheels to an index, their images to a registry."""


@release.command()
@click.argument("build", required=False)
@_TAG
@_AS_JSON
@with_workspace
def check(workspace: Workspace, build: str | None, tag: str | None, as_json: bool) -> None:
    """Show whether BUILD may be released, and each criterion with its value. Exits with 1 if it may not.

    BUILD is a build or a revision, by default the newest build.
    """
    from accel_ci.model import Revision
    from accel_ci.pipelines import REVISION
    from accel_ci.release.facts import decide
    from accel_ci.release.tags import index_for, tag_of

    chosen = chosen_build(workspace, build)
    manifests, settings = workspace.manifests, workspace.project.settings.release
    found = tag_of(workspace.project, manifests.read(manifests.path(REVISION, chosen.revision), Revision), tag)
    index = index_for(settings, found) if settings is not None else None
    decision = decide(workspace, chosen, found, index=index)
    if as_json:
        document = {"build": chosen.name, "goes_out": decision.goes_out, **asdict(decision)}
        click.echo(json.dumps(document, default=str))
    else:
        _print_decision(chosen.name, decision)
    sys.exit(0 if decision.goes_out else 1)


@release.command()
@click.argument("build")
@click.option("--reason", required=True, help="Why, for those who read it later.")
@click.option("--by", "person", default=getpass.getuser, help="Your name [default: that of your user].")
@with_workspace
def override(workspace: Workspace, build: str, reason: str, person: str) -> None:
    """Let BUILD out in spite of the criteria that it does not meet now; that is kept with your name and the reason."""
    from accel_ci.release.facts import override as record

    word = record(workspace, chosen_build(workspace, build), person, reason)
    click.echo(f"{word.person} overrides {', '.join(word.criteria)}: {word.reason}")


@release.command()
@click.argument("build")
@_TAG
@click.option("--dry-run", is_flag=True, help="Do all but the uploads.")
@_AS_JSON
@with_workspace
def publish(workspace: Workspace, build: str, tag: str | None, dry_run: bool, as_json: bool) -> None:
    """Publish BUILD: with a release tag to the index and the registry, else to the test index.

    What is there already is not uploaded again, and nothing is replaced.
    """
    from accel_ci.progress import LineProgress
    from accel_ci.release.publish import publish_build

    chosen = chosen_build(workspace, build)
    with LineProgress(partial(click.echo, err=True) if not as_json else lambda _: None).step(
        f"publish {chosen.name}"
    ) as step:
        done = publish_build(workspace, chosen, step, tag, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(asdict(done), default=str))
        return
    words = "would be uploaded" if dry_run else "uploaded"
    if done.index is not None:
        click.echo(f"{done.index}: {', '.join(done.uploaded) or 'nothing'} {words}")
    for text in (done.attestations, done.verified):
        if text is not None:
            click.echo(text)
    for each in done.images:
        click.echo(f"{each.tag}: {each.digest} ({each.state})")


@release.command()
@click.argument("build", required=False)
@with_workspace
def channel(workspace: Workspace, build: str | None) -> None:
    """Add BUILD, by default the newest one, to the nightly channel, or complete that."""
    from accel_ci.release.channel import open_channel
    from accel_ci.release.gate import Decision, unmet_in_words
    from accel_ci.release.publish import RefusedError, publish_nightly

    chosen = chosen_build(workspace, build)
    done = publish_nightly(workspace, chosen)
    if isinstance(done, Decision):
        raise RefusedError(f"{chosen.name} is not published: {unmet_in_words(done.refused_by)}")
    _, result, tags = done
    place = open_channel(workspace, chosen.variant).location
    click.echo(
        f"{place}: {', '.join(result.new) or 'nothing'} new, {len(result.removed)} removed, latest {result.latest.build}"
    )
    for each in tags:
        click.echo(f"{each.tag}: {each.digest} ({each.state})")


def _print_decision(name: str, decision: Decision) -> None:
    covered = decision.override.criteria if decision.override is not None else ()
    rows = []
    for each in decision.criteria:
        state = (
            "met" if each.met else "overridden" if each not in decision.refused_by and each.name in covered else "NOT MET"
        )
        rows.append([each.name, each.value, each.wanted, state])
    print_table(["criterion", "value", "wanted", "state"], rows)
    if decision.override is not None:
        word = decision.override
        click.echo(f"{word.person} has overridden {', '.join(word.criteria)} at {word.at:%Y-%m-%d %H:%M}: {word.reason}")
    refused = ", ".join(each.name for each in decision.refused_by)
    click.echo(f"{name} is refused: {refused}" if refused else f"{name} may be released")
