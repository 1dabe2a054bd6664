"""torch-spyre's `test_suite_config`, a YAML file: which tests of which files run, and what is expected of them.

Tests that have another mode than `skip` are enabled, and the others are not enabled yet. What a rule cannot say, such as the
operators that the device supports, is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from accel_ci.config.section import as_mapping, as_sequence
from accel_ci.errors import ConfigError
from accel_ci.scope.importers.imported import Imported

_MODES = {"mandatory_success": "must_pass", "xfail": "xfail", "xfail_strict": "xfail_strict", "skip": "skip"}
_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "quint8", "qint8", "qint32",
)  # fmt: skip
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_test_suite_config(text: str, reason: str) -> Imported:
    """Read a `test_suite_config` as rules. Raises `ConfigError` for something else."""
    try:
        content = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from None
    config = as_mapping(as_mapping(content).get("test_suite_config"))
    if not as_sequence(config.get("files")):
        raise ConfigError("not a test_suite_config: the key test_suite_config.files must have a list of files")
    left_out: list[str] = []
    enabled: list[dict[str, Any]] = []
    modes: list[dict[str, Any]] = list(_forced(as_mapping(config.get("global")), reason))
    entries = 0
    for file in map(as_mapping, as_sequence(config["files"])):
        path, unlisted = _path(str(file.get("path", ""))), _mode(file.get("unlisted_test_mode", "skip"), left_out)
        for test in map(as_mapping, as_sequence(file.get("tests"))):
            mode = _mode(test.get("mode", file.get("unlisted_test_mode", "skip")), left_out)
            names = list(map(str, as_sequence(test.get("names"))))
            entries += len(names)
            for criteria in _criteria(path, names, left_out):
                for excluded in _excluded(as_mapping(test.get("edits")), names, left_out):
                    modes.append({**criteria, **excluded, "mode": "skip", "reason": reason})
                if mode != "skip":
                    enabled.append(criteria)
                if mode != "must_pass" or unlisted not in ("skip", "must_pass"):
                    modes.append({**criteria, "mode": mode, "reason": reason})
        if unlisted != "skip":
            enabled.append({"files": [path]})
        if unlisted not in ("skip", "must_pass"):
            modes.append({"files": [path], "mode": unlisted, "reason": reason})
    rules = {"exclude": list(_unsupported(as_mapping(config.get("global")), left_out)), "enabled": enabled, "modes": modes}
    return Imported(rules, entries, tuple(left_out))


def _mode(mode: Any, left_out: list[str]) -> str:
    if mode not in _MODES:
        left_out.append(f"the mode {mode!r} is not known; skip is taken")
    return _MODES.get(mode, "skip")


def _path(path: str) -> str:
    """A pattern for files: `${TORCH_ROOT}/test/test_x.py`, of which the variable's part is left out."""
    return re.sub(r"^\$\{\w+\}/", "", path).replace(".*", "*")


def _criteria(path: str, names: Iterable[str], left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The criteria of tests that are named `Class::method`, of which both may be regular expressions."""
    by_class: dict[str | None, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition("::")
        patterns = _pattern(owner) if owner else None, _pattern(method)
        if patterns[1] is None or (owner and patterns[0] is None):
            left_out.append(f"{path}: {name}: a regular expression that no pattern can express")
        else:
            by_class.setdefault(patterns[0], []).append(patterns[1])
    for owner_pattern, methods in by_class.items():
        yield {"files": [path], **({"classes": [owner_pattern]} if owner_pattern else {}), "methods": methods}


def _pattern(expression: str) -> str | None:
    """A regular expression as a pattern; None where it has more than `.*` and escaped characters."""
    text = expression.removeprefix("^").removesuffix("$").replace(".*", "*").replace(".+", "?*")
    text = re.sub(r"\\(\W)", r"\1", text)
    return None if re.search(r"[\\()|+{}^$]", text) else text


def _named(entries: Any) -> list[dict[str, Any]]:
    mappings = [each if isinstance(each, dict) else {"name": each} for each in as_sequence(entries)]
    return [each for each in mappings if isinstance(each.get("name"), str)]


def _excluded(edits: Mapping[str, Any], names: list[str], left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The dtypes, operators and modules for which a test is not made; other edits are told."""
    for what, edit in edits.items():
        for kind, some in as_mapping(edit).items():
            if what in ("dtypes", "ops", "modules") and kind == "exclude" and _named(some):
                yield {what: [each["name"] for each in _named(some)]}
            else:
                left_out.append(f"{', '.join(names[:2])}: edits.{what}.{kind}")


def _forced(device: Mapping[str, Any], reason: str) -> Iterator[dict[str, Any]]:
    """The rules for the dtypes and operators that are expected to fail."""
    for key, criterion in (("supported_dtypes", "dtypes"), ("supported_ops", "ops"), ("supported_modules", "modules")):
        names = [each["name"] for each in _named(device.get(key)) if each.get("force_xfail") is True]
        if names:
            yield {criterion: names, "mode": "xfail", "reason": reason}


def _unsupported(device: Mapping[str, Any], left_out: list[str]) -> Iterator[dict[str, Any]]:
    supported = {each["name"] for each in _named(device.get("supported_dtypes"))}
    if supported:
        yield {"dtypes": [dtype for dtype in _DTYPES if dtype not in supported], "reason": "unsupported_dtype"}
    for key in ("supported_ops", "supported_modules"):
        if count := len(_named(device.get(key))):
            left_out.append(f"global.{key} ({count} of them): no rule can say that all others are out of scope")
