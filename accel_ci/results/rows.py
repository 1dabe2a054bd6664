"""The rows of the attempts dataset: their schema, and how attempts and report rows become them, a column at a time.

Here belong shapes and conversions. Where rows are kept is `accel_ci.results.store`'s part, what a test's rows amount to
`accel_ci.results.rollups`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any, cast

import pyarrow as pa

from accel_ci.model import FAILING_OUTCOMES, Build
from accel_ci.redaction import OF_THIS_PROCESS, redact
from accel_ci.results.columns import Column, conform, constant, kernels, one_chunk, release_memory, repeats, schema_of
from accel_ci.results.signature import signatures
from accel_ci.results.threads import order_of, prefetch

ATTEMPTS = schema_of(
    revision=pa.string(), variant=pa.string(), suite=pa.string(), test=pa.string(),
    classname=pa.string(), name=pa.string(), file=pa.string(), target=pa.string(),
    round=pa.int32(), attempt=pa.int32(), outcome=pa.string(),
    started_at=pa.timestamp("us", tz="UTC"), duration_s=pa.float64(), message=pa.string(), signature=pa.string(),
    card=pa.string(), host=pa.string(), worker=pa.string(),
    infra=pa.string(), cached=pa.bool_(), output_tail=pa.string(),
)  # fmt: skip
"""A row is one attempt. `test` is its canonical id; `classname`, `name`, `file` and `target` are a report's own words, null
for the runner's attempts. `attempt` counts from 0 within a round, `round` from 1. `started_at` is UTC, `duration_s` seconds.
`signature` is there for failures that have a message. `cached` rows stand for an earlier build's attempt; null (files of
earlier versions) is false."""

_PRINTED = ("message", "output_tail", "infra")

_SLICES, _SLICE_ROWS = 16, 1 << 14
"""Rows are made, written and judged in about so many slices of a long report, of at least so many rows."""

REPORT = pa.schema([field for field in ATTEMPTS if field.name not in ("revision", "variant", "suite", "signature")])
"""An attempt as a report has it; missing columns are null. `test` is there where the report has the canonical id
itself, as the runner does."""

REPORT_ORDER = "report"
"""A further column of a report table: the place of its file among the files of one test job, which orders attempts."""


def from_report(
    build: Build, suite: str, report: pa.Table, started_at: datetime | None = None, slice_rows: int | None = None
) -> Iterator[pa.Table]:
    """The rows of a report, in the order of tests, a slice of whole tests after the other (some `slice_rows` rows each).

    Where it is not said, slices grow with the report: each has its price in calls.

    The report has columns of `REPORT`, and `REPORT_ORDER` when it was read from several files. `test` is the canonical id,
    so that one test has one id whoever reports it:

    * with a file whose dotted path begins the classname, pytest's node id: `tests/test_a.py::TestB::test_c[0]`;
    * with any other file, `<file>::<classname>::<name>`; without one, `<classname>::<name>`; no `::` for an empty classname;
    * with a Bazel target, `<target>::` before all that, and no classname that only repeats it.

    Where attempts of a test and round have no numbers of their own, or several files number them, they are counted in the
    order of the files and of the rows. A row that does not say so is of round 1 and began at `started_at`.
    """
    order = one_chunk(report[REPORT_ORDER]) if REPORT_ORDER in report.column_names else constant(0, len(report), pa.int32())
    there = pa.schema([field for field in REPORT if field.name in report.column_names])
    columns = {name: one_chunk(column) for name, column in zip(there.names, conform(report, there).columns, strict=True)}
    columns |= {name: redacted(columns[name]) for name in _PRINTED if name in columns}
    columns["test"] = _canonical(columns)
    for name, default in {"round": 1, "attempt": 0, "started_at": started_at}.items():
        column, kind = columns.get(name), REPORT.field(name).type
        columns[name] = (
            constant(default, len(report), kind) if column is None else kernels.fill_null(column, pa.scalar(default, kind))
        )
    del report
    by = order_of(columns["test"], columns["round"], order, columns["attempt"])
    said = {name: column for name, column in columns.items() if column.null_count < max(1, len(column))}
    rows = pa.RecordBatch.from_pydict(said)  # of which taking is faster than of a table
    del columns, said, order
    release_memory()
    slice_rows = slice_rows or max(_SLICE_ROWS, len(by) // _SLICES)

    def of_tests(cut: tuple[int, int]) -> pa.Table:
        begin, end = cut
        found = pa.Table.from_batches([rows.take(by[begin:end])])
        place = found.schema.get_field_index("attempt")
        return _finish(build, suite, found.set_column(place, "attempt", _numbered_on(found)))

    yield from prefetch(of_tests, pairwise(_cuts(rows["test"], by, slice_rows)))


def redacted(column: pa.Array[Any]) -> pa.Array[Any]:
    """Take secrets out of what tests have printed; their ids stay, since other tables name the tests by them."""
    pattern = OF_THIS_PROCESS.pattern
    if pattern is None or not kernels.any(kernels.match_substring_regex(column, pattern)).as_py():
        return column
    clean: pa.Array[Any] = pa.array([None if text is None else redact(text) for text in column.to_pylist()], column.type)
    return clean


def _canonical(report: Mapping[str, pa.Array[Any]]) -> pa.Array[Any]:
    """The canonical ids of a report's rows. What stands before the name is put together once for all tests of a class."""
    known = report.get("test")
    if known is not None and not known.null_count:
        return known
    codes, places = [], constant(0, len(report["name"]), pa.int64())
    for name in ("target", "file", "classname"):
        if name not in report:
            codes.append([None])
            continue
        encoded: Any = report[name].dictionary_encode("encode")
        codes.append(encoded.dictionary.to_pylist())
        places = kernels.add(kernels.multiply(places, len(codes[-1])), encoded.indices)
    classes: Any = places.dictionary_encode()
    prefixes = []
    for place in classes.dictionary.to_pylist():
        place, of_classname = divmod(place, len(codes[2]))
        of_target, of_file = divmod(place, len(codes[1]))
        prefixes.append(prefix_of(codes[0][of_target], codes[1][of_file], codes[2][of_classname]))
    before = pa.array(prefixes, pa.string()).take(classes.indices)
    tests = kernels.binary_join_element_wise(before, report["name"], "", null_handling="skip")
    return cast(
        "pa.Array[Any]", tests if known is None or known.null_count == len(known) else kernels.coalesce(known, tests)
    )


