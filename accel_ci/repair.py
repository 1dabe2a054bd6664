"""Repair a data folder: set aside what is damaged, and rebuild what manifests and results allow.

Nothing is deleted but what is derived from other files. A damaged file keeps its path below `broken/`, and
`broken/report.txt` says when and why it went there. A `revision.json` is made anew from the wheels of its builds.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError, DamagedError
from accel_ci.hud.gather import SHOWN
from accel_ci.model import Build, Revision, Source, TestPlan, Wheel, trigger_of_key
from accel_ci.notify.current import NOTIFIED, Notified
from accel_ci.pipelines import REVISION, TEST_PLAN, WHEEL
from accel_ci.pull_requests.sent import SentRecord, answers_file
from accel_ci.pull_requests.watched import AFTER_REPAIR, AFTER_REPAIR_OF_COMPONENT, Watched, watched_file
from accel_ci.quality.current_quarantine import QUARANTINE, QuarantineState
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.judgement import INCIDENTS, Incidents
from accel_ci.quality.trends import TRENDS, Trends
from accel_ci.relay.downstream.deliveries import Delivery, Outcome
from accel_ci.release.facts import OVERRIDE
from accel_ci.release.gate import Override
from accel_ci.release.publish import RELEASE, Published
from accel_ci.results.store import ResultsStore
from accel_ci.source.revision import confirmed_key
from accel_ci.storage.manifests import ManifestStore, PipelineRun
from accel_ci.workspace import Workspace

BROKEN = "broken"
"""The folder in the data folder for what is damaged."""

_LOG = logging.getLogger(__name__)
_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Repaired:
    """A damaged file by its path in the data folder, why it is damaged, and what was done."""

    name: str
    reason: str
    done: str


def repair(workspace: Workspace) -> list[Repaired]:
    """Look through the data folder and repair it; return what was damaged. Raises `AccelCiError`, `OSError`."""
    home = workspace.project.home
    parts = (_databases(home), _manifests(workspace), _records(workspace), _revisions(workspace))
    found = [repaired for part in (*parts, _results(workspace.results, home)) for repaired in part]
    if found:
        report = home / BROKEN / "report.txt"
        report.parent.mkdir(exist_ok=True)
        with report.open("a") as file:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            file.writelines(f"{now} {each.name}: {each.reason}: {each.done}\n" for each in found)
    return found


def _set_aside(home: Path, file: Path, reason: object, then: str) -> Repaired:
    """Move a file to its path below `broken`, in place of what was there."""
    name = file.relative_to(home)
    place = home / BROKEN / name
    place.parent.mkdir(parents=True, exist_ok=True)
    file.replace(place)
    return Repaired(str(name), " ".join(str(reason).split())[:_REASON_CHARACTERS], f"set aside in {BROKEN}; {then}")


def _databases(home: Path) -> Iterator[Repaired]:
    """SQLite's databases, of Dagster and of others. Dagster makes an empty one in place of one that is gone."""
    for file in sorted((home / "dagster").rglob("*.db")):
        try:
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
                [[answer], *_] = database.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.OperationalError as error:  # in use, or not to be opened: that is no damage
            _LOG.info("%s cannot be looked at: %s", file, error)
            continue
        except sqlite3.DatabaseError as error:
            answer = str(error)
        if answer != "ok":
            for beside in ("-wal", "-shm", "-journal"):
                with suppress(FileNotFoundError):
                    _set_aside(home, file.with_name(f"{file.name}{beside}"), "", "")
            yield _set_aside(home, file, answer, "the next run makes an empty one, without the earlier runs of Dagster's UI")


def _manifests(workspace: Workspace) -> Iterator[Repaired]:
    """The manifests of stages, the records of runs, and the flakiness."""
    manifests, home = workspace.manifests, workspace.project.home
    kinds: dict[str, Any] = {**SHOWN, TEST_PLAN: TestPlan}
    files: list[tuple[Path, type[Any], str]] = [(manifests.path("flakiness"), Flakiness, "the next run makes it anew")]
    for folder in sorted(manifests.builds.glob("[!.]*/[!.]*/")):
        build = Build(folder.parent.name, folder.name)
        files += [(folder / f"{stage}.json", kind, _again(build)) for stage, kind in kinds.items()]
        files += [(manifests.run_file(one, build), PipelineRun, "it is not needed") for one in manifests.pipelines]
    for file, kind, then in files:
        if (reason := _damage(manifests, file, kind)) is not None:
            yield _set_aside(home, file, reason, then)


