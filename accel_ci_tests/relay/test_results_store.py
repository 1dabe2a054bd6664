"""The store of results: a row counts once, whoever wrote it and however often, and whoever was killed between."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_ci.relay.results_store import MERGED_AT, ResultsStore
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.settings import load_relay
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.object_store import FolderStore, ObjectStore
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.job_rows import DAY_S, NOW, failed_tests, job_row, verdict
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3

KILLS = int(os.environ.get("ACCEL_CI_RELAY_KILLS", "4"))

WRITER = """
import sys
from pathlib import Path
from accel_ci.relay.results_store import ResultsStore
from accel_ci_tests.fixtures.job_rows import NOW, job_row
folder, name = sys.argv[1:]
store, number = ResultsStore(Path(folder)), 0
while True:
    store.add([job_row(at=NOW + number % 7, delivery_id=f"{name}-{number}")])
    print(number, flush=True)
    number += 1
"""


def everything(store: ResultsStore, **choice: object) -> list[JobRow]:
    """All rows, in a fixed order."""
    return sorted(store.rows(0, NOW + 9 * DAY_S, **choice), key=lambda row: row.job)  # type: ignore[arg-type]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("day=*/*.parquet"))


@pytest.fixture(params=["folder", pytest.param("bucket", marks=real_s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A folder, or a prefix of a bucket."""
    if request.param == "folder":
        return FolderStore(tmp_path / "results")
    bucket: Callable[..., BucketStore] = request.getfixturevalue("open_bucket_store")
    return bucket()


def test_the_newest_row_of_each_job_is_read(place: ObjectStore) -> None:
    store = ResultsStore(place)
    begun, ended = job_row(1, status="in_progress", delivery_id="d"), job_row(0.5, delivery_id="d")
    corrected = replace(ended, at=ended.at + 60, conclusion="failure", failed_tests=failed_tests("test_a"))
    other = job_row(40, delivery_id="other", repository="Org/Other", pull_request=8, event="nightly")
    for rows in ([begun, other], [corrected], [ended], [begun], [ended, other]):
        store.add(rows)
    assert everything(store) == [corrected, other]
    assert store.rows(0, NOW + 1)[0] == corrected, "the newest is not first"
    assert everything(store, repository="org/other") == everything(store, pull_request=8) == [other]
    assert everything(store, events=["pull_request"]) == everything(store, pull_request=[7, 9]) == [corrected]
    assert store.rows(NOW - 2 * DAY_S, ended.at) == [begun], "later rows count before their time"
    assert store.rows(0, NOW + 1, most=1) == [corrected]


@real_s3
def test_machines_share_results_through_a_bucket(tmp_path: Path) -> None:
    endpoint, bucket, *_ = (os.environ[name] for name in NEEDED)
    place = {"bucket": bucket, "prefix": f"test-{uuid.uuid4().hex}", "endpoint": endpoint}
    machines = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "relay.yaml"
        secrets = {"webhook_secret": {"variable": "A"}, "github": {"token": {"variable": "B"}}}
        file.write_text(yaml.safe_dump({"upstream": "upstream/project", **secrets, "results": place}))
        machines.append(load_relay(file).open_results())
    for number in range(MERGED_AT + 2):
        machines[number % 2].add([job_row(1, delivery_id=f"d{number}")])
    assert everything(machines[0]) == everything(machines[1])
    assert len(everything(machines[0])) == MERGED_AT + 2
    machines[0].tidy(NOW + 100 * DAY_S, 60)
    assert everything(machines[1]) == []


def test_without_details_long_texts_are_left_out(tmp_path: Path) -> None:
    store, row = ResultsStore(tmp_path), job_row(triage_verdict=verdict("infra"), failed_tests=failed_tests("test_a"))
    store.add([row, job_row(1, triage_verdict="{not JSON")])
    found, other = store.rows(0, NOW + 1, with_details=False)
    assert found == replace(row, failed_tests="", triage_verdict='{"category": "infra"}')
    assert other.triage_verdict == '{"category": ""}'


