"""The allowlist: the repositories that take part in the relay, with their levels.

Only reading and checking the file belongs here, and keeping the last good version while it changes. Who may do what at which
level is decided where it is done.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from accel_ci.errors import ConfigError

LEVELS = ("L1", "L2", "L3", "L4")
"""L1 gets dispatches, L2 reports results, L3 has check runs by label, and L4 has check runs on every pull request."""

EVENTS = frozenset({"pull_request", "push", "nightly", "periodic"})
"""The values of `events` in an entry: the two that are dispatched, and the two kinds of reports without a dispatch."""

DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""A device of L3: the end of the label `ciflow/crcr/<device>`."""

LARGEST_BYTES = 1 << 20
CHECKED_EVERY_S = 1.0
AT_REST_S = 1.0
"""A file that has not changed for so long is not being written."""

_LOG = logging.getLogger(__name__)
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,38}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Downstream:
    """An entry of the allowlist. `device` is empty except at L3."""

    repository: str
    level: str
    device: str = ""
    oncalls: tuple[str, ...] = ()
    events: frozenset[str] = EVENTS


@dataclass(frozen=True)
class Allowlist:
    """All entries, in the order of the file."""

    downstreams: tuple[Downstream, ...] = ()

    def find(self, repository: str) -> Downstream | None:
        """Find the entry of a repository. GitHub's names do not depend on case."""
        wanted = repository.lower()
        return next((one for one in self.downstreams if one.repository.lower() == wanted), None)

    def recipients(self, event: str, device: str | None = None) -> list[str]:
        """Return the repositories that want an event; with a device, only those at L3 for this device."""
        return [
            one.repository
            for one in self.downstreams
            if event in one.events and (device is None or (one.level == "L3" and one.device == device))
        ]


def parse_allowlist(text: str, name: str) -> Allowlist:
    """Read an allowlist. Raises `ConfigError` with a line `name:line: mistake` for each mistake."""
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{name}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}:1: not YAML: {' '.join(str(error).split())}") from None
    reader = _Reader()
    found = tuple(reader.read(root))
    if reader.mistakes:
        raise ConfigError("\n".join(f"{name}:{line}: {what}" for line, what in sorted(reader.mistakes)))
    return Allowlist(found)


def read_allowlist(path: Path) -> Allowlist:
    """Read the file of an allowlist. Raises `ConfigError`, also where it cannot be read or is too large."""
    try:
        content = path.read_bytes()[: LARGEST_BYTES + 1]
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    if len(content) > LARGEST_BYTES:
        raise ConfigError(f"{path}: larger than {LARGEST_BYTES} bytes, which no allowlist is")
    return parse_allowlist(text, path.name)


class AllowlistFile:
    """The allowlist of a file that may change. A wrong version is logged once, and the last good one stays in force.

    A change is taken once the file is at rest, or two looks have found the same: one that is emptied and written has nobody
    in it for a moment, and what came then would go to nobody.
    """

    def __init__(self, path: Path, checked_every_s: float = CHECKED_EVERY_S) -> None:
        """Read the file. Raises `ConfigError` if it is wrong: there is no good version yet."""
        self._path, self._every_s = path, checked_every_s
        self._seen = self._looked = self._signature()
        self._current = read_allowlist(path)
        self._checked = time.monotonic()

    def current(self) -> Allowlist:
        """Return the newest good version. The file is looked at every `checked_every_s` at most."""
        now = time.monotonic()
        if now - self._checked < self._every_s:
            return self._current
        self._checked = now
        signature, before = self._signature(), self._looked
        self._looked = signature
        if signature == self._seen:
            return self._current
        if signature != before and time.time() - self._changed_at() < AT_REST_S:  # perhaps half written
            return self._current
        self._seen = signature
        try:
            self._current = read_allowlist(self._path)
            _LOG.info("the allowlist was reloaded: %d downstreams", len(self._current.downstreams))
        except ConfigError as error:
            _LOG.error("the allowlist is wrong, and the last good one stays in force: %s", error)
        return self._current

    def _changed_at(self) -> float:
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def _signature(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_size, found.st_mtime_ns)


