"""Data scripts: nothing of their content is a part of the script, and damage is seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.errors import DamagedError
from accel_ci.hud.data.scripts import decode_script, encode_script, write_script


@given(st.binary())
def test_content_comes_back_and_is_no_part_of_the_script(content: bytes) -> None:
    script = encode_script("tests/2026-W48/03f", content)
    assert re.fullmatch(rb'accelCi\("tests/2026-W48/03f","[A-Za-z0-9+/=]*"\)\n', script)
    assert decode_script(script) == content


@pytest.mark.parametrize(
    "script",
    [b"", b"accelCi()", b'accelCi("a","")\n', b'accelCi("a","eJw=")\n', encode_script("a", b"x" * 99)[:-1],
     encode_script("a", b"x").replace(b"accelCi", b"other"), encode_script("a", b"hello").replace(b'"eF', b'"eA')],
    ids=range(7),
)  # fmt: skip
def test_a_damaged_script_is_told(script: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_script(script)


def test_a_script_is_written_only_when_it_is_another(tmp_path: Path) -> None:
    size = write_script(tmp_path, "a/b", b"content")
    before = (tmp_path / "a" / "b.js").stat()
    assert before.st_size == size
    write_script(tmp_path, "a/b", b"content")
    assert (tmp_path / "a" / "b.js").stat().st_ino == before.st_ino
    write_script(tmp_path, "a/b", b"other")
    assert decode_script((tmp_path / "a" / "b.js").read_bytes()) == b"other"
