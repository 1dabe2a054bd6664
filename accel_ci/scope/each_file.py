"""The tests of a suite whose files are collected one by one: the documents of its files, kept for later builds, and merged.

A document is what `accel_ci.runner.collect_apart` writes. What a file of PyTorch's repository holds depends on the commit,
the image, the backend's sources (its conftest.py can do anything) and the arguments, and takes seconds to find out, so it is
found out once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_ci.model import SuiteSession
from accel_ci.source.upstream_tree import COMMIT
from accel_ci.storage.atomic_file import write_whole_file

Document = Mapping[str, Any]
_PATTERNS = ("test_*.py", "*_test.py")
_KEPT_S = 30 * 86400.0
_NO_VALUE = -1  # of a test, in facts


def files_below(root: Path, places: Iterable[str]) -> list[str]:
    """Return the paths of the files that some places name, each once; of a folder, those that pytest takes for tests."""
    found: dict[str, None] = {}
    for place in places:
        folder = root / place
        names = sorted(each for pattern in _PATTERNS for each in folder.rglob(pattern)) if folder.is_dir() else [folder]
        found.update((name.relative_to(root).as_posix(), None) for name in names)
    return list(found)


@dataclass(frozen=True)
class CollectionCache:
    """Documents of earlier collections in a folder. Those that nobody has used for a month are removed.

    `content` names the image and the backend's sources that files are collected with.
    """

    folder: Path
    content: str

    def find(self, root: Path, upstream: Path, session: SuiteSession, runner: Path, files: Sequence[str]) -> Keys:
        """Return where the documents of files are or will be. `upstream` is the folder of PyTorch's repository."""
        general = [self.content, _digest(runner), session.pytest_args, *_surroundings(root, upstream, session.environment)]
        keys = {file: json.dumps([*general, file, _digest(root / file)]).encode() for file in files}
        return Keys({file: self.folder / f"{hashlib.sha256(key).hexdigest()[:32]}.json" for file, key in keys.items()})


@dataclass(frozen=True)
class Keys:
    """The places of documents by file."""

    places: Mapping[str, Path]

    def known(self) -> dict[str, Document]:
        """Read the documents that are there."""
        found = {}
        for file, place in self.places.items():
            with suppress(OSError, ValueError):
                found[file] = json.loads(place.read_bytes())
                os.utime(place)
        return found

    def keep(self, documents: Mapping[str, Document]) -> None:
        """Keep documents, but those with errors: what has failed is tried again the next time."""
        for file, document in documents.items():
            if file in self.places and not document.get("errors"):
                self.places[file].parent.mkdir(parents=True, exist_ok=True)
                write_whole_file(self.places[file], json.dumps(document).encode())
        for folder in {place.parent for place in self.places.values()}:
            for old in folder.glob("*.json"):
                with suppress(OSError):
                    if time.time() - old.stat().st_mtime > _KEPT_S:
                        old.unlink()


def _surroundings(root: Path, upstream: Path, environment: Mapping[str, str]) -> Iterator[object]:
    """Yield what all files depend on: the commit, and variables, with the content of the files that they name."""
    yield (upstream / COMMIT).read_text("ascii")
    for name, value in sorted(environment.items()):
        below = Path(value)
        yield name, _digest(below) if below.is_relative_to(root) and below.is_file() else value


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def merged(documents: Iterable[Document]) -> dict[str, Any]:
    """Return one document of several: all tests in order, with all that is known of them.

    Raises `ValueError`, `TypeError`, `KeyError` or `AttributeError` for what is no document.
    """
    lists: dict[str, list[Any]] = {"tests": [], "errors": []}
    mappings: dict[str, dict[str, Any]] = {"groups": {}, "skipped": {}, "ignored": {}, "deselected": {}}
    facts: dict[str, dict[str, list[Any]]] = {}
    for document in documents:
        before = len(lists["tests"])
        for name in lists:
            lists[name] += document.get(name, [])
        for name in ("groups", "skipped", "ignored"):
            mappings[name].update(document.get(name, {}))
        for who, count in document.get("deselected", {}).items():
            mappings["deselected"][who] = mappings["deselected"].get(who, 0) + count
        _add_facts(facts, document.get("facts", {}), before, len(lists["tests"]))
    return {**lists, **mappings, "facts": facts}


def _add_facts(facts: dict[str, dict[str, list[Any]]], given: Mapping[str, Any], before: int, after: int) -> None:
    """Add the facts of the tests from the number `before` to `after`, whose values are in a list of their own."""
    for name in {**facts, **given}:
        column = facts.setdefault(name, {"values": [], "of": [_NO_VALUE] * before})
        own = given.get(name, {"values": [], "of": [_NO_VALUE] * (after - before)})
        offset = len(column["values"])
        column["of"] += [place if place == _NO_VALUE else place + offset for place in own["of"]]
        column["values"] += own["values"]
