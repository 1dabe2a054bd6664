"""Entries of the configuration that stand for several variants: one for each combination of Pythons and runtimes.

Pure functions on the document before it is validated; what an entry may hold is `accel_ci.config.settings`'s part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

MULTIPLIED = ("python", "torch", "torch_source", "runtime")
"""The keys of a variant that may be lists. In its name, `{python}` and so on stand for the value."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def multiply(entries: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Each variant with the place of its entry; what is no mapping, or has no list, stays as it is.

    In a name, a value goes without the characters that a name cannot have: `torch==2.13.0` is `torch2.13.0`.
    """
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            yield place, entry
            continue
        lists = {key: entry[key] for key in MULTIPLIED if isinstance(entry.get(key), list) and entry[key]}
        if not lists or "name" not in entry:
            yield place, entry
            continue
        for values in product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            yield place, {**entry, **chosen, "name": _named(entry["name"], {**entry, **chosen})}


def _named(name: Any, variant: Mapping[str, Any]) -> Any:
    if not isinstance(name, str):
        return name
    for key in MULTIPLIED:
        name = name.replace(f"{{{key}}}", _NOT_IN_NAMES.sub("", str(variant.get(key, ""))))
    return name
