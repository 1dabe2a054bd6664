"""The rules that an importer reads, and how they are written as a file of rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from accel_ci.errors import ConfigError
from accel_ci.storage.untrusted_file import UntrustedFileError, read_untrusted

_MOST_BYTES = 256 << 20
_PRIVATEUSE1 = "PRIVATEUSE1"


@dataclass(frozen=True)
class Imported:
    """The rules of a file by list (`exclude`, `enabled`, `modes`), the number of its entries, and what no rule can say."""

    rules: Mapping[str, list[dict[str, Any]]]
    entries: int
    left_out: tuple[str, ...] = ()

    def as_yaml(self) -> str:
        """The text of a file for `rule_files`."""
        content = {key: list(rules) for key, rules in self.rules.items() if rules}
        return yaml.dump(content, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class DeviceNames:
    """The device type in the names of another project's tests, and that of the backend in its place."""

    theirs: str | None
    ours: str | None

    def method(self, name: str) -> str:
        """A test's name with our device type in place of theirs."""
        if not self.theirs or not self.ours:
            return name
        return re.sub(rf"_{re.escape(self.theirs)}(?=_|\d|$)", f"_{self.ours}", name)

    def classes(self, name: str) -> list[str]:
        """Patterns for a class: its name in the file, if the device type is in it, else each that begins with it."""
        for suffix in (_PRIVATEUSE1, *((self.theirs.upper(),) if self.theirs else ())):
            if name.endswith(suffix) and name != suffix:
                return [name[: -len(suffix)]]
        return [f"{name}*"]


def read_text(path: Path) -> str:
    """Read a file of another project. Raises `ConfigError`."""
    try:
        whole = path.resolve()
        return read_untrusted(whole.parent, whole.name, _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, UntrustedFileError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def grouped(rules: Iterable[tuple[Mapping[str, Any], str]], key: str) -> list[dict[str, Any]]:
    """Join rules that differ in one pattern alone, which is `key`'s, to one with all these patterns."""
    found: dict[str, tuple[Mapping[str, Any], dict[str, None]]] = {}
    for rule, pattern in rules:
        found.setdefault(repr(sorted(rule.items())), (rule, {}))[1][pattern] = None
    return [{**rule, key: list(patterns)} for rule, patterns in found.values()]
