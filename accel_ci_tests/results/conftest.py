"""Attempts and stages for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from accel_ci.model import Attempt, Outcome

MIDNIGHT = datetime(2026, 11, 27, tzinfo=timezone.utc)


@pytest.fixture
def attempt() -> Callable[..., Attempt]:
    """Makes an attempt; what is not said is ordinary."""

    def make(
        test: str,
        outcome: Outcome,
        *,
        round: int = 1,
        suite: str = "unit",
        seconds: float | None = 1.0,
        message: str | None = None,
        card: str = "0",
        infra: str | None = None,
    ) -> Attempt:
        started = MIDNIGHT + timedelta(minutes=round)
        return Attempt(suite, test, round, outcome, started, seconds, message, None, card, "host", "w0", infra)

    return make


def to_attempts(rows: pa.Table) -> list[Attempt]:
    """Rows of the store as attempts, in their order."""
    known = {field.name for field in fields(Attempt)}
    records = ({name: value for name, value in row.items() if name in known} for row in rows.to_pylist())
    return [Attempt(**record, output_tail=None) for record in records]