class _Reader:
    """Reads the nodes of the document, and collects the mistakes with their lines."""

    def __init__(self) -> None:
        self.mistakes: list[tuple[int, str]] = []
        self._lines: dict[str, int] = {}
        """The line of each repository, by its name in lower case."""

    def read(self, root: yaml.Node | None) -> Iterator[Downstream]:
        if root is None:
            return
        for level, node in self._entries(root, "the file"):
            if level.value not in LEVELS:
                self._mistake(level, f"{level.value!r} is no level; the levels are {', '.join(LEVELS)}")
            elif _is_empty(node):
                continue
            elif level.value == "L3":
                yield from self._devices(node)
            else:
                yield from self._list(level.value, node)

    def _devices(self, node: yaml.Node) -> Iterator[Downstream]:
        for device, repositories in self._entries(node, "L3"):
            name = device.value
            if not DEVICE.fullmatch(name):
                self._mistake(device, f"{name!r} cannot be a device: it is the end of the label ciflow/crcr/<device>")
                continue
            for key, value in self._entries(repositories, f"L3.{name}"):
                if (repository := self._repository(key)) is not None:
                    yield self._downstream(repository, "L3", value, name)

    def _list(self, level: str, node: yaml.Node) -> Iterator[Downstream]:
        if not isinstance(node, yaml.SequenceNode):
            self._mistake(node, f"{level} must be a list of repositories")
            return
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                if (repository := self._repository(item)) is not None:
                    yield Downstream(repository, level)
                continue
            entries = self._entries(item, f"an entry of {level}")
            if len(entries) > 1:
                self._mistake(
                    item, f"an entry of {level} has one repository, not {len(entries)}: begin a new entry with '-'"
                )
            for key, value in entries[:1]:
                if (repository := self._repository(key)) is not None:
                    yield self._downstream(repository, level, value, "")

    def _downstream(self, repository: str, level: str, node: yaml.Node, device: str) -> Downstream:
        if not isinstance(node, yaml.MappingNode):
            return Downstream(repository, level, device, self._names(node, repository))
        oncalls: tuple[str, ...] = ()
        events = EVENTS
        for key, value in self._entries(node, repository):
            if key.value == "oncalls":
                oncalls = self._names(value, f"{repository}.oncalls")
            elif key.value == "events":
                events = self._events(value, repository)
            else:
                self._mistake(key, f"{repository}: {key.value!r} is no key; the keys are events and oncalls")
        return Downstream(repository, level, device, oncalls, events)

    def _events(self, node: yaml.Node, repository: str) -> frozenset[str]:
        names = self._names(node, f"{repository}.events")
        for unknown in sorted(set(names) - EVENTS):
            self._mistake(node, f"{repository}: {unknown!r} is no event; the events are {', '.join(sorted(EVENTS))}")
        if not names:
            self._mistake(node, f"{repository}.events names no event; leave it out for all of them")
        return frozenset(names)

    def _names(self, node: yaml.Node, where: str) -> tuple[str, ...]:
        """Names in a list, or in a text with commas between them."""
        if _is_empty(node):
            return ()
        if isinstance(node, yaml.ScalarNode):
            return tuple(name.strip() for name in node.value.split(",") if name.strip())
        if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            return tuple(item.value.strip() for item in node.value if item.value.strip())
        self._mistake(node, f"{where} must be a list of names")
        return ()

    def _repository(self, node: yaml.Node) -> str | None:
        name = node.value.strip() if isinstance(node, yaml.ScalarNode) else ""
        if not _REPOSITORY.fullmatch(name):
            self._mistake(node, f"{name!r} is no repository; write owner/name")
            return None
        line = node.start_mark.line + 1
        if (first := self._lines.get(name.lower())) is not None:
            self._mistake(node, f"{name} is also in line {first}; a repository has one level")
        self._lines.setdefault(name.lower(), line)
        return str(name)

    def _entries(self, node: yaml.Node, where: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """The entries of a mapping whose keys are plain texts; keys that appear twice are mistakes."""
        if not isinstance(node, yaml.MappingNode):
            self._mistake(node, f"{where} must be a mapping")
            return []
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name in seen:
                self._mistake(
                    key, f"{where}: {'a key must be a text' if name is None else f'{name!r} appears twice; keep one'}"
                )
            seen.add(name or "")
        return [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]

    def _mistake(self, node: yaml.Node, what: str) -> None:
        self.mistakes.append((node.start_mark.line + 1, what))


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
