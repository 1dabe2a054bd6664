"""Questions while others store the same build again, at the worst moments, in a folder and in a bucket."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from accel_ci.model import Attempt, Build
from accel_ci.quality.flakiness import measure
from accel_ci.results.export import export
from accel_ci.results.history import median_durations
from accel_ci.results.questions import failures, slowest
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import AttemptsReplacedError
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.object_store import Entry, FolderStore, ObjectStore
from accel_ci_tests.fixtures.stored_attempts import real_s3, write_attempts

TODAY = date(2026, 11, 27)
BUILD = Build("nightly-20261127", "py3")
Replace = Callable[[ResultsStore, int], object]


class Busy:
    """A place at which attempts are replaced whenever they are about to be read, for the first few times."""

    def __init__(self, place: ObjectStore, replacements: list[Callable[[], object]]) -> None:
        self._place = place
        self.replacements = replacements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def fetch(self, entry: Entry) -> Path:
        if entry.name.endswith(".parquet") and self.replacements:
            self.replacements.pop()()
        return self._place.fetch(entry)


@pytest.fixture
def replace(attempt: Callable[..., Attempt]) -> Replace:
    """Stores other tests as those of the build, each flaky."""

    def replace(store: ResultsStore, first: int) -> None:
        outcomes = ((1, "failed"), (2, "passed"))
        tests = [f"t{number}" for number in range(first, first + 3)]
        write_attempts(
            store, BUILD, TODAY, [attempt(test, outcome, round=round) for test in tests for round, outcome in outcomes]
        )

    return replace


def exported(store: ResultsStore) -> set[str]:
    target = io.BytesIO()
    export(store, BUILD, target, "csv")
    return {row["test"] for row in csv.DictReader(io.StringIO(target.getvalue().decode()))}


def ask_while_others_write(place: ObjectStore, replace: Replace) -> None:
    store = ResultsStore(place)
    replace(store, 0)
    asked: list[Callable[[ResultsStore], set[str]]] = [
        lambda busy: {found.test for found in measure(busy, TODAY, 30).flaky},
        lambda busy: {test for _, test in median_durations(busy, "py3", TODAY)},
    ]
    for ask in asked:
        busy = Busy(place, [partial(replace, store, number) for number in (5, 4, 3)])
        assert ask(ResultsStore(cast(ObjectStore, busy))) == {"t5", "t6", "t7"}
        assert not busy.replacements
        replace(store, 0)
    of_one_build: list[Callable[[ResultsStore], set[str]]] = [
        lambda busy: {test for cluster in failures(busy, BUILD) for test in cluster.some_tests},
        lambda busy: {found.test for found in slowest(busy, BUILD)},
        exported,
    ]
    for ask in of_one_build:
        busy = Busy(place, [partial(replace, store, number) for number in (5, 4, 3)])
        assert ask(ResultsStore(cast(ObjectStore, busy))) in [{f"t{n}", f"t{n + 1}", f"t{n + 2}"} for n in (3, 4, 5)]
        replace(store, 0)
    never_still = Busy(place, [partial(replace, store, number % 2) for number in range(200)])
    with pytest.raises(AttemptsReplacedError, match=r"~py3~unit\.parquet .*; ask again"):
        measure(ResultsStore(cast(ObjectStore, never_still)), TODAY, 30)


def test_questions_of_a_folder_are_asked_again(tmp_path: Path, replace: Replace) -> None:
    ask_while_others_write(FolderStore(tmp_path), replace)


@real_s3
def test_questions_of_a_bucket_are_asked_again(bucket_store: BucketStore, replace: Replace) -> None:
    ask_while_others_write(bucket_store, replace)


def test_a_build_that_is_deleted_meanwhile_is_not_told_of(tmp_path: Path, replace: Replace) -> None:
    store = ResultsStore(tmp_path)
    replace(store, 0)
    for rollup in tmp_path.glob("rollups/*/*"):
        rollup.unlink()
    [stored] = store.suites()
    busy = Busy(store.objects, [partial(store.objects.delete, stored.entry.name)])
    assert measure(ResultsStore(cast(ObjectStore, busy)), TODAY, 30).tests == 0


class Counted:
    """A place that counts how often it is listed."""

    def __init__(self, place: ObjectStore) -> None:
        self._place = place
        self.listings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        self.listings += 1
        return self._place.list(folder, first, last)


@real_s3
def test_a_bucket_is_listed_as_often_for_many_builds_as_for_one(
    bucket_store: BucketStore, attempt: Callable[..., Attempt]
) -> None:
    store = ResultsStore(place := cast(ObjectStore, Counted(bucket_store)))
    counted, listings = cast(Counted, place), []
    for number in range(4):
        day = TODAY - timedelta(days=number)
        write_attempts(store, Build(f"nightly-{day:%Y%m%d}", "py3"), day, [attempt("t", "passed", seconds=2.0)])
        counted.listings = 0
        assert median_durations(store, "py3", TODAY) == {("unit", "t"): 2.0}
        listings.append(counted.listings)
    assert listings == [2] * 4  # the attempts, and the rollups
