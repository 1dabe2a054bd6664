"""The store in a bucket of a real S3 server: `ACCEL_CI_S3_ENDPOINT`, `…_BUCKET`, `…_ACCESS_KEY`, `…_SECRET_KEY`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Attempt, Build
from accel_ci.quality.flakiness import measure
from accel_ci.results.history import median_durations
from accel_ci.results.questions import counts_per_day, failures, history, newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.bucket import BucketStore, open_bucket
from accel_ci.storage.object_store import Entry
from accel_ci_tests.fixtures.stored_attempts import NEEDED, histories, real_s3, write_attempts

TODAY = date(2026, 11, 27)


@real_s3
def test_a_store_in_a_bucket_gives_the_same_answers_as_one_in_a_folder(
    bucket_store: BucketStore, open_bucket_store: Callable[..., BucketStore], tmp_path: Path, attempt: Callable[..., Attempt]
) -> None:
    stores = [ResultsStore(tmp_path / "results"), ResultsStore(bucket_store)]
    nights = [Build(f"nightly/{number}'~ü", "py3") for number in range(5)]
    for store in stores:
        for number, build in enumerate(nights):
            write_attempts(store, build, TODAY - timedelta(days=5 - number), [
                attempt("a", "failed" if number == 2 else "passed", message="at 0x1"), attempt("b\x00", "failed"),
                attempt("b\x00", "passed", round=2), attempt("c", "skipped", suite="other/suite", seconds=None),
            ])  # fmt: skip
        for today in (TODAY, TODAY + timedelta(days=2)):  # the second removes expired builds
            measure(store, today, 4)
    for ask in (
        lambda store: history(store, "b\x00", TODAY),
        lambda store: failures(store, nights[2]),
        lambda store: newly_failing(store, nights[1], nights[2]),
        lambda store: counts_per_day(store, TODAY),
        lambda store: median_durations(store, "py3", TODAY),
        lambda store: histories(store, TODAY, 30),
        lambda store: measure(store, TODAY + timedelta(days=2), 4),
        lambda store: store.query("SELECT day, revision, test FROM attempts ORDER BY ALL"),
    ):
        expected, found = ask(stores[0]), ask(stores[1])
        assert expected
        assert found == expected == ask(ResultsStore(open_bucket_store("another cache")))


@real_s3
def test_new_content_replaces_the_old_and_the_same_is_not_written_again(
    bucket_store: BucketStore, attempt: Callable[..., Attempt]
) -> None:
    store = ResultsStore(bucket_store)
    build = Build("r", "v")
    write_attempts(store, build, TODAY - timedelta(days=1), [attempt("a", "failed")])
    write_attempts(store, build, TODAY, [attempt("a", "passed")])
    assert [(h.day, h.verdict) for h in history(store, "a", TODAY)] == [(TODAY, "passed")]
    before = bucket_store.list("", "day=", "day=9")
    write_attempts(store, build, TODAY, [attempt("a", "passed")])
    assert bucket_store.list("", "day=", "day=9") == before
    write_attempts(store, build, TODAY, [attempt("a", "crashed")])
    assert [h.verdict for h in history(store, "a", TODAY)] == ["failed"]


@real_s3
def test_writers_at_the_same_time_leave_one_whole_object(open_bucket_store: Callable[..., BucketStore]) -> None:
    contents = [pa.py_buffer(bytes([number]) * (200_000 + number)) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        entries = list(threads.map(lambda content: open_bucket_store().put("day=x/a", content), contents))
    assert len({entry.version for entry in entries}) == 4
    final = open_bucket_store().find("day=x/a")
    assert final in entries
    assert open_bucket_store().fetch(final).read_bytes() in [content.to_pybytes() for content in contents]


@real_s3
def test_a_version_that_was_replaced_cannot_be_read(bucket_store: BucketStore) -> None:
    old = bucket_store.put("day=x/a", pa.py_buffer(b"old"))
    new = bucket_store.put("day=x/a", pa.py_buffer(b"new"))
    with pytest.raises(FileNotFoundError):
        bucket_store.fetch(old)
    assert bucket_store.fetch(new).read_bytes() == b"new"
    bucket_store.delete("day=x/a")
    assert bucket_store.find("day=x/a") is None
    with pytest.raises(FileNotFoundError):
        bucket_store.fetch(Entry("day=x/never", new.version, 3))


@real_s3
def test_a_listing_of_many_pages_has_only_its_days(bucket_store: BucketStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = [f"day={day}/{number:03}" for day in range(1, 6) for number in range(240)]
        list(threads.map(lambda name: bucket_store.put(name, pa.py_buffer(name.encode())), names))
    bucket_store.put("rollups/day=3/x", pa.py_buffer(b"x"))
    assert [entry.name for entry in bucket_store.list("", "day=", "day=9")] == names
    assert [entry.name for entry in bucket_store.list("", "day=2", "day=4")] == [name for name in names if name[4] in "234"]
    assert [entry.name for entry in bucket_store.list("rollups", "day=1", "day=4")] == ["rollups/day=3/x"]
    assert bucket_store.list("windows", "day=1", "day=4") == []


def test_a_bucket_that_does_not_answer_is_an_error_with_advice(tmp_path: Path) -> None:
    bucket_store = open_bucket("b", "", tmp_path, "http://127.0.0.1:9", ("key", "secret-of-mine"))
    with pytest.raises(AccelCiError, match=r"bucket b, day=1/a: .*endpoint, credentials and policy") as raised:
        bucket_store.find("day=1/a")
    assert "secret-of-mine" not in str(raised.value)


@real_s3
def test_the_error_on_wrong_credentials_does_not_show_them(tmp_path: Path) -> None:
    endpoint, bucket, access, _ = (os.environ[name] for name in NEEDED)
    bucket_store = open_bucket(bucket, "x", tmp_path, endpoint, (access, "wrong-secret"))
    with pytest.raises(AccelCiError, match="credentials") as raised:
        bucket_store.put("day=1/a", pa.py_buffer(b"x"))
    assert "wrong-secret" not in str(raised.value)
