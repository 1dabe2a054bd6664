"""Attempts, and buckets of a real S3 server (`ACCEL_CI_S3_ENDPOINT`, `…_BUCKET`, `…_ACCESS_KEY`, `…_SECRET_KEY`)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from accel_ci.model import Attempt, Outcome
from accel_ci.results.bucket import Bucket, open_bucket

NEEDED = [f"ACCEL_CI_S3_{word}" for word in ("ENDPOINT", "BUCKET", "ACCESS_KEY", "SECRET_KEY")]
MISSING = [name for name in NEEDED if not os.environ.get(name)]
real_s3 = pytest.mark.skipif(bool(MISSING), reason=f"no S3 server: {', '.join(MISSING)} not set")

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


@pytest.fixture
def open_place(tmp_path: Path) -> Callable[..., Bucket]:
    """Opens the same fresh prefix; each with a cache of its own."""
    prefix = f"test-{uuid.uuid4().hex}/"
    endpoint, bucket, access, secret = (os.environ[name] for name in NEEDED)

    def open_it(cache: str = "cache") -> Bucket:
        return open_bucket(bucket, prefix, tmp_path / cache, endpoint, access, secret)

    return open_it


@pytest.fixture
def place(open_place: Callable[..., Bucket]) -> Bucket:
    return open_place()
