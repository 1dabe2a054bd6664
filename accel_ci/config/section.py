"""The base of all sections of the configuration file, and how mistakes in the file are reported."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

Mistake = tuple[tuple[str | int, ...], str]
"""The path to a place in the file, and a description of the mistake there."""


class Section(BaseModel):
    """A mapping in the file: unknown keys and empty strings are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_min_length=1, validate_default=True)


def as_mapping(value: object) -> dict[Any, Any]:
    """A value of the raw file; an empty mapping when it is something else."""
    return value if isinstance(value, dict) else {}


def as_sequence(value: object) -> list[Any]:
    """A value of the raw file; an empty list when it is something else."""
    return value if isinstance(value, list) else []
