"""A RECORD that is wrong or incomplete: each fault is found, and names its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.model import CheckResult
from accel_ci.wheels.archive import read_archive
from accel_ci.wheels.record import check_record

from .wheel_files import record_line, write_wheel

INIT = "toy/__init__.py"
RIGHT = record_line(INIT, b"answer = 42\n")
DIGEST = RIGHT.split(",")[1]
RECORD = "toy-1.0.dist-info/RECORD"


def record(path: Path) -> CheckResult:
    _, contents = read_archive(path, Wheels())
    assert contents is not None
    return check_record(contents, "toy-1.0.dist-info")


def test_a_right_record_passes_with_each_strong_digest_and_signatures_apart(tmp_path: Path) -> None:
    for algorithm in ("sha256", "sha384", "sha512", "blake2b"):
        line = record_line(INIT, b"answer = 42\n", algorithm)
        assert record(write_wheel(tmp_path, record={INIT: line})).passed
    odd = {"toy/a,b.txt": b"quoted", "toy/größe.txt": b"", f"{RECORD}.jws": b"{}", f"{RECORD}.p7s": b""}
    lines = {f"{RECORD}.jws": None, f"{RECORD}.p7s": f"{RECORD}.p7s,,"}
    result = record(write_wheel(tmp_path, files=odd, record=lines))
    assert (result.passed, result.warnings) == (True, ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, f"{INIT}: is not in RECORD"),
        (f"{INIT},,", f"{INIT}: has no digest in RECORD"),
        (f"{INIT},sha256=,12", "is not URL-safe base64 without padding"),
        (f"{INIT},{DIGEST[:-1]}x,12", f"{INIT}: its content does not match its digest"),
        (f"{INIT},{DIGEST}=,12", "is not URL-safe base64 without padding"),
        (f"{INIT},sha256={'0' * 64},12", "does not match its digest"),
        (record_line(INIT, b"answer = 42\n", "md5"), f"{INIT}: its digest in RECORD is md5; sha256 or better is needed"),
        (record_line(INIT, b"answer = 42\n", "sha1"), "is sha1; sha256 or better"),
        (f"{INIT},crc32=abcd,12", "is crc32; sha256 or better"),
        (f"{INIT},{DIGEST},13", f"{INIT}: has 12 bytes, but 13 in RECORD"),
        (f"{INIT},{DIGEST},-12", "has 12 bytes, but -12 in RECORD"),
        (f"{INIT},{DIGEST},twelve", "has 12 bytes, but twelve in RECORD"),
        (f"{RIGHT}\n{RIGHT}", f"{INIT}: is in RECORD twice"),
        (f"{RIGHT}\ntoy/core.py,{DIGEST},12", "toy/core.py: is in RECORD, but not in the wheel"),
        (f"{RIGHT}\n/etc/passwd,,", "/etc/passwd: is an absolute path in RECORD"),
        (f"{RIGHT}\n../evil.py,,", "../evil.py: leads out of the wheel in RECORD"),
        (RIGHT.replace("/", "\\"), "has a backslash"),
        (f"./{RIGHT}", f"./{INIT}: is not a normalised path in RECORD"),
        (f"{INIT},{DIGEST}", f"{RECORD}: line 1 is not a path, a digest and a size"),
        (f'"{RIGHT}', "line 1 is not a path"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str | None, message: str) -> None:
    result = record(write_wheel(tmp_path, record={INIT: line}))
    assert not result.passed
    assert message in "\n".join(result.findings)


def test_record_may_not_have_its_own_digest_and_should_name_itself(tmp_path: Path) -> None:
    with_digest = record(write_wheel(tmp_path, record={RECORD: f"{RECORD},{DIGEST},12"}))
    assert with_digest.findings == (f"{RECORD}: has its own digest, which cannot be right",)
    without = record(write_wheel(tmp_path, record={RECORD: None}))
    assert (without.passed, without.warnings) == (True, (f"{RECORD}: does not name itself",))


def test_sizes_that_are_missing_and_folders_are_warnings(tmp_path: Path) -> None:
    result = record(write_wheel(tmp_path, record={INIT: f"{INIT},{DIGEST},\ntoy/,,"}))
    assert result.passed
    assert set(result.warnings) == {
        f"{INIT}: has no size in RECORD", "toy/: is a folder, which does not belong in RECORD",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"{RECORD}: is missing"),
        (b"", f"{RECORD}: is empty"),
        (b"\n\n", f"{RECORD}: is empty"),
        ("toy/größe.py,,\n".encode("latin-1"), f"{RECORD}: is not UTF-8"),
        (b"toy/\0,,\n", "RECORD"),
        (b"\xef\xbb\xbf" + RIGHT.encode(), f"{INIT}: is not in RECORD"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    result = record(write_wheel(tmp_path, files={RECORD: content}))
    assert not result.passed
    assert message in "\n".join(result.findings)