def prefix_of(target: str | None, file: str | None, classname: str | None) -> str:
    """The part before the name in the canonical id of a report's test: see `from_report`."""
    parts = [target] if target is not None else []
    if file is not None:
        module = file.removesuffix(".py").replace("\\", "/").replace("/", ".")
        inner = (classname or "").removeprefix(module)
        parts.append(file)
        if inner.startswith(".") and inner != classname:
            parts.append(inner[1:].replace(".", "::"))
        elif inner:
            parts.append(classname or "")
    elif classname and classname != target:
        parts.append(classname)
    return "".join(f"{part}::" for part in parts)


def _cuts(tests: Column, by: pa.Array[Any], slice_rows: int) -> Iterator[int]:
    """The places at which to cut rows that are in the order `by`, so that no test is cut."""
    cut = 0
    while cut < len(by):
        yield cut
        cut = min(cut + slice_rows, len(by))
        while cut < len(by) and tests[by[cut].as_py()].equals(tests[by[cut - 1].as_py()]):
            cut += 1
    yield cut


def _finish(build: Build, suite: str, rows: pa.Table) -> pa.Table:
    """Add the signatures and what is the same for all rows."""
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names}
    for name, value in {"revision": build.revision, "variant": build.variant, "suite": suite}.items():
        columns[name] = constant(value, len(rows), pa.string())
    if "message" in columns:
        failed = kernels.is_in(rows["outcome"], pa.array(sorted(FAILING_OUTCOMES)))  # whoever is to blame
        columns["signature"] = signatures(kernels.if_else(failed, rows["message"], pa.scalar(None, pa.string())))
    return conform(pa.table(columns), ATTEMPTS)


def _numbered_on(rows: pa.Table) -> Column:
    """The attempts of sorted rows; those of a test and round in which they do not rise are counted anew."""
    tests, rounds, attempts = (rows[name].combine_chunks() for name in ("test", "round", "attempt"))
    same = kernels.and_(repeats(tests), repeats(rounds))
    again = kernels.and_(same, kernels.less_equal(attempts[1:], attempts[:-1]))
    if not kernels.any(again).as_py():
        return rows["attempt"]
    several = kernels.is_in(tests, kernels.unique(tests[1:].filter(again)))
    identities = zip(*(column.filter(several).to_pylist() for column in (tests, rounds)), strict=True)
    numbers = [number for _, group in groupby(identities) for number, _ in enumerate(group)]
    found: Column = kernels.replace_with_mask(attempts, several, pa.array(numbers, pa.int32()))
    return found
