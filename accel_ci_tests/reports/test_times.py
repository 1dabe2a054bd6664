"""Durations as producers write them."""

from __future__ import annotations

import pytest

from accel_ci.reports.times import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds", "warning"),
    [
        (None, None, "duration_missing"),
        (" \t\n", None, "duration_missing"),
        ("0", 0.0, None),
        (" 1.5\n", 1.5, None),
        ("3.", 3.0, None),
        (".25", 0.25, None),
        ("+2e-3", 0.002, None),
        ("-0.0", 0.0, None),
        ("-0.1", None, "duration_invalid"),
        ("1e999", None, "duration_invalid"),
        ("NaN", None, "duration_invalid"),
        ("inf", None, "duration_invalid"),
        ("1_000", None, "duration_invalid"),
        ("\u0661", None, "duration_invalid"),
        ("\u00a01", None, "duration_invalid"),
        ("0.-418", None, "duration_invalid"),
        ("3m07.4s", None, "duration_invalid"),
        ("12,34.5", None, "duration_invalid"),
        ("1.234.567", None, "duration_invalid"),
        ("-1,5", None, "duration_invalid"),
        ("1:02:03.5", 3723.5, None),
        ("100:00:00", 360000.0, None),
        ("1:60:00", None, "duration_invalid"),
        ("02:03", None, "duration_invalid"),
        ("14,029.255", 14029.255, None),
        ("1,234,567", 1234567.0, None),
        ("1,234,567.5", 1234567.5, None),
        ("1.234,567", 1234.567, None),
        ("1.234.567,8", 1234567.8, None),
        ("0,160", 0.16, None),
        ("12,5", 12.5, None),
        ("1234,567", 1234.567, None),
        ("012,345", 12.345, None),
        ("1,234", 1.234, "duration_ambiguous"),
        ("999,000", 999.0, "duration_ambiguous"),
        ("9" * 5000 + ":00:00", None, "duration_invalid"),
    ],
)
def test_duration(text: str | None, seconds: float | None, warning: str | None) -> None:
    got, code = parse_duration(text)
    assert got == pytest.approx(seconds)
    assert code == warning
