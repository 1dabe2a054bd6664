"""Expand the variant matrix: an entry with lists stands for one variant per combination of their values.

Pure functions on the document before validation. The settings of a variant are in `accel_ci.config.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

MATRIX_KEYS = ("python", "torch", "torch_source", "runtime")
"""The keys of a variant that may be lists. In its name, `{python}` and so on stand for the value."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def expand_matrix(entries: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each variant with the index of its entry; an entry that is not a mapping or has no lists stays unchanged.

    In names, values lose the characters that a name cannot have: `torch==2.13.0` becomes `torch2.13.0`.
    """
    for place, entry in enumerate(entries):
        fields = entry if isinstance(entry, Mapping) else {}
        lists = {key: fields[key] for key in MATRIX_KEYS if isinstance(fields.get(key), list) and fields[key]}
        if not lists or "name" not in fields:
            yield place, entry
            continue
        for values in product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            yield place, {**entry, **chosen, "name": _named(entry["name"], {**entry, **chosen})}


def _named(name: Any, variant: Mapping[str, Any]) -> Any:
    if not isinstance(name, str):
        return name
    for key in MATRIX_KEYS:
        name = name.replace(f"{{{key}}}", _NOT_IN_NAMES.sub("", str(variant.get(key, ""))))
    return name
