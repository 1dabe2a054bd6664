"""Export a build's rows to other programs as JUnit XML, CSV or Parquet.

Only writing belongs here. `accel_ci.reports` reads the JUnit form back with the same verdicts: the result of a test case is
the attempt that decides its test's verdict, usually the last one, and other failures are `rerun…` or `flaky…` elements. So a
test that failed, and was skipped when it ran again, is a failure for every reader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO, Literal
from xml.sax.saxutils import quoteattr

import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from accel_ci.model import FAILING_OUTCOMES, Build, Outcome
from accel_ci.results.questions import stored_suites
from accel_ci.results.rows import ATTEMPTS
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite

Format = Literal["junit", "csv", "parquet"]

_BATCH_ROWS = 1 << 14
_DECIDES: tuple[Outcome, ...] = ("passed", "xpassed", "failed", "xfailed", "skipped", "not_run")
"""Outcomes by the order in which they decide a verdict (`accel_ci.results.rollups`); `failed` stands for all failures."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def export(store: ResultsStore, build: Build, target: BinaryIO, form: Format, suite: str | None = None) -> int:
    """Write the attempts of a build, or of one of its suites, to a binary file and return the number of rows.

    Raises `AccelCiError` if nothing is stored for it.
    """
    suites = stored_suites(store, build, suite)
    if form == "junit":
        return _write_junit(store, suites, target)
    rows = 0
    open_writer = pacsv.CSVWriter if form == "csv" else partial(pq.ParquetWriter, compression="zstd")
    with open_writer(target, ATTEMPTS) as writer:
        for stored in suites:
            table = store.read(stored)
            writer.write_table(table)
            rows += len(table)
    return rows


def _write_junit(store: ResultsStore, suites: Sequence[StoredSuite], target: BinaryIO) -> int:
    rows = 0
    target.write(b'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n')
    for stored in suites:
        table = store.read(stored)
        rows += len(table)
        tests = len(table["test"].unique())
        target.write(f'<testsuite name={_quoted(stored.suite)} tests="{tests}">\n'.encode())
        every = (row for batch in table.to_batches(max_chunksize=_BATCH_ROWS) for row in batch.to_pylist())
        for _, attempts in groupby(every, key=lambda row: row["test"]):
            target.write(_case(list(attempts)).encode())
        target.write(b"</testsuite>\n")
    target.write(b"</testsuites>\n")
    return rows


def _case(attempts: Sequence[dict[str, Any]]) -> str:
    last = min(reversed(_deciding(attempts)), key=_place)
    others = [row for row in attempts if row is not last and row["outcome"] in FAILING_OUTCOMES]
    classname, name, file = _identity(last)
    head = f"<testcase classname={_quoted(classname)} name={_quoted(name)}"
    if file is not None:
        head += f" file={_quoted(file)}"
    if last["duration_s"] is not None:
        head += f' time="{last["duration_s"]:.6f}"'
    if last["outcome"] == "not_run":
        head += ' status="notrun"'
    kind = "rerun" if last["outcome"] in FAILING_OUTCOMES else "flaky"
    body = [_element(f"{kind}{_element_of(row)[1]}", row) for row in others]
    body += _result(last)
    known = {key: last[key] for key in ("card", "host", "worker", "infra") if last[key] is not None}
    if known:
        properties = "".join(f'<property name="{key}" value={_quoted(value)}/>' for key, value in known.items())
        body.insert(0, f"<properties>{properties}</properties>")
    return f"{head}>{''.join(body)}</testcase>\n" if body else f"{head}/>\n"


def _deciding(attempts: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The attempts of which one decides the verdict: the failures of a test that did not pass as often, else all."""
    failures = [row for row in attempts if row["outcome"] in FAILING_OUTCOMES and row["infra"] is None]
    passes = [row for row in attempts if row["outcome"] in ("passed", "xpassed") and row["infra"] is None]
    return failures if len(failures) > len(passes) else attempts


def _place(row: dict[str, Any]) -> float:
    """The place of an attempt in `_DECIDES`; a failure that the infrastructure caused comes between xfails and skips."""
    failed = row["outcome"] in FAILING_OUTCOMES
    place = _DECIDES.index("failed" if failed else row["outcome"])
    return _DECIDES.index("skipped") - 0.5 if failed and row["infra"] is not None else place


def _result(row: dict[str, Any]) -> list[str]:
    outcome = row["outcome"]
    if outcome in FAILING_OUTCOMES:
        return [_element(_element_of(row)[0], row)]
    if outcome == "xpassed":
        return ['<skipped message="xfail-marked test passes unexpectedly"/>']
    if outcome in ("skipped", "xfailed"):
        kind = "pytest.xfail" if outcome == "xfailed" else "pytest.skip"
        return [f'<skipped type="{kind}" message={_quoted(row["message"] or "")}/>']
    return []


def _element_of(row: dict[str, Any]) -> tuple[str, str]:
    """The element name of a failure, and the ending of that of an earlier attempt."""
    return ("failure", "Failure") if row["outcome"] == "failed" else ("error", "Error")


def _element(name: str, row: dict[str, Any]) -> str:
    """A failure element. JUnit has no crashes or timeouts: readers recognise them by the message and the type."""
    kind, message = row["outcome"], row["message"] or ""
    if kind == "crashed":
        message = f"{message} (worker 'accel-ci' crashed while running)".strip()
    elif kind == "timeout":
        kind = "accel_ci.TestTimedOutException"
    return f'<{name} type="{kind}" message={_quoted(message)}/>'


def _identity(row: dict[str, Any]) -> tuple[str, str, str | None]:
    """The class name, name and file of a test from its report, else as pytest's JUnit writer derives them."""
    if row["name"] is not None:
        return row["classname"] or "", row["name"], row["file"]
    front, bracket, rest = str(row["test"]).partition("[")
    file, *middle = front.split("::")
    if not middle:
        return "", row["test"], None
    dotted = file.removesuffix(".py").replace("/", ".")
    return ".".join([dotted, *middle[:-1]]), middle[-1] + bracket + rest, file


def _quoted(text: str) -> str:
    r"""Quote an attribute's value; characters that XML cannot hold become `\u{H}`."""
    shown = _NOT_XML.sub(lambda found: f"\\u{{{ord(found[0]):X}}}", text)
    return quoteattr(shown, {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})
