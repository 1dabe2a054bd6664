"""The outbox: what is to be forwarded of each step of a job, in the same transaction as the step itself.

Only the table and its transactions belong here. A forward is one row per job, status and destination, and this triple is its
idempotency key. As in the queue of dispatches, `due_at` is set while it waits or is under way, `sent_at` once it is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Literal

import sqlalchemy as sa

from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.database import METADATA, RelayDatabase

Destination = Literal["check_run", "results"]
"""GitHub's check run of a job, at L3 and L4; and the store of results, which the pages are made of."""

FORWARDS = sa.Table(
    "relay_forwards",
    METADATA,
    sa.Column("job", sa.String(64), primary_key=True),
    sa.Column("status", sa.String(20), primary_key=True),
    sa.Column("destination", sa.String(20), primary_key=True),
    sa.Column("queued_at", sa.Double, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("sent_at", sa.Double),
    sa.Column("claims", sa.Integer, nullable=False, default=0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("error", sa.Text),
    sa.Column("row", sa.LargeBinary, nullable=False),
    sa.Index("relay_forwards_due", "destination", "due_at"),
)


@dataclass(frozen=True)
class Forward:
    """A step of a job that a destination is to learn of."""

    destination: Destination
    row: JobRow
    step: str = ""
    """The step where it is not the status of the row: `corrected`, of an end that came after the relay had given up."""


def job_key(row: JobRow) -> str:
    """Return the key of a job: a digest of its identity, whose parts have no common length."""
    return sha256("\n".join(row.job).encode("utf-8", "surrogatepass")).hexdigest()


def enqueue(database: RelayDatabase, connection: sa.Connection, forwards: Sequence[Forward], now: float) -> None:
    """Add forwards in the caller's transaction. One that is there already adds nothing."""
    rows = [
        {
            "job": job_key(one.row),
            "status": one.step or one.row.status,
            "destination": one.destination,
            "queued_at": now,
            "due_at": now,
            "claims": 0,
            "failures": 0,
            "row": json.dumps(asdict(one.row)).encode(),
        }
        for one in forwards
    ]
    if rows:
        connection.execute(database.insert(FORWARDS).on_conflict_do_nothing(), rows)
