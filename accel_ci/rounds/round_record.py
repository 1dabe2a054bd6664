"""The driver's side of a round's folder: write the plan, read events and claims, requeue batches.

Whatever the driver knows of a round it reads from here, so a driver that starts again after a kill knows as much as the
one before. The names of the files are the runner's (`accel_ci.runner.round_folder`).
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.rounds.bucket_sync import DRIVER, REPORT, BucketSync
from accel_ci.rounds.events import Event, decode_events
from accel_ci.runner import round_folder
from accel_ci.runner.claims import Claims, FolderClaims
from accel_ci.storage.atomic_file import write_whole_file

_OLD_WORKERS_LIMIT_S = 60.0


class RoundRecord:
    """The folder of one round."""

    def __init__(self, path: Path, bucket_sync: BucketSync | None = None) -> None:
        """The round's folder, which need not exist yet; where workers do not see it, a bucket sync keeps a bucket alike."""
        self.path, self._bucket_sync = path, bucket_sync
        self._offsets: dict[str, int] = {}

    # --- the plan -----------------------------------------------------------------------------------------------

    def prepare(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Lay the folder out; one that is there with the same plan is kept, any other is replaced (then True)."""
        plan = {
            "round": number,
            "python": spec.python,
            "root": spec.root,
            "pytest_args": spec.pytest_args,
            "probe": spec.probe,
            "limits": asdict(limits),
            "batches": [{**vars(batch), "urgent": place < urgent} for place, batch in enumerate(batches)],
        }
        content = json.dumps(plan)
        target = self.path / round_folder.PLAN
        fresh = not (target.is_file() and target.read_text("utf-8") == content)
        if fresh:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
        for name in (round_folder.CLAIMS, round_folder.REQUEUED, round_folder.WORKERS):
            (self.path / name).mkdir(exist_ok=True)
        if fresh:
            write_whole_file(target, content.encode())
        (self.path / round_folder.ROUND_OVER).unlink(missing_ok=True)
        if self._bucket_sync is not None:
            self._bucket_sync.open()
        return fresh

    def batches(self) -> list[Batch]:
        """The batches of the plan and those that were requeued."""
        records = json.loads((self.path / round_folder.PLAN).read_text("utf-8"))["batches"]
        for path in sorted((self.path / round_folder.REQUEUED).glob("*.json")):
            records += json.loads(path.read_text("utf-8"))
        return [
            Batch(
                record["id"], record["suite"], record["file"], tuple(record["tests"]), record["estimate_s"],
                tuple(record["avoid_cards"]), record["cards"],
            )
            for record in records
        ]  # fmt: skip

    # --- workers ------------------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        """The names of all workers that this round has had, in the order of their start."""
        names = (path.name for path in (self.path / round_folder.WORKERS).iterdir())
        return sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def await_old_workers(self) -> None:
        """Wait until the workers of an earlier driver on this machine have ended. Raises `PoolError` after a minute."""
        deadline = time.monotonic() + _OLD_WORKERS_LIMIT_S
        waited = False
        for alive in self.path.glob(f"*/*/{round_folder.ALIVE}"):
            while not _is_free(alive):
                if time.monotonic() > deadline:
                    raise PoolError(f"a worker of an earlier run still holds {alive}; end it, or use another folder")
                waited = True
                time.sleep(0.05)
        if waited and self._bucket_sync is not None:
            self._bucket_sync.catch_up()

    def events(self, worker: str) -> list[Event]:
        """The events that a worker has written since the last call; a line that is not complete is left."""
        path = self.path / round_folder.WORKERS / worker / round_folder.EVENTS
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(worker, 0))
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offsets[worker] = self._offsets.get(worker, 0) + len(complete)
        return decode_events(complete)

    def log(self, worker: str) -> str:
        """The end of what a worker printed."""
        path = self.path / round_folder.WORKERS / worker / round_folder.LOG
        return path.read_bytes()[-2048:].decode("utf-8", "replace").strip() if path.exists() else ""

    # --- claims -------------------------------------------------------------------------------------------------

    @cached_property
    def _claims(self) -> Claims:
        if self._bucket_sync is not None:
            return self._bucket_sync.claims()
        return FolderClaims(self.path / round_folder.CLAIMS, DRIVER)

    def claimed(self) -> dict[str, str]:
        """Who has which batch: batch id to worker."""
        return dict(self._claims.taken())

    def withdraw(self, batch: str) -> bool:
        """Claim a batch for the driver so that no worker gets it; False when one has it."""
        return self._claims.take(batch)

    def requeue(self, batches: Iterable[Batch]) -> list[Batch]:
        """Give batches out anew, under names of their own, to be taken first; gives back what was written."""
        folder = self.path / round_folder.REQUEUED
        number = len(list(folder.glob("*.json")))
        fresh = [replace(batch, id=f"h{number}-{place}") for place, batch in enumerate(batches)]
        if fresh:
            content = json.dumps([{**vars(batch), "urgent": True} for batch in fresh])
            write_whole_file(folder / f"{number:06d}.json", content.encode())
        return fresh

    def end(self) -> None:
        """Tell the workers that nothing more will come."""
        write_whole_file(self.path / round_folder.ROUND_OVER, b"")

    # --- the report ---------------------------------------------------------------------------------------------

    def finish(self, makespan_s: float) -> None:
        """Note that the round is done, for a driver that starts again."""
        write_whole_file(self.path / REPORT, json.dumps({"makespan_s": makespan_s}).encode())
        if self._bucket_sync is not None:
            self._bucket_sync.finish()

    def finished(self) -> float | None:
        """The makespan in seconds when the round is done, else None."""
        path = self.path / REPORT
        return float(json.loads(path.read_text("utf-8"))["makespan_s"]) if path.exists() else None


def _is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
