"""torch-spyre's `test_suite_config`, a YAML file: which tests of which files run, and what is expected of them.

Tests that have another mode than `skip` are enabled, and the others are not enabled yet. Variants of them that the file
rules out, such as those of operators that it does not list, have the mode `skip`. What a rule cannot say is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from accel_ci.config.section import as_mapping, as_sequence
from accel_ci.config.settings import UPSTREAM_TESTS
from accel_ci.errors import ConfigError
from accel_ci.scope.importers.imported import Imported

_MODES = {"mandatory_success": "must_pass", "xfail": "xfail", "xfail_strict": "xfail_strict", "skip": "skip"}
_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "quint8", "qint8", "qint32",
)  # fmt: skip
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OF_PYTORCH = ("${TORCH_ROOT}/", "${PYTORCH_ROOT}/", "${PYTORCH}/")
_UNSUPPORTED = {"ops": "unsupported_op", "modules": "unsupported module"}
_GROUP = re.compile(r"\((?:\?:|(?!\?))([^()\\]*)\)(?![*+?{])")
_MOST_PATTERNS = 1_000


@dataclass(frozen=True)
class _Device:
    """The content of the key `global`: names by criterion.

    Tests with an operator or a module run only with the `supported` ones. `disputed` are dtypes that the device does not
    support, but that some tests run with.
    """

    supported: Mapping[str, list[str]]
    expected_to_fail: Mapping[str, list[str]]
    disputed: list[str]


def read_test_suite_config(text: str, reason: str) -> Imported:
    """Read a `test_suite_config` as rules. Raises `ConfigError` for something else."""
    try:
        content = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from None
    config = as_mapping(as_mapping(content).get("test_suite_config"))
    files = [as_mapping(file) for file in as_sequence(config.get("files"))]
    if not files:
        raise ConfigError("not a test_suite_config: the key test_suite_config.files must have a list of files")
    left_out: list[str] = []
    extra_dtypes = {name for file in files for test in _tests(file) for name in _edited(test, "dtypes", "include")}
    given = as_mapping(config.get("global"))
    device = _device(given, extra_dtypes, left_out)
    enabled: list[dict[str, Any]] = []
    modes: list[dict[str, Any]] = []
    entries = 0
    for file in files:
        path, unlisted = _path(str(file.get("path", ""))), _mode(file.get("unlisted_test_mode", "skip"), left_out)
        tests = _tests(file)
        last = {name: place for place, test in enumerate(tests) for name in _names(test)}
        for place, test in enumerate(tests):
            mode = _mode(test.get("mode", "mandatory_success"), left_out)
            entries += len(_names(test))
            _tell_edits(test, left_out)
            for criteria in _criteria(path, [name for name in _names(test) if last[name] == place], left_out):
                if mode != "skip":
                    enabled.append(criteria)
                if mode == unlisted and mode != "skip" and not test.get("edits"):
                    continue  # the file's rules say the same
                rules = list(_modes(criteria, mode, test, device, reason))
                modes += rules if mode != "must_pass" or unlisted != "skip" else rules[:-1]
        if unlisted != "skip":
            enabled.append({"files": [path]})
            rules = list(_modes({"files": [path]}, unlisted, {}, device, reason))
            modes += rules if unlisted != "must_pass" else rules[:-1]
    return Imported(
        {"exclude": list(_excluded(given, extra_dtypes)), "enabled": enabled, "modes": modes}, entries, tuple(left_out)
    )


def _tests(file: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [as_mapping(test) for test in as_sequence(file.get("tests"))]


def _names(test: Mapping[str, Any]) -> list[str]:
    return list(map(str, as_sequence(test.get("names"))))


def _mode(mode: Any, left_out: list[str]) -> str:
    if mode not in _MODES:
        left_out.append(f"the mode {mode!r} is not known; skip is taken")
    return _MODES.get(mode, "skip")


def _path(path: str) -> str:
    """A pattern for files: `${TORCH_ROOT}/test/test_x.py` is in the folder of PyTorch's tests, others in the sources."""
    for root in _OF_PYTORCH:
        path = path.replace(root, f"{UPSTREAM_TESTS}/", 1)
    return re.sub(r"^\$\{\w+\}/", "", path).replace(".*", "*")


