"""The events of workers, which they send to the bucket in chunks, as files of the round's folder."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

from accel_ci.rounds.round_bucket import RoundBucket
from accel_ci.runner import round_folder
from accel_ci.runner.upload import chunk_name

_CHUNK = re.compile(rf"(w\d+-\d+)/{round_folder.EVENT_CHUNKS}/(\d{{12}})")


def fetch_events(bucket: RoundBucket, workers: Path, worker: str) -> None:
    """Append the chunks that a worker has sent since the last call to its events."""
    with (workers / worker / round_folder.EVENTS).open("ab") as file:
        while chunk := bucket.get(_name(worker, file.tell())):
            file.write(chunk)
            file.flush()


def fetch_all_events(bucket: RoundBucket, workers: Path) -> None:
    """Make the folder of workers agree with the bucket."""
    chunks: defaultdict[str, list[int]] = defaultdict(list)
    ends: dict[str, int] = dict.fromkeys(bucket.sizes("slots/"), 0)
    for name, size in bucket.sizes("workers/").items():
        found = _CHUNK.fullmatch(name)  # workers can write any names there
        if found is not None:
            worker, offset = found[1], int(found[2])
            chunks[worker].append(offset)
            ends[worker] = offset + size
    for path in workers.iterdir():
        events = path / round_folder.EVENTS
        if path.name not in ends:
            shutil.rmtree(path)
        elif events.exists() and events.stat().st_size != ends[path.name]:
            events.unlink()  # perhaps cut between two chunks: fetch all of it again
    for worker in ends:
        (workers / worker).mkdir(exist_ok=True)
    bucket.map(lambda worker: _fetch_known(bucket, workers, worker, chunks[worker]), list(ends))


def _fetch_known(bucket: RoundBucket, workers: Path, worker: str, offsets: list[int]) -> None:
    """Append chunks at known offsets, in ascending order, that are not yet in the worker's events."""
    with (workers / worker / round_folder.EVENTS).open("ab") as file:
        end = file.tell()
        for offset in offsets:
            if offset >= end:
                file.write(bucket.get(_name(worker, offset)) or b"")


def _name(worker: str, offset: int) -> str:
    return f"workers/{worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}"
