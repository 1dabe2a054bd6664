"""Which identities a report has given out: equal cases get `#2`, `#3`, … appended to their names."""

from __future__ import annotations

from collections.abc import Iterator

Identity = tuple[str, str, str | None]
"""Class name, name, file."""


class Identities:
    """The identities of one report, each with the place of the case that has it."""

    def __init__(self) -> None:
        self.first: dict[Identity, int] = {}
        """Every identity that was given out, with the place of its case."""
        self._others: dict[Identity, list[int]] = {}
        self._next: dict[Identity, int] = {}

    def give(self, identity: Identity, place: int) -> str:
        """The name that a case with this identity gets, which is its own or that with the first free number."""
        classname, name, file = identity
        if identity not in self.first:
            self.first[identity] = place
            return name
        ordinal = self._next.get(identity, 2)
        while (classname, numbered := f"{name}#{ordinal}", file) in self.first:
            ordinal += 1
        self._next[identity] = ordinal + 1
        self._others.setdefault(identity, []).append(place)
        self.first[classname, numbered, file] = -1  # taken, but no case was written with it
        return numbered

    def places(self, identity: Identity) -> Iterator[int]:
        """The places of the cases that came with this identity, the latest first."""
        yield from reversed(self._others.get(identity, ()))
        if self.first.get(identity, -1) >= 0:
            yield self.first[identity]
