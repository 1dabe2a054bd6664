"""The Docker pool: a worker is a container, one per card, on the machine of the engine.

The round's folder and the sources are mounted at their own paths, the sources read-only, so that what the plan and the
workers write means the same inside and outside. A container ends when its driver does: it waits for the lock that the
driver holds on the run's folder. So the engine must run on this machine. Containers carry the run's folder as a label, by
which a driver that starts again, and the janitor, find what an earlier one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_ci.config.settings import DockerPoolSettings
from accel_ci.docker.engine import connect, explained
from accel_ci.errors import PoolError
from accel_ci.model import WorkerSpec
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.run import Finished
from accel_ci.rounds.engine import DRIVER_LOCK, WorkerGroup, WorkerState, cards_in
from accel_ci.rounds.round_record import RoundRecord
from accel_ci.runner import round_folder

if TYPE_CHECKING:
    from docker import DockerClient

RUN_LABEL = "accel-ci.run"
"""The label with the folder of the run, whose lock the driver holds."""

_HOST_LABEL, _WORKER_LABEL, _CARD_LABEL = "accel-ci.host", "accel-ci.worker", "accel-ci.card"
_GRACE_S = 10
_LOOK_EVERY_S = 0.2
_ENGINE_AWAY_S = 30.0


class DockerPool:
    """Runs workers as containers."""

    def __init__(self, settings: DockerPoolSettings) -> None:
        """Nothing is asked of the engine yet."""
        self._settings = settings

    def open_round(self, folder: Path) -> RoundRecord:
        """The round is in the folder, which workers share."""
        return RoundRecord(folder)

    def start(self, folder: Path, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a container on each card. Raises `PoolError` when there is no engine, no such image, or no such device."""
        build_runner(folder / "runner.pyz")
        _give(folder / round_folder.CLAIMS, self._settings)
        worker_group = DockerWorkerGroup(connect(), self._settings, folder, spec, attempt)
        try:
            for rank, card in enumerate(cards):
                worker_group.add(card, rank)
        except BaseException:
            worker_group.close()
            raise
        return worker_group

    def clear(self, run_dir: Path) -> None:
        """Remove the containers that an earlier driver left. Raises `PoolError` when there is no engine."""
        client = connect()
        with explained("remove the containers of an earlier run"):
            _remove(client, _containers(client, run_dir.resolve()))

    def forget(self, run_dir: Path) -> None:
        """Nothing to do: all is in the folder."""

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command in a container of its own, without a card. Raises `PoolError` when it cannot, or at the limit."""
        client = connect()
        _give(folder, self._settings)
        with (folder / DRIVER_LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            container = _create(client, self._settings, command, spec, folder, (), None)
            try:
                with explained(f"run {command[0]} in {_image(self._settings, spec)}"):
                    container.start()
                    status = _wait(container, timeout_s)
                    output = container.logs(tail=10_000).decode("utf-8", "replace")
            finally:
                with contextlib.suppress(Exception):
                    container.remove(force=True, v=True)
        if status is None:
            raise PoolError(f"{' '.join(command[:3])} did not end within {timeout_s:g} s in a container")
        return Finished(status, output)


class DockerWorkerGroup:
    """The containers of one round."""

    def __init__(
        self, client: DockerClient, settings: DockerPoolSettings, folder: Path, spec: WorkerSpec, attempt: int
    ) -> None:
        """A worker group without workers yet."""
        self._client, self._settings, self._spec, self._attempt = client, settings, spec, attempt
        self._folder = folder.resolve()
        self._containers: dict[str, Any] = {}
        self._states: dict[str, WorkerState] = {}
        self._looked = self._answered = time.monotonic()

    def add(self, card: str, rank: int) -> None:
        """Start one worker."""
        name = f"w{self._attempt}-{len(self._states)}"
        own = self._folder / round_folder.WORKERS / name
        own.mkdir(parents=True)
        _give(own, self._settings)
        command = [
            self._spec.python, str(self._folder / "runner.pyz"), "work", "--run-dir", str(self._folder), "--worker", name,
            f"--card={card}", "--rank", str(rank), "--end-with-lock", str(self._folder.parent / DRIVER_LOCK),
        ]  # fmt: skip
        container = _create(self._client, self._settings, command, self._spec, self._folder, cards_in(card), name)
        with explained(f"start a container of {_image(self._settings, self._spec)} with {self._spec.python}"):
            container.start()
        self._containers[name] = container
        self._states[name] = WorkerState(name, card, None)

    def workers(self) -> Sequence[WorkerState]:
        """All workers that were started, in that order. Raises `PoolError` when the engine is away for half a minute."""
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._look()
        return list(self._states.values())

    def _look(self) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            living = {
                found.id for found in _containers(self._client, self._folder.parent) if found.attrs["State"] not in _ENDED
            }
            for name, state in self._states.items():
                if state.ended is None and self._containers[name].id not in living:
                    self._states[name] = WorkerState(name, state.card, self._how_it_ended(name))
        except (DockerException, RequestException) as error:
            if time.monotonic() - self._answered > _ENGINE_AWAY_S:
                raise PoolError(f"the Docker engine has gone away ({error}); start it and run the same again") from error
        else:
            self._answered = time.monotonic()

    def _how_it_ended(self, name: str) -> str:
        """How a container ended, in the engine's words; what it printed is kept as the worker's log."""
        from docker.errors import NotFound

        try:
            container = self._containers[name]
            container.reload()
            log = container.logs(tail=1000)
        except NotFound:
            return "removed from outside"
        (self._folder / round_folder.WORKERS / name / round_folder.LOG).write_bytes(log)
        state = container.attrs["State"]
        code = int(state["ExitCode"])
        said = f"signal {code - 128}" if 128 < code < 128 + 65 else f"exit code {code}"
        if state.get("OOMKilled") and code:
            said += f", out of memory (pool.memory: {self._settings.memory})"
        return f"{said}, {state['Error']}" if state.get("Error") else said

    def replace(self, worker: str) -> None:
        """Start one more worker on the card of a worker that has ended."""
        self.add(self._states[worker].card, 0)

    def stop(self, worker: str) -> None:
        """End one container: by SIGTERM first, by force after 10 s."""
        with explained(f"stop worker {worker}"):
            _stop(self._containers[worker])

    def close(self) -> None:
        """End and remove all containers of the run."""
        with explained("remove the containers of a run"):
            _remove(self._client, _containers(self._client, self._folder.parent))


def remove_abandoned(*, dry_run: bool = False) -> list[str]:
    """Remove the containers whose driver is gone, of any run that was started on this machine; gives back their names.

    Raises `PoolError` when there is no engine.
    """
    client = connect()
    with explained("look for abandoned containers"):
        found = [
            each
            for each in _containers(client, None)
            if each.attrs["Labels"].get(_HOST_LABEL) == os.uname().nodename
            and not _is_held(Path(each.attrs["Labels"][RUN_LABEL]) / DRIVER_LOCK)
        ]
        if not dry_run:
            _remove(client, found)
    return sorted(str(each.attrs["Names"][0]).removeprefix("/") for each in found)


_ENDED = frozenset({"exited", "dead", "removing"})


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held, or is another user's
        return True
    return False


def _create(
    client: DockerClient,
    settings: DockerPoolSettings,
    command: Sequence[str],
    spec: WorkerSpec,
    folder: Path,
    cards: Sequence[str],
    worker: str | None,
) -> Any:
    """A container that is not started: for `worker` of the round in `folder`, or (None) for a command that writes there."""
    from docker.errors import ImageNotFound
    from docker.types import DeviceRequest, LogConfig, Mount

    image, folder = _image(settings, spec), folder.resolve()
    run_dir = folder if worker is None else folder.parent
    root = str(Path(spec.root).absolute())
    mounts = [Mount(root, str(Path(root).resolve()), "bind", read_only=True), Mount(str(folder), str(folder), "bind")]
    environment: dict[str, str | None] = {**dict.fromkeys(settings.unset_environment), **spec.environment}
    if worker is not None:
        lock = str(run_dir / DRIVER_LOCK)
        mounts.append(Mount(lock, lock, "bind", read_only=True))
        environment[spec.card_environment] = ",".join(cards)
    gpus = []
    if settings.gpus is not None and cards:
        wanted = {"count": -1} if settings.gpus == "all" else {"device_ids": list(cards)}
        gpus = [DeviceRequest(capabilities=[["gpu"]], **wanted)]
    try:
        with explained(f"make a container of {image}"):
            return client.containers.create(
                image,
                entrypoint=list(command[:1]),
                command=list(command[1:]),
                name=_container_name(folder, worker) if worker is not None else None,
                labels={
                    RUN_LABEL: str(run_dir),
                    _HOST_LABEL: os.uname().nodename,
                    _WORKER_LABEL: worker or "",
                    _CARD_LABEL: ",".join(cards),
                },
                environment=environment,
                working_dir=root,
                mounts=mounts,
                user=":".join(map(str, _user(settings))),
                devices=_devices(settings.devices, cards),
                device_requests=gpus,
                shm_size=settings.shm_size,
                mem_limit=settings.memory,
                memswap_limit=settings.memory,
                pids_limit=settings.pids_limit,
                network_mode=settings.network,
                init=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                log_config=LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
            )
    except PoolError as error:
        if isinstance(error.__cause__, ImageNotFound):
            raise PoolError(
                f"the Docker engine has no image {image!r}; `docker pull` it, fix pool.image, or run the build again"
            ) from error
        raise


def _image(settings: DockerPoolSettings, spec: WorkerSpec) -> str:
    """The pool's own image, else that of the build. Raises `PoolError` when there is neither."""
    image = settings.image or spec.image
    if image is None:
        raise PoolError("the build made no Docker image; add the section 'image' to the configuration, or set pool.image")
    return image


