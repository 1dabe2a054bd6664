"""The addresses of all tests for the search, in order, and the newest state of each as a letter.

    <site>/data/names/<n>.js     addresses, `<suite>/<test>`, a line each
    <site>/data/states.js        a letter for each, in the same order
    <state>/names.arrow          the same with keys, so that they are written only if there are others

A test that two suites have is there twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from accel_ci.hud.data.letters import ABSENT, LETTERS, Numbers, letters_of
from accel_ci.hud.data.scripts import write_script
from accel_ci.hud.data.week import Week
from accel_ci.model import Verdict, trigger_of_key
from accel_ci.quality.grid import LINE
from accel_ci.results.columns import constant, kernels, one_chunk, schema_of
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, encoded
from accel_ci.storage.atomic_file import write_whole_file

NAMES = schema_of(suite=pa.string(), key=pa.uint64(), address=pa.string())
"""In the order of addresses."""

A_FILE = 40_000
"""The number of addresses in a script."""

_LAYOUT = b"accel_ci.names.1"  # another number when the table or the scripts are of another form
_ESCAPED = re.compile(r"[\\\x00-\x1f]")

WORST_FIRST: tuple[Verdict, ...] = ("failed", "infra", "not_run", "flaky", "xpassed", "xfailed", "skipped", "passed")


@dataclass(frozen=True)
class Names:
    """The tests of all weeks, the sizes of their scripts, and a stamp that is another one whenever the tests are."""

    table: pa.Table
    sizes: tuple[int, ...]
    stamp: str


def update_names(weeks: Sequence[Week], site: Path, state: Path) -> Names:
    """Write the addresses of the tests of some weeks, if they are others than before or the scripts are not whole."""
    kept, wanted = _read(state / "names.arrow"), _keys_by_suite(weeks)
    if kept is not None and _has_keys(kept.table, wanted) and _is_whole(kept, site):
        return kept
    table = _collect(weeks, wanted)
    lines = [_line(str(address)) for address in table["address"].to_pylist()]
    parts = ["\n".join(lines[first : first + A_FILE]).encode() for first in range(0, len(lines), A_FILE)]
    sizes = tuple(write_script(site / "data", f"names/{number}", part) for number, part in enumerate(parts))
    for script in (site / "data" / "names").glob("*.js"):
        if int(script.stem) >= len(parts):
            script.unlink()
    names = Names(table, sizes, hashlib.sha256(b"\n".join(parts)).hexdigest()[:10])
    told = msgspec.json.encode([names.sizes, names.stamp])
    sink = pa.BufferOutputStream()
    schema = NAMES.with_metadata({_LAYOUT: told})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    write_whole_file(state / "names.arrow", sink.getvalue().to_pybytes())
    return names


def known_names(state: Path) -> int:
    """The number of tests of the last time."""
    kept = _read(state / "names.arrow")
    return 0 if kept is None else len(kept.table)


def update_states(
    names: Names, store: ResultsStore, suites: Sequence[StoredSuite], order: Mapping[str, int], site: Path
) -> str:
    """Write the newest state of each test, and return the letters.

    It is the worst of its verdicts in the newest builds of all variants, and that of an absent test if it was in none. The
    builds of the line count, others only where a suite ran in no build of it. `order` tells which revision is newer.
    """
    import numpy as np

    newest: dict[tuple[str, str], StoredSuite] = {}
    for stored in sorted(suites, key=lambda each: (_is_on_line(each), each.day, order.get(each.build.revision, 0))):
        newest[stored.suite, stored.build.variant] = stored
    ranks = np.full(256, len(WORST_FIRST) + 1, np.uint8)
    for rank, verdict in enumerate(WORST_FIRST):
        ranks[ord(LETTERS[verdict])] = ranks[ord(LETTERS[verdict].upper())] = rank
    states = np.full(len(names.table), ABSENT, np.uint8)
    for suite in sorted({suite for suite, _ in newest}):
        rows = np.flatnonzero(one_chunk(kernels.equal(names.table["suite"], suite)).to_numpy(zero_copy_only=False))
        keys = one_chunk(names.table["key"]).to_numpy()[rows]
        by_key = np.argsort(keys)
        for _, rollup in store.open_rollups([stored for (of, _), stored in newest.items() if of == suite]):
            judged = rollup.table(["key", "verdict", "cached"])
            at = np.searchsorted(keys, one_chunk(judged["key"]).to_numpy(), sorter=by_key)
            places = rows[by_key[at.clip(max=max(0, len(keys) - 1))]] if len(keys) else rows
            letters = letters_of(judged)
            states[places] = np.where(ranks[letters] < ranks[states[places]], letters, states[places])
    content = states.tobytes().decode()
    write_script(site / "data", "states", msgspec.json.encode([names.stamp, content]))
    return content


def _keys_by_suite(weeks: Sequence[Week]) -> dict[str, Numbers]:
    """The sorted keys of the tests of each suite, by its encoded name."""
    import numpy as np

    found: dict[str, Numbers] = {}
    for week in weeks:
        for suite in week.suites():
            keys = one_chunk(week.read_tests(suite, ("key",))["key"]).to_numpy()
            known = found.get(suite)
            if known is None:
                found[suite] = keys
            elif not np.array_equal(known, keys):
                found[suite] = np.union1d(known, keys)
    return found


def _has_keys(names: pa.Table, wanted: Mapping[str, Numbers]) -> bool:
    import numpy as np

    suites = {encoded(suite): suite for suite in kernels.unique(names["suite"]).to_pylist()}
    if suites.keys() != wanted.keys():
        return False
    for suite, keys in wanted.items():
        own = names.filter(kernels.equal(names["suite"], suites[suite]))
        if not np.array_equal(np.sort(one_chunk(own["key"]).to_numpy()), keys):
            return False
    return True


def _collect(weeks: Sequence[Week], wanted: Mapping[str, Numbers]) -> pa.Table:
    """Look up the tests in the state of the weeks, the newest first."""
    parts = [NAMES.empty_table()]
    for suite, keys in wanted.items():
        missing: pa.Array[Any] = pa.array(keys)
        for week in reversed(weeks):
            if not len(missing) or suite not in week.suites():
                continue
            tests = week.read_tests(suite, ("key", "test"))
            here = tests.filter(kernels.is_in(tests["key"], missing))
            missing = missing.filter(kernels.invert(kernels.is_in(missing, one_chunk(here["key"]))))
            name = unquote(suite)
            addresses = kernels.binary_join_element_wise(name, here["test"], "/")
            parts.append(
                pa.table(
                    {"suite": constant(name, len(here), pa.string()), "key": here["key"], "address": addresses}, schema=NAMES
                )
            )
    return pa.concat_tables(parts).sort_by("address").combine_chunks()


def _read(path: Path) -> Names | None:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        sizes, stamp = msgspec.json.decode((table.schema.metadata or {})[_LAYOUT], type=tuple[tuple[int, ...], str])
    except (OSError, KeyError, pa.ArrowException, msgspec.MsgspecError):
        return None
    return Names(table.replace_schema_metadata(), sizes, stamp)


def _is_whole(names: Names, site: Path) -> bool:
    try:
        sizes = [(site / "data" / "names" / f"{number}.js").stat().st_size for number in range(len(names.sizes))]
    except OSError:
        return False
    return sizes == list(names.sizes)


def _line(address: str) -> str:
    """An address on one line: backslashes are doubled, and control characters are written as JSON writes them."""
    return _ESCAPED.sub(lambda match: "\\\\" if match[0] == "\\" else f"\\u{ord(match[0]):04x}", address)


def _is_on_line(stored: StoredSuite) -> bool:
    return trigger_of_key(stored.build.revision) in LINE
