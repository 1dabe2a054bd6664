"""Select a build's tests: those that pytest collects in the runtime image, without those out of scope.

Nothing disappears silently: an empty collection, an empty scope and a missing path are errors. Files that cannot be
collected are reported and expected under their own names, so that they count as failures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
from pydantic import TypeAdapter

from accel_ci.config.settings import Scope, Suite
from accel_ci.errors import SelectionError
from accel_ci.model import Artifact, SelectedTest, SuiteSelection, TestSelection, WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.runner.collect_apart import MOST_HANGS, STATE
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.untrusted_file import UntrustedFileError, read_untrusted

_OUTPUT = "collected.json"
_MOST_BYTES = 512 << 20
_TRIES = 4  # of a collection that one of its files ends
NOT_INCLUDED = "matches no pattern of scope.include"
_TESTS = TypeAdapter(list[SelectedTest])


class _Error(msgspec.Struct):
    path: str
    message: str


class _Document(msgspec.Struct):
    """The document that `accel_ci.runner.collect_apart` writes."""

    tests: list[str]
    errors: list[_Error]
    groups: dict[str, str] = {}
    skipped: dict[str, str] = {}
    deselected: dict[str, int] = {}
    ignored: dict[str, str] = {}


Execute: TypeAlias = Callable[[Sequence[str], WorkerSpec, Path, float], Finished]
"""Run a command in the runtime image and wait for its end, with the sources to read, a folder to write to, and seconds."""


def select_tests(
    suites: Mapping[str, Suite], spec: WorkerSpec, runner: Path, artifacts: ArtifactStore, execute: Execute, timeout_s: float
) -> TestSelection:
    """Collect every suite and apply its scope rules. `timeout_s` is for the start of pytest and for each file.

    Raises `SelectionError` if a suite has nothing to test.
    """
    started = time.monotonic()
    selected: list[SelectedTest] = []
    reports: list[SuiteSelection] = []
    for name, suite in suites.items():
        found = _collect(name, suite, spec, runner, execute, timeout_s)
        kept, out_of_scope = in_scope(found.tests, suite.scope)
        files, _ = in_scope(found.skipped, suite.scope)
        if not kept and not found.errors and not files:
            reasons = "; ".join(f"{count} {reason}" for reason, count in out_of_scope.items())
            raise SelectionError(
                f"suite {name!r}: none of the {len(found.tests)} collected tests is in scope ({reasons}). "
                f"Widen suites.{name}.scope, or remove the suite from the job"
            )
        broken = tuple(f"{path}: {message}" for path, message in found.errors.items())
        skipped = {path: found.skipped[path] for path in files}
        reports.append(SuiteSelection(name, len(found.tests), len(kept), out_of_scope, broken, found.left_out, skipped))
        # A file that cannot be collected, or skips itself, is expected under its own name, so that it does not vanish.
        selected += [SelectedTest(name, test, found.groups.get(test)) for test in (*kept, *found.errors, *files)]
    content = _TESTS.dump_json(selected, exclude_defaults=True)
    work_s = round(time.monotonic() - started, 3)
    return TestSelection(artifacts.put_bytes(content, "selection.json"), tuple(reports), work_s)


def in_scope(tests: Iterable[str], scope: Scope) -> tuple[tuple[str, ...], dict[str, int]]:
    """The node ids in scope, in order, and the number of tests left out for each reason."""
    included = [_pattern(text) for text in scope.include]
    excluded = [(_pattern(text), rule.reason) for rule in scope.exclude for text in rule.tests]
    kept: list[str] = []
    left_out: Counter[str] = Counter()
    for test in tests:
        reason = _reason(test, included, excluded)
        if reason is None:
            kept.append(test)
        else:
            left_out[reason] += 1
    return tuple(kept), dict(left_out)


def _reason(test: str, included: Sequence[re.Pattern[str]], excluded: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    if not any(pattern.fullmatch(test) for pattern in included):
        return NOT_INCLUDED
    return next((reason for pattern, reason in excluded if pattern.fullmatch(test)), None)


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern: `*` and `?` are wildcards; brackets are literal, because node ids hold parameters in them."""
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def read_selection(artifact: Artifact, artifacts: ArtifactStore) -> list[SelectedTest]:
    """Read the selected tests from their artifact."""
    return _TESTS.validate_json(artifacts.checked_path(artifact).read_bytes())


