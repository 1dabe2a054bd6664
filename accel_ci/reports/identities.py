"""Identities that are unique in a report: equal cases get `#2`, `#3`, … appended to their names."""

from __future__ import annotations

from collections.abc import Iterator

Identity = tuple[str, str, str | None]
"""Class name, name, file."""


class Identities:
    """The identities of one report, each with the place of its case."""

    def __init__(self) -> None:
        self.first: dict[Identity, int] = {}
        """Every identity in use, with the place of its case."""
        self._others: dict[Identity, list[int]] = {}
        self._next: dict[Identity, int] = {}

    def give(self, identity: Identity, place: int) -> str:
        """Return the name of a case with this identity: its own, or with the first free number."""
        classname, name, file = identity
        if identity not in self.first:
            self.first[identity] = place
            return name
        ordinal = self._next.get(identity, 2)
        while (classname, numbered := f"{name}#{ordinal}", file) in self.first:
            ordinal += 1
        self._next[identity] = ordinal + 1
        self._others.setdefault(identity, []).append(place)
        self.first[classname, numbered, file] = -1  # in use, but no case in the report has this name
        return numbered

    def places(self, identity: Identity) -> Iterator[int]:
        """The places of the cases with this identity in the report, the latest first."""
        yield from reversed(self._others.get(identity, ()))
        if self.first.get(identity, -1) >= 0:
            yield self.first[identity]
