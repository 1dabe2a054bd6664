"""Code that runs as another user on this machine: what it leaves in its home folder, no later build finds."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci.config.pool_settings import LocalPoolSettings
from accel_ci.errors import PoolError
from accel_ci.model import Limits, RuntimeImage, WorkerSpec
from accel_ci.pool.local import LocalPool
from accel_ci.process.own_user import OwnUser
from accel_ci.rounds.driver import run_rounds
from accel_ci_tests.fixtures.ground import outcomes
from accel_ci_tests.fixtures.suite import batch

PYTHON = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin") or ""
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can run code as another user"),
    pytest.mark.skipif(not PYTHON, reason="this needs a Python that other users can start, in /usr/local/bin or /usr/bin"),
]

USER = OwnUser(23458, 23458)
IMAGE = RuntimeImage("venv", PYTHON, "", "3.11", "2", None, (), True, 0.0)
LEAVE = """
import os, pathlib, site, tempfile

def test_leave():
    home, temporary = pathlib.Path.home(), pathlib.Path(tempfile.gettempdir())
    assert os.getuid() == 23458
    assert (os.listdir(home), os.listdir(temporary)) == (["tmp"], [])
    packages = pathlib.Path(site.getusersitepackages())
    assert home in packages.parents and home in temporary.parents
    left = home / ".config/pip/pip.conf", home / ".pytest.ini", packages / "usercustomize.py", temporary / "kernel.so"
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise SystemExit(9)")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can read."""
    made = Path(tempfile.mkdtemp(prefix="accel-ci-own-user-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def pool(**environment: str) -> LocalPool:
    packages = {"PYTHONPATH": sysconfig.get_path("purelib")}  # pytest
    return LocalPool(LocalPoolSettings(card_environment="CARD", user=str(USER), environment={**packages, **environment}))


def spec_of(given: LocalPool, folder: Path) -> WorkerSpec:
    (folder / "test_a.py").write_text(LEAVE)
    return given.worker_spec(IMAGE, folder)


def scratch_folders() -> set[str]:
    return {
        path.name for path in Path(tempfile.gettempdir()).glob("accel-ci-scratch-home-*") if path.stat().st_uid == USER.uid
    }


def test_every_build_has_a_home_folder_of_its_own_which_is_removed(folder: Path) -> None:
    given = pool()
    for name in ("labelled", "trusted"):
        batches = [batch("b0", "test_a.py::test_leave")]
        run = run_rounds(given, batches, ["0"], spec_of(given, folder), Limits(), folder / name, lambda *_: None, 1)
        assert outcomes(run) == {"test_a.py::test_leave": "passed"}
    assert not scratch_folders()


def test_every_command_has_a_home_folder_of_its_own_which_is_removed(folder: Path) -> None:
    given, room = pool(), folder / "room"
    room.mkdir(mode=0o700)
    command = [PYTHON, "-c", f"{LEAVE}\ntest_leave()"]
    for _ in range(2):
        done = given.execute(command, spec_of(given, folder), room, 60)
        assert (done.status, done.output) == (0, "")
    assert not scratch_folders()


def test_a_home_folder_that_is_configured_is_kept_and_belongs_to_the_user(folder: Path) -> None:
    room = folder / "room"
    room.mkdir(mode=0o700)
    folder.chmod(0o777)
    given = pool(HOME=str(folder / "home"))
    command = [PYTHON, "-c", "import pathlib; (pathlib.Path.home() / 'kept').touch()"]
    assert given.execute(command, spec_of(given, folder), room, 60).status == 0
    assert (folder / "home" / "kept").stat().st_uid == USER.uid
    theirs = pool(HOME=str(folder))
    with pytest.raises(PoolError, match="belongs to somebody else than"):
        theirs.execute(command, spec_of(theirs, folder), room, 60)


@pytest.mark.parametrize("place", ["top", "below"])
def test_what_a_link_of_the_user_leads_to_is_not_given_away(folder: Path, place: str) -> None:
    """A user who runs code in a folder can put links there before it is given for the next command."""
    precious, room = folder / "precious", folder / "room"
    (precious / "deep").mkdir(parents=True)
    (precious / "deep" / "file").touch()
    if place == "below":
        room.mkdir()
    link = room if place == "top" else room / "link"
    link.symlink_to(precious)
    USER.give(room)
    assert link.lstat().st_uid == USER.uid
    assert {path.stat().st_uid for path in (precious, *precious.rglob("*"))} == {0}