def _records(workspace: Workspace) -> Iterator[Repaired]:
    """The records of what was done, decided and told. Without one, all is as before it was first written."""
    manifests, home = workspace.manifests, workspace.project.home
    relay, stack = home / "relay", workspace.project.settings.stack
    files: list[tuple[Path, Any, str]] = [
        (manifests.path(NOTIFIED), Notified, "what is open then is told anew"),
        (manifests.path(QUARANTINE), QuarantineState, "the next run makes it anew from the results"),
        (manifests.path(INCIDENTS), Incidents, "the next run makes it anew"),
        (manifests.path(TRENDS), Trends, "the next run makes it anew"),
        (watched_file(workspace), Watched, AFTER_REPAIR),
        *(
            (watched_file(workspace, each.name), Watched, AFTER_REPAIR_OF_COMPONENT)
            for each in (stack.components if stack is not None else ())
        ),
        (answers_file(workspace), SentRecord, "each open pull request gets another comment"),
        *(
            (answers_file(workspace, each.name), SentRecord, "each open change request gets other check runs")
            for each in (stack.components if stack is not None else ())
        ),
        (relay / "poll.json", dict[str, Any], "the next poll begins with the changes from then on"),
        *((file, Delivery, "have it dispatched again") for file in sorted(relay.glob("deliveries/*.json"))),
        *((file, Outcome, "its delivery counts as new") for file in sorted(relay.glob("outcomes/*.json"))),
    ]
    for folder in sorted(manifests.builds.glob("[!.]*/[!.]*/")):
        files += [(file, dict[str, Any], "all of it is reported again") for file in sorted(folder.glob(".relay-*.json"))]
        files += [
            (
                folder / f"{RELEASE}.json",
                Published,
                "release it again: what is out already is found",
            ),
            (folder / f"{OVERRIDE}.json", Override, "override again what is to be overridden"),
        ]
    for file, kind, then in files:
        manifests.share.bring_file(file)
        if (reason := _damage(manifests, file, kind)) is not None:
            manifests.share.remove(file)
            yield _set_aside(home, file, reason, then)


def _again(build: Build) -> str:
    return f"build {build.name} again, which goes on from there"


def _damage(manifests: ManifestStore, file: Path, kind: Any) -> str | None:
    try:
        if file.exists():
            manifests.read(file, kind)
    except DamagedError as error:
        return str(error.__cause__ or error).rpartition("again (")[2].rstrip(")")
    return None


def _revisions(workspace: Workspace) -> Iterator[Repaired]:
    """The manifests of revisions, from the wheels of their builds where there is one of a commit."""
    manifests, home = workspace.manifests, workspace.project.home
    for folder in sorted(manifests.builds.glob("[!.]*/")):
        file, key = manifests.path(REVISION, folder.name), folder.name
        reason = _damage(manifests, file, Revision)
        if file.exists() and reason is None:
            continue
        rebuilt = _rebuild(workspace, key)
        then = "made anew from its builds" if rebuilt else "its sources are not known any more; build anew"
        if file.exists():
            yield _set_aside(home, file, reason, then)
        elif rebuilt:
            yield Repaired(str(file.relative_to(home)), "it was missing", then)
        if rebuilt:
            manifests.add_revision(rebuilt)


def _rebuild(workspace: Workspace, key: str) -> Revision | None:
    """A revision from a wheel of one of its builds; None where no wheel of a commit is left."""
    manifests, settings, trigger = workspace.manifests, workspace.project.settings, trigger_of_key(key)
    for build in manifests.builds_of(key):
        path = manifests.path(WHEEL, build.revision, build.variant)
        wheel = manifests.read_history(path, Wheel)
        if trigger is None or wheel is None or wheel.source is None:
            continue
        note = "rebuilt from the wheel of a build"
        at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        is_by_hand = trigger_of_key(confirmed_key(key) or key) == "manual"  # of any commit, so it is not trusted any more
        backend_ref = wheel.source if is_by_hand else settings.backend.ref
        backend = Source(
            wheel.repository or settings.backend.repository, backend_ref, wheel.source,
            settings.backend.subdirectory, note=note,
        )  # fmt: skip
        upstream = Source(settings.upstream.repository, settings.upstream.ref, None, note=note)
        return Revision(key, trigger, at, backend, upstream, confirms=confirmed_key(key))
    return None


def _results(results: ResultsStore, home: Path) -> Iterator[Repaired]:
    """The attempts, and what is derived from them: rollups are made anew."""
    for stored in results.suites():
        file = results.objects.fetch(stored.entry)
        try:
            results.read(stored)
        except DamagedError as error:
            if not file.is_relative_to(home / "results"):
                yield Repaired(stored.entry.name, str(error)[:_REASON_CHARACTERS], "left in the bucket: ingest it again")
                continue
            yield _set_aside(home, file, error.__cause__, f"ingest {stored.build.name} again, or build it again")
            results.objects.delete(stored.rollup_name)
            continue
        try:
            for rollup in results.rollups([stored]):
                rollup.table(["key"])
        except (AccelCiError, OSError, ValueError, pa.ArrowException) as error:
            results.objects.delete(stored.rollup_name)
            list(results.rollups([stored]))
            yield Repaired(stored.rollup_name, str(error)[:_REASON_CHARACTERS], "made anew from the attempts")
