"""Select a build's tests: those that pytest collects in the runtime image, without those out of scope.

Nothing disappears silently: an empty collection, an empty scope and a missing path are errors. Files that cannot be
collected are reported and expected under their own names, so that they count as failures.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pydantic import TypeAdapter

from accel_ci.config.scope_settings import Scope
from accel_ci.config.settings import UPSTREAM_TESTS, Suite
from accel_ci.errors import SelectionError
from accel_ci.model import Artifact, SelectedTest, SuiteSelection, TestSelection, WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.runner.collect_apart import MOST_HANGS, STATE
from accel_ci.scope.apply import apply_scope
from accel_ci.scope.each_file import CollectionCache, Document, Keys, files_below, merged
from accel_ci.scope.table import SCOPE, facts_table, write_scope
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.untrusted_file import UntrustedFileError, read_untrusted

_OUTPUT = "collected.json"
_MOST_BYTES = 512 << 20
_TRIES = 4  # of a collection that one of its files ends
_NO_GROUP = -1
_TESTS = TypeAdapter(list[SelectedTest])


class _Error(msgspec.Struct):
    path: str
    message: str


class _Fact(msgspec.Struct):
    values: list[str | list[str]]
    of: list[int]


class _Document(msgspec.Struct):
    """The document that `accel_ci.runner.collect_apart` writes."""

    tests: list[str]
    errors: list[_Error]
    groups: dict[str, str] = {}
    skipped: dict[str, str] = {}
    deselected: dict[str, int] = {}
    ignored: dict[str, str] = {}
    facts: dict[str, _Fact] = {}


Execute: TypeAlias = Callable[[Sequence[str], WorkerSpec, Path, float], Finished]
"""Run a command in the runtime image and wait for its end, with the sources to read, a folder to write to, and seconds."""


def select_tests(
    suites: Mapping[str, Suite],
    spec: WorkerSpec,
    runner: Path,
    artifacts: ArtifactStore,
    execute: Execute,
    timeout_s: float,
    cache: CollectionCache | None = None,
    *,
    none_enabled: bool = False,
) -> TestSelection:
    """Collect every suite and apply its scope rules. `timeout_s` is for the start of pytest and for each file.

    What files of PyTorch's repository hold is taken from the `cache` where it is there. With `none_enabled`, all tests of a
    suite may wait to be enabled.

    Raises `SelectionError` if a suite has nothing to test.
    """
    started = time.monotonic()
    selected: list[SelectedTest] = []
    reports: list[SuiteSelection] = []
    tables = [SCOPE.empty_table()]
    for name, suite in suites.items():
        found = _collect(name, suite, spec, runner, execute, timeout_s, cache)
        scope = apply_scope(name, suite.scope, found.facts)
        statuses = zip(found.tests, scope.table["status"].to_pylist(), strict=True)
        kept = [test for test, status in statuses if status == "enabled"]
        out_of_scope, not_enabled = scope.reasons("out_of_scope"), scope.reasons("not_enabled")
        files = [file for file, status in statuses_of(found.skipped, suite.scope).items() if status != "out_of_scope"]
        if not kept and not found.errors and not files and not (none_enabled and not_enabled):
            reasons = "; ".join(f"{count} {reason}" for reason, count in (out_of_scope | not_enabled).items())
            raise SelectionError(
                f"suite {name!r}: none of the {len(found.tests)} collected tests is in scope and enabled ({reasons}). "
                f"Widen suites.{name}.scope, or remove the suite from the job"
            )
        tables.append(scope.table)
        broken = tuple(f"{path}: {message}" for path, message in found.errors.items())
        skipped = {path: found.skipped[path] for path in files}
        counts = (len(found.tests), len(kept), out_of_scope, broken, found.left_out, skipped, not_enabled)
        reports.append(SuiteSelection(name, *counts, tolerances=scope.tolerances, empty_files=found.empty))
        # A file that cannot be collected, or skips itself, is expected under its own name, so that it does not vanish.
        selected += [SelectedTest(name, test, found.groups.get(test)) for test in (*kept, *found.errors, *files)]
    content = _TESTS.dump_json(selected, exclude_defaults=True)
    work_s = round(time.monotonic() - started, 3)
    scopes = write_scope(pa.concat_tables(tables), artifacts)
    return TestSelection(artifacts.put_bytes(content, "selection.json"), tuple(reports), work_s, scopes)


def statuses_of(tests: Iterable[str], scope: Scope) -> dict[str, str]:
    """The status of tests, or files, of which nothing but the ids is known."""
    ids = list(tests)
    statuses = apply_scope("", scope, facts_table(ids, {})).table["status"].to_pylist()
    return {test: str(status) for test, status in zip(ids, statuses, strict=True)}


def write_selection(tests: Sequence[SelectedTest], artifacts: ArtifactStore) -> Artifact:
    """Keep selected tests as an artifact."""
    return artifacts.put_bytes(_TESTS.dump_json(list(tests), exclude_defaults=True), "selection.json")


def read_selection(artifact: Artifact, artifacts: ArtifactStore) -> list[SelectedTest]:
    """Read the selected tests from their artifact."""
    return _TESTS.validate_json(artifacts.checked_path(artifact).read_bytes())


def _as_utf8(text: str) -> str:
    r"""A text with bytes that are not UTF-8 written as `\udcff`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class _Collected:
    """The node ids that pytest finds, the facts of the tests (columns of `FACTS`), and their groups.

    `errors` has pytest's message for each file that it cannot collect, `skipped` the reason of each that skips itself.
    `left_out` counts what pytest's own means leave out, by who does it. `empty` are the files without any of these.
    """

    tests: list[str]
    facts: pa.Table
    groups: dict[str, str]
    errors: dict[str, str]
    skipped: dict[str, str]
    left_out: dict[str, int]
    empty: tuple[str, ...]


