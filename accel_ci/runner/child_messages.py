"""The messages of a pytest child, checked before the worker believes them: tests run in the child and can write to its pipe.

Here belongs the form of single lines. Whether a message fits what the child was sent is checked in `child_session.py`.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

OUTCOMES = frozenset({"passed", "failed", "error", "skipped", "xfailed", "xpassed", "not_run"})  # that a child may send
LONGEST = 16 << 20  # bytes of a line

_TEXT_OR_NONE = (str, type(None))
_FIELDS: dict[str, dict[str, Any]] = {
    "captures": {"files": list},
    "collecting": {"file": str},
    "collected": {"file": str, "tests": int},
    "original": {},
    "ready": {},
    "want": {},
    "start": {"test": str, "number": int},
    "result": {"test": str, "outcome": str, "message": _TEXT_OR_NONE},
    "session_error": {"message": str},
    "stopped": {"message": str, "output": str},
}
_MORE: dict[str, Any] = {"earlier": list, "output": _TEXT_OR_NONE}  # that results of tests which ran have
_EARLIER = {"outcome": str, "message": _TEXT_OR_NONE, "output": _TEXT_OR_NONE, "duration_s": (int, float)}


class ProtocolError(Exception):
    """The child, or a test in it, has written to the worker's pipe what the worker cannot believe."""


def parse_message(line: bytes) -> dict[str, Any]:
    """Return the message in a line. Raises `ProtocolError` unless it is of a known kind with all its fields."""
    try:
        content = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        content = None
    message: dict[str, Any] = content if isinstance(content, dict) else {}
    if not _has(message, _FIELDS.get(str(message.get("kind")), {"": None})):
        raise ProtocolError(f"something that is no message was written to the worker's pipe: {line[:200]!r}")
    if message["kind"] == "result":
        earlier = message.get("earlier", [])
        right = _has({"earlier": [], "output": None, **message}, _MORE) and all(_has(each, _EARLIER) for each in earlier)
        if not right or not {message["outcome"], *(each["outcome"] for each in earlier)} <= OUTCOMES:
            raise ProtocolError(f"a result that is none was written to the worker's pipe: {line[:200]!r}")
    if message["kind"] == "captures" and not all(isinstance(name, str) for name in message["files"]):
        raise ProtocolError(f"names of files that are none were written to the worker's pipe: {line[:200]!r}")
    return message


def _has(record: Any, fields: dict[str, Any]) -> bool:
    """True for an object that has all these fields, of these types."""
    return isinstance(record, dict) and all(name in record and isinstance(record[name], of) for name, of in fields.items())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
