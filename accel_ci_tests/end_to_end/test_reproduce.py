"""`accel-ci reproduce`: the script that it prints reproduces the failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

from accel_ci.model import Build
from accel_ci_tests.fixtures.bench import Bench


def test_the_failing_test_of_a_build_fails_again(bench: Bench, faulty_nightly: Build, tmp_path: Path) -> None:
    script = bench.accel_ci("reproduce", faulty_nightly.name, "test_op[to_sparse]")
    assert "git -C backend fetch" in script
    assert "torch==2.13.0" in script
    checked = subprocess.run(["sh", "-n", "-"], input=script, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")

    output = bench.accel_ci(
        "reproduce", faulty_nightly.name, "test_op[to_sparse]", "--run", "--folder", str(tmp_path / "there"), status=1
    )
    assert "1 failed" in output
    assert "emu has no tensors of layout torch.sparse_coo" in output
    passes = bench.accel_ci(
        "reproduce", faulty_nightly.name, "test_op[add]", "--run", "--folder", str(tmp_path / "other"), status=0
    )
    assert "1 passed" in passes


def test_without_a_test_all_that_did_not_pass_run_again(bench: Bench, faulty_nightly: Build) -> None:
    script = bench.accel_ci("reproduce", faulty_nightly.name)
    last = script.strip().splitlines()[-1]
    assert all(f"test_op[{name}]" in last for name in ("atan2", "tan", "erfinv", "to_sparse"))
    assert "test_op[add]" not in last


def test_the_error_for_an_unknown_test_lists_similar_ones(bench: Bench, faulty_nightly: Build) -> None:
    assert "similar tests: tests/pytorch/test_op_db.py::test_op[to_sparse]" in bench.accel_ci(
        "reproduce", faulty_nightly.name, "to_spars", status=2
    )
