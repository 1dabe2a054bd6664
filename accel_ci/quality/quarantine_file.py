"""The file of people's decisions on flaky tests: read, and written in a stable order, so that a diff is short."""

from __future__ import annotations

from pathlib import Path

import yaml

from accel_ci.config.loading import read_section
from accel_ci.config.settings import Project, QuarantinedTest, QuarantineFile
from accel_ci.errors import ConfigError
from accel_ci.quality.quarantine import Entry
from accel_ci.storage.atomic_file import write_whole_file

_HEAD = "# Flaky tests that are muted, disabled, or kept active; `accel-ci quarantine add|remove` changes this file.\n"


def file_of(project: Project) -> Path:
    """Return the path of the file. Raises `ConfigError` where none is configured."""
    name = project.settings.quality.quarantine.file
    if name is None:
        raise ConfigError("no file is configured for decisions on flaky tests: set quality.quarantine.file, and commit it")
    return project.root / name


def read_decisions(project: Project) -> tuple[QuarantinedTest, ...]:
    """Return people's decisions, expired ones included; none where there is no file. Raises `ConfigError`."""
    name = project.settings.quality.quarantine.file
    if name is None or not (project.root / name).exists():
        return ()
    return read_section(QuarantineFile, project.root / name, name).tests


def write_decisions(path: Path, decisions: tuple[QuarantinedTest, ...]) -> None:
    """Write decisions, sorted by suite, test and variant."""
    ordered = sorted(decisions, key=lambda each: (each.suite, each.test, each.variant or ""))
    rows = [each.model_dump(mode="json", exclude_none=True) for each in ordered]
    text = _HEAD + yaml.safe_dump({"tests": rows}, sort_keys=False, width=120, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, text.encode())


def as_entries(decisions: tuple[QuarantinedTest, ...], variant: str) -> list[Entry]:
    """Return the decisions that concern a variant."""
    return [
        Entry(
            each.suite, each.test, variant, each.state, each.reason, "person", each.since, each.expires, each.owner,
            str(each.issue) if each.issue else None,
        )
        for each in decisions
        if each.variant in (None, variant)
    ]  # fmt: skip
