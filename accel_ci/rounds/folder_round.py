"""A round in a folder: write the plan, read events and claims, requeue batches.

All that the driver knows of a round is here, so a driver that starts again after a kill knows as much as the one before.
While it runs, it goes by what it remembers about its files: where tests run as the driver's user, they can change those.
The names of the files are the runner's (`accel_ci.runner.round_folder`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.process.waiting import poll
from accel_ci.rounds.admission import Admission
from accel_ci.rounds.claim_record import ClaimRecord
from accel_ci.rounds.events import Event, InvalidEvent, decode_events
from accel_ci.runner import round_folder
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.file_lock import is_locked
from accel_ci.storage.untrusted_file import UntrustedFileError, open_untrusted

DRIVER = "driver"  # the owner of batches that the driver has claimed to keep them from workers
REPORT = "report.json"  # the driver's record that the round is done
_LOG = logging.getLogger(__name__)
_OLD_WORKERS_LIMIT_S = 60.0
_READ_BYTES = 16 << 20  # of events at a time
_WORKER = re.compile(r"w\d{1,9}-\d{1,9}")


class FolderRound:
    """The folder of one round. `lag_s` is the time in seconds by which events may be late."""

    lag_s = 0.0

    def __init__(self, path: Path) -> None:
        """The folder need not exist yet."""
        self.path = path
        self.is_over = False
        self._offsets: dict[str, int] = {}
        self._admission = Admission(self.claimed, self.batches)

    def has_plan(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Return whether the folder has exactly this plan."""
        target = self.path / round_folder.PLAN
        return target.is_file() and target.read_text("utf-8") == _document(number, batches, spec, limits, urgent)

    def set_aside(self, target: Path) -> None:
        """Move the folder away, once the workers of an earlier driver have ended. Raises `PoolError` if they do not."""
        self.await_old_workers()
        target.parent.mkdir(exist_ok=True)
        self.path.rename(target)

    def prepare(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Write the plan and make the folders; a folder with the same plan is kept. Return whether the plan was written."""
        content = _document(number, batches, spec, limits, urgent)
        target = self.path / round_folder.PLAN
        fresh = not self.has_plan(number, batches, spec, limits, urgent)
        if fresh:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
        for name in (round_folder.CLAIMS, round_folder.REQUEUED, round_folder.CHARGED, round_folder.WORKERS):
            (self.path / name).mkdir(exist_ok=True)
        if fresh:
            write_whole_file(target, content.encode())
        (self.path / round_folder.ROUND_OVER).unlink(missing_ok=True)
        return fresh

    def batches(self) -> list[Batch]:
        """The batches of the plan and the requeued ones."""
        return [*self._batches.values()]

    @cached_property
    def requeued(self) -> list[dict[str, Any]]:
        """The records of requeued batches for workers, which only grow."""
        files = sorted((self.path / round_folder.REQUEUED).glob("*.json"))
        return [record for path in files for record in json.loads(path.read_text("utf-8"))]

    @cached_property
    def _plan(self) -> dict[str, Any]:
        return dict(json.loads((self.path / round_folder.PLAN).read_text("utf-8")))

    @cached_property
    def _batches(self) -> dict[str, Batch]:
        return {each.id: each for each in msgspec.convert(self._plan["batches"] + self.requeued, list[Batch])}

    @cached_property
    def isolated_suites(self) -> set[str]:
        """The suites of the plan of which each file has its own process."""
        return {name for name, session in self._plan["suites"].items() if session.get("isolate")}

    def workers(self) -> list[str]:
        """The names of all workers that the round has had, in the order of their start."""
        found = (path.name for path in (self.path / round_folder.WORKERS).glob("*"))
        names = [name for name in found if _WORKER.fullmatch(name)]
        return sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def await_old_workers(self) -> bool:
        """Wait for workers of an earlier driver here to end; return whether there were any. `PoolError` after a minute."""
        old = list(self.path.glob(f"{round_folder.WORKERS}/*/{round_folder.ALIVE}"))
        waited = False
        for _ in poll(_LOG, f"workers of an earlier driver in {self.path} to end", 0.05, _OLD_WORKERS_LIMIT_S):
            old = [alive for alive in old if is_locked(alive)]
            if not old:
                return waited
            waited = True
        raise PoolError(f"a worker of an earlier run still holds {old[0]}; end it, or use another folder")

    def events(self, worker: str) -> list[Event]:
        """The complete events of a worker since the last call, up to the first that puts it in quarantine."""
        admitted: list[Event] = []
        if worker in self.quarantined:
            return admitted
        try:
            with open_untrusted(self.path / round_folder.WORKERS / worker, round_folder.EVENTS) as file:
                file.seek(self._offsets.get(worker, 0))
                while data := file.read(_READ_BYTES):
                    complete = data[: data.rfind(b"\n") + 1]
                    if len(data) == _READ_BYTES and not complete:
                        admitted += self._admission.admit(worker, [InvalidEvent("it wrote a line that does not end")])
                    if not complete:
                        break
                    admitted += self._admission.admit(worker, decode_events(complete))
                    self._offsets[worker] = self._offsets.get(worker, 0) + len(complete)
                    file.seek(self._offsets[worker])
        except FileNotFoundError:
            return admitted
        except (UntrustedFileError, NotADirectoryError) as error:
            self._admission.admit(worker, [InvalidEvent(f"its record is no record any more: {error}")])
        return admitted

    @property
    def quarantined(self) -> Mapping[str, str]:
        """The workers from which nothing more is accepted, with the reason."""
        return self._admission.quarantined

    @property
    def offences(self) -> Sequence[str]:
        """A line for each lie of tests that a worker has refused."""
        return self._admission.offences

    def log(self, worker: str) -> str:
        """The end of a worker's output."""
        try:
            with open_untrusted(self.path / round_folder.WORKERS / worker, round_folder.LOG) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2048))
                return file.read(2048).decode("utf-8", "replace").strip()
        except (OSError, UntrustedFileError):
            return ""

    @cached_property
    def _claims(self) -> ClaimRecord:
        return ClaimRecord(self.path / round_folder.CLAIMS)

    def claimed(self) -> dict[str, str]:
        """The owners of claimed batches, by batch id."""
        return self._claims.taken()

    def claim(self, batch: str, owner: str) -> tuple[bool, str]:
        """Claim a batch for a worker, unless it has an owner; return whether it was won, and the owner.

        May be called by another thread. Raises `ValueError` when there is no such batch.
        """
        if batch not in self._batches:
            raise ValueError(batch)
        won = self._claims.take(batch, owner)
        return won, self._claims.owner(batch) or ""

    def withdraw(self, batch: str) -> bool:
        """Claim a batch for the driver, so that no worker gets it; False when a worker has it."""
        return self._claims.take(batch, DRIVER)

    def requeue(self, batches: Iterable[Batch]) -> list[Batch]:
        """Hand batches out again, under new ids and before all others; return them."""
        number = len({record["id"].partition("-")[0] for record in self.requeued})
        fresh = [replace(batch, id=f"h{number}-{place}") for place, batch in enumerate(batches)]
        if fresh:
            records = [{**vars(batch), "urgent": True} for batch in fresh]
            _write(self.path / round_folder.REQUEUED / f"{number:06d}.json", json.dumps(records).encode())
            self._batches.update({batch.id: batch for batch in fresh})
            self.requeued += records
        return fresh

    def charge(self, worker: str, attempt: Event) -> None:
        """Record an attempt that a worker could not record itself, because it was lost."""
        folder = self.path / round_folder.CHARGED
        content = msgspec.json.encode({"worker": worker, "attempt": attempt})
        _write(folder / f"{len(list(folder.glob('*.json'))):06d}.json", content)

    def charged(self) -> list[tuple[str, Event]]:
        """The attempts that were charged, each with its worker."""
        records = (json.loads(path.read_bytes()) for path in sorted((self.path / round_folder.CHARGED).glob("*.json")))
        return [(record["worker"], msgspec.convert(record["attempt"], Event)) for record in records]

    def end(self) -> None:
        """Announce to the workers that no more batches will come."""
        self.is_over = True
        _write(self.path / round_folder.ROUND_OVER, b"")

    def finish(self, makespan_s: float) -> None:
        """Record that the round is done, for a driver that starts again."""
        _write(self.path / REPORT, json.dumps({"makespan_s": makespan_s}).encode())

    def finished(self) -> float | None:
        """The makespan in seconds when the round is done, else None."""
        path = self.path / REPORT
        return float(json.loads(path.read_text("utf-8"))["makespan_s"]) if path.exists() else None


def _write(target: Path, content: bytes) -> None:
    """Write a record of the driver's in place of whatever a test has put there."""
    folder = target.parent
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        folder.mkdir()
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    write_whole_file(target, content)


def _document(number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> str:
    """The content of `plan.json`."""
    plan = {
        "round": number, "python": spec.python, "root": spec.root, "probe": spec.probe, "limits": asdict(limits),
        "suites": {name: asdict(session) for name, session in spec.sessions.items()},
        "batches": [{**vars(batch), "urgent": place < urgent} for place, batch in enumerate(batches)],
    }  # fmt: skip
    return json.dumps(plan)
