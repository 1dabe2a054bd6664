"""The fuzzing target: `python -m accel_ci_tests.reports.fuzz [-runs=N] [corpus folder]`, needs atheris."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["accel_ci.reports"]):
    from accel_ci.reports.parse import read_chunks


def one_input(data: bytes) -> None:
    """Read any bytes as a report, whole and in chunks, with the same result."""
    whole = read_chunks([data])
    assert whole.status in ("complete", "salvaged", "rejected", "empty")
    assert read_chunks(data[start : start + 7] for start in range(0, len(data), 7)) == whole


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
