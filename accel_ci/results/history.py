"""What tests did over the last days: medians of durations, and sums that cost what is new.

Sums of earlier calls are kept in the store (`windows/<days>/<variant>~<suite>.arrow`) and brought up to date.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import date, timedelta

import pyarrow as pa

from accel_ci.results.columns import kernels, pairs
from accel_ci.results.rollups import Rollup
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again, encoded, parse_entry
from accel_ci.results.windows import add_up, medians, names

_COVERS = b"accel_ci.covers.3"  # another number when `SUMS` changes


@ask_again
def median_durations(store: ResultsStore, variant: str, today: date, window_days: int = 30) -> dict[tuple[str, str], float]:
    """The median seconds of each (suite, test) of a variant over its builds of the window.

    A build counts with the median of the attempts that ended by themselves and were not lost to the infrastructure.
    """
    found: dict[tuple[str, str], float] = {}
    for (_, suite), suites in _by_suite(store, today, window_days, variant).items():
        rollups = _closed_rollups(store, suites)
        table = medians(rollups)
        table = table.filter(kernels.is_valid(table["median_s"]))
        tests = dict(pairs(names(rollups[::-1], table["key"].combine_chunks()), "key", "test"))
        found |= {(suite, tests[key]): seconds for key, seconds in pairs(table, "key", "median_s")}
    return found


@ask_again
def window_sums(store: ResultsStore, today: date, window_days: int) -> dict[tuple[str, str], pa.Table]:
    """The sums (columns of `accel_ci.results.windows.SUMS`) over a window of each variant and suite.

    The cost is that of the builds which are new and of those which left the window since the last call.
    """
    groups = _by_suite(store, today, window_days)
    return {
        (variant, suite): _sums(store, variant, suite, suites, window_days) for (variant, suite), suites in groups.items()
    }


def _closed_rollups(store: ResultsStore, suites: Sequence[StoredSuite]) -> list[Rollup]:
    return [rollup.closed() for rollup in store.rollups(suites)]


def _by_suite(
    store: ResultsStore, today: date, window_days: int, variant: str | None = None
) -> dict[tuple[str, str], list[StoredSuite]]:
    groups: defaultdict[tuple[str, str], list[StoredSuite]] = defaultdict(list)
    for stored in store.suites(today - timedelta(days=window_days), today, variant=variant):
        groups[stored.build.variant, stored.suite].append(stored)
    return dict(sorted(groups.items()))


def _sums(store: ResultsStore, variant: str, suite: str, suites: Sequence[StoredSuite], window_days: int) -> pa.Table:
    """The window's sums: those that are kept, with what is new added and what has left taken away."""
    name = f"windows/{window_days}/{encoded(variant)}~{encoded(suite)}.arrow"
    covers = {stored.entry.name: stored.entry.version for stored in suites}
    before = _kept_sums(store, name)
    kept: dict[str, str] = json.loads(before.schema.metadata[_COVERS]) if before is not None else {}
    if before is not None and kept == covers:
        return before
    added = [stored for stored in suites if kept.get(stored.entry.name) != stored.entry.version]
    expired = [_unchanged(store, name, version) for name, version in kept.items() if covers.get(name) != version]
    older = max(covers) < max(kept, default="")  # a question about the past
    if before is None or older or None in expired or len(added) + len(expired) > len(suites):
        before, added, expired = None, list(suites), []
    gone = [stored for stored in expired if stored is not None]
    sums = add_up(before, _closed_rollups(store, added), _closed_rollups(store, gone))
    if not older:
        _keep_sums(store, name, sums, covers)
    return sums


def _kept_sums(store: ResultsStore, name: str) -> pa.Table | None:
    entry = store.objects.find(name)
    try:
        sums = None if entry is None else pa.ipc.open_file(pa.memory_map(str(store.objects.fetch(entry)))).read_all()
    except (OSError, pa.ArrowException):
        return None
    return sums if sums is not None and _COVERS in (sums.schema.metadata or {}) else None


def _keep_sums(store: ResultsStore, name: str, sums: pa.Table, covers: dict[str, str]) -> None:
    sums = sums.replace_schema_metadata({_COVERS: json.dumps(covers, sort_keys=True)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, sums.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(sums)
    store.objects.put(name, sink.getvalue())


def _unchanged(store: ResultsStore, name: str, version: str) -> StoredSuite | None:
    """The suite of that name, None when its content is another or it is gone."""
    entry = store.objects.find(name)
    return parse_entry(entry) if entry is not None and entry.version == version else None
