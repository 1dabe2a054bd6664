"""The containers of workers: made (image, user, devices, mounts, limits), listed, stopped and removed."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_ci.config.pool_settings import DockerPoolSettings
from accel_ci.docker.engine import explained
from accel_ci.errors import PoolError
from accel_ci.model import WorkerSpec
from accel_ci.pool.project_pool import card_variable
from accel_ci.process.own_user import OwnUser
from accel_ci.process.waiting import poll
from accel_ci.rounds.engine import cards_in
from accel_ci.source.checkout import checkout_root

if TYPE_CHECKING:
    from docker import DockerClient

RUN_LABEL = "accel-ci.run"  # the label with the folder of the run, whose lock the driver holds
HOST_LABEL = "accel-ci.host"  # the label with the name of the driver's machine
HOME = {"HOME": "/tmp"}  # noqa: S108 - in the container, whose user may have no home folder
GRACE_S = 10  # the time between SIGTERM and the end by force, in seconds
ENDED = frozenset({"exited", "dead", "removing"})  # the engine's states of containers that have ended
_LOG = logging.getLogger(__name__)
_WORKER_LABEL, _CARD_LABEL = "accel-ci.worker", "accel-ci.card"


def create_container(
    client: DockerClient, settings: DockerPoolSettings, command: Sequence[str], spec: WorkerSpec, run_dir: Path,
    writable: Path, readable: Sequence[Path] = (), cards: Sequence[str] = (), worker: str | None = None,
) -> Any:  # fmt: skip
    """Create a container without starting it, for `worker` or another command; `run_dir` has the lock that its driver holds.

    It can write to the folder `writable` alone. That and what it can read, the sources included, are mounted at their own
    paths, so that paths mean the same on both sides. Raises `PoolError`.
    """
    from docker.errors import ImageNotFound
    from docker.types import DeviceRequest, LogConfig, Mount

    image = image_of(settings, spec)
    root = str(Path(spec.root).absolute())
    whole = checkout_root(Path(root))
    mounts = [
        Mount(str(whole), str(whole.resolve()), "bind", read_only=True),
        Mount(str(writable), str(writable), "bind"),
        *(Mount(str(path), str(path), "bind", read_only=True) for path in readable),
    ]
    environment: dict[str, str | None] = {**dict.fromkeys(settings.unset_environment), **spec.environment}
    if worker is not None:
        environment |= card_variable(spec, ",".join(cards))
    labels = {
        RUN_LABEL: str(run_dir),
        HOST_LABEL: os.uname().nodename,
        _WORKER_LABEL: worker or "",
        _CARD_LABEL: ",".join(cards),
    }
    gpus = []
    if settings.gpus is not None and cards:
        wanted = {"count": -1} if settings.gpus == "all" else {"device_ids": list(cards)}
        gpus = [DeviceRequest(capabilities=[["gpu"]], **wanted)]
    try:
        with explained(f"make a container of {image}"):
            return client.containers.create(
                image, entrypoint=list(command[:1]), command=list(command[1:]), environment=environment, working_dir=root,
                name=_name(writable, worker) if worker is not None else None, labels=labels, mounts=mounts,
                user=":".join(map(str, user_of(settings))), devices=_devices(settings, cards), device_requests=gpus,
                shm_size=settings.shm_size, mem_limit=settings.memory, memswap_limit=settings.memory,
                pids_limit=settings.pids_limit, network_mode=settings.network,
                init=True, cap_drop=["ALL"], security_opt=["no-new-privileges"],
                log_config=LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
            )  # fmt: skip
    except PoolError as error:
        if not isinstance(error.__cause__, ImageNotFound):
            raise
        raise _no_image(image) from error


def _no_image(image: str) -> PoolError:
    advice = "`docker pull` it, fix pool.image, or run the build again"
    return PoolError(f"the Docker engine has no image {image!r}; {advice}")


def check_settings(client: DockerClient, settings: DockerPoolSettings) -> None:
    """Check that what the settings name is there. Raises `PoolError`."""
    from docker.errors import ImageNotFound

    with explained("list its images and networks"):
        if settings.image is not None:
            try:
                client.images.get(settings.image)
            except ImageNotFound as error:
                raise _no_image(settings.image) from error
        networks = {network.name for network in client.networks.list()}
    if settings.network not in networks:
        raise PoolError(f"the Docker engine has no network {settings.network!r}; make it, or fix pool.network")
    devices = _devices(settings, [str(card) for card in range(settings.cards)])
    if missing := [path for path in (device.partition(":")[0] for device in devices) if not Path(path).exists()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        problem = f"{', '.join(missing[:3])}{more} of pool.devices"
        raise PoolError(f"this machine has no {problem}; load the cards' driver, or fix pool.devices and pool.cards")
    if os.getuid() and user_of(settings) != (os.getuid(), os.getgid()):
        raise PoolError(f"pool.user {settings.user} needs accel-ci to run as root or that user; remove the key, or do so")


def docker_options(settings: DockerPoolSettings, card: str) -> tuple[str, ...]:
    """The same container as options of `docker run`, without the environment of its tests."""
    gpus = {"all": ["--gpus", "all"], "card": ["--gpus", f'"device={card}"'], None: []}[settings.gpus]
    return (
        "--rm", "--init", "--network", settings.network, "--shm-size", settings.shm_size, "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--pids-limit", str(settings.pids_limit),
        *(["--memory", settings.memory, "--memory-swap", settings.memory] if settings.memory else []), *gpus,
        *(word for device in _devices(settings, cards_in(card)) for word in ("--device", device)),
        *(word for name, value in HOME.items() for word in ("--env", f"{name}={value}")),
    )  # fmt: skip


def image_of(settings: DockerPoolSettings, spec: WorkerSpec) -> str:
    """The pool's own image, else that of the build. Raises `PoolError` when there is neither."""
    if (image := settings.image or spec.image) is None:
        raise PoolError("the build made no Docker image; add the section 'image' to the configuration, or set pool.image")
    return image