def _as_utf8(text: str) -> str:
    r"""A text with bytes that are not UTF-8 written as `\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class _Collected:
    """The node ids that pytest finds, and the groups of tests.

    `errors` has pytest's message for each file that it cannot collect, `skipped` the reason of each that skips itself.
    `left_out` counts what pytest's own means leave out, by who does it.
    """

    tests: list[str]
    groups: dict[str, str]
    errors: dict[str, str]
    skipped: dict[str, str]
    left_out: dict[str, int]


def _collect(name: str, suite: Suite, spec: WorkerSpec, runner: Path, execute: Execute, timeout_s: float) -> _Collected:
    """Collect a suite in the runtime image. Raises `SelectionError`."""
    for path in suite.paths:
        if not (Path(spec.root) / path).exists():
            raise SelectionError(f"suite {name!r}: the backend's sources have no {path!r}; correct suites.{name}.paths")
    with scratch_folder("collect") as scratch:
        folder = Path(scratch)
        output = folder / _OUTPUT
        program = str(shutil.copy(runner, folder))
        options = [f"--pytest-arg={argument}" for argument in spec.sessions[name].pytest_args]
        command = [
            spec.python, program, "collect", "--limit", str(timeout_s), "--root", spec.root, "--output", str(output),
            *options, *suite.paths,
        ]  # fmt: skip
        for _ in range(_TRIES):
            done = execute(command, spec, folder, timeout_s * (MOST_HANGS + 1))
            if os.path.lexists(output) or not os.path.lexists(f"{output}{STATE}"):
                break  # else a file has ended the command, which leaves it out the next time
        if done.status != 0 or not os.path.lexists(output):
            raise SelectionError(f"suite {name!r} cannot be collected in the runtime image:\n{done.tail}")
        document = _read_document(name, folder)
    tests, errors = document.tests, {error.path: error.message for error in document.errors}
    unnamed = {test.partition("::")[0] for test in tests if _as_utf8(test) != test}
    for file in unnamed:  # no report, database or page can hold its name
        tests = [test for test in tests if test.partition("::")[0] != file]
        errors[_as_utf8(file)] = "the name of this file is not UTF-8; rename it"
    errors = {_as_utf8(path): _as_utf8(message) for path, message in errors.items()}
    skipped = {_as_utf8(path): _as_utf8(reason) for path, reason in document.skipped.items()}
    skipped = {path: reason for path, reason in skipped.items() if path not in errors and path not in set(tests)}
    left_out = Counter({_as_utf8(who): count for who, count in document.deselected.items()})
    left_out.update(_as_utf8(who) for who in document.ignored.values())
    if not tests and not unnamed and not skipped:
        details = "".join(f"\n{path}: {message}" for path, message in errors.items())
        raise SelectionError(
            f"suite {name!r}: pytest collected no tests from {', '.join(suite.paths)}; a build without tests is never "
            f"green. Check suites.{name}.paths and the pytest_args{details}"
        )
    return _Collected(tests, document.groups, errors, skipped, dict(left_out))


def _read_document(suite: str, folder: Path) -> _Document:
    """Read what a collection has written, which may be anything: the files of the suite ran meanwhile."""
    try:
        record = json.loads(read_untrusted(folder, _OUTPUT, _MOST_BYTES))
        return msgspec.convert(record, _Document)
    except (OSError, ValueError, RecursionError, UntrustedFileError, msgspec.ValidationError) as error:
        problem = f"suite {suite!r}: its files have tampered with the result of the collection ({error})"
        raise SelectionError(f"{problem}; find the file that does so, and leave it out by suites.{suite}.paths") from error
