"""Read the files that a suite's scope names: more rules, and the list of the tests that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from accel_ci.config.loading import read_section
from accel_ci.config.scope_settings import Criteria, EnabledFile, RuleFile, Scope
from accel_ci.config.settings import Suite

_Rule = TypeVar("_Rule", bound=Criteria)


def with_rule_files(suites: Mapping[str, Suite], folder: Path) -> dict[str, Suite]:
    """Return suites whose scopes hold the rules of their files, which are below `folder`. Raises `ConfigError`."""
    return {name: suite.model_copy(update={"scope": whole_scope(suite.scope, folder)}) for name, suite in suites.items()}


def whole_scope(scope: Scope, folder: Path) -> Scope:
    """Return a scope with the rules of its files, each under a name that tells its file. Raises `ConfigError`."""
    if not scope.rule_files and scope.enabled_file is None:
        return scope
    files = {name: read_section(RuleFile, folder / name, name) for name in scope.rule_files}
    lists: dict[str, Any] = {
        key: [
            *getattr(scope, key),
            *(each for name, file in files.items() for each in _named(getattr(file, key), name, key)),
        ]
        for key in ("exclude", "not_enabled", "modes")
    }
    enabled = {name: file.enabled for name, file in files.items()}
    if scope.enabled_file is not None:
        enabled[scope.enabled_file] = read_section(EnabledFile, folder / scope.enabled_file, scope.enabled_file).enabled
    there = [_named(some, name, "enabled") for name, some in enabled.items() if some is not None]
    own = [scope.enabled] if scope.enabled is not None else []
    lists["enabled"] = tuple(each for some in (*own, *there) for each in some) if own or there else None
    return scope.model_copy(update={**lists, "enabled_file": None, "rule_files": ()})


def _named(rules: Iterable[_Rule], file: str, key: str) -> list[_Rule]:
    """Return rules with the names that tell their places in the file, where they have none."""
    places = enumerate(rules)
    return [rule if rule.name else rule.model_copy(update={"name": f"{file}:{key}[{place}]"}) for place, rule in places]
