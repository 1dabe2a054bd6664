from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from accel_ci.storage.scratch_folder import PREFIX, remove_abandoned_folders, scratch_folder

HOLDS = """
import sys, time
from pathlib import Path
from accel_ci.storage.scratch_folder import scratch_folder
with scratch_folder("test", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(300)
"""


def test_the_folder_of_a_living_process_stays_and_that_of_a_killed_one_goes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.name.startswith(f"{PREFIX}test-")
        assert remove_abandoned_folders(tmp_path) == []
        process.kill()
    assert remove_abandoned_folders(tmp_path, dry_run=True) == [folder]
    assert (folder / "file").exists()
    assert remove_abandoned_folders(tmp_path) == [folder]
    assert not folder.exists()


def test_it_is_gone_at_the_end_and_one_that_has_no_lock_yet_is_spared(tmp_path: Path) -> None:
    with scratch_folder("test", tmp_path) as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
    fresh = tmp_path / f".{PREFIX}new"
    fresh.mkdir()
    assert remove_abandoned_folders(tmp_path) == []
    os.utime(fresh, (time.time() - 100, time.time() - 100))
    assert remove_abandoned_folders(tmp_path) == [fresh]


def test_links_and_files_are_no_scratch_folders(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other")
    (tmp_path / f"{PREFIX}file").touch()
    assert remove_abandoned_folders(tmp_path) == []
