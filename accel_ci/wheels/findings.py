"""The findings of one check: faults, which fail it, and warnings, which do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from accel_ci.model import CheckResult


@dataclass
class Findings:
    """The findings of the check `name` so far."""

    name: str
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Add a fault."""
        self.faults.append(text)

    def warn(self, text: str) -> None:
        """Add a warning."""
        self.warnings.append(text)

    def result(self, passed: str) -> CheckResult:
        """Return the result of the check; `passed` is the summary if nothing was found."""
        faults, warnings = tuple(dict.fromkeys(self.faults)), tuple(dict.fromkeys(self.warnings))
        shown = faults or warnings
        more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
        summary = f"{shown[0]}{more}" if shown else passed
        return CheckResult(self.name, not faults, summary, faults, warnings)


def shown(name: str) -> str:
    """Return the name of a file as it can be printed."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")
