"""Claims: one worker wins each batch, whatever tests do to the folder."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accel_ci.rounds.claim_record import ClaimRecord


def test_one_owner_wins_each_batch(tmp_path: Path) -> None:
    record = ClaimRecord(tmp_path)
    workers = [f"w{number}" for number in range(8)]
    batches = [f"b{number}" for number in range(50)]
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda worker: [batch for batch in batches if record.take(batch, worker)], workers))
    assert sorted(batch for mine in won for batch in mine) == sorted(batches)
    assert {batch: worker for worker, mine in zip(workers, won, strict=True) for batch in mine} == record.taken()
    assert ClaimRecord(tmp_path).taken() == record.taken()


def _replace_by(make: Callable[[Path], object], name: str = "") -> Callable[[Path], object]:
    def replace(folder: Path) -> object:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
        return make(folder / name)

    return replace


@pytest.mark.parametrize(
    "attack",
    [
        shutil.rmtree,
        _replace_by(Path.mkdir),
        _replace_by(os.mkfifo),
        _replace_by(lambda path: path.symlink_to(path.with_name("outside"))),
        _replace_by(lambda path: None, "b0"),
        _replace_by(lambda path: path.write_text("w9", "utf-8"), "b0"),
        _replace_by(lambda path: path.write_text("w9", "utf-8"), "b1"),
        _replace_by(Path.mkdir, "b1"),
        _replace_by(os.mkfifo, "b1"),
        _replace_by(lambda path: path.symlink_to(path.parents[1] / "outside" / "b1"), "b1"),
        _replace_by(os.mkfifo, ".fresh"),
        _replace_by(lambda path: path.symlink_to(path.parents[1] / "outside" / "new"), ".fresh"),
    ],
)
def test_claims_stand_whatever_is_done_to_the_folder(tmp_path: Path, attack: Callable[[Path], object]) -> None:
    folder, outside = tmp_path / "claims", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    record = ClaimRecord(folder)
    assert record.take("b0", "w0")
    attack(folder)
    assert not record.take("b0", "w1")
    assert record.take("b1", "w1")
    assert record.taken() == {"b0": "w0", "b1": "w1"}
    assert ClaimRecord(folder).taken()["b1"] == "w1"
    assert list(outside.iterdir()) == []


def test_claims_outlive_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    record = ClaimRecord(tmp_path)
    assert record.take("b0", "w0")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            record.take("b1", "w1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ClaimRecord(tmp_path).taken() == record.taken() == {"b0": "w0"}
    assert record.take("b1", "w1")


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_a_claim_that_is_no_file_is_nobodys(tmp_path: Path, put: Callable[[Path], object]) -> None:
    put(tmp_path / "b0")
    assert ClaimRecord(tmp_path).taken() == {"b0": "?"}
