"""The parts of results in the Dagster UI: tables, links and checks."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import dagster as dg

from accel_ci.hud.addresses import build_address
from accel_ci.hud.serve import DEFAULT_ADDRESS, artifact_address
from accel_ci.model import Artifact, Build, CheckResult, WorkerPod
from accel_ci.redaction import redact
from accel_ci.workspace import Workspace

_ESCAPES = str.maketrans(
    {"&": "&amp;", "\\": "\\\\", "|": "\\|", "<": "&lt;", ">": "&gt;", "`": "\\`", "[": "\\[", "\n": " ", "\r": " "}
)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], limit: int = 50) -> dg.MetadataValue:
    """Make a Markdown table; cells are escaped, since test names are hostile text. Rows over `limit` are only counted."""
    rows = list(rows)
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(str(cell)[:300].translate(_ESCAPES) for cell in row) for row in rows[:limit]]
    more = [f"\n… and {len(rows) - limit} more"] if len(rows) > limit else []
    return dg.MetadataValue.md(redact("\n".join([*(f"| {line} |" for line in lines), *more])) if rows else "none")


def pods_table(workspace: Workspace, pods: Sequence[WorkerPod], limit: int = 50) -> dg.MetadataValue:
    """Make a table of workers' pods, with links to their logs where the configuration has an address for those."""
    known = workspace.project.settings.addresses
    template = known.pods if known is not None else None

    def shown(pod: WorkerPod) -> str:
        name = pod.pod[:300].translate(_ESCAPES).replace("]", "\\]")
        if template is None:
            return name
        return f"[{name}]({template.format(namespace=quote(pod.namespace, safe=''), pod=quote(pod.pod[:300], safe=''))})"

    lines = ["| round | worker | card | namespace | pod |", "| --- | --- | --- | --- | --- |"]
    for pod in pods[:limit]:
        cells = [cell.translate(_ESCAPES) for cell in (pod.round, pod.worker, pod.card, pod.namespace)]
        lines.append(f"| {' | '.join([*cells, shown(pod)])} |")
    more = [f"\n… and {len(pods) - limit} more"] if len(pods) > limit else []
    return dg.MetadataValue.md(redact("\n".join([*lines, *more])))


def plain_rows(value: dg.MetadataValue | None) -> list[str]:
    """Return the rows of a table of one column as they were before they were escaped; none without a table."""
    lines = str(value.value).splitlines() if value else []
    rows = [line.removeprefix("| ").removesuffix(" |") for line in lines[2:]]
    return [re.sub(r"\\([|`\[\\])", r"\1", html.unescape(row)) for row in rows]


def link(workspace: Workspace, artifact: Artifact) -> dg.MetadataValue:
    """Link to an artifact; name the file where nobody serves it: browsers would not open it."""
    known = workspace.addresses
    if known is None:
        return dg.MetadataValue.path(str(workspace.artifacts.location(artifact)))
    return dg.MetadataValue.url(artifact_address(known.artifacts, artifact))


def build_link(workspace: Workspace, build: Build) -> dg.MetadataValue:
    """Link to the page of a build."""
    known = workspace.addresses
    return dg.MetadataValue.url(f"{known.hud if known else DEFAULT_ADDRESS}{build_address(build)}")


def check_result(check: CheckResult, build: Build, *, warn: bool = False) -> dg.AssetCheckResult:
    """Turn a check's result into Dagster's, which names the build in its history.

    With `warn`, a failure is a warning. Dagster shows warnings as failures.
    """
    return dg.AssetCheckResult(
        check_name=check.name,
        passed=check.passed and not check.warnings,
        severity=dg.AssetCheckSeverity.WARN if warn or check.passed else dg.AssetCheckSeverity.ERROR,
        description=redact(check.summary),
        metadata={
            "build": build.name,
            "findings": table(["finding"], [[finding] for finding in (*check.findings, *check.warnings)]),
        },
    )


def stage_result(
    manifest: Any,
    build: Build,
    version: str,
    metadata: Mapping[str, Any],
    checks: Iterable[CheckResult] = (),
    *,
    warn: bool = False,
) -> dg.MaterializeResult:
    """Make the result of a stage from its manifest, its build, the version of its data, its metadata and its checks.

    With `warn`, failed checks are warnings, which keep no later stage from running.
    """
    return dg.MaterializeResult(
        value=manifest,
        data_version=dg.DataVersion(version),
        check_results=[check_result(check, build, warn=warn) for check in checks],
        metadata=redacted(metadata),
    )


def redacted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Take secrets out of metadata; a value that held one becomes plain text."""

    def clean(value: Any) -> Any:
        text = value.value if isinstance(value, dg.MetadataValue) else value
        if not isinstance(text, str) or (shown := redact(text)) == text:
            return value
        return shown

    return {redact(name): clean(value) for name, value in metadata.items()}
