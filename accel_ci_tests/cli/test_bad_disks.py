"""Commands on disks that are full or read-only, and on damaged files: one line with the fix, and no traceback."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.model import Attempt
from accel_ci_tests.fixtures.stored_attempts import write_attempts
from accel_ci_tests.retention.data_folder import NOW, DataFolder

pytest_plugins = ["accel_ci_tests.fixtures.stored_attempts"]

BUILD = "nightly-1~py3"
COMMANDS = {
    "status": ["status"],
    "results": ["results", "failures", BUILD],
    "prune": ["prune"],
    "janitor": ["janitor"],
    "doctor": ["doctor"],
    "repair": ["doctor", "--repair"],
    "run": ["run", "nightly"],
}


@pytest.fixture
def folder(make_project: Callable[..., Project], repository: Path, attempt: Callable[..., Attempt]) -> Iterator[DataFolder]:
    """A data folder with a build, on a disk of 16 MiB."""
    project = make_project(backend={
        "name": "toy", "distribution": "toy", "import_name": "toy", "repository": "repository", "subdirectory": "backend",
    })  # fmt: skip
    project.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(project.home)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: only root can")
    folder = DataFolder(project)
    build = folder.lay_build(1, green=True)
    write_attempts(folder.workspace.results, build, NOW.date(), [attempt("a", "failed", message="off by 3")])
    yield folder
    subprocess.run(["umount", "--lazy", str(project.home)], check=True)


def fill(folder: DataFolder) -> None:
    with (folder.home / "fill").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass


def make_read_only(folder: DataFolder) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder.home)], check=True)


def damage_databases(folder: DataFolder) -> None:
    for name in ("history/runs.db", "schedules/schedules.db", "history/runs/index.db"):
        file = folder.home / "dagster" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE runs (id)")
            database.commit()
        file.write_bytes(b"no database" * 1000)


def damage_manifests(folder: DataFolder) -> None:
    for file in folder.home.glob("builds/*/**/*.json"):
        file.write_bytes(b"")


def damage_attempts(folder: DataFolder) -> None:
    for file in folder.home.glob("results/day=*/*.parquet"):
        file.write_bytes(b"PAR1")


TOLD = {
    "fill": "stopped: the disk is full: ",
    "make_read_only": "stopped: the folder is read-only: ",
    "damage_databases": "stopped: a database is damaged: ",
}


@pytest.mark.parametrize("fault", [fill, make_read_only, damage_databases, damage_manifests, damage_attempts])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_fault_of_the_disk_is_told_in_a_line(
    folder: DataFolder, command: str, fault: Callable[[DataFolder], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("UV_OFFLINE", "1"), ("UV_NO_INDEX", "1"), ("UV_FIND_LINKS", "")):
        monkeypatch.setenv(name, value)  # the build of a run stops early, which is enough
    for name in ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    fault(folder)
    done = CliRunner().invoke(main, ["--config", str(folder.project.config_path), *COMMANDS[command]])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert "Traceback" not in done.output
    assert done.exit_code in (0, 1, 2)
    told = [line for line in done.output.splitlines() if line.startswith(("accel-ci: ", "stopped: ", "stays: "))]
    assert len(told) == bool(done.exit_code) or command in ("doctor", "janitor")
    if command == "run":
        assert done.exit_code == 1
        assert TOLD.get(fault.__name__, "stopped: wheel: ") in told[0]
