"""The local pool: a worker is a subprocess on this machine, one per card."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_ci.config.pool_settings import LocalPoolSettings
from accel_ci.errors import PoolError
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.pool.project_pool import ProjectPool, card_variable, own_lock
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.environment import clean_environment
from accel_ci.process.own_user import OwnUser
from accel_ci.process.run import Finished, run_tool
from accel_ci.rounds.engine import WorkerGroup, WorkerState, end_of_process
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.worker_channels import WorkerChannels
from accel_ci.runner import round_folder
from accel_ci.storage.scratch_folder import scratch_folder

_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_GRACE_S = 10.0
_KEEPER_ENDS_S = 15.0  # the time that a keeper takes to end what a worker leaves, beyond the worker's own


class LocalPool(ProjectPool):
    """Runs workers as subprocesses. The kernel ends them with their driver, and everything is in the folder."""

    def __init__(self, settings: LocalPoolSettings, *, with_cards: bool = True) -> None:
        self._settings, self._with_cards = settings, with_cards
        self._user = OwnUser.named(settings.user)

    def check(self) -> str | None:
        """Check that this process may run workers as the configured user. Raises `PoolError`."""
        if self._user is None:
            return None
        if os.getuid() != 0:
            raise PoolError(
                f"pool.user {self._user} needs accel-ci to run as root or as that user; remove the key, or do so"
            )
        return f"as user {self._user}"

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The lock file that the projects of this machine share, else that of the project."""
        return (Path(self._settings.cards_lock or cards_lock), "the cards") if self._with_cards else own_lock(run_dir)

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """Workers start in the runtime image. They write no byte code, which tests could forge for the builds to come.

        What the image needs of the software stack comes before the configured variables. Another user gets a home folder
        when they start (`_at_home`).
        """
        settings = self._settings
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": None}
        if self._user is not None:
            own |= dict.fromkeys(("HOME", "USER", "LOGNAME", *_TEMPORARY))
        configured = {**own, **image.environment, **settings.environment}
        selects = settings.card_environment if self._with_cards else ""
        configured |= {} if self._with_cards else {settings.card_environment: ""}
        environment = clean_environment(configured, keep=settings.pass_environment)
        return WorkerSpec(image.python, str(sources), environment, selects)

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a worker on each card. Raises `PoolError` when the interpreter cannot be started."""
        runner = build_runner(record.path / "runner.pyz")
        with ExitStack() as undo:
            own = undo.enter_context(self._at_home(spec))
            worker_group = _LocalWorkerGroup(runner, record, own, attempt, self._user)
            undo.callback(worker_group.end)
            for rank, card in enumerate(cards):
                worker_group.add(card, rank)
            worker_group.undo = undo.pop_all()
        return worker_group

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command to its end. Raises `BuildError` at its limit."""
        if self._user is not None:
            self._user.give(folder)
        with self._at_home(spec) as own:
            return run_tool(command, timeout_s=timeout_s, environment=own.environment, user=self._user)

    @contextmanager
    def _at_home(self, spec: WorkerSpec) -> Iterator[WorkerSpec]:
        """Give another user a home folder and one for temporary files, both empty, and remove them at the end.

        What the code of a build leaves there, no other build finds. Folders that the configuration names are kept.
        """
        if self._user is None:
            yield spec
            return
        if "HOME" in spec.environment:
            _make_home(self._user, Path(spec.environment["HOME"]))
        with scratch_folder("home") as home:
            temporary = home / "tmp"
            temporary.mkdir(mode=0o700)
            self._user.give(home)
            own = {"HOME": str(home), **dict.fromkeys(_TEMPORARY, str(temporary))}
            yield replace(spec, environment={**own, **spec.environment})


def _make_home(user: OwnUser, home: Path) -> None:
    """Make the home folder that the configuration names."""
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
        user.give(home)
    if home.is_symlink() or home.stat().st_uid != user.uid:
        raise PoolError(f"{home} belongs to somebody else than pool.user {user}; remove it, or set HOME in pool.environment")


class _LocalWorkerGroup:
    """The worker processes of one round.

    Each runs below a keeper, which ends whatever a worker that was killed leaves: no process is ended by a number that
    somebody else has written down.
    """

    def __init__(self, runner: Path, record: FolderRound, spec: WorkerSpec, attempt: int, user: OwnUser | None) -> None:
        self.undo = ExitStack()
        self._identity: dict[str, Any] = {}
        if user is not None:
            self._identity = {"user": user.uid, "group": user.gid, "extra_groups": []}
        self._user = user
        self._runner, self._folder = runner.resolve(), record.path.resolve()
        self._spec, self._attempt = spec, attempt
        self._channels = WorkerChannels(record)
        self._processes: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._finished: set[str] = set()

    def add(self, card: str, rank: int) -> None:
        name = f"w{self._attempt}-{len(self._processes)}"
        record, room = (self._folder / each / name for each in (round_folder.WORKERS, round_folder.ROOMS))
        for folder in (record, room):
            folder.mkdir(parents=True)
        if self._user is not None:
            self._user.give(room)
        runner = [self._spec.python, str(self._runner)]
        with (
            (record / round_folder.LOG).open("wb") as log,
            (record / round_folder.ALIVE).open("wb") as alive,
            self._channels.pair(name) as driver,
        ):
            fcntl.flock(alive, fcntl.LOCK_EX)  # until all processes have ended that inherit it: the keeper and the worker
            command = [
                *runner, "keep", "--grace", str(_GRACE_S), *runner, "work", "--plan", str(self._folder / round_folder.PLAN),
                "--scratch", str(room), "--driver", str(driver.fileno()), "--worker", name, f"--card={card}",
                "--rank", str(rank), "--end-with", "0",
            ]  # fmt: skip
            try:
                process = subprocess.Popen(
                    command, cwd=self._spec.root, env={**self._spec.environment, **card_variable(self._spec, card)},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    pass_fds=(alive.fileno(), driver.fileno()),
                    **self._identity,
                )  # fmt: skip
            except OSError as error:
                message = f"a worker cannot be started with {self._spec.python} in {self._spec.root}: {error}"
                raise PoolError(message) from error
        self._processes[name] = (card, process)

    def workers(self) -> Sequence[WorkerState]:
        """All workers that were started, in that order; of one that has ended, all events are recorded."""
        states = []
        self._channels.check()
        for name, (card, process) in self._processes.items():
            code = process.poll()
            if code is not None and name not in self._finished:
                self._finished.add(name)
                self._channels.finish(name)
            states.append(WorkerState(name, card, None if code is None else end_of_process(code)))
        return states

    def replace(self, worker: str) -> None:
        self.add(self._processes[worker][0], 0)

    def stop(self, worker: str) -> None:
        """Ask one worker to end; kill it after 10 s."""
        self._processes[worker][1].terminate()
        self._finish(worker, time.monotonic() + _GRACE_S + _KEEPER_ENDS_S)

    def close(self) -> None:
        self.undo.close()

    def end(self) -> None:
        for _, process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for name in self._processes:
            self._finish(name, deadline + _KEEPER_ENDS_S)
            self._channels.finish(name)
        self._channels.close()

    def _finish(self, name: str, deadline: float) -> None:
        process = self._processes[name][1]
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
