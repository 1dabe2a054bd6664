from __future__ import annotations

import pyarrow as pa
import pytest

from accel_ci.results.signature import SIGNATURE_CHARS, signatures


def signature(message: str) -> str:
    [found] = signatures(pa.array([message], pa.string())).to_pylist()
    return str(found)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("AssertionError: tensors differ", "AssertionError: tensors differ"),
        ("max abs diff 0.125 > 1e-3 at (3, -17)", "max abs diff <n> > <n> at (<n>, <n>)"),
        ("segfault at 0x7FFe12ab, ip deadbeef1234", "segfault at <hex>, ip <hex>"),
        ("9999999 and 10000000 and 1234567890a", "<n> and <n> and <hex>"),
        ("card f81d4fae-7dec-11d0-a765-00a0c91e6bf6 is lost", "card <uuid> is lost"),
        ("2026-11-27T03:14:15.926Z lost /dev/accel/0", "<time> lost <path>"),
        ("03:14:15 lost", "<time> lost"),
        ("cannot open /tmp/pytest-of-ci/pytest-7/test_a0/out.bin", "cannot open <path>"),
        ("in tests/gen/part_003/test_warp.py:117: AssertionError", "in <path>:<n>: AssertionError"),
        (r"cannot open C:\ci\work\out.bin", "cannot open <path>"),
        ("no route to 10.0.17.4:8080", "no route to <address>"),
        ("GET https://ci.example.com/r/17?x=1 gave 503", "GET <url> gave <n>"),
        ("out of memory: 512MiB of 16GiB, 12.5% free", "out of memory: <n> of <n>, <n> free"),
        ("float32 is not bfloat16", "float<n> is not bfloat<n>"),
        ("  line one\n\tline  two ", "line one line two"),
        ("\x1b[31mred\x1b[0m", "red"),
        (
            "/src/a/test_a.py:4: AssertionError: off\n\n    def test_a():\n>       assert 0",
            "<path>:<n>: AssertionError: off",
        ),
        ("\n\nValueError: off\n  \n  a difference", "ValueError: off"),
        ("KeyError: 'a'\nTraceback (most recent call last):\n  File x", "KeyError: 'a'"),
        ("cafe and faded are words, 17 is not", "cafe and faded are words, <n> is not"),
        ("'; DROP TABLE attempts; --", "'; DROP TABLE attempts; --"),
        ("nul \x00 and \u202e stay", "nul \x00 and \u202e stay"),
    ],
)
def test_differences_between_runs_are_masked(message: str, expected: str) -> None:
    assert signature(message) == expected


def test_signatures_are_bounded_and_cheap_for_hostile_messages() -> None:
    for hostile in ("x" * 10_000_000, "/a" * 1_000_000, "1" * 1_000_000 + "e", "0x" * 500_000, "é" * 100_000):
        assert len(signature(hostile)) <= SIGNATURE_CHARS


def test_a_column_keeps_its_order_and_nulls() -> None:
    column = pa.chunked_array([pa.array([None, "at 1"]), pa.array(["at 2", None])])
    assert signatures(column).to_pylist() == [None, "at <n>", "at <n>", None]
    assert signatures(pa.nulls(3, pa.string())).to_pylist() == [None] * 3
