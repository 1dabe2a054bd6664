"""Small wheels that would take much memory or time to check: each is refused by the name of the limit and the file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.wheels.audit import run_module
from accel_ci.wheels.wheel_name import check_name
from accel_ci_tests.wheels.wheel_files import METADATA, wheel_fields, write_wheel

INFO = "toy-1.0.dist-info"
MEMORY = 1 << 30
"""Bytes of address space that a check may use, libraries included."""

PARTS = "-".join(".".join(f"a{number}" for number in range(300)) for _ in range(3))
CHECKS = """
import sys
from pathlib import Path
from accel_ci.config.settings import Wheels
from accel_ci.wheels import archive, dist_info, record, wheel_name
wheel = Path(sys.argv[1])
sound, contents = archive.read_archive(wheel, Wheels(expansion_limit=10**9))
checks, name, folder = [sound], wheel_name.parse_name(wheel.name), "toy-1.0.dist-info"
if contents is not None:
    checks += [dist_info.check_dist_info(contents, name)[0], dist_info.check_wheel_file(contents, folder, name)]
    checks += [dist_info.check_metadata(contents, folder, name), record.check_record(contents, folder)]
    dist_info.requires_python(contents, folder)
for check in checks:
    if not check.passed:
        print(check.name, check.summary)
"""


def headers(line: str, count: int) -> bytes:
    """METADATA with many more headers."""
    return METADATA.replace("\n\n", f"\n{line * count}\n", 1).encode()


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("METADATA", METADATA.encode() + bytes(8 << 20), "has 8,388,713 bytes, more than 4,194,304"),
        ("METADATA", headers("A:b\n", 1 << 19), "has 524,293 lines of headers, more than 10,000"),
        ("METADATA", headers(f"Requires-Python: {'>=3,' * 300_000}>=3\n", 1), "characters in line 6, more than 16,384"),
        ("METADATA", headers(f"Requires-Python: {'>=3,' * 3000}>=3\n", 1), "more than 1,000 characters in Requires-Python"),
        ("METADATA", METADATA.replace("Version: 1.0", f"Version: {'1' * 9000}").encode(), "Exceeds the limit"),
        ("WHEEL", f"{wheel_fields()}Tag: {PARTS}\n".encode(), "has more than 1,000 tags"),
        ("WHEEL", b"x\n" * (1 << 20), "has 2,097,152 bytes, more than 65,536"),
        ("RECORD", b"\n" * (32 << 20), "has more lines than the wheel has files (4)"),
        ("RECORD", b"".join(b"%d,,\n" % line for line in range(1_000_000)), "is in RECORD, but not in the wheel"),
        ("entry_points.txt", b"[g]\n" + b"a = b\n" * (1 << 18), "has 1,572,868 bytes"),
        ("licenses/LICENSE", bytes(65 << 20), "has 68,157,440 bytes"),
    ],
)  # fmt: skip
def test_a_costly_file_is_refused_in_little_memory(tmp_path: Path, file: str, content: bytes, problem: str) -> None:
    wheel = write_wheel(tmp_path, files={f"{INFO}/{file}": content})
    done = subprocess.run(
        [sys.executable, "-c", CHECKS, str(wheel)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 0, done.stderr
    assert problem in done.stdout


def test_many_files_are_refused(tmp_path: Path) -> None:
    from accel_ci.wheels.archive import read_archive

    wheel = write_wheel(tmp_path, files={f"toy/{number}": b"" for number in range(100_001)})
    result, contents = read_archive(wheel, Wheels())
    assert contents is None
    assert "has 100,005 files, more than 100,000" in result.findings


def test_a_name_that_stands_for_many_tags_is_refused() -> None:
    part = ".".join("abcdefghijk")
    result, name = check_name(Path(f"toy-1.0-{part}-{part}-{part}.whl"))
    assert name is None
    assert "More than 1,000 tags" in result.summary


def test_a_tool_that_takes_too_much_memory_has_failed(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("bytearray(5 << 30)\n")
    done = run_module(["greedy"], {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.status, done.output) == (1, "greedy needs more than 4 GiB of memory for it")