def test_values_that_parquet_does_not_hold_are_changed(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.add([job_row(job_name="a\ud800\0b", passed=10**30, failed=-(10**30), pull_request=None)])
    [found] = everything(store)
    assert (found.job_name, found.passed, found.failed) == ("a\\ud800\0b", 2**63 - 1, -(2**63 - 1))


def test_the_same_rows_are_the_same_file(tmp_path: Path) -> None:
    store, rows = ResultsStore(tmp_path), [job_row(number / 100) for number in range(5)]
    store.add(rows)
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
    version = store.version(0, NOW)
    store.add(rows[::-1])
    assert {path: path.stat().st_mtime_ns for path in files(tmp_path)} == before
    assert store.version(0, NOW) == version
    store.add([job_row(0.5, delivery_id="new")])
    assert store.version(0, NOW) != version


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_order_repetition_and_batches_do_not_matter(data: st.DataObject) -> None:
    rows = [
        job_row(at=NOW + at, delivery_id=f"d{job}", status=status, passed=passed)
        for job, status, at, passed in data.draw(
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.sampled_from(["in_progress", "completed"]), st.integers(-2, 2), st.integers(0, 2)
                ),
                max_size=12,
            )
        )
    ]
    found = []
    for order in (rows, data.draw(st.permutations(rows + rows[:3]))):
        with tempfile.TemporaryDirectory() as folder:
            store, step = ResultsStore(Path(folder)), data.draw(st.integers(1, 5))
            for first in range(0, len(order), step):
                store.add(order[first : first + step])
            found.append(everything(store))
    assert found[0] == found[1]
    expected: dict[tuple[str, ...], tuple[bool, float]] = {}
    for row in rows:
        expected[row.job] = max(expected.get(row.job, (False, 0.0)), (row.status == "completed", row.at))
    assert {row.job: (row.status == "completed", row.at) for row in found[0]} == expected


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    store, count = ResultsStore(tmp_path), 3 * MERGED_AT + 5
    for number in range(count):
        store.add([job_row(3, delivery_id=f"d{number}")])
    assert len(files(tmp_path)) == 3 + 5
    before = everything(store)
    assert len(before) == count
    store.add([job_row(1, delivery_id="yesterday")])
    store.add([job_row(70, delivery_id="old")])
    store.tidy(NOW, 60)
    assert [path.parent.name for path in files(tmp_path)] == ["day=2026-11-27", "day=2026-11-29"]
    assert everything(store)[:count] == before
    store.tidy(NOW, 60)
    assert len(files(tmp_path)) == 2


def test_a_damaged_file_is_passed_over_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ResultsStore(tmp_path)
    store.add([job_row(3, delivery_id="bad")])
    [bad] = files(tmp_path)
    bad.write_bytes(b"PAR1 and nothing more")
    store.add([job_row(3, delivery_id="good")])
    store.add([job_row(3, delivery_id="better")])
    store.tidy(NOW, 60)
    assert [row.delivery_id for row in everything(store)] == ["better", "good"]
    assert bad.exists()
    assert bad.name in caplog.text


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"x": [1]}),
        pa.table({"at": ["no time"], "repository": ["a/b"]}),
        pa.table({"at": [NOW], "repository": [{"a": 1}], "job_name": [[1]]}),
        pa.table({name: pa.array([b"\xff\xfe"]) for name in ("job_name", "repository", "status")} | {"at": [NOW - DAY_S]}),
    ],
    ids=["other columns", "other types", "nested", "no UTF-8"],
)
def test_a_file_with_something_else_holds_up_nobody(tmp_path: Path, table: pa.Table) -> None:
    """Good Parquet, but not of the relay: it is passed over, like one whose description was damaged."""
    store = ResultsStore(tmp_path)
    store.add([job_row(1)])
    pq.write_table(table, files(tmp_path)[0].parent / "0-other.parquet")
    for number in range(MERGED_AT):
        store.add([job_row(1, delivery_id=f"{number}")])
    store.tidy(NOW + 2 * DAY_S, 60)
    assert len(everything(store)) == MERGED_AT + 1


def test_nothing_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    """Two servers add rows and merge files, killed at random; a reader always sees all that was acknowledged before."""
    folder, chance = tmp_path / "results", random.Random(17)
    store, acknowledged = ResultsStore(folder), set[str]()
    writers: list[tuple[str, subprocess.Popen[bytes], Path]] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(name: str) -> tuple[str, subprocess.Popen[bytes], Path]:
        output = tmp_path / f"{name}.txt"
        with output.open("wb") as file:
            command = [sys.executable, "-c", WRITER, str(folder), name]
            return name, subprocess.Popen(command, stdout=file, env=environment), output

    def heard() -> int:
        for name, _, output in writers:
            acknowledged.update(f"{name}-{number}" for number in output.read_text().split("\n")[:-1])
        return len(acknowledged)

    running = [start("a0"), start("b0")]
    writers += running
    try:
        for kill in range(KILLS):
            before = len(acknowledged)
            target = before + chance.randrange(10, 60)
            wait_for(lambda wanted=target: heard() >= wanted)  # type: ignore[misc]
            known = set(acknowledged)
            assert known <= {row.delivery_id for row in everything(store)}
            one = chance.randrange(2)
            running[one][1].kill()
            running[one][1].wait(30)
            running[one] = start(f"{'ab'[one]}{kill + 1}")
            writers.append(running[one])
    finally:
        for _, process, _ in writers:
            if process.poll() is None:
                process.kill()
                process.wait(30)
    heard()
    found = [row.delivery_id for row in everything(store)]
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))
    store.tidy(NOW + 9 * DAY_S, 60)
    assert [row.delivery_id for row in everything(store)] == found
    assert len(files(folder)) == 1
