"""Manifests: the small typed things that pass between assets, as JSON files that a person can read.

`builds/<revision>/revision.json`, `builds/<revision>/<variant>/<asset>.json`, and `<asset>.json` in `quality/` for what is
not partitioned. A manifest refers to large things by `Artifact`. `builds/.index` is a cache of all revisions in the order of
time (`revision_index.py`).

Where several machines work on the same builds, the folder is a copy of what they share (`shared_folder.py`): every write
goes there first. A build is brought up to date by `bring`, and all of them by looking at the revisions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError, DamagedError
from accel_ci.model import Build, Revision, Trigger
from accel_ci.pipelines import LEDGER, PIPELINES, REVISION, Pipeline
from accel_ci.redaction import redact, redact_bytes
from accel_ci.storage.atomic_file import create_whole_file, write_whole_file
from accel_ci.storage.file_lock import is_locked
from accel_ci.storage.layout import LayoutFile
from accel_ci.storage.revision_index import IndexedRevision, list_folders, read_index
from accel_ci.storage.shared_folder import FolderShare, Unshared

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

REPAIR = "`accel-ci doctor --repair` sets it aside"
"""The remedy for a damaged manifest, for messages."""

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Reads and writes a type; made once, since that takes milliseconds."""

_PROBLEM_CHARACTERS = 200
_TRIES = 8
"""The number of times that a ledger is made while others write it."""

_BEGUN = ".begun-"
_FAILED = ".failed-"
_EARLY = ".early-failure"

ASKED_AGAIN = ".asked"
"""A file in a revision's folder, touched when a trigger asks for a revision that exists already."""


@dataclass(frozen=True)
class PipelineRun:
    """The last run of a pipeline on a build.

    `ended_at` is None until it has ended, and stays None if it was killed. `stage` is the last stage that began, and `began`
    has all that did: others were complete before. None in records of earlier versions. `ending` is how the run ended, if
    not well. `reported` is true once its ledger is there. It waited in a queue from `asked_at` to `started_at`, None in
    records of earlier versions. A run `before_label` is of a stranger's pull request, and ends with its deviceless suites.
    `obsolete` says why nobody waits for the rest any more.
    """

    run: str
    asked_at: datetime
    ended_at: datetime | None = None
    stage: str | None = None
    ending: Literal["failed", "interrupted"] | None = None
    reported: bool = False
    began: tuple[str, ...] | None = None
    started_at: datetime | None = None
    before_label: bool = False
    obsolete: str | None = None


