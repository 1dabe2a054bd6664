"""Show a replay of rules (`accel-ci quality replay`): tables for people, and a document for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.results import print_table

if TYPE_CHECKING:
    from accel_ci.quality.played import Missed, Played
    from accel_ci.quality.replay import Replay

_CAUSES = ("infra", "flaky", "upstream", "backend", "unknown")


def as_document(replay: Replay) -> dict[str, Any]:
    """Return a replay as plain values."""
    from accel_ci.quality.played import difference

    played = list(replay.played.values())
    return {
        "from": replay.first.isoformat(),
        "to": replay.last.isoformat(),
        "builds": replay.builds,
        "revisions": replay.revisions,
        "rules": {name: _of_rules(each) for name, each in replay.played.items()},
        "difference": asdict(difference(*played)) if len(played) > 1 else None,
    }


def _of_rules(played: Played) -> dict[str, Any]:
    return {
        "failures": played.failures,
        "incidents": played.incidents,
        "flaky": sorted(played.flaky),
        "quarantined": sorted(played.quarantined),
        "moves": [asdict(move) for move in played.moves],
        "hidden": [[*failure, played.causes[failure], state] for failure, state in sorted(played.hidden.items())],
        "places": played.places,
    }


def print_replay(replay: Replay, file: str) -> None:
    """Print a replay; `file` is the name of the file with the other rules."""
    from accel_ci.quality.played import difference

    click.echo(f"{replay.builds} builds of {replay.revisions} revisions, from {replay.first} to {replay.last}")
    played = list(replay.played.values())
    rows: list[tuple[str, Callable[[Played], int]]] = [
        *((f"failures: {cause}", lambda each, cause=cause: each.failures[cause]) for cause in _CAUSES),
        *((f"incidents: {cause}", lambda each, cause=cause: each.incidents[cause]) for cause in _CAUSES),
        ("tests called flaky", lambda each: len(each.flaky)),
        ("tests in quarantine", lambda each: len(each.quarantined)),
        *((f"moves: {state}", lambda each, state=state: each.moved(state)) for state in ("muted", "disabled", "released")),
        ("over budget", lambda each: each.moved("over budget")),
        ("breakages hidden", lambda each: len(each.hidden)),
        ("bad places named", lambda each: len(each.places)),
    ]
    print_table(["", "today's rules", *([file] if file else [])], [[name, *map(count, played)] for name, count in rows])
    for name, each in zip(("today's rules", file), played, strict=False):
        shown = [[failure[0], *failure[1:], each.causes[failure], state] for failure, state in sorted(each.hidden.items())]
        print_table([f"hidden by {name}", "suite", "test", "cause", "state"], shown)
        places = [[place, len(builds), builds[0]] for place, builds in sorted(each.places.items())]
        print_table([f"bad by {name}", "builds", "first"], places)
    if len(played) < 2:
        return
    found = difference(*played)
    changes = [[one.build, one.suite, one.test, one.before, one.after] for one in found.causes]
    print_table(["build", "suite", "test", "today's cause", "new cause"], changes)
    print_table(["variant", "suite", f"only in the quarantine of {file}"], found.quarantined_only_after)
    print_table(["variant", "suite", "only in today's quarantine"], found.quarantined_only_before)
    _print_missed(file, found.missed_after)
    _print_missed("today's rules", found.missed_before)
    if not any(map(len, vars(found).values())):
        click.echo(f"{file} makes no difference")


def _print_missed(name: str, missed: tuple[Missed, ...]) -> None:
    rows = [[one.build, one.suite, one.test, one.cause, one.why] for one in missed]
    print_table([f"missed by {name}", "suite", "test", "cause", "why"], rows)
