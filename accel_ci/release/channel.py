"""The nightly channel: a static package index of the builds that passed, and a pointer to the newest of them.

`channel/<variant>/simple/` is the index, in the data folder or in the bucket that machines share, and `latest.json` beside
it is the pointer. Its pages are made in `index_pages.py`. A wheel is written before its metadata, both before the project's
page, that before the list of projects, and the pointer last: a writer that is killed anywhere leaves nothing that points to
what is not there, and the next one completes it.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from filelock import FileLock
from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic import TypeAdapter

from accel_ci.config.release_settings import Channel as ChannelSettings
from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.release.index_pages import (
    IndexedFile,
    ProjectIndex,
    project_html,
    project_json,
    read_project,
    root_html,
    root_json,
)
from accel_ci.storage.artifacts import sha256_of
from accel_ci.storage.folder_files import FolderFiles
from accel_ci.storage.object_store import SharedFiles
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.shared_lease import turn
from accel_ci.workspace import Workspace

_LARGEST_METADATA = 4 << 20
"""The longest METADATA that is taken, in bytes: a zip file can unpack to anything."""

Turn = Callable[[str], AbstractContextManager[object]]
"""Has the turn of all writers at what the name stands for."""


@dataclass(frozen=True)
class PointedFile:
    """A wheel of the build that the pointer names; `path` is below the index."""

    project: str
    version: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Pointer:
    """The newest build of a variant that passed."""

    build: str
    made_at: datetime
    files: tuple[PointedFile, ...]

    @property
    def order(self) -> tuple[datetime, str]:
        """The place of the build among those of its variant."""
        return self.made_at, self.build


@dataclass(frozen=True)
class ChannelResult:
    """The end of a publication: the files that are `new`, those `removed` by retention, and where the pointer is."""

    new: tuple[str, ...]
    removed: tuple[str, ...]
    latest: Pointer

    def is_latest(self, build: Build) -> bool:
        """True if the pointer names the build."""
        return self.latest.build == build.name


class Channel:
    """The channel of a variant."""

    def __init__(self, files: SharedFiles, take_turn: Turn, variant: str) -> None:
        self._files, self._turn = files, take_turn
        self._top = f"channel/{variant}"
        self._simple = f"{self._top}/simple"

    @property
    def location(self) -> str:
        """The place of the index, for people."""
        return self._files.location(self._simple)

    def latest(self) -> Pointer | None:
        """Return the newest build that passed; None while there is none."""
        content = self._read(f"{self._top}/latest.json")
        return TypeAdapter(Pointer).validate_json(content) if content is not None else None

    def project(self, name: str) -> ProjectIndex:
        """Return a project of the index; an empty one if it is new. Raises `AccelCiError` if its page is damaged."""
        page = f"{self._simple}/{name}/index.json"
        content = self._read(page)
        return read_project(content, self._files.location(page)) if content is not None else ProjectIndex(name)

    def projects(self) -> list[str]:
        """Return the names of the projects that have a page."""
        parts = [entry.name.removeprefix(f"{self._simple}/").split("/") for entry in self._files.list_below(self._simple)]
        return sorted({each[0] for each in parts if each[1:] == ["index.json"]})

    def publish(
        self, build: Build, made_at: datetime, wheels: Sequence[Path], keep: ChannelSettings, now: datetime
    ) -> ChannelResult:
        """Publish the wheels of a build that passed, move the pointer if none is newer, and remove what is too old.

        A publication that was cut short is completed, and a complete one changes nothing. Raises `AccelCiError` if the name
        of a wheel has other content, before anything is written.
        """
        read = [_read_wheel(path, build, made_at, now) for path in wheels]
        with self._turn(f"{self._top}/.turn"):
            before = {name: self.project(name) for name in dict.fromkeys(name for name, _, _ in read)}
            after = dict(before)
            for name, file, _ in read:
                after[name] = after[name].with_file(file)
            new = []
            for path, (name, file, metadata) in zip(wheels, read, strict=True):
                place = f"{self._simple}/{name}/{file.filename}"
                if all(each.filename != file.filename for each in before[name].files):
                    self._files.upload(path, place)
                    self._files.put_bytes(f"{place}.metadata", metadata)
                    new.append(file.filename)
            for project in after.values():
                self._write_pages(project)
            self._write_root(self.projects())
            latest = self._move(build, made_at, [(name, file) for name, file, _ in read], now)
            return ChannelResult(tuple(new), tuple(self._expire(latest, keep, now)), latest)

    @contextmanager
    def while_latest(self, build: Build) -> Iterator[bool]:
        """Have the turn at the channel for what follows the pointer; yield whether the pointer names the build."""
        with self._turn(f"{self._top}/.turn"):
            latest = self.latest()
            yield latest is not None and latest.build == build.name

    def _move(self, build: Build, made_at: datetime, files: Sequence[tuple[str, IndexedFile]], now: datetime) -> Pointer:
        """Move the pointer forward, never back, unless it names a build that a wrong clock has put into the future."""
        there = self.latest()
        pointed = (PointedFile(name, each.version, f"{name}/{each.filename}", each.sha256) for name, each in files)
        pointer = Pointer(build.name, made_at, tuple(pointed))
        if there is not None and there.order > pointer.order and there.made_at <= max(now, made_at):
            return there
        self._write(f"{self._top}/latest.json", TypeAdapter(Pointer).dump_json(pointer, indent=1))
        return pointer

    def _expire(self, latest: Pointer, keep: ChannelSettings, now: datetime) -> list[str]:
        """Remove the files of builds that are too old, first from the pages; never those that the pointer names."""
        projects = [self.project(name) for name in self.projects()]
        builds = sorted({each.order for project in projects for each in project.files}, reverse=True)
        oldest = now - timedelta(days=keep.keep_days)
        kept = {build for number, (at, build) in enumerate(builds) if number < keep.keep_builds or at >= oldest}
        kept.add(latest.build)
        pointed, removed = {each.path for each in latest.files}, list[str]()
        for project in projects:
            old = [each.filename for each in project.files if each.build not in kept]
            old = [each for each in old if f"{project.name}/{each}" not in pointed]
            self._write_pages(project.without(old))  # also after a kill between the two pages of a project
            removed += old
            for name in self._unlisted(project.name, {each.filename for each in project.files} - set(old)):
                self._files.delete(name)
        return removed

    def _unlisted(self, project: str, listed: set[str]) -> list[str]:
        """Return the files that no page names: too old, or of a writer that was killed."""
        folder, pages = f"{self._simple}/{project}", {"index.json", "index.html"}
        names = {entry.name for entry in self._files.list_below(folder)}
        kept = pages | listed | {f"{name}.metadata" for name in listed}
        return sorted(name for name in names if name.removeprefix(f"{folder}/") not in kept)

    def _write_pages(self, project: ProjectIndex) -> None:
        folder = f"{self._simple}/{project.name}"
        self._write(f"{folder}/index.json", project_json(project))
        self._write(f"{folder}/index.html", project_html(project))

    def _write_root(self, names: Sequence[str]) -> None:
        self._write(f"{self._simple}/index.json", root_json(names))
        self._write(f"{self._simple}/index.html", root_html(names))

    def _write(self, name: str, content: bytes) -> None:
        if self._read(name) != content:
            self._files.put_bytes(name, content)

    def _read(self, name: str) -> bytes | None:
        entry = self._files.find(name)
        if entry is None:
            return None
        with scratch_folder("channel") as folder:
            copy = Path(folder) / "page"
            self._files.download(entry, copy)
            return copy.read_bytes()


def open_channel(workspace: Workspace, variant: str) -> Channel:
    """Open the channel of a variant: in the bucket that machines share, else in the data folder."""
    if workspace.bucket is not None:
        bucket = workspace.bucket
        return Channel(bucket, lambda name: turn(bucket, name), variant)
    home = workspace.project.home
    return Channel(FolderFiles(home), lambda name: _local_turn(home / name), variant)


def _local_turn(file: Path) -> FileLock:
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file)


def _read_wheel(path: Path, build: Build, made_at: datetime, now: datetime) -> tuple[str, IndexedFile, bytes]:
    """Return the project, the record and the METADATA of a wheel. Raises `AccelCiError` if it is none."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as wheel:
            [member] = [
                each for each in wheel.infolist()
                if each.filename.count("/") == 1 and each.filename.endswith(".dist-info/METADATA")
            ]  # fmt: skip
            with wheel.open(member) as content:
                metadata = content.read(_LARGEST_METADATA + 1)
    except (InvalidWheelFilename, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, OSError) as error:
        raise AccelCiError(f"{path.name} is no wheel that can be published: {error}; build it again") from error
    fields, _ = parse_email(metadata)
    if len(metadata) > _LARGEST_METADATA or canonicalize_name(fields.get("name", "")) != name:
        raise AccelCiError(f"{path.name}: its METADATA is not that of {name}; build it again")
    with path.open("rb") as content:
        digest = sha256_of(content)
    file = IndexedFile(
        path.name, digest, path.stat().st_size, str(version), hashlib.sha256(metadata).hexdigest(),
        fields.get("requires_python"), build.name, made_at, now,
    )  # fmt: skip
    return str(name), file, metadata