def _collect(
    name: str,
    suite: Suite,
    spec: WorkerSpec,
    runner: Path,
    execute: Execute,
    timeout_s: float,
    cache: CollectionCache | None,
) -> _Collected:
    """Collect a suite in the runtime image. Raises `SelectionError`."""
    whose = "PyTorch's tests" if suite.is_of_pytorch else "the backend's sources"
    for path in suite.places:
        if not (Path(spec.root) / path).exists():
            raise SelectionError(f"suite {name!r}: {whose} have no {path!r}; correct suites.{name}.paths")
    session = spec.sessions[name]
    spec = replace(spec, environment={**spec.environment, **session.environment})
    if suite.source == "upstream" and session.isolate:
        document = _collect_each_file(name, suite, spec, runner, execute, timeout_s, cache)
    else:
        document = _run_collection(name, "collect", suite.places, spec, runner, execute, timeout_s, _as_document)
    facts = _facts(name, document)
    tests, errors = document.tests, {error.path: error.message for error in document.errors}
    unnamed = {test.partition("::")[0] for test in tests if not test.isascii() and _as_utf8(test) != test}
    for file in unnamed:  # no report, database or page can hold its name
        errors[_as_utf8(file)] = "the name of this file is not UTF-8; rename it"
    if unnamed:
        named = [test.partition("::")[0] not in unnamed for test in tests]
        facts, tests = facts.filter(pa.array(named)), [test for test, fine in zip(tests, named, strict=True) if fine]
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
    known = {test.partition("::")[0] for test in tests} | errors.keys() | skipped.keys() | document.ignored.keys()
    files = files_below(Path(spec.root), suite.places)
    empty = tuple(_as_utf8(file) for file in files if known.isdisjoint((file, *map(str, Path(file).parents))))
    return _Collected(tests, facts, document.groups, errors, skipped, dict(left_out), empty)


def _collect_each_file(
    name: str,
    suite: Suite,
    spec: WorkerSpec,
    runner: Path,
    execute: Execute,
    timeout_s: float,
    cache: CollectionCache | None,
) -> _Document:
    """Collect each file of a suite of PyTorch's repository by itself, unless it is known what it holds."""
    root = Path(spec.root)
    files = files_below(root, suite.places)
    keys = cache.find(root, root / UPSTREAM_TESTS, spec.sessions[name], runner, files) if cache is not None else Keys({})
    documents = keys.known()
    if missing := [file for file in files if file not in documents]:
        limit_s = timeout_s * (1 + len(missing) / 8)
        found = _run_collection(name, "collect-each", missing, spec, runner, execute, timeout_s, _as_documents, limit_s)
        keys.keep(found)
        documents |= found
    return _as_document(merged(documents[file] for file in files if file in documents))


_Read = TypeVar("_Read")


def _run_collection(
    name: str,
    command: str,
    paths: Sequence[str],
    spec: WorkerSpec,
    runner: Path,
    execute: Execute,
    timeout_s: float,
    read: Callable[[Any], _Read],
    limit_s: float = 0.0,
) -> _Read:
    """Run a command of the runner that collects paths, and return what it has written. Raises `SelectionError`."""
    with scratch_folder("collect") as scratch:
        folder = Path(scratch)
        output = folder / _OUTPUT
        options = [f"--pytest-arg={argument}" for argument in spec.sessions[name].pytest_args]
        arguments = [
            spec.python, str(shutil.copy(runner, folder)), command, "--limit", str(timeout_s), "--root", spec.root,
            "--output", str(output), *options, *paths,
        ]  # fmt: skip
        for _ in range(_TRIES):
            done = execute(arguments, spec, folder, max(limit_s, timeout_s * (MOST_HANGS + 1)))
            if os.path.lexists(output) or not os.path.lexists(f"{output}{STATE}"):
                break  # else a file has ended the command, which leaves it out the next time
        if done.status != 0 or not os.path.lexists(output):
            raise SelectionError(f"suite {name!r} cannot be collected in the runtime image:\n{done.tail}")
        return _read_output(name, folder, read)


def _as_document(record: Any) -> _Document:
    return msgspec.convert(record, _Document)


def _as_documents(record: Any) -> dict[str, Document]:
    """The documents of files as they were written, each of which is sound."""
    documents: dict[str, Document] = dict(record["files"])
    for document in documents.values():
        _as_document(document)
    return documents


def _read_output(suite: str, folder: Path, read: Callable[[Any], _Read]) -> _Read:
    """Read what a collection has written, which may be anything: the files of the suite ran meanwhile."""
    try:
        return read(json.loads(read_untrusted(folder, _OUTPUT, _MOST_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, UntrustedFileError, msgspec.ValidationError) as error:
        raise _tampered(suite, error) from error


def _facts(suite: str, document: _Document) -> pa.Table:
    """The facts of the tests, which anything may have written."""
    try:
        facts: dict[str, tuple[Sequence[Any], Sequence[int]]] = {
            name: (column.values, column.of) for name, column in document.facts.items()
        }
        groups = {name: place for place, name in enumerate(dict.fromkeys(document.groups.values()))}
        of = [groups.get(document.groups.get(test, ""), _NO_GROUP) for test in document.tests]
        facts["group"] = [_as_utf8(name) for name in groups], of
        return facts_table([_as_utf8(test) for test in document.tests], facts)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise _tampered(suite, error) from error


def _tampered(suite: str, error: Exception) -> SelectionError:
    problem = f"suite {suite!r}: its files have tampered with the result of the collection ({error})"
    return SelectionError(f"{problem}; find the file that does so, and leave it out by suites.{suite}.paths")
