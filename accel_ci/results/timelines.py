"""The passes and failures of a suite's tests in one build after the other, kept in the store between nights.

    timelines/<variant>~<suite>~passes.arrow      the passed attempts of every test, a column per build
    timelines/<variant>~<suite>~failures.arrow    a row per test and build with a failed attempt

Only builds that are new since the last time are read. Both files name the builds that they cover; files that differ, or that
cannot be read, are made anew. Cached results do not count: they say nothing of how often a test fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from accel_ci.results.columns import conform, constant, kernels, one_chunk, pairs, schema_of
from accel_ci.results.history import names
from accel_ci.results.kept_tables import keep_table, read_kept_table
from accel_ci.results.rollups import Rollup
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, encoded
from accel_ci.results.threads import prefetch

if TYPE_CHECKING:
    import numpy as np

    Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

FAILURES = schema_of(entry=pa.string(), key=pa.uint64(), test=pa.string(), failures=pa.int32(), signature=pa.string())
"""`entry` is the name of the stored suite, `key` the test's key; `signature` is the last failure's."""

MOST_PASSES = 255
"""Passed attempts of a test in one build are counted up to this."""

_READ = ["key", "failures", "passes", "signature", "cached"]
_LAYOUT = b"accel_ci.timelines.1"  # another number when the columns or what they mean change


@dataclass(frozen=True)
class Timeline:
    """The tests of a suite that failed in some builds. Shape of the arrays: tests x builds.

    `signatures` has places in `signature_names`, and -1 where there was no failure.
    """

    tests: tuple[str, ...]
    keys: Numbers
    failures: Numbers
    passes: Numbers
    signatures: Numbers
    signature_names: tuple[str, ...]


@dataclass(frozen=True)
class _Counts:
    """The passes of all tests by `keys` and stored suite, and the failures (columns of `FAILURES`)."""

    keys: Numbers
    passes: Mapping[str, Numbers]
    failures: pa.Table
    covers: Mapping[str, str]


def read_timeline(store: ResultsStore, variant: str, suite: str, suites: Sequence[StoredSuite]) -> Timeline:
    """Return what the tests of a suite did in some builds of a variant, given in their order.

    Builds whose results are damaged are left out, which is logged.
    """
    name = f"timelines/{encoded(variant)}~{encoded(suite)}"
    wanted = {stored.entry.name: stored.entry.version for stored in suites}
    kept = _kept(store, name)
    counts = _without(kept, [entry for entry, version in kept.covers.items() if wanted.get(entry) != version])
    counts = _add(counts, store, [stored for stored in suites if stored.entry.name not in counts.covers])
    is_about_the_past = max(wanted, default="") < max(kept.covers, default="")
    if counts.covers != kept.covers and not is_about_the_past:
        _keep(store, name, counts)
    return _timeline(counts, list(wanted))


def _without(counts: _Counts, gone: Sequence[str]) -> _Counts:
    """Drop stored suites, and the tests that no other has."""
    import numpy as np

    if not gone:
        return counts
    passes = {entry: column for entry, column in counts.passes.items() if entry not in gone}
    failures = counts.failures.filter(kernels.invert(kernels.is_in(counts.failures["entry"], pa.array(gone, pa.string()))))
    is_there = np.isin(counts.keys, one_chunk(failures["key"]).to_numpy())
    for column in passes.values():
        is_there |= column > 0
    passes = {entry: column[is_there] for entry, column in passes.items()}
    return _Counts(counts.keys[is_there], passes, failures, {entry: counts.covers[entry] for entry in passes})


def _add(counts: _Counts, store: ResultsStore, suites: Sequence[StoredSuite]) -> _Counts:
    """Add the results of stored suites."""
    import numpy as np

    keys, passes, failures, covers = counts.keys, dict(counts.passes), [counts.failures], dict(counts.covers)
    rollups = store.open_rollups(suites)
    tables = prefetch(lambda each: each[1].table(_READ), rollups)
    for (stored, _), rows in zip(rollups, tables, strict=True):
        rows = rows.filter(kernels.invert(kernels.fill_null(rows["cached"], False)))
        here = one_chunk(rows["key"]).to_numpy()
        if not np.array_equal(here, keys):
            union = np.union1d(keys, here)
            places = np.searchsorted(union, keys)
            passes = {entry: _spread(column, places, len(union)) for entry, column in passes.items()}
            keys = union
        count = kernels.min_element_wise(rows["passes"], MOST_PASSES).cast(pa.uint8())
        passes[stored.entry.name] = _spread(one_chunk(count).to_numpy(), np.searchsorted(keys, here), len(keys))
        covers[stored.entry.name] = stored.entry.version
        wrong = rows.filter(kernels.greater(rows["failures"], 0))
        wrong = wrong.append_column("entry", constant(stored.entry.name, len(wrong), pa.string()))
        failures.append(conform(wrong, FAILURES))
    return _Counts(keys, passes, _with_names(pa.concat_tables(failures), [rollup for _, rollup in rollups]), covers)


def _spread(column: Numbers, places: Numbers, length: int) -> Numbers:
    """Put a column's values at some places of a longer one of zeros."""
    import numpy as np

    found = np.zeros(length, column.dtype)
    found[places] = column
    return found


