"""The outbox: what is to be forwarded of each step of a job, in the same transaction as the step itself.

Only the table and its transactions belong here. A forward is one row per job, status and destination, and this triple is its
idempotency key. As in the queue of dispatches, `due_at` is set while it waits or is under way, `sent_at` once it is done,
and neither where it is a dead letter. The end of a job waits for its beginning at the same destination, and goes ahead where
that is a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Literal

import sqlalchemy as sa

from accel_ci.relay.rows import JobRow, UnreadableRowError, read_row
from accel_ci.relay.server.database import METADATA, RelayDatabase, repeated, shown
from accel_ci.relay.server.queue import FORGOTTEN_AT_ONCE, Settlement, github_is_paused, pause_github

Destination = Literal["check_run", "results", "clickhouse"]
"""GitHub's check run of a job, at L3 and L4; the store of results, which the pages are made of; and ClickHouse, which gets
what that store has.
"""

LARGEST_BATCH = 16 << 20
"""Bytes of stored rows that are claimed together: a row may have 2 MB, and memory holds several copies of each."""

_NONE = "[]"

FORWARDS = sa.Table(
    "relay_forwards",
    METADATA,
    sa.Column("job", sa.String(64), primary_key=True),
    sa.Column("status", sa.String(20), primary_key=True),
    sa.Column("destination", sa.String(20), primary_key=True),
    sa.Column("delivery", sa.String(128), nullable=False),
    sa.Column("repository", sa.String(140), nullable=False),
    sa.Column("queued_at", sa.Double, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("sent_at", sa.Double),
    sa.Column("claims", sa.Integer, nullable=False, default=0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("error", sa.Text),
    sa.Column("reference", sa.String(40)),
    sa.Column("row", sa.LargeBinary, nullable=False),
    sa.Index("relay_forwards_due", "destination", "due_at"),
    sa.Index("relay_forwards_sent", "sent_at"),
    sa.Index(
        "relay_forwards_unsent",
        "destination",
        sqlite_where=sa.text("sent_at IS NULL"),
        postgresql_where=sa.text("sent_at IS NULL"),
    ),
)
"""`reference` is the name of the job at the destination: the number of its check run."""


@dataclass(frozen=True)
class Forward:
    """A step of a job that a destination is to learn of."""

    destination: Destination
    row: JobRow


def job_key(row: JobRow) -> str:
    """Return the key of a job: a digest of its identity. The case of the repository's name does not count."""
    delivery, repository, *run = row.job
    return sha256("\n".join((delivery, repository.lower(), *run)).encode("utf-8", "surrogatepass")).hexdigest()


def enqueue(database: RelayDatabase, connection: sa.Connection, forwards: Sequence[Forward], now: float) -> None:
    """Add forwards in the caller's transaction.

    The same row again adds nothing. A corrected row takes the place of the earlier one, and is forwarded again.
    """
    last = {(one.row.job, one.row.status, one.destination): one for one in forwards}
    rows = [(one.destination, one.row, json.dumps(asdict(one.row)).encode()) for one in last.values()]
    _add(database, connection, rows, now)


def _add(
    database: RelayDatabase, connection: sa.Connection, forwards: Sequence[tuple[Destination, JobRow, bytes]], now: float
) -> None:
    rows = [
        {
            "job": job_key(row),
            "status": row.status,
            "destination": destination,
            "delivery": row.delivery_id,
            "repository": row.repository,
            "queued_at": now,
            "due_at": now,
            "claims": 0,
            "failures": 0,
            "row": content,
        }
        for destination, row, content in forwards
    ]
    if rows:
        add = database.insert(FORWARDS)
        corrected = {
            "queued_at": now,
            "due_at": now,
            "sent_at": None,
            "claims": FORWARDS.c.claims + 1,  # the claim of a worker that sends the earlier row is lost
            "failures": 0,
            "error": None,
            "row": add.excluded.row,
        }
        key = [FORWARDS.c.job, FORWARDS.c.status, FORWARDS.c.destination]
        other = FORWARDS.c.row != add.excluded.row
        connection.execute(add.on_conflict_do_update(index_elements=key, set_=corrected, where=other), rows)


@dataclass(frozen=True)
class ForwardClaim:
    """A forward that this worker may try until its lease ends. `number` counts the claims of this forward."""

    destination: Destination
    key: str
    row: JobRow
    content: bytes
    """The row as it is stored."""
    queued_at: float
    failures: int
    number: int
    reference: str | None
    """The name of the job at the destination, where an earlier step has made it."""


@dataclass(frozen=True)
class ForwardEnd:
    """The end of a try. `reference` is the name of the job at the destination, if there is one."""

    settlement: Settlement[ForwardClaim]
    reference: str | None = None


