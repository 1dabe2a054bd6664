"""Read the attempts of the tests that did not simply pass in a build, the reasons of skips, and failures by signature."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import pyarrow as pa

from accel_ci.hud.data.letters import Numbers
from accel_ci.quality.gather import ranges
from accel_ci.results.columns import kernels, one_chunk
from accel_ci.results.rollups import Rollup
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import AttemptsReplacedError, StoredSuite

MOST_DETAILED = 10_000
"""The attempts of so many tests of a build are told, and only the verdicts of the others."""

SHOWN_TESTS = 20
"""The number of tests that are named of those whose failures have one signature."""

_COLUMNS = ("round", "outcome", "duration_s", "card", "host", "message", "signature", "infra")
_CODED = ("outcome", "card", "host", "signature", "infra")
_EXCERPT, _REASON, _MESSAGE = 200, 160, 1000


class BuildDetails:
    """The data of the tests of a suite of a build beside their verdicts."""

    def __init__(self, store: ResultsStore, stored: StoredSuite, rollup: Rollup) -> None:
        self._store, self._stored, self._rollup = store, stored, rollup

    @cached_property
    def _attempts(self) -> pa.Table:
        table = self._store.read(self._stored, _COLUMNS, coded=_CODED)
        now = self._store.objects.find(self._stored.entry.name)
        if now is None or now.version != self._stored.entry.version:
            raise AttemptsReplacedError(self._stored)
        return table

    def names(self, places: Any) -> pa.Array[Any]:
        """The ids of the tests at some places."""
        return self._rollup.tests(places)

    def attempts(self, judged: pa.Table) -> list[list[list[Any]]]:
        """The attempts of each of some tests, a list each: see `update.py`. `judged` are their rows of the rollup."""
        if not len(judged):
            return []
        first, counts = (one_chunk(judged[name]).to_numpy() for name in ("place", "attempts"))
        numbers = {signature: number for number, (signature, *_) in enumerate(self.signatures)}
        rows = iter(self._attempts.take(cast(Any, ranges(first, counts))).to_pylist())
        return [[_attempt(next(rows), numbers) for _ in range(count)] for count in counts.tolist()]

    def reasons(self, places: Numbers) -> list[str | None]:
        """The messages of the tests whose first attempts are at some places: why they are skipped or expected to fail."""
        messages = one_chunk(self._attempts["message"]).take(cast(Any, pa.array(places)))
        return cast("list[str | None]", kernels.utf8_slice_codeunits(messages, 0, _REASON).to_pylist())

    @cached_property
    def signatures(self) -> Sequence[tuple[str, int, list[str], str]]:
        """The signatures of failures, that of most tests first: the number of tests, the first by name, and a message."""
        table = self._rollup.table(["failures", "message", "signature", "place"])
        failed = kernels.and_(kernels.greater(table["failures"], 0), kernels.is_valid(table["signature"]))
        table = table.filter(failed).sort_by("place")  # which is the order of names
        found: dict[str, list[int]] = {}
        for row, signature in enumerate(map(str, table["signature"].to_pylist())):
            found.setdefault(signature, []).append(row)
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        shown = [row for _, rows in ordered for row in rows[:SHOWN_TESTS]]
        places = one_chunk(table["place"]).take(pa.array(shown, pa.int64()))
        names = dict(zip(shown, map(str, self.names(places).to_pylist() if shown else []), strict=True))
        messages = [_cut(table["message"][rows[0]].as_py(), _MESSAGE) for _, rows in ordered]
        return [
            (signature, len(rows), [names[row] for row in rows[:SHOWN_TESTS]], message)
            for (signature, rows), message in zip(ordered, messages, strict=True)
        ]


def _attempt(row: dict[str, Any], numbers: dict[str, int]) -> list[Any]:
    seconds = row["duration_s"]
    told = [
        row["round"], row["outcome"], None if seconds is None else round(seconds, 3), row["card"], row["host"],
        _cut(row["message"], _EXCERPT), numbers.get(row["signature"]), _cut(row["infra"], _EXCERPT),
    ]  # fmt: skip
    while told[-1] is None:
        told.pop()
    return told


def _cut(text: str | None, characters: int) -> Any:
    """The beginning of a text; None for none."""
    return text if text is None or len(text) <= characters else text[: characters - 1] + "…"
