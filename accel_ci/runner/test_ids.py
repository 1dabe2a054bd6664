"""The ids of tests: pytest's node ids below the root of the sources, and the groups of tests that must stay together.

An id is the same in every process that collects the same paths, whatever pytest takes for its rootdir. Two items of one node
id are told apart by an ordinal (`test_a.py::test_x#2`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

_ORDERED = ("dependency", "depends", "order", "run")
"""Marks of pytest-dependency, pytest-depends, pytest-order and pytest-ordering: such a test needs others before it."""


class TestIds:
    """Names below `root` for pytest's node ids, which are below its rootdir."""

    __test__ = False

    def __init__(self, root: str, rootdir: str) -> None:
        below = os.path.relpath(os.path.realpath(rootdir), os.path.realpath(root))
        self._add, self._remove = "", ""
        if below == os.pardir or below.startswith(os.pardir + os.sep):
            self._remove = os.path.relpath(os.path.realpath(root), os.path.realpath(rootdir)).replace(os.sep, "/") + "/"
        elif below != os.curdir:
            self._add = below.replace(os.sep, "/") + "/"

    def of_node(self, nodeid: str) -> str:
        """Return a node's name; that of the session is empty."""
        return self._add + nodeid.removeprefix(self._remove) if nodeid not in ("", ".") else self._add.rstrip("/")

    def of_items(self, items: Iterable[Any]) -> dict[str, Any]:
        """Return the items by id, in their order."""
        found: dict[str, Any] = {}
        for item in items:
            name = first = self.of_node(item.nodeid)
            ordinal = 1
            while name in found:
                ordinal += 1
                name = f"{first}#{ordinal}"
            found[name] = item
        return found


_WIDE_SCOPES = ("package", "session")


def groups_of(items: Mapping[str, Any], dist: str) -> dict[str, str]:
    """Return the groups (`_group_of`) of the tests that are in one.

    When a test depends on one of another file (pytest-dependency calls that a scope), the files have one group.
    """
    marks = (mark for item in items.values() for mark in item.iter_markers("dependency"))
    wide = any(mark.kwargs.get("scope") in _WIDE_SCOPES for mark in marks)
    groups = {test: _group_of(item, test, dist, wide) for test, item in items.items()}
    return {test: group for test, group in groups.items() if group is not None}


def _group_of(item: Any, test: str, dist: str, wide: bool) -> str | None:
    """Return the name of the tests that must not run at the same time as this one, None when there are none.

    These are an `xdist_group`, tests marked `serial`, tests that depend on others or have an order, `incremental` classes,
    and what `dist`, a mode of pytest-xdist that the suite asks for, keeps on one worker.
    """
    if marks := list(item.iter_markers("xdist_group")):
        names = [mark.args[0] if mark.args else mark.kwargs.get("name", "default") for mark in marks]
        return "xdist_group " + "_".join(map(str, dict.fromkeys(names)))
    file, scope = test.partition("::")[0], test.rpartition("::")[0]
    if any(item.get_closest_marker(name) for name in _ORDERED):
        return "ordered" if wide else f"ordered {file}"
    if item.get_closest_marker("incremental"):
        return f"ordered {scope}"
    if item.get_closest_marker("serial"):
        return "serial"
    return {"loadfile": f"file {file}", "loadscope": f"scope {scope}"}.get(dist)