@dataclass(frozen=True)
class DestinationStatus:
    """The forwards to a destination by state. `error` is of one that was not sent."""

    destination: str
    waiting: int
    sent: int
    dead: int
    oldest_wait_s: float
    error: str | None


class Outbox:
    """The forwards; methods block, and may be called from several threads."""

    def __init__(self, database: RelayDatabase) -> None:
        """Use the table of a database."""
        self._database = database
        self._write, self._read = database.write, database.read

    def claim(self, destination: Destination, limit: int, now: float, lease_s: float) -> list[ForwardClaim]:
        """Claim what has been due the longest for a destination. No other worker gets these forwards for `lease_s`.

        Nothing is claimed for GitHub while a rate limit is used up. A row that cannot be read becomes a dead letter.
        """
        began = FORWARDS.alias()
        of_job = (began.c.job == FORWARDS.c.job, began.c.destination == FORWARDS.c.destination)
        waits = sa.exists().where(*of_job, began.c.status == "in_progress", began.c.due_at.is_not(None))
        due = (
            sa.select(FORWARDS)
            .where(FORWARDS.c.destination == destination, FORWARDS.c.due_at <= now)
            .where((FORWARDS.c.status == "in_progress") | ~waits)
            .order_by(FORWARDS.c.due_at)
            .limit(limit)
        )
        with self._read() as connection:
            if connection.execute(due.limit(1)).first() is None:
                return []
            if destination == "check_run" and github_is_paused(connection, now):
                return []
        with self._write() as connection:
            found = _up_to(LARGEST_BATCH, connection, due.with_for_update(skip_locked=True, of=FORWARDS))
            if not found:
                return []
            jobs = [one.job for one in found]
            named = sa.select(FORWARDS.c.job, FORWARDS.c.reference).where(
                FORWARDS.c.job.in_(jobs), FORWARDS.c.destination == destination, FORWARDS.c.reference.is_not(None)
            )
            references = {one.job: one.reference for one in connection.execute(named)}
            claims, ends = [], []
            for one in found:
                due_at: float | None = now + lease_s
                error = one.error
                try:
                    row = read_row(one.row)
                    name = references.get(one.job)
                    claims.append(
                        ForwardClaim(destination, one.job, row, one.row, one.queued_at, one.failures, one.claims + 1, name)
                    )
                except UnreadableRowError as unreadable:
                    due_at, error = None, shown(unreadable)
                ends.append({"of_job": one.job, "of_status": one.status, "due": due_at, "reason": error})
            connection.execute(
                sa.update(FORWARDS)
                .where(
                    FORWARDS.c.destination == destination,
                    FORWARDS.c.job == sa.bindparam("of_job"),
                    FORWARDS.c.status == sa.bindparam("of_status"),
                )
                .values(due_at=sa.bindparam("due"), error=sa.bindparam("reason"), claims=FORWARDS.c.claims + 1),
                ends,
            )
        return claims

    @repeated
    def settle(self, ends: Sequence[ForwardEnd], then: Sequence[Destination] = ()) -> None:
        """Write the ends of tries. That of a claim that another worker has, or whose row was corrected, is dropped.

        What was sent is queued for the destinations `then` in the same transaction.
        """
        with self._write() as connection:
            for one in ends:
                end, claim = one.settlement, one.settlement.claim
                values: dict[str, Any] = {
                    "due_at": None if end.sent else end.due_at,
                    "sent_at": end.at if end.sent else None,
                    "failures": claim.failures + end.failed,
                    "error": None if end.sent else end.error,
                }
                values |= {"reference": one.reference} if one.reference is not None else {}
                if end.sent and claim.row.failed_tests != _NONE:  # kept for weeks, and they may have 2 MB
                    values["row"] = json.dumps(asdict(replace(claim.row, failed_tests=_NONE))).encode()
                of_claim = _of_job(claim) & (FORWARDS.c.status == claim.row.status) & (FORWARDS.c.claims == claim.number)
                done = connection.execute(sa.update(FORWARDS).where(of_claim, FORWARDS.c.sent_at.is_(None)).values(values))
                if end.sent and done.rowcount:
                    _add(self._database, connection, [(other, claim.row, claim.content) for other in then], end.at)
                    if claim.row.status == "completed":
                        # A beginning that is a dead letter must not follow the end.
                        overtaken = _of_job(claim) & FORWARDS.c.sent_at.is_(None) & (FORWARDS.c.status == "in_progress")
                        connection.execute(sa.update(FORWARDS).where(overtaken).values(sent_at=end.at, due_at=None))
            if until := max((one.settlement.github_paused_until for one in ends), default=0):
                pause_github(self._database, connection, until)

    def hasten(self, now: float, latest: float) -> int:
        """Let all be due now that is put off beyond `latest`, by a clock that was ahead; return how many."""
        is_far = FORWARDS.c.sent_at.is_(None) & (FORWARDS.c.due_at > latest)
        with self._read() as connection:
            if connection.scalar(sa.select(FORWARDS.c.job).where(is_far).limit(1)) is None:
                return 0
        with self._write() as connection:
            return connection.execute(sa.update(FORWARDS).where(is_far).values(due_at=now)).rowcount

    def give_up(self, queued_before: float) -> int:
        """Make dead letters of all that waits since before a time; return how many."""
        is_late = sa.and_(FORWARDS.c.sent_at.is_(None), FORWARDS.c.due_at.is_not(None), FORWARDS.c.queued_at < queued_before)
        with self._read() as connection:
            if connection.scalar(sa.select(FORWARDS.c.job).where(is_late).limit(1)) is None:
                return 0
        reason = sa.func.coalesce(FORWARDS.c.error, "waited too long")
        with self._write() as connection:
            return connection.execute(sa.update(FORWARDS).where(is_late).values(due_at=None, error=reason)).rowcount

    def forget(self, sent_before: float, limit: int = FORGOTTEN_AT_ONCE) -> int:
        """Delete what was sent before a time; return how many."""
        old = sa.select(FORWARDS.c.job).where(FORWARDS.c.sent_at < sent_before).order_by(FORWARDS.c.sent_at).limit(limit)
        with self._read() as connection:
            jobs = sorted(set(connection.scalars(old)))
        if not jobs:
            return 0
        with self._write() as connection:
            gone = sa.delete(FORWARDS).where(FORWARDS.c.job.in_(jobs), FORWARDS.c.sent_at < sent_before)
            return connection.execute(gone).rowcount

    def replay(self, now: float, delivery: str | None = None, repository: str | None = None) -> int:
        """Queue dead letters again, as new: all, or those of a delivery or a downstream. Return how many.

        The beginning of a job whose end still waits is left alone, as that end makes up for it.
        """
        ended = FORWARDS.alias()
        of_job = (ended.c.job == FORWARDS.c.job, ended.c.destination == FORWARDS.c.destination)
        follows = sa.exists().where(*of_job, ended.c.status == "completed", ended.c.due_at.is_not(None))
        dead: list[sa.ColumnElement[bool]] = [FORWARDS.c.due_at.is_(None), FORWARDS.c.sent_at.is_(None)]
        dead.append((FORWARDS.c.status == "completed") | ~follows)
        if delivery is not None:
            dead.append(FORWARDS.c.delivery == delivery)
        if repository is not None:
            dead.append(sa.func.lower(FORWARDS.c.repository) == repository.lower())
        with self._write() as connection:
            again = sa.update(FORWARDS).where(*dead).values(due_at=now, queued_at=now, failures=0)
            return connection.execute(again).rowcount

    def status(self, now: float, count_sent: bool = True) -> list[DestinationStatus]:
        """Return the state of each destination that has had forwards, by name. Counting what was sent reads all rows."""
        waiting = FORWARDS.c.due_at.is_not(None)
        unsent = FORWARDS.c.sent_at.is_(None)
        counts = (
            sa.select(
                FORWARDS.c.destination,
                sa.func.count().filter(waiting).label("waiting"),
                sa.func.count().filter(~waiting, unsent).label("dead"),
                sa.func.count().filter(~unsent).label("sent"),
                sa.func.min(FORWARDS.c.queued_at).filter(waiting).label("oldest"),
                sa.func.max(FORWARDS.c.error).filter(unsent).label("error"),
            )
            .group_by(FORWARDS.c.destination)
            .order_by(FORWARDS.c.destination)
        )
        with self._read() as connection:
            found = connection.execute(counts if count_sent else counts.where(unsent)).all()
        return [
            DestinationStatus(
                one.destination,
                one.waiting,
                one.sent,
                one.dead,
                max(0.0, now - one.oldest) if one.oldest is not None else 0.0,
                one.error,
            )
            for one in found
        ]


def _of_job(claim: ForwardClaim) -> sa.ColumnElement[bool]:
    return (FORWARDS.c.job == claim.key) & (FORWARDS.c.destination == claim.destination)


def _up_to(size: int, connection: sa.Connection, statement: sa.Select[Any]) -> list[Any]:
    """Read rows until they have so many bytes: at least one, where there is one."""
    found: list[Any] = []
    with connection.execute(statement.execution_options(stream_results=True, max_row_buffer=8)) as rows:
        for one in rows:
            found.append(one)
            size -= len(one.row)
            if size <= 0:
                break
    return found
