"""The state of faults between processes, and the folders that are refused."""

import multiprocessing
from pathlib import Path

import pytest
from torch_emu import state


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the state of faults that does not exist yet."""
    path = tmp_path / "deep" / "state"
    monkeypatch.setenv(state.VARIABLE, str(path))
    return path


def count_often(times: int) -> None:
    """Count in a separate process."""
    for _ in range(times):
        state.count("shared")


def test_the_folder_is_private(folder: Path) -> None:
    """It is created when needed, with access only for this user."""
    state.prepare()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_no_count_is_lost_between_processes(folder: Path) -> None:
    """Four processes that count at the same time count to the sum."""
    workers = [multiprocessing.get_context("fork").Process(target=count_often, args=(50,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert state.count("shared") == 201


def test_a_mark_stays(folder: Path) -> None:
    """It stays from the time it is set until its file is removed."""
    assert not state.marked("card")
    state.mark("card")
    state.mark("card")
    assert state.marked("card")
    (folder / "card.mark").unlink()
    assert not state.marked("card")


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Somebody else may have put it there, to have files written where it points."""
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    folder.parent.mkdir()
    folder.symlink_to(target)
    with pytest.raises(state.StateError, match=state.VARIABLE):
        state.count("anything")
    assert list(target.iterdir()) == []


def test_a_link_in_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """The same holds for each file."""
    state.prepare()
    (folder / "anything.count").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        state.count("anything")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    """Its files could belong to anybody."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(state.StateError, match="other users"):
        state.prepare()
