"""The parts of metadata in the Dagster UI: tables and checks."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from accel_ci.model import CheckResult

_ESCAPES = {
    ord("&"): "&amp;",
    ord("\\"): "\\\\",
    ord("|"): "\\|",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("`"): "\\`",
    ord("["): "\\[",
    ord("\n"): " ",
    ord("\r"): " ",
}


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], limit: int = 50) -> dg.MetadataValue:
    """Make a Markdown table; cells are escaped, since test names are hostile text. Rows over `limit` are only counted."""
    rows = list(rows)
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(str(cell)[:300].translate(_ESCAPES) for cell in row) for row in rows[:limit]]
    more = [f"\n… and {len(rows) - limit} more"] if len(rows) > limit else []
    return dg.MetadataValue.md("\n".join([*(f"| {line} |" for line in lines), *more]) if rows else "none")


def plain_rows(value: dg.MetadataValue) -> list[str]:
    """Return the rows of a table of one column as they were before they were escaped."""
    text = str(value.value)
    rows = [] if text == "none" else [line.removeprefix("| ").removesuffix(" |") for line in text.splitlines()[2:]]
    return [re.sub(r"\\([|`\[\\])", r"\1", html.unescape(row)) for row in rows]


def check_result(check: CheckResult, *, warn: bool = False) -> dg.AssetCheckResult:
    """Turn a check's result into Dagster's; with `warn`, a failure is a warning."""
    return dg.AssetCheckResult(
        check_name=check.name,
        passed=check.passed,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=check.summary,
        metadata={"findings": table(["finding"], [[finding] for finding in check.findings])},
    )
