"""The file that lists the enabled tests of a suite: read, extended in a stable order, and written so that a diff is short.

`{enabled: [patterns]}`, where `*` and `?` in a pattern are wildcards. Tests of a class, or of a method of it, have one
pattern once all that are in scope are enabled; others have their ids.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import yaml

from accel_ci.errors import ConfigError
from accel_ci.results.columns import pairs
from accel_ci.storage.atomic_file import write_whole_file

_HEAD = "# The enabled tests of a suite; `accel-ci ramp propose --apply` adds to it.\nenabled:\n"
_KEY = "enabled:"
_LEAST_OF_A_PATTERN = 2  # tests, which one pattern replaces

Group: TypeAlias = tuple[str, ...]


def read_enabled(path: Path) -> list[str]:
    """Return the patterns of a file; none if it is not there. Raises `ConfigError`."""
    return [pattern for pattern, _ in _entries(_text(path), path)]


def write_enabled(path: Path, tests: Collection[str], scope: pa.Table) -> tuple[int, int]:
    """Add tests to a file; return the numbers of its lines that are new and that are gone. Raises `ConfigError`.

    `scope` is the table of the file's suite. Other lines stay as they are, with their comments.
    """
    text = _text(path)
    before = _entries(text, path)
    new, replaced = extend([pattern for pattern, _ in before], tests, scope)
    kept = [entry for entry in before if entry[0] not in replaced]
    for pattern in new:
        place = bisect_left(kept, pattern, key=lambda entry: entry[0])
        kept.insert(place, (pattern, _line(pattern)))
    head = text[: text.index(_KEY)] + _KEY + "\n" if _is_plain(text) else _HEAD
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, (head + "".join(line for _, line in kept)).encode())
    return len(new), len(before) - len(kept) + len(new)


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


def _line(pattern: str) -> str:
    """The line of a pattern; characters that YAML does not allow, or that nobody sees, are spelled out."""
    quoted = json.dumps(pattern, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else "\\U" + f"{ord(c):08x}" for c in quoted)
    return f"  - {shown}\n"


def _stem(pattern: str) -> str:
    return pattern.removesuffix("*")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; fix it, or name another enabled_file") from error


def _is_plain(text: str) -> bool:
    """True if the file is a list in the form that is written here: one entry a line, and comments."""
    lines = text.splitlines()
    start = next((place for place, line in enumerate(lines) if line.rstrip() == _KEY), None)
    return (
        start is not None
        and all(not line.strip() or line.startswith("#") for line in lines[:start])
        and all(not line.strip() or line.lstrip().startswith(("#", "- ")) for line in lines[start + 1 :])
    )


def _entries(text: str, path: Path) -> list[tuple[str, str]]:
    """The patterns of a file with their lines, and with the comments before them."""
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    enabled = document.get("enabled") if isinstance(document, Mapping) else document
    patterns = [] if enabled is None and isinstance(document, Mapping) else enabled
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f"{path} must be a mapping with a list of patterns, as in 'enabled: [\"test_ops.py::*\"]'")
    if _is_plain(text):
        lines = list(_with_comments(text[text.index(_KEY) :].splitlines(keepends=True)[1:]))
        if len(lines) == len(patterns):
            return list(zip(patterns, lines, strict=True))
    return [(pattern, _line(pattern)) for pattern in patterns]


def _with_comments(lines: Iterable[str]) -> Iterator[str]:
    before = ""
    for line in lines:
        before += line if line.endswith("\n") else f"{line}\n"
        if line.lstrip().startswith("- "):
            yield before
            before = ""
