"""A pool of subprocesses that know nothing of the driver's folder: all goes through a real S3 server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from accel_ci.build.process import Finished
from accel_ci.errors import PoolError
from accel_ci.model import Launch
from accel_ci.pool.bucket_rounds import BucketRounds
from accel_ci.pool.courier import Courier, Slot
from accel_ci.pool.engine import Crew, WorkerState
from accel_ci.pool.package import build_runner
from accel_ci.pool.round_bucket import RoundStore
from accel_ci.pool.round_record import RoundRecord
from accel_ci.runner import round_folder
from accel_ci.s3 import environment_keys


def round_store(endpoint: str | None = None, prefix: str | None = None) -> RoundStore:
    """The store that the environment names, by default below a new prefix; skips the test where there is none."""
    given = os.environ.get("ACCEL_CI_S3_ENDPOINT")
    bucket = os.environ.get("ACCEL_CI_S3_BUCKET")
    if not given or not bucket:
        pytest.skip("needs an S3 server: ACCEL_CI_S3_ENDPOINT, …_BUCKET, …_ACCESS_KEY, …_SECRET_KEY")
    access_key, secret_key = environment_keys()
    return RoundStore(
        bucket, prefix or f"rounds-of-tests/{uuid.uuid4().hex[:8]}", endpoint or given, None, access_key, secret_key
    )


class BucketPool:
    """Starts workers as subprocesses with a signed URL and nothing else."""

    def __init__(self, rounds: BucketRounds) -> None:
        self._rounds = rounds

    def open_round(self, folder: Path) -> RoundRecord:
        return self._rounds.open(folder)

    def clear(self, run_dir: Path) -> None:
        pass

    def forget(self, run_dir: Path) -> None:
        pass

    def execute(self, command: Sequence[str], launch: Launch, folder: Path, timeout_s: float) -> Finished:
        raise NotImplementedError

    def start(self, folder: Path, cards: Sequence[str], launch: Launch, attempt: int) -> Crew:
        runner = build_runner(folder / "runner.pyz")
        courier = self._rounds.courier(folder)
        url = courier.invite([Slot(f"w{attempt}-{rank}", card, rank) for rank, card in enumerate(cards)])
        crew = BucketCrew(courier, folder, runner, url, launch, attempt)
        try:
            for _ in cards:
                crew.add()
        except BaseException:
            crew.close()
            raise
        return crew


class BucketCrew:
    """The subprocesses of one round; which has which slot, the bucket says."""

    def __init__(self, courier: Courier, folder: Path, runner: Path, url: str, launch: Launch, attempt: int) -> None:
        self._courier, self._folder, self._runner, self._url = courier, folder, runner.resolve(), url
        self._launch, self._attempt = launch, attempt
        self._slots = courier.invited()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self) -> None:
        identity = f"p{self._attempt}-{len(self._processes)}"
        scratch = self._folder / "scratch" / identity
        scratch.mkdir(parents=True)
        command = [
            self._launch.python, str(self._runner), "work", "--round-url", "-", "--identity", identity, "--scratch",
            str(scratch), "--card-environment", self._launch.card_environment, "--end-with", str(os.getpid()),
        ]  # fmt: skip
        with (scratch / "log").open("wb") as log:
            try:
                self._processes[identity] = subprocess.Popen(
                    command, cwd=self._launch.root, env={**self._launch.environment, "ACCEL_CI_ROUND_URL": self._url},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise PoolError(f"a worker cannot be started with {self._launch.python}: {error}") from error

    def workers(self) -> Sequence[WorkerState]:
        codes = {identity: process.poll() for identity, process in self._processes.items()}
        holders = self._courier.holders()
        none_left = all(code is not None for code in codes.values())
        states = []
        for slot in self._slots:
            identity = holders.get(slot.worker)
            code = codes.get(identity) if identity is not None else None
            how = None
            if code is not None or none_left:
                how = f"exit code {code}" if code is not None else "no process"
                self._clear(identity)
                if not self._courier.drained(slot.worker):
                    how = None
            states.append(WorkerState(slot.worker, slot.card, how))
        if none_left and not holders:
            own = self._folder / round_folder.WORKERS / self._slots[0].worker
            own.mkdir(exist_ok=True)
            logs = sorted((self._folder / "scratch").glob("*/log"))
            (own / round_folder.LOG).write_bytes(logs[0].read_bytes())
        return states

    def replace(self, worker: str) -> None:
        card = next(slot.card for slot in self._slots if slot.worker == worker)
        slot = Slot(f"w{self._attempt}-{len(self._slots)}", card, 0)
        self._slots.append(slot)
        self._courier.add_slot(slot)
        self.add()

    def stop(self, worker: str) -> None:
        process = self._processes.get(self._courier.holders().get(worker, ""))
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for identity, process in self._processes.items():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._clear(identity)
        self._courier.close()

    def _clear(self, identity: str | None) -> None:
        """End the process group of the pytest child that a killed worker left."""
        child = self._folder / "scratch" / str(identity) / round_folder.CHILD
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
            os.killpg(int(child.read_text("ascii")), signal.SIGKILL)
            child.unlink()
