"""Fields of GitHub's answers, which may be missing or of another type than documented."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def field_at(value: Any, *keys: str) -> Any:
    """Return what is at a path of keys; None where it leads nowhere."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def read_time(value: object) -> datetime | None:
    """Read a time; None where it is none, or has no time zone."""
    try:
        at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def label_names(issue: Any) -> list[str]:
    """Return the names of the labels of an issue or a pull request."""
    labels = field_at(issue, "labels")
    names = [field_at(label, "name") for label in labels] if isinstance(labels, list) else []
    return [name for name in names if isinstance(name, str)]
