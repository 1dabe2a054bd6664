"""The tests of a suite in a week: each has a bucket and a place in it, and each build of the suite is laid on them.

The letters of a build hardly differ from those of another: so only those that differ from one of a few *bases* are told.
Pure: arrays in, records out; files are `week.py`'s part.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import msgspec
import pyarrow as pa

from accel_ci.hud.data.details import MOST_DETAILED, BuildDetails
from accel_ci.hud.data.letters import ABSENT, LETTERS, NO_SECONDS, Numbers, letters_of, letters_of_seconds
from accel_ci.model import BAD_VERDICTS
from accel_ci.redaction import redact_bytes
from accel_ci.results.columns import kernels, one_chunk, schema_of
from accel_ci.results.rollups import CODES
from accel_ci.results.rows import redacted

TESTS = schema_of(key=pa.uint64(), test=pa.string(), bucket=pa.int32(), place=pa.int32())
"""The tests in the order of their keys. `place` counts the tests of the suite in their bucket."""

COLUMNS = ("key", "verdict", "attempts", "failures", "duration_s", "cached", "place")
"""The columns of a rollup that are needed here."""

_MOST_BASES = 32
_FEW, _SHARE = 8, 0.02
"""A build that differs from all bases in more than so many tests, and more than this share of them, is a base itself."""

_BAD = [CODES[verdict] for verdict in BAD_VERDICTS]
_REASONED = [ord(LETTERS[verdict]) for verdict in ("skipped", "xfailed")]

Records = dict[int, list[bytes]]
"""The records (JSON) that a build adds to each bucket."""


def bucket_of(suite: str, test: str, buckets: int) -> int:
    """The bucket of a test: by the CRC-32 of `<suite>/<test>`, of which the scripts of pages know as well."""
    return zlib.crc32(f"{suite}/{test}".encode()) & (buckets - 1)


@dataclass
class SuiteWeek:
    """The tests that are known by now. The bases are letters in the order of `tests`; base 0, not among them, is empty."""

    suite: str
    buckets: int
    tests: pa.Table = field(default_factory=TESTS.empty_table)
    bases: list[Numbers] = field(default_factory=list)

    def lay(self, name: str, judged: pa.Table, details: BuildDetails, *, timed: bool) -> tuple[int, Records]:
        """Lay a build on the tests; return the number of its base, and its records.

        Args:
            name: The id of the build's results.
            judged: The columns `COLUMNS` of its rollup.
            details: The other data of its tests.
            timed: Tell the durations.
        """
        import numpy as np

        records: defaultdict[int, list[bytes]] = defaultdict(list)
        self._learn(judged, details, records)
        keys = one_chunk(self.tests["key"]).to_numpy()
        at = np.searchsorted(keys, one_chunk(judged["key"]).to_numpy())
        letters = np.full(len(keys), ABSENT, np.uint8)
        letters[at] = letters_of(judged)
        row_of = np.full(len(keys), -1)
        row_of[at] = np.arange(len(at))
        base, usual = self._base(letters)
        if base > len(self.bases):
            self.bases.append(letters)
            self._tell_base(base, row_of, judged, details, records)
        exceptions = self._exceptions(letters, letters != usual, at, row_of, judged, details)
        seconds = np.full(len(keys), NO_SECONDS, np.uint8)
        seconds[at] = letters_of_seconds(one_chunk(judged["duration_s"]).to_numpy(zero_copy_only=False))
        texts = self._by_bucket(seconds) if timed else {}
        for bucket in texts.keys() | exceptions.keys():
            record = msgspec.json.encode(["build", name, exceptions[bucket], texts.get(bucket, "")])
            records[bucket].append(redact_bytes(record) if exceptions[bucket] else record)
        return base, records

    def _exceptions(
        self, letters: Numbers, differs: Numbers, at: Numbers, row_of: Numbers, judged: pa.Table, details: BuildDetails
    ) -> defaultdict[int, list[list[Any]]]:
        """The tests of each bucket that are not as usual, or whose attempts are told: place, letter, attempts."""
        import numpy as np

        is_detailed = np.zeros(len(letters), bool)
        is_detailed[at] = _is_detailed(judged, differs[at])
        numbers = np.flatnonzero(differs | is_detailed)
        detailed = numbers[is_detailed[numbers]][:MOST_DETAILED]
        told = details.attempts(judged.take(cast(Any, pa.array(row_of[detailed]))))
        attempts = dict(zip(detailed.tolist(), told, strict=True))
        columns = (one_chunk(self.tests[column]).to_numpy()[numbers].tolist() for column in ("bucket", "place"))
        found: defaultdict[int, list[list[Any]]] = defaultdict(list)
        for number, letter, bucket, place in zip(numbers.tolist(), letters[numbers].tolist(), *columns, strict=True):
            found[bucket].append([place, chr(letter), *([attempts[number]] if number in attempts else [])])
        return found

    def _learn(self, judged: pa.Table, details: BuildDetails, records: defaultdict[int, list[bytes]]) -> None:
        """Add the tests that are new."""
        import numpy as np

        is_new = kernels.invert(kernels.is_in(judged["key"], one_chunk(self.tests["key"])))
        new = judged.filter(is_new)
        if not len(new):
            return
        names = redacted(details.names(new["place"]))
        known = np.bincount(one_chunk(self.tests["bucket"]).to_numpy(), minlength=self.buckets).tolist()
        buckets, places = list[int](), list[int]()
        told: defaultdict[int, list[str]] = defaultdict(list)
        for test in map(str, names.to_pylist()):
            bucket = bucket_of(self.suite, test, self.buckets)
            buckets.append(bucket)
            places.append(known[bucket] + len(told[bucket]))
            told[bucket].append(test)
        for bucket, tests in told.items():
            records[bucket].append(msgspec.json.encode(["tests", self.suite, tests]))
        columns: Any = [one_chunk(new["key"]), names, pa.array(buckets, pa.int32()), pa.array(places, pa.int32())]
        every = pa.concat_tables([self.tests, pa.Table.from_arrays(columns, schema=TESTS)])
        order = np.argsort(one_chunk(every["key"]).to_numpy(), kind="stable")
        self.tests = every.take(cast(Any, pa.array(order))).combine_chunks()
        nothing = np.full(len(new), ABSENT, np.uint8)
        self.bases = [np.concatenate([base, nothing])[order] for base in self.bases]
        self.__dict__.pop("_slots", None)

    def _base(self, letters: Numbers) -> tuple[int, Numbers]:
        """The number and the letters of the base that a build differs least from; one more than there are for itself."""
        import numpy as np

        bases = [np.full(len(letters), ABSENT, np.uint8), *self.bases]
        differences = [int(np.count_nonzero(letters != base)) for base in bases]
        best = int(np.argmin(differences))
        if differences[best] > max(_FEW, _SHARE * len(letters)) and len(self.bases) < _MOST_BASES:
            return len(bases), letters
        return best, bases[best]

    def _tell_base(
        self, base: int, row_of: Numbers, judged: pa.Table, details: BuildDetails, records: defaultdict[int, list[bytes]]
    ) -> None:
        import numpy as np

        letters = self.bases[base - 1]
        reasoned = np.flatnonzero(np.isin(letters, _REASONED))
        reasons: defaultdict[int, dict[int, str]] = defaultdict(dict)
        if len(reasoned):
            buckets, places = (one_chunk(self.tests[column]).to_numpy()[reasoned] for column in ("bucket", "place"))
            first = one_chunk(judged["place"]).to_numpy()[row_of[reasoned]]
            for bucket, place, reason in zip(buckets.tolist(), places.tolist(), details.reasons(first), strict=True):
                if reason:
                    reasons[bucket][place] = reason
        for bucket, text in self._by_bucket(letters).items():
            record = msgspec.json.encode(["base", self.suite, base, text, reasons[bucket]])
            records[bucket].append(redact_bytes(record) if reasons[bucket] else record)

    @cached_property
    def _slots(self) -> tuple[Numbers, Numbers]:
        """The numbers of the tests in the order of buckets and places, and where each bucket begins in it."""
        import numpy as np

        buckets, places = (one_chunk(self.tests[column]).to_numpy() for column in ("bucket", "place"))
        order = np.lexsort((places, buckets))
        return order, np.searchsorted(buckets[order], np.arange(self.buckets + 1))

    def _by_bucket(self, characters: Numbers) -> dict[int, str]:
        """The characters of each bucket's tests as a text, without those of buckets that have no test."""
        order, bounds = self._slots
        text, limits = characters[order].tobytes().decode(), bounds.tolist()
        spans = enumerate(pairwise(limits))
        return {bucket: text[begin:end] for bucket, (begin, end) in spans if end > begin}


def _is_detailed(judged: pa.Table, differs: Numbers) -> Numbers:
    """Of each test whether its attempts are told: it did not simply pass, and not just as it usually does."""
    is_bad = kernels.or_(kernels.is_in(judged["verdict"], pa.array(_BAD, pa.int8())), kernels.greater(judged["attempts"], 1))
    other = kernels.and_(pa.array(differs), kernels.not_equal(one_chunk(judged["verdict"]), CODES["passed"]))
    told = kernels.and_not(kernels.or_(one_chunk(is_bad), other), kernels.fill_null(one_chunk(judged["cached"]), False))
    found: Numbers = one_chunk(told).to_numpy(zero_copy_only=False)
    return found


def merge_records(into: Records, more: Iterable[tuple[int, list[bytes]]]) -> None:
    """Add records to those of each bucket."""
    for bucket, records in more:
        into.setdefault(bucket, []).extend(records)
