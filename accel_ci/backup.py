"""Back up a project and restore it: Dagster's database, and the data that its builds have in a bucket or a folder.

The database is dumped first. A stage writes its manifest before Dagster notes that it is done, so that the data, which are
copied later, have all that the dump tells of. They may have more: a build that went on meanwhile is taken up again. Into the
same folder, only what has changed is copied. Caches, sources, images and rounds of runs are no part of a backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from sqlalchemy import create_engine, text

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.process.run import run_tool
from accel_ci.redaction import redact
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.object_store import Entry, SharedFiles
from accel_ci.storage.s3 import environment_keys

FOLDERS = ("builds", "quality", "artifacts", "results", "hud", "hud.state")
"""The folders of a data folder, or below the prefix of a bucket, that are backed up; `layout.json` beside them is, too."""

LAYOUT_FILE = "layout.json"
NOTE = "backup.json"
"""In the folder of a backup: when it was made, and by what. It is written last: a backup without it is not whole."""

_DUMP = "dagster.dump"
_AT_ONCE = 10
_DATABASE_S = 3600.0


@dataclass(frozen=True)
class Backup:
    """A backup: its time, the releases of accel-ci and Dagster that made it, and how many files of data it has."""

    made_at: str
    accel_ci: str
    dagster: str
    files: int


def back_up(project: Project, database: str, folder: Path, say: Callable[[str], None]) -> Backup:
    """Back up the database at the URL, then the data, into a folder, which may have an earlier backup.

    Builds may go on meanwhile. Raises `AccelCiError`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / NOTE).unlink(missing_ok=True)
    say(f"the database, to {folder / _DUMP}")
    scratch = folder / f"{_DUMP}.new"
    _run_postgres("pg_dump", database, "--format=custom", "--no-owner", f"--file={scratch}")
    scratch.replace(folder / _DUMP)
    count = 0
    for name, place in _places(project):
        say(f"{name}, from {place.location(name) if not isinstance(place, Path) else place / name}")
        count += _copy_from(place, name, folder)
    found = Backup(datetime.now(timezone.utc).isoformat(timespec="seconds"), version("accel-ci"), version("dagster"), count)
    write_whole_file(folder / NOTE, json.dumps(vars(found), indent=1).encode(), durable=True)
    return found