def _user(settings: DockerPoolSettings) -> tuple[int, int]:
    """The user and group of containers."""
    if settings.user is None:
        return os.getuid(), os.getgid()
    user, _, group = settings.user.partition(":")
    return int(user), int(group or user)


def _give(folder: Path, settings: DockerPoolSettings) -> None:
    """Let the containers' user write to a folder. Raises `PoolError` when this process may not give it away."""
    if settings.user is None:
        return
    try:
        os.chown(folder, *_user(settings))
    except PermissionError as error:
        raise PoolError(
            f"{folder} cannot be given to pool.user {settings.user}: run accel-ci as root or that user, or take the key out"
        ) from error


def _devices(wanted: Sequence[str], cards: Sequence[str]) -> list[str]:
    """The devices of a container, with `{card}` once for each of its cards; none for a container without a card."""
    return list(dict.fromkeys(device.replace("{card}", card) for card in cards for device in wanted))


def _container_name(folder: Path, worker: str) -> str:
    """A name that says build, stage, round and worker, and is unique to the folder."""
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(folder.parts[-4:]).lstrip("/"))
    return f"accel-ci-{words[-100:]}-{worker}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _containers(client: DockerClient, run_dir: Path | None) -> list[Any]:
    """The containers of a run (None: of any), whatever their state, each with what a list says of it."""
    label = RUN_LABEL if run_dir is None else f"{RUN_LABEL}={run_dir}"
    return list(client.containers.list(all=True, sparse=True, filters={"label": label}))


def _stop(container: Any) -> None:
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        container.stop(timeout=_GRACE_S)


def _remove(client: DockerClient, containers: Sequence[Any]) -> None:
    """Stop what runs and remove all, at once."""
    from docker.errors import APIError, NotFound

    def remove(container: Any) -> None:
        with contextlib.suppress(NotFound):
            if container.attrs["State"] not in _ENDED:
                container.stop(timeout=_GRACE_S)
            try:
                container.remove(force=True, v=True)
            except APIError as error:
                if error.status_code != 409:  # somebody else is removing it
                    raise

    if containers:
        with ThreadPoolExecutor(min(16, len(containers))) as at_once:
            list(at_once.map(remove, containers))


def _wait(container: Any, timeout_s: float) -> int | None:
    """The exit code of a container, None when it is past its limit."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        container.reload()
        state: Mapping[str, Any] = container.attrs["State"]
        if state["Status"] in _ENDED:
            return int(state["ExitCode"])
        time.sleep(0.05)
    return None
