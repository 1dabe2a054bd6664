"""The findings of one check: faults, which fail it, and warnings, which do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from accel_ci.model import CheckResult

MOST = 1000
"""The findings of a check that are kept; the others are only counted."""

_LONGEST = 2000


@dataclass
class Findings:
    """The findings of the check `name` so far."""

    name: str
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: int = 0

    def fault(self, text: str) -> None:
        """Add a fault."""
        self._add(self.faults, text)

    def warn(self, text: str) -> None:
        """Add a warning."""
        self._add(self.warnings, text)

    def _add(self, found: list[str], text: str) -> None:
        if len(found) < MOST:
            found.append(text[:_LONGEST])
        else:
            self.left_out += 1

    def result(self, passed: str) -> CheckResult:
        """Return the result of the check; `passed` is the summary if nothing was found."""
        faults, warnings = tuple(dict.fromkeys(self.faults)), tuple(dict.fromkeys(self.warnings))
        shown = faults or warnings
        others = len(shown) - 1 + self.left_out
        more = f" (and {others} more)" if shown and others else ""
        summary = f"{shown[0]}{more}" if shown else passed
        return CheckResult(self.name, not faults, summary, faults, warnings)


def shown(name: str) -> str:
    """Return the name of a file as it can be printed."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")