def read_backup(folder: Path) -> Backup:
    """Read what a backup is. Raises `AccelCiError` if it is not whole."""
    try:
        return Backup(**json.loads((folder / NOTE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise AccelCiError(f"{folder} is no whole backup: {NOTE} is missing or damaged; make or choose another") from error


def restore(project: Project, database: str, folder: Path, say: Callable[[str], None]) -> Backup:
    """Replace the data, then all tables of the database, by those of a backup. Raises `AccelCiError`, also while in use."""
    found = read_backup(folder)
    _require_no_others(database)
    for name, place in _places(project):
        say(f"{name}, to {place.location(name) if not isinstance(place, Path) else place / name}")
        _copy_to(place, name, folder)
    say("the database")
    _drop_tables(database)
    _run_postgres("pg_restore", database, "--no-owner", "--exit-on-error", "--single-transaction", str(folder / _DUMP))
    return found


# --- the data ----------------------------------------------------------------------------------------------------------


def _places(project: Project) -> list[tuple[str, SharedFiles | Path]]:
    """The files and folders of the data, and the bucket or folder that each is in, the layout's version first."""
    settings, data = project.settings, project.home
    keys, cache = environment_keys(), project.home / "cache" / "backup"
    place: SharedFiles | Path = data
    if (store := settings.store) is not None:
        place = open_bucket(store.bucket, store.prefix, cache, store.endpoint, keys, store.region, 0.0)
    places = dict.fromkeys((LAYOUT_FILE, *FOLDERS), place)
    if (own := settings.results).bucket is not None:
        top, _, name = own.prefix.strip("/").rpartition("/")
        del places["results"]
        places[name] = open_bucket(own.bucket, top, cache, own.endpoint, keys, own.region, 0.0)
    return list(places.items())


def _copy_from(place: SharedFiles | Path, name: str, folder: Path) -> int:
    """Make the backup's copy of a part that of the place; return its number of files."""
    if isinstance(place, Path):
        _copy_tree(place / name, folder / name)
        return len(_files(folder / name))
    entries = _entries(place, name)
    wanted = [entry for entry in entries if not _same(folder / entry.name, entry)]
    _together(lambda entry: _download(place, entry, folder / entry.name), wanted)
    kept = {folder / entry.name for entry in entries}
    for path in _files(folder / name):
        if path not in kept:
            path.unlink()
    return len(entries)


def _copy_to(place: SharedFiles | Path, name: str, folder: Path) -> None:
    """Make a part of the place that of the backup."""
    if isinstance(place, Path):
        _copy_tree(folder / name, place / name)
        return
    there = {entry.name: entry for entry in _entries(place, name)}
    here = {path.relative_to(folder).as_posix(): path for path in _files(folder / name)}
    changed = [one for one, path in here.items() if one not in there or not _same(path, there[one])]
    _together(lambda one: place.upload(here[one], one), changed)
    _together(place.delete, sorted(there.keys() - here.keys()))


def _entries(place: SharedFiles, name: str) -> list[Entry]:
    single = place.find(name) if name == LAYOUT_FILE else None
    return ([single] if single is not None else []) if name == LAYOUT_FILE else list(place.list_below(name))


def _same(path: Path, entry: Entry) -> bool:
    """Return whether a file is that of a bucket: one of another digest than its ETag, of many parts say, is by its size.

    Only artifacts are so large, and their names are digests of their content.
    """
    try:
        if path.stat().st_size != entry.size:
            return False
        if "-" in entry.version and entry.name.startswith("artifacts/"):
            return True
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == entry.version
    except OSError:
        return False


def _download(place: SharedFiles, entry: Entry, path: Path) -> None:
    if {"", ".", ".."} & set(entry.name.split("/")):
        raise AccelCiError(f"{place.location(entry.name)} is not the name of a shared file; delete that object")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.download(entry, path)
    except FileNotFoundError:  # written anew or removed since it was listed: a build goes on
        if (now := place.find(entry.name)) is not None:
            place.download(now, path)


def _copy_tree(source: Path, target: Path) -> None:
    """Make a folder or file a copy, with the times of its files."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        return
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.lock", ".put-*"))


def _files(folder: Path) -> list[Path]:
    return [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]


def _together(do: Callable[..., object], each: Iterable[object]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(do, each))


# --- the database ------------------------------------------------------------------------------------------------------


def _run_postgres(program: str, database: str, *arguments: str) -> None:
    """Run a program of PostgreSQL's clients; the password is in its environment, which other users do not see."""
    parts = urlsplit(database)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit(("postgresql", f"{parts.username}@{host}" if parts.username else host, *parts[2:]))
    environment = {**os.environ, **({"PGPASSWORD": unquote(parts.password)} if parts.password else {})}
    try:
        done = run_tool([program, *arguments, f"--dbname={bare}"], timeout_s=_DATABASE_S, environment=environment)
    except FileNotFoundError:
        raise AccelCiError(
            f"{program} is not installed; install PostgreSQL's clients, at least of the server's release"
        ) from None
    if done.status:
        raise AccelCiError(f"{program} failed: {redact(done.tail)}")


def _require_no_others(database: str) -> None:
    """Raise `AccelCiError` while others are connected to the database: Dagster's services or runs."""
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg2://", 1))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        others = int(connection.execute(text(asked)).scalar_one())
    engine.dispose()
    if others:
        raise AccelCiError(
            f"{others} connection(s) to the database are open: stop the daemon, the webservers, the code servers and all "
            "runs first, since a restored backup would take away what they have written"
        )


def _drop_tables(database: str) -> None:
    """Drop all tables of the database, which is Dagster's alone: those of another release would be in the way."""
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg2://", 1))
    with engine.begin() as connection:
        names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")).scalars()
        for name in names.all():
            connection.execute(text(f'DROP TABLE "{name}" CASCADE'))
    engine.dispose()
