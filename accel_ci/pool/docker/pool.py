"""The Docker pool: a worker is a container on this machine, one per card.

A container waits for the lock that its driver holds on the run's folder, and ends when the driver does; so the engine must
run on this machine. Containers carry the run's folder as a label, by which the next driver and the janitor find leftovers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_ci.config.pool_settings import DockerPoolSettings
from accel_ci.docker.engine import connect, explained
from accel_ci.errors import PoolError
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.pool.docker import containers
from accel_ci.pool.docker.containers import HOST_LABEL, RUN_LABEL, containers_with, create_container, image_of, let_write
from accel_ci.pool.environment import container_spec
from accel_ci.pool.project_pool import IsOver, Leftover, ProjectPool, own_lock
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.run import Finished
from accel_ci.rounds.driver_lock import DRIVER_LOCK
from accel_ci.rounds.engine import WorkerEnd, WorkerGroup, WorkerState, cards_in, end_of_process
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.worker_channels import WorkerChannels
from accel_ci.runner import round_folder
from accel_ci.storage.file_lock import is_locked
from accel_ci.storage.scratch_folder import scratch_folder

if TYPE_CHECKING:
    from docker import DockerClient

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.2
_SOCKET = "driver.socket"  # in the room of a worker, until it connects
_ENGINE_AWAY_S = 30.0


class DockerPool(ProjectPool):
    """Runs workers as containers, each of which can write to one folder."""

    outlives_driver = True

    def __init__(self, settings: DockerPoolSettings, *, with_cards: bool = True) -> None:
        own = {} if with_cards else {"devices": (), "gpus": None}
        self._settings, self._with_cards = settings.model_copy(update=own), with_cards

    def check(self) -> str:
        """Check the engine, the pool's image, devices, network and user."""
        client = connect()
        with explained("describe itself"):
            version = client.version()["Version"]
        containers.check_settings(client, self._settings)
        return f"engine {version}{f' with {self._settings.image}' if self._settings.image else ''}"

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The lock file that the projects of this machine share, else that of the project."""
        return (Path(self._settings.cards_lock or cards_lock), "the cards") if self._with_cards else own_lock(run_dir)

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """Workers start in the pool's own image, else in the build's."""
        variable = self._settings.card_environment
        selects, hidden = (variable, {}) if self._with_cards else ("", {variable: ""})
        return container_spec(self._settings, image, sources, selects, containers.HOME, hidden)

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a container on each card. Raises `PoolError` when there is no engine, no such image, or no such device."""
        build_runner(record.path / "runner.pyz")
        worker_group = _DockerWorkerGroup(connect(), self._settings, record, spec, attempt)
        try:
            for rank, card in enumerate(cards):
                worker_group.add(card, rank)
        except BaseException:
            worker_group.close()
            raise
        return worker_group

    def clear(self, run_dir: Path) -> None:
        """Remove the containers that an earlier driver left. Raises `PoolError` when there is no engine."""
        with explained("remove the containers of an earlier run"):
            containers.remove(containers_with(connect(), f"{RUN_LABEL}={run_dir.resolve()}"))

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command in a new container without a card. Raises `PoolError` when it cannot, or at the limit."""
        client = connect()
        let_write(folder, self._settings)
        with scratch_folder("command") as own, (own / DRIVER_LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            container = create_container(client, self._settings, command, spec, own.resolve(), folder.resolve())
            try:
                with explained(f"run {command[0]} in {image_of(self._settings, spec)}"):
                    container.start()
                    status = containers.exit_code(container, timeout_s)
                    output = container.logs(tail=10_000).decode("utf-8", "replace")
            finally:
                with suppress(Exception):
                    container.remove(force=True, v=True)
        if status is None:
            raise PoolError(f"{' '.join(command[:3])} did not end within {timeout_s:g} s in a container")
        return Finished(status, output)

    def remove_leftovers(self, is_over: IsOver, build: str = "", *, dry_run: bool = False) -> list[Leftover]:
        """Remove the containers of any run on this machine whose driver is gone. Raises `PoolError` without an engine."""
        client = connect()
        with explained("look for abandoned containers"):
            labelled = [(each, each.attrs["Labels"]) for each in containers_with(client, RUN_LABEL)]
            here = [(each, labels) for each, labels in labelled if labels.get(HOST_LABEL) == os.uname().nodename]
            found = [each for each, labels in here if not is_locked(Path(labels[RUN_LABEL]) / DRIVER_LOCK)]
            if not dry_run:
                containers.remove(found)
        names = sorted(str(each.attrs["Names"][0]).removeprefix("/") for each in found)
        return [Leftover(f"container {name}", "its driver is gone", "removed") for name in names]

    def docker_options(self, card: str) -> tuple[str, ...]:
        """The options of `docker run` for a worker on a card."""
        return containers.docker_options(self._settings, card)


class _DockerWorkerGroup:
    """The containers of one round."""

    def __init__(
        self, client: DockerClient, settings: DockerPoolSettings, record: FolderRound, spec: WorkerSpec, attempt: int
    ) -> None:
        self._client, self._settings, self._spec, self._attempt = client, settings, spec, attempt
        self._folder = record.path.resolve()
        self._run_label = f"{RUN_LABEL}={self._folder.parent}"
        self._channels = WorkerChannels(record)
        self._containers: dict[str, Any] = {}
        self._states: dict[str, WorkerState] = {}
        self._looked = self._answered = time.monotonic()
        self._is_away = False

    def add(self, card: str, rank: int) -> None:
        name = f"w{self._attempt}-{len(self._states)}"
        (self._folder / round_folder.WORKERS / name).mkdir(parents=True)
        room, run_dir = self._folder / round_folder.ROOMS / name, self._folder.parent
        room.mkdir(parents=True)
        let_write(room, self._settings)
        runner, plan, lock = self._folder / "runner.pyz", self._folder / round_folder.PLAN, run_dir / DRIVER_LOCK
        self._channels.listen(name, _SOCKET, containers.user_of(self._settings))
        command = [
            self._spec.python, str(runner), "work", "--plan", str(plan), "--scratch", str(room),
            "--driver", str(room / _SOCKET), "--worker", name, f"--card={card}", "--rank", str(rank),
            f"--host={os.uname().nodename}", "--end-with-lock", str(lock),
        ]  # fmt: skip
        container = create_container(
            self._client, self._settings, command, self._spec, run_dir, room, (runner, plan, lock), cards_in(card), name
        )
        with explained(f"start a container of {image_of(self._settings, self._spec)} with {self._spec.python}"):
            container.start()
        self._containers[name] = container
        self._states[name] = WorkerState(name, card, None)

    def workers(self) -> Sequence[WorkerState]:
        """All workers that were started, in that order. Raises `PoolError` when the engine is away for half a minute."""
        self._channels.check()
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._look()
        return list(self._states.values())

    def _look(self) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            found = containers_with(self._client, self._run_label)
            living = {container.id for container in found if container.attrs["State"] not in containers.ENDED}
            for name, state in self._states.items():
                if state.end is None and self._containers[name].id not in living:
                    self._channels.finish(name)
                    self._states[name] = WorkerState(name, state.card, self._end_of(name))
        except (DockerException, RequestException) as error:
            if time.monotonic() - self._answered > _ENGINE_AWAY_S:
                raise PoolError(f"the Docker engine has gone away ({error}); start it and run the same again") from error
            if not self._is_away:
                _LOG.warning("the Docker engine does not answer (%s); asking again for %g s", error, _ENGINE_AWAY_S)
            self._is_away = True
        else:
            self._answered, self._is_away = time.monotonic(), False

    def _end_of(self, name: str) -> WorkerEnd:
        """The end of a container. Keeps its output as the worker's log."""
        from docker.errors import NotFound

        try:
            container = self._containers[name]
            container.reload()
            log = container.logs(tail=1000)
        except NotFound:
            return WorkerEnd("removed", "removed from outside")
        (self._folder / round_folder.WORKERS / name / round_folder.LOG).write_bytes(log)
        state = container.attrs["State"]
        code = int(state["ExitCode"])
        end = end_of_process(128 - code if 128 < code < 128 + 65 else code)
        if state.get("OOMKilled") and code:
            end = WorkerEnd("out_of_memory", f"{end}, out of memory (pool.memory: {self._settings.memory})")
        return WorkerEnd(end.kind, f"{end}, {state['Error']}") if state.get("Error") else end

    def replace(self, worker: str) -> None:
        self.add(self._states[worker].card, 0)

    def stop(self, worker: str) -> None:
        """Ask one container to end; kill it after 10 s."""
        from docker.errors import NotFound

        with explained(f"stop worker {worker}"), suppress(NotFound):
            self._containers[worker].stop(timeout=containers.GRACE_S)

    def close(self) -> None:
        with explained("remove the containers of a run"):
            containers.remove(containers_with(self._client, self._run_label))
        for name in self._states:
            self._channels.finish(name)
        self._channels.close()