class ManifestStore:
    """The manifests below a data folder."""

    def __init__(self, home: Path, pipelines: Sequence[Pipeline] = PIPELINES, share: FolderShare | None = None) -> None:
        self._revisions: list[IndexedRevision] | None = None
        self.share = share or Unshared()
        self.layout = LayoutFile(home, self.share)
        self.pipelines = pipelines
        self.builds = home / "builds"
        self._unpartitioned = home / "quality"

    def path(self, asset: str, revision: str | None = None, variant: str | None = None) -> Path:
        """The manifest file of an asset; without a revision, of one that is not partitioned."""
        folder = self._unpartitioned if revision is None else self.builds / revision
        return (folder / variant if variant else folder) / f"{asset}.json"

    def folder(self, build: Build) -> Path:
        """The folder of a build's manifests."""
        return self.builds / build.revision / build.variant

    def bring(self, build: Build) -> None:
        """Have the manifests of a build's revision, and those of no build, as other machines have left them."""
        self.layout.check()
        self.share.bring(self.builds / build.revision, self._unpartitioned)

    def write(self, path: Path, value: Any) -> None:
        """Write a manifest whole or not at all."""
        self._write(path, redact_bytes(_adapter(type(value)).dump_json(value, indent=1)), durable=True)

    def write_ledger(self, build: Build, make: Callable[[], T]) -> T:
        """Write the ledger that `make` makes of the manifests of its build, and return it.

        If another pipeline of the build writes it meanwhile, here or on another machine, it is made anew from what is there
        then, so that the last one knows all. Raises `AccelCiError` if others keep writing it.
        """
        path = self.path(LEDGER, build.revision, build.variant)
        with self.ledger_lock(build):
            for _ in range(_TRIES):
                seen = self.share.version(path)
                self.bring(build)  # after the look: who wrote the version that was seen had written all else before
                ledger = make()
                content = redact_bytes(_adapter(type(ledger)).dump_json(ledger, indent=1))
                if self.share.replace(path, content, seen):
                    write_whole_file(path, content, durable=True)
                    return ledger
                _LOG.info("%s was written elsewhere, and is made anew", path)
        raise AccelCiError(f"{path} changed during each of {_TRIES} writes; see which other machines work on {build.name}")

    def remove(self, path: Path) -> None:
        """Remove a manifest, if it is there."""
        self.share.remove(path)
        path.unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes, *, durable: bool = False) -> None:
        self.share.send(path, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(path, content, durable=durable)

    def read(self, path: Path, value_type: type[T]) -> T:
        """Read a manifest. Raises `AccelCiError` when it is missing or of another shape."""
        found = self._read_if_there(path, value_type)
        if found is None:
            raise AccelCiError(f"{path} is missing; run the build from the asset that makes it")
        return found

    def read_history(self, path: Path, value_type: type[T]) -> T | None:
        """Read a manifest of the past; None when there is none, or it is damaged, which is logged."""
        try:
            return self._read_if_there(path, value_type)
        except AccelCiError as error:
            _LOG.warning("passed over: %s", error)
            return None

    def find(self, stage: str, build: Build, value_type: type[T]) -> T | None:
        """The manifest of a stage; None when the stage has not ended. Raises `AccelCiError` for one of another shape."""
        return self._read_if_there(self.path(stage, build.revision, build.variant), value_type)

    def _read_if_there(self, path: Path, value_type: type[T]) -> T | None:
        if path.is_relative_to(self._unpartitioned):
            self.share.bring_file(path)
        try:
            found: T = _adapter(value_type).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AccelCiError(f"{path} cannot be read: {error.strerror}; fix that and run the build again") from error
        except ValueError as error:
            name = value_type.__name__
            problem = " ".join(str(error).split())[:_PROBLEM_CHARACTERS]
            advice = f"{REPAIR}; then run the build again"
            raise DamagedError(f"{path} is not a {name} of this version: {advice} ({problem})") from None
        return found

    def begin(self, stage: str, build: Build) -> None:
        """Note that a pipeline has begun on a build. What an earlier run made stays until this one has made it anew."""
        for pipeline in self.pipelines:
            if stage in pipeline.stages:
                self._write(self.folder(build) / f"{_BEGUN}{pipeline.first}", b"")

    def begun(self, build: Build) -> tuple[str, ...]:
        """The first stages of the pipelines that have begun on a build."""
        marks = {
            one.first: (self.run_file(one, build), self.folder(build) / f"{_BEGUN}{one.first}") for one in self.pipelines
        }
        return tuple(stage for stage, files in marks.items() if any(file.exists() for file in files))

    def last_run(self, pipeline: Pipeline, build: Build) -> PipelineRun | None:
        """The last run of a pipeline on a build; None when there was none."""
        return self.read_history(self.run_file(pipeline, build), PipelineRun)

    def last_begun(self, build: Build) -> Pipeline | None:
        """The pipeline whose run was asked for last; None when there is none."""
        runs = [(self.last_run(one, build), one) for one in self.pipelines]
        return max(((run.asked_at, one) for run, one in runs if run is not None), key=itemgetter(0), default=(None, None))[1]

    @contextmanager
    def noting_failure(self, stage: str, build: Build) -> Iterator[None]:
        """Keep the message of a stage that fails beside the manifests of its build, until the stage begins again."""
        note = self.folder(build) / f"{_FAILED}{stage}"
        if note.exists():
            self.remove(note)
        try:
            yield
        except Exception as error:
            message = str(error) if isinstance(error, AccelCiError) else f"{type(error).__name__}: {error}"
            with suppress(OSError, AccelCiError):  # the failure itself counts
                self._write(note, redact(message).encode(errors="backslashreplace"))
            raise

    def note_early_failure(self, build: Build, text: str | None) -> None:
        """Keep the words on the first failure of a run that goes on; with None, remove those of an earlier run."""
        note = self.folder(build) / _EARLY
        with suppress(OSError, AccelCiError):  # it is news, not a result
            if text is not None:
                self._write(note, redact(text).encode(errors="backslashreplace"))
            elif note.exists():
                self.remove(note)

    def early_failure(self, build: Build) -> str | None:
        """The words on the first failure of a run that goes on; None when there is none."""
        try:
            return (self.folder(build) / _EARLY).read_text(errors="replace")
        except OSError:
            return None

    def failure(self, stage: str, build: Build) -> str | None:
        """The message of the stage's failure; None when it did not fail or its message could not be kept."""
        try:
            return (self.folder(build) / f"{_FAILED}{stage}").read_text(errors="replace")
        except OSError:
            return None

    def ledger_lock(self, build: Build) -> FileLock:
        """The lock that is held on this machine while a ledger is made."""
        self.folder(build).mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder(build) / ".ledger.lock")

    def pipeline_lock_file(self, pipeline: Pipeline, build: Build) -> Path:
        """The file that a run keeps locked while it has a pipeline of a build."""
        return self.folder(build) / f".{pipeline.first}.lock"

    def run_file(self, pipeline: Pipeline, build: Build) -> Path:
        """The `PipelineRun` of a pipeline on a build."""
        return self.folder(build) / f".run-{pipeline.first}.json"

    def last_runs(self, build: Build) -> dict[Pipeline, PipelineRun]:
        """The last run of each pipeline that has had one on a build."""
        found = {pipeline: self.last_run(pipeline, build) for pipeline in self.pipelines}
        return {pipeline: run for pipeline, run in found.items() if run is not None}

    def has_run(self, pipeline: Pipeline, build: Build) -> bool:
        """Return whether a run has the pipeline of a build now, so that it has not been killed.

        Of another machine this is not known: a run there has it until its end is noted (`end_run`).
        """
        if self.share.is_shared:
            last = self.last_run(pipeline, build)
            return last is not None and last.ended_at is None
        return is_locked(self.pipeline_lock_file(pipeline, build))

    def end_run(self, build: Build, run: str, now: datetime) -> None:
        """Note the end of a run of a build that could not do so itself, since its process or its machine died."""
        self.bring(build)
        for pipeline, last in self.last_runs(build).items():
            if last.run == run and last.ended_at is None:
                self.write(self.run_file(pipeline, build), replace(last, ended_at=now, ending="interrupted"))

    def wall_seconds(self, build: Build) -> float | None:
        """Seconds from the request to the end of the last run of each pipeline, together; None while one is not known."""
        known = {run.run: run for run in self.last_runs(build).values()}.values()  # a run may have had both pipelines
        seconds = [(run.ended_at - run.asked_at).total_seconds() for run in known if run.ended_at is not None]
        clock_was_turned = any(each < 0 for each in seconds)
        return round(sum(seconds), 3) if seconds and len(seconds) == len(known) and not clock_was_turned else None

    def revision(self, key: str) -> Revision | None:
        """The revision of that key, None when it was never resolved."""
        return self._read_if_there(self._revision_file(key), Revision)

    def has_revision(self, key: str) -> bool:
        """Return whether the sources of a key were resolved, even if the manifest is unreadable by now."""
        return self._revision_file(key).exists()

    def _revision_file(self, key: str) -> Path:
        """The manifest of a revision, which never changes."""
        path = self.path(REVISION, key)
        if not path.exists():
            self.share.bring_file(path)
        return path

    def add_revision(self, revision: Revision) -> Revision:
        """Store a revision, or return the one that has its key already."""
        self.layout.note()
        path = self.path(REVISION, revision.key)
        with self.revisions_lock():
            path.parent.mkdir(exist_ok=True)
            try:
                content = redact_bytes(_adapter(Revision).dump_json(revision, indent=1))
                if made := self.share.create(path, content):
                    made = create_whole_file(path, content)
                else:
                    self.share.bring_file(path)
            except OSError as error:  # a file system without hard links, say
                raise AccelCiError(f"{path} cannot be made: {error.strerror}; choose another data folder") from error
            if not made:
                self._write(path.with_name(ASKED_AGAIN), b"")
        return revision if made else self.read(path, Revision)

    def revisions_lock(self) -> FileLock:
        """The lock to hold while a revision is added or removed."""
        self.builds.mkdir(parents=True, exist_ok=True)
        return FileLock(self.builds / ".lock")

    def revisions(self) -> list[IndexedRevision]:
        """Every revision that has a folder, newest first."""
        if self._revisions is None:
            self.layout.check()
            self.share.bring(self.builds, packed=True)
        return read_index(self.builds, self.revision) if self._revisions is None else self._revisions

    def at_one_moment(self) -> ManifestStore:
        """The same store with the revisions of now: for many questions that are asked together."""
        store = copy(self)
        store._revisions = self.revisions()
        return store

    def newest_revision(self, trigger: Trigger, prefix: str) -> Revision | None:
        """The newest revision of a trigger whose key begins with `prefix`; None when there is none."""
        keys = (each.key for each in self.revisions() if each.trigger == trigger and each.key.startswith(prefix))
        found = (self.read_history(self.path(REVISION, key), Revision) for key in keys)
        return next((revision for revision in found if revision is not None), None)

    def previous(
        self,
        stage: str,
        build: Build,
        value_type: type[T],
        accept: Callable[[T], bool] = lambda found: True,
        instead: Mapping[Trigger, Collection[Trigger]] = MappingProxyType({}),
    ) -> T | None:
        """The stage's manifest of the newest earlier build of the same variant and trigger; None when there is none.

        Manifests that `accept` refuses are passed over. `instead` has the triggers that count instead of a trigger.
        """
        revisions = self.revisions()
        own = next((each for each in revisions if each.key == build.revision), None)
        if own is None or own.trigger is None:
            return None
        triggers = instead.get(own.trigger, (own.trigger,))
        earlier = (each.key for each in revisions if each.trigger in triggers and each.seen_at < own.seen_at)
        found = (self.read_history(self.path(stage, key, build.variant), value_type) for key in earlier)
        return next((manifest for manifest in found if manifest is not None and accept(manifest)), None)

    def list_builds(self) -> Iterator[Build]:
        """Every build of a readable revision that has a folder, newest revision first."""
        return (build for each in self.revisions() if each.trigger is not None for build in self.builds_of(each.key))

    def builds_of(self, revision: str) -> list[Build]:
        """The builds of a revision that have a folder, in the reverse order of their variants."""
        names = list_folders(self.builds / revision, follow_links=False)
        return [Build(revision, name) for name in sorted(names, reverse=True)]
