"""Tests in scope as estimates, for rules that choose among them."""

from __future__ import annotations

from collections.abc import Iterable

from accel_ci.ramp.chances import RampTest


def ramp_test(name: str, op: str | None = None, **changes: object) -> RampTest:
    """Return a test that is not enabled, passed when it last ran, and takes a second."""
    values: dict[str, object] = {
        "suite": "upstream", "test": f"t.py::{name}", "file": "t.py", "owner": "t.py::", "op": op, "dtypes": (),
        "enabled": False, "chance": 0.9, "cost_s": 1.0, "known": True, "doubtful": False,
    }  # fmt: skip
    return RampTest(**{**values, **changes})  # type: ignore[arg-type]


def names(tests: Iterable[RampTest]) -> list[str]:
    """Return the names that tests were made with."""
    return [test.test.removeprefix("t.py::") for test in tests]