def _with_names(failures: pa.Table, rollups: Sequence[Rollup]) -> pa.Table:
    """Name the tests that have no name yet, and drop those whose names cannot be read."""
    is_new = kernels.is_null(failures["test"])
    if not kernels.any(is_new).as_py():
        return failures
    named = failures.filter(kernels.invert(is_new))
    known = dict(pairs(named, "key", "test"))
    missing = kernels.unique(failures.filter(is_new)["key"])
    missing = missing.filter(kernels.invert(kernels.is_in(missing, one_chunk(named["key"]))))
    known |= dict(pairs(names(rollups[::-1], missing), "key", "test"))
    tests: pa.Array[Any] = pa.array([known.get(key) for key in failures["key"].to_pylist()], pa.string())
    found = failures.set_column(failures.schema.get_field_index("test"), "test", tests)
    return found.filter(kernels.is_valid(found["test"]))


def _timeline(counts: _Counts, entries: Sequence[str]) -> Timeline:
    """Make the arrays of the tests that failed."""
    import numpy as np

    cells = counts.failures
    by_test = cells.group_by("test").aggregate([("key", "min")]).sort_by("test")
    tests = tuple(map(str, by_test["test"].to_pylist()))
    shape = len(tests), len(entries)
    failures, passes, signatures = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    keys = one_chunk(by_test["key_min"]).to_numpy()
    rows_of_tests = np.searchsorted(counts.keys, keys)
    for column, entry in enumerate(entries):
        if entry in counts.passes:
            passes[:, column] = counts.passes[entry][rows_of_tests]
    rows = one_chunk(kernels.index_in(cells["test"], one_chunk(by_test["test"]))).to_numpy()
    columns = one_chunk(kernels.index_in(cells["entry"], pa.array(entries, pa.string()))).to_numpy()
    failures[rows, columns] = one_chunk(cells["failures"]).to_numpy()
    coded = one_chunk(cells["signature"]).dictionary_encode()
    signatures[rows, columns] = kernels.fill_null(coded.indices, -1).to_numpy()
    return Timeline(tests, keys, failures, passes, signatures, tuple(map(str, coded.dictionary.to_pylist())))


def _kept(store: ResultsStore, name: str) -> _Counts:
    """Read what is kept; nothing where it is missing, damaged or not of one time."""
    import numpy as np

    passes, failures = (read_kept_table(store.objects, f"{name}~{kind}.arrow", _LAYOUT) for kind in ("passes", "failures"))
    if passes is None or failures is None or passes[1] != failures[1]:
        return _Counts(np.zeros(0, np.uint64), {}, FAILURES.empty_table(), {})
    table, covers = passes
    columns = {entry: one_chunk(table[entry]).to_numpy() for entry in covers}
    return _Counts(one_chunk(table["key"]).to_numpy(), columns, failures[0], covers)


def _keep(store: ResultsStore, name: str, counts: _Counts) -> None:
    passes = pa.table({"key": counts.keys, **{entry: counts.passes[entry] for entry in counts.covers}})
    for kind, table in (("passes", passes), ("failures", counts.failures.combine_chunks())):
        keep_table(store.objects, f"{name}~{kind}.arrow", _LAYOUT, table, counts.covers)
