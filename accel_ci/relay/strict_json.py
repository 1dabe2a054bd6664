"""JSON from strangers: one meaning, bounded depth.

Parsers differ in which of two equal keys they take, so that what is checked may not be what is used; deep nesting exhausts
the stack of those that recurse. Both are refused here, like numbers that JSON does not have.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


class JsonError(ValueError):
    """A text that is refused; the message is safe to show."""


def parse_object(body: bytes, depth: int) -> dict[str, Any]:
    """Parse an object in UTF-8. Raises `JsonError` for anything else, a key that appears twice, and deeper nesting."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except JsonError:
        raise
    except ValueError:
        raise JsonError("not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise JsonError("not an object")
    if _is_deeper(value, depth):
        raise JsonError("nested too deeply")
    return value


def _is_deeper(value: dict[str, Any], depth: int) -> bool:
    level: list[Any] = [value]
    for _ in range(depth):
        below: list[Any] = []
        for one in level:
            children = one.values() if type(one) is dict else one
            below += [child for child in children if type(child) is dict or type(child) is list]
        if not below:
            return False
        level = below
    return True


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonError("a key appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not JSON")
