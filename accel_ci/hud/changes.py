"""The tests of a build that fail since the last green one: new, still failing, fixed and returned. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

Identity = tuple[str, str]
"""Suite and test."""


@dataclass(frozen=True)
class Changes:
    """The changes of a build against earlier ones, each list by suite and test.

    `green` is the revision of the last build that passed, None where none is known; `before` that of the build before. `new`
    tests have not failed since the green one, `still` fail as before, `returned` failed since the green one and passed in
    the build before, and `fixed` ones failed in the build before and pass now.
    """

    green: str | None
    before: str
    new: tuple[Identity, ...]
    still: tuple[Identity, ...]
    returned: tuple[Identity, ...]
    fixed: tuple[Identity, ...]


@dataclass(frozen=True)
class ChangeCounts:
    """The numbers of `Changes`."""

    green: str | None
    new: int
    still: int
    returned: int
    fixed: int


def find_changes(
    failing: Collection[Identity],
    before: tuple[str, Collection[Identity]],
    green: str | None,
    between: Iterable[Collection[Identity]],
    fixed: Iterable[Identity],
) -> Changes:
    """Sort the failing tests of a build.

    Args:
        failing: The tests that fail.
        before: The revision of the build before, and the tests that failed in it.
        green: The revision of the last build that passed.
        between: The failing tests of each build since then, without that of `before`.
        fixed: The tests that failed in the build before and pass now.
    """
    revision, failed_before = before
    now = set(failing)
    still = now & set(failed_before)
    seen = {identity for one in between for identity in one}
    returned = (now - still) & seen
    new = now - still - returned
    return Changes(green, revision, *(tuple(sorted(part)) for part in (new, still, returned, set(fixed))))


def counts_of(changes: Changes) -> ChangeCounts:
    """Count the changes of each kind."""
    return ChangeCounts(
        changes.green, len(changes.new), len(changes.still), len(changes.returned), len(changes.fixed)
    )  # fmt: skip
