"""The file that lists the enabled tests of a suite: read, extended in a stable order, and written so that a diff is short.

`{enabled: [patterns]}`, where `*` and `?` in a pattern are wildcards; rules with other criteria stay as they are. Tests of
a class, or of a method of it, have one pattern once all that are in scope are enabled; others have their ids.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import yaml

from accel_ci.errors import ConfigError
from accel_ci.results.columns import pairs
from accel_ci.storage.atomic_file import write_whole_file

_KEY = re.compile(r"(?m)^(enabled:[ ]*\n)")
_HEAD = "# The enabled tests of a suite; `accel-ci ramp propose --apply` adds to it.\nenabled:\n"
_INDENT = "  "
_LEAST_OF_A_PATTERN = 2  # tests, which one pattern replaces

Group: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """An entry: its pattern, None where it is a rule with other criteria, and its text with the comments before."""

    pattern: str | None
    text: str


def read_enabled(path: Path) -> list[str]:
    """Return the patterns of a file; none if it is not there. Raises `ConfigError`."""
    return [entry.pattern for entry in _entries(_text(path), path) if entry.pattern is not None]


def write_enabled(path: Path, tests: Collection[str], scope: pa.Table) -> tuple[int, int]:
    """Add tests to a file; return the numbers of its entries that are new and that are gone. Raises `ConfigError`.

    `scope` is the table of the file's suite. Other entries stay as they are, with their comments.
    """
    text = _text(path)
    before = _entries(text, path)
    new, replaced = extend([entry.pattern for entry in before if entry.pattern is not None], tests, scope)
    kept = [entry for entry in before if entry.pattern not in replaced]
    parts = _plain_parts(text)
    head = parts[0] if parts else _HEAD
    content = head + "".join(_merged(kept, new, _indent(parts[1]) if parts else _INDENT))
    wanted = Counter([*new, *(entry.pattern for entry in kept)])
    if Counter(entry.pattern for entry in _entries(content, path)) != wanted:  # a form of YAML that lines do not keep
        rules = [rule for rule in _document(text, path) if not isinstance(rule, str) or rule not in replaced]
        content = _HEAD + "".join(map(_line, [*rules, *new]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, content.encode())
    return len(new), len(before) - len(kept)


def _merged(entries: Sequence[_Entry], new: Sequence[str], indent: str) -> Iterator[str]:
    """The texts of all entries; a new pattern comes before the first one that is greater."""
    place = 0
    for entry in entries:
        while place < len(new) and entry.pattern is not None and new[place] < entry.pattern:
            yield _line(new[place], indent)
            place += 1
        yield entry.text
    yield from (_line(pattern, indent) for pattern in new[place:])


def extend(patterns: Sequence[str], tests: Collection[str], scope: pa.Table) -> tuple[list[str], set[str]]:
    """Return the patterns that add `tests`, in order, and those of `patterns` that they replace."""
    rows = list(pairs(scope, "test", "file", "class_name", "method", "status"))
    added = set(tests)
    enabled = added | {row[0] for row in rows if row[4] == "enabled"}
    members: defaultdict[Group, list[str]] = defaultdict(list)
    in_scope: defaultdict[Group, list[str]] = defaultdict(list)
    for test, file, owner, method, status in rows:
        for group in _groups(file, owner, method):
            members[group].append(test)
            if status != "out_of_scope":
                in_scope[group].append(test)
    ids = sorted(row[0] for row in rows)
    new: list[str] = []
    left = set(added)
    whole = [group for group, own in in_scope.items() if len(own) >= _LEAST_OF_A_PATTERN and enabled.issuperset(own)]
    for group in sorted(whole, key=lambda group: (len(group), group)):  # classes before their methods
        if left.isdisjoint(in_scope[group]) or (prefix := _prefix(group, members[group], ids)) is None:
            continue
        new.append(f"{prefix}*")
        left.difference_update(in_scope[group])
    replaced = {pattern for pattern in patterns for made in new if pattern != made and _stem(pattern).startswith(made[:-1])}
    return sorted({*new, *left} - set(patterns)), replaced


def _groups(file: str, owner: str | None, method: str | None) -> Iterator[Group]:
    if owner:
        yield file, owner
        if method:
            yield file, owner, method


def _prefix(group: Group, members: Sequence[str], ids: Sequence[str]) -> str | None:
    """The text that the ids of a group, and no others, begin with; None if there is none."""
    if len(group) == 2:
        prefix = f"{group[0]}::{group[1]}::"
    else:
        low, high = min(members), max(members)
        same = next((place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
        prefix = low[: max(low.rfind(mark, 0, same) for mark in ("_", "[", ":")) + 1]
    if any(wildcard in prefix for wildcard in "*?"):
        return None
    first = bisect_left(ids, prefix)
    last = first + len(members)
    own = set(members)
    alone = (last == len(ids) or not ids[last].startswith(prefix)) and own.issuperset(ids[first:last])
    return prefix if alone else None


def _line(entry: str | Mapping[str, object], indent: str = _INDENT) -> str:
    """The line of an entry; characters that YAML does not allow, or that nobody sees, are spelled out."""
    quoted = json.dumps(entry, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else "\\U" + f"{ord(c):08x}" for c in quoted)
    return f"{indent}- {shown}\n"


def _stem(pattern: str) -> str:
    return pattern.removesuffix("*")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; fix it, or name another enabled_file") from error


def _plain_parts(text: str) -> tuple[str, str] | None:
    """The text before and after the key if it has the form that is written here: comments, the key, a list in lines."""
    head, key, rest = _KEY.split(text, maxsplit=1) if _KEY.search(text) else ("", "", "")
    lines = [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    plain = all(not line.strip() or line.startswith("#") for line in head.splitlines())
    return (head + key, rest) if key and plain and all(line.startswith((" ", "-")) for line in lines) else None


def _document(text: str, path: Path) -> list[str | Mapping[str, object]]:
    """The list of a file. Raises `ConfigError`."""
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}  # noqa: S506
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # Python's own error, as for `2001-02-30`
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    enabled = (document.get("enabled") or []) if isinstance(document, Mapping) else document
    if not isinstance(enabled, list) or not all(isinstance(entry, (str, Mapping)) for entry in enabled):
        raise ConfigError(f"{path} must be a mapping with a list of patterns, as in 'enabled: [\"test_ops.py::*\"]'")
    return enabled


def _entries(text: str, path: Path) -> list[_Entry]:
    enabled = _document(text, path)
    parts = _plain_parts(text)
    texts = list(_texts(parts[1])) if parts else []
    if len(texts) != len(enabled):
        texts = [_line(entry) for entry in enabled]
    patterns = [entry if isinstance(entry, str) else None for entry in enabled]
    return [_Entry(pattern, own) for pattern, own in zip(patterns, texts, strict=True)]


def _indent(lines: str) -> str:
    """The spaces before each entry of a list."""
    found = (re.match(r" *(?=- )", line) for line in lines.split("\n"))
    return next((match[0] for match in found if match), _INDENT)


def _texts(lines: str) -> Iterator[str]:
    """The text of each entry of a list, with the comments before it."""
    own, started = "", False
    indent = _indent(lines)
    for line in lines.split("\n"):
        if started and (line.startswith(f"{indent}- ") or line.lstrip().startswith("#")):
            yield own
            own, started = "", False
        if line.strip():
            own += f"{line}\n"
        started = started or line.startswith(f"{indent}- ")
    if started:
        yield own