def let_write(folder: Path, settings: DockerPoolSettings) -> None:
    """Let the user of containers write to a folder and all in it. Raises `PoolError` if this process may not allow that."""
    if settings.user is None:
        return
    try:
        OwnUser(*user_of(settings)).give(folder)
    except PermissionError as error:
        problem = f"{folder} cannot be given to pool.user {settings.user}"
        raise PoolError(f"{problem}: run accel-ci as root or that user, or remove the key") from error


def user_of(settings: DockerPoolSettings) -> tuple[int, int]:
    """The user and group of containers."""
    if settings.user is None:
        return os.getuid(), os.getgid()
    user, _, group = settings.user.partition(":")
    return int(user), int(group or user)


def _devices(settings: DockerPoolSettings, cards: Sequence[str]) -> list[str]:
    """The devices of a container, with `{card}` replaced for each of its cards; without a card there are none."""
    return list(dict.fromkeys(device.replace("{card}", card) for card in cards for device in settings.devices))


def _name(folder: Path, worker: str) -> str:
    """A container name with build, stage, round and worker that is unique to the worker's folder."""
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(folder.parts[-6:-2]).lstrip("/"))
    return f"accel-ci-{words[-100:]}-{worker}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def containers_with(client: DockerClient, label: str) -> list[Any]:
    """The containers with a label (`name` or `name=value`) in any state, each with what the engine's list contains."""
    return list(client.containers.list(all=True, sparse=True, filters={"label": label}))


def remove(containers: Sequence[Any]) -> None:
    """Stop those that run, by force after 10 s, and remove all, in parallel."""
    from docker.errors import APIError, NotFound

    def remove_one(container: Any) -> None:
        with suppress(NotFound):
            if container.attrs["State"] not in ENDED:
                container.stop(timeout=GRACE_S)
            try:
                container.remove(force=True, v=True)
            except APIError as error:
                if error.status_code != 409:  # somebody else is removing it
                    raise

    if containers:
        with ThreadPoolExecutor(min(16, len(containers))) as at_once:
            list(at_once.map(remove_one, containers))


def exit_code(container: Any, timeout_s: float) -> int | None:
    """Wait for a container to end; return its exit code, None at the limit."""
    for _ in poll(_LOG, f"container {container.name} to end", 0.05, timeout_s):
        container.reload()
        if container.attrs["State"]["Status"] in ENDED:
            return int(container.attrs["State"]["ExitCode"])
    return None
