"""Fields of tests in their final form, with the warnings for what was wrong with them.

Here belong identity fields, texts and durations, cached because most tests of a report share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from .text import escaped, is_blank, plain
from .times import parse_duration
from .warning_codes import WarningCode

_MAX_DURATIONS = 100_000


class Fields:
    """The fields of one report."""

    def __init__(self, warnings: set[WarningCode]) -> None:
        self.warnings = warnings
        self._labels: dict[str | None, str | None] = {None: None}
        self._durations: dict[str | None, float | None] = {}

    def label(self, raw: str | None) -> str | None:
        """A class name or file, None for a blank one; equal ones are one object."""
        try:
            return self._labels[raw]
        except KeyError:
            label = None if raw is None or is_blank(raw) else self.escaped(raw)
            return self._labels.setdefault(raw, label)

    def labels(self, raws: Sequence[str]) -> list[str | None]:
        """Many labels at a time."""
        labels = list(map(self._labels.get, raws))
        return labels if None not in labels else list(map(self.label, raws))

    def name(self, raw: str | None) -> str:
        """The name of a test case."""
        if raw is None or is_blank(raw):
            self.warnings.add("missing_name")
            return "(unnamed)"
        return self.escaped(raw)

    def of_node(self, node: str) -> tuple[str | None, str, str | None]:
        """Class name, name and file of a pytest node id, as pytest's JUnit writer has them; None for a blank one."""
        classname, name, file = split_node_id(node)
        return self.label(classname), self.name(name), self.label(file)

    def escaped(self, raw: str) -> str:
        """An identity field with its control characters escaped."""
        shown = escaped(raw)
        if shown is not raw and shown != raw:
            self.warnings.add("name_escaped")
        return shown

    def plain(self, text: str) -> str:
        """A text without forbidden characters."""
        return plain(text) if "invalid_char" in self.warnings else text

    def duration(self, time: str | None) -> float | None:
        """The seconds of a `time` attribute."""
        try:
            return self._durations[time]
        except KeyError:
            seconds, warning = parse_duration(time)
            if warning is not None:
                self.warnings.add(warning)
            if len(self._durations) < _MAX_DURATIONS:
                self._durations[time] = seconds
            return seconds

    def durations(self, times: Sequence[str]) -> list[float | None]:
        """Many durations at a time."""
        seconds = list(map(self._durations.get, times))
        return seconds if None not in seconds else list(map(self.duration, times))


def split_node_id(node: str) -> tuple[str, str, str]:
    """Split a pytest node id into class name, name and file: `a/b.py::T::t[x]` is `a.b.T`, `t[x]`, `a/b.py`."""
    front, bracket, parameters = node.partition("[")
    file, *middle = front.split("::")
    dotted = file.replace("/", ".").removesuffix(".py")
    *classes, name = [dotted, *middle]
    return ".".join(classes), name + bracket + parameters, file