def _criteria(path: str, names: Iterable[str], left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The criteria of tests that are named `Class::method`, of which both may be regular expressions."""
    by_class: dict[str | None, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition("::")
        owners, methods = _patterns(owner) if owner else [None], _patterns(method)
        if not owners or not methods:
            left_out.append(f"{path}: {name}: a regular expression that no pattern can express")
        for each in owners:
            by_class.setdefault(each, []).extend(methods)
    for owner_pattern, methods in by_class.items():
        if methods:
            yield {"files": [path], **({"classes": [owner_pattern]} if owner_pattern else {}), "methods": methods}


def _patterns(expression: str) -> list[str]:
    """A regular expression as patterns; none where it has more than `.*`, alternatives and escaped characters."""
    whole = [expression.removeprefix("^").removesuffix("$")]
    while any(group := [_GROUP.search(each) for each in whole]) and len(whole) < _MOST_PATTERNS:
        whole = [
            f"{each[: found.start()]}{part}{each[found.end() :]}" if found else each
            for each, found in zip(whole, group, strict=True)
            for part in (found[1].split("|") if found else [""])
        ]
    texts = [re.sub(r"\\(\W)", r"\1", each.replace(".*", "*").replace(".+", "?*")) for each in whole]
    return [] if any(re.search(r"[\\()|+{}^$]", each) for each in texts) else list(dict.fromkeys(texts))


def _edited(test: Mapping[str, Any], what: str, how: str) -> list[str]:
    """The names of dtypes, operators or modules that a test includes or excludes."""
    return _named(as_mapping(as_mapping(test.get("edits")).get(what)).get(how))


def _named(entries: Any) -> list[str]:
    """The names in a list of names, or of mappings with a name; a module's without the `torch.` that PyTorch leaves out."""
    names = (as_mapping(each).get("name") if isinstance(each, dict) else each for each in as_sequence(entries))
    return [name.removeprefix("torch.") for name in names if isinstance(name, str)]


def _tell_edits(test: Mapping[str, Any], left_out: list[str]) -> None:
    """Tell what no rule can say of a test: to make variants of it that PyTorch does not make, or to change it."""
    where = ", ".join(_names(test)[:2])
    for what, edit in as_mapping(test.get("edits")).items():
        for how in as_mapping(edit):
            if what not in ("dtypes", "ops", "modules") or how not in ("include", "exclude"):
                left_out.append(f"{where}: edits.{what}.{how}")
            elif how == "include":
                left_out.append(f"{where}: edits.{what}.include, where PyTorch does not make these variants itself")
    if test.get("selectors"):
        left_out.append(f"{where}: selectors")


def _modes(
    criteria: Mapping[str, Any], mode: str, test: Mapping[str, Any], device: _Device, reason: str
) -> Iterator[dict[str, Any]]:
    """The rules on variants of some tests. The last rule is about all that are left."""
    for what in ("dtypes", "ops", "modules"):
        if names := _edited(test, what, "exclude"):
            yield {**criteria, what: names, "mode": "skip", "reason": reason}
    expected = {"mode": mode} if mode == "must_pass" else {"mode": mode, "reason": reason}
    if mode == "skip":
        yield {**criteria, **expected}
        return
    if refused := [dtype for dtype in device.disputed if dtype not in _edited(test, "dtypes", "include")]:
        yield {**criteria, "dtypes": refused, "mode": "skip", "reason": "unsupported_dtype"}
    for what in (*device.supported, ""):
        names = [*device.supported[what], *_edited(test, what, "include")] if what else []
        some = {**criteria, what: list(dict.fromkeys(names))} if what else criteria
        for key, failing in device.expected_to_fail.items() if mode == "must_pass" else ():
            if key in ("dtypes", what):
                yield {**some, key: failing, "mode": "xfail", "reason": reason}
        yield {**some, **expected}
        if what:
            yield {**criteria, what: ["*"], "mode": "skip", "reason": _UNSUPPORTED[what]}


def _device(given: Mapping[str, Any], extra_dtypes: set[str], left_out: list[str]) -> _Device:
    supported = {what: _named(given.get(f"supported_{what}")) for what in ("dtypes", "ops", "modules")}
    expected_to_fail = {}
    for what in supported:
        details = [each for each in as_sequence(given.get(f"supported_{what}")) if isinstance(each, dict)]
        if names := _named([each for each in details if each.get("force_xfail") is True]):
            expected_to_fail[what] = names
        if count := sum("precision" in each for each in [*details, *_dtypes_of(details)]):
            left_out.append(f"global.supported_{what}: precision ({count} of them): see the key tolerances of a scope")
    left_out += [f"global.{key}" for key in given if key not in ("supported_dtypes", "supported_ops", "supported_modules")]
    known = supported.pop("dtypes")
    disputed = [dtype for dtype in _DTYPES if dtype in extra_dtypes and dtype not in known] if known else []
    return _Device({what: names for what, names in supported.items() if names}, expected_to_fail, disputed)


def _dtypes_of(entries: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield from map(as_mapping, as_sequence(entry.get("dtypes")))


def _excluded(given: Mapping[str, Any], extra_dtypes: set[str]) -> Iterator[dict[str, Any]]:
    """The rules for the dtypes that no test runs with: all that the device does not support, and more for some operators."""
    known = _named(given.get("supported_dtypes"))
    allowed: list[tuple[dict[str, Any], list[str]]] = [({}, known)]
    for what in ("ops", "modules"):
        entries = map(as_mapping, as_sequence(given.get(f"supported_{what}")))
        allowed += [({what: _named([entry])}, _named(entry.get("dtypes"))) for entry in entries]
    for criterion, dtypes in allowed:
        others = [dtype for dtype in (known if criterion and known else _DTYPES) if dtype not in {*dtypes, *extra_dtypes}]
        if dtypes and others:
            yield {**criterion, "dtypes": others, "reason": "unsupported_dtype"}
