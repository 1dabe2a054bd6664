"""The queue of deliveries and dispatches, in the database of the relay.

Only the tables and their transactions belong here. A dispatch is one row per delivery and downstream, and this pair is its
idempotency key. Its state follows from its columns:

- waits or is under way: `due_at` is set. A worker claims it by moving `due_at` to the end of its lease, and so the lease of
  a worker that died ends by itself. `dispatched_at` is set by the first claim, before anything is sent: a callback that is
  faster than the answer of GitHub finds it.
- sent: `sent_at` is set.
- dead: neither is set, and `error` has the last reason.

Times are seconds of Unix time, by the clock of the server that writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import sqlalchemy as sa

from accel_ci.relay.server.database import METADATA, RelayDatabase, repeated
from accel_ci.relay.server.webhook import Delivery

GITHUB = "*"
"""The row of `downstreams` that stands for GitHub's API: its pause holds for all downstreams, which share the token."""

FORGOTTEN_AT_ONCE = 1000
"""Deliveries that are deleted in one transaction, for which other writers wait."""

DELIVERIES = sa.Table(
    "relay_deliveries",
    METADATA,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("event", sa.String(20), nullable=False),
    sa.Column("device", sa.String(80)),
    sa.Column("received_at", sa.Double, nullable=False, index=True),
    sa.Column("open_since", sa.Double, index=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
"""The deliveries that were received. `open_since` is set until the delivery has its dispatches.

The body is last: SQLite reads all of it to get at a column behind it.
"""

_STORE = sa.text(
    "INSERT INTO relay_deliveries (id, event, device, received_at, open_since, body) "
    "VALUES (:id, :event, :device, :received_at, :open_since, :body) ON CONFLICT DO NOTHING"
)
"""As text, since SQLAlchemy compiles an `INSERT` with `ON CONFLICT` at each execution, and webhooks wait for this one."""

DISPATCHES = sa.Table(
    "relay_dispatches",
    METADATA,
    sa.Column("delivery", sa.String(100), sa.ForeignKey(DELIVERIES.c.id), primary_key=True),
    sa.Column("repository", sa.String(140), primary_key=True),
    sa.Column("queued_at", sa.Double, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("dispatched_at", sa.Double),
    sa.Column("sent_at", sa.Double),
    sa.Column("claims", sa.Integer, nullable=False, default=0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("error", sa.Text),
    sa.Index("relay_dispatches_due", "repository", "due_at"),
    sa.Index(
        "relay_dispatches_unsent",
        "repository",
        sqlite_where=sa.text("sent_at IS NULL"),
        postgresql_where=sa.text("sent_at IS NULL"),
    ),
)

DOWNSTREAMS = sa.Table(
    "relay_downstreams",
    METADATA,
    sa.Column("repository", sa.String(140), primary_key=True),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("paused_until", sa.Double, nullable=False, default=0),
)
"""The circuit breakers: failures in a row, and the end of the pause."""


@dataclass(frozen=True)
class Claim:
    """A dispatch that this worker may try until its lease ends. `number` counts the claims of this dispatch."""

    delivery: str
    repository: str
    body: bytes
    received_at: float
    queued_at: float
    failures: int
    number: int


class Tried(Protocol):
    """A claim of any kind: its failures so far, and the time since which it waits."""

    @property
    def failures(self) -> int:
        """Failed tries."""

    @property
    def queued_at(self) -> float:
        """The time since which it waits."""


_Claim = TypeVar("_Claim", bound=Tried)


@dataclass(frozen=True)
class Settlement(Generic[_Claim]):
    """The end of a try: sent, or due again at `due_at`, or dead where that is None.

    `failed` counts against the dispatch and its downstream; a rate limit does not. `paused_until` is the pause of the
    downstream, or of all of GitHub's API with `github_paused_until`.
    """

    claim: _Claim
    at: float
    sent: bool = False
    failed: bool = False
    due_at: float | None = None
    error: str | None = None
    paused_until: float = 0
    github_paused_until: float = 0


@dataclass(frozen=True)
class DownstreamStatus:
    """The dispatches of a downstream by state, and its breaker. `error` is of one that was not sent."""

    repository: str
    waiting: int
    sent: int
    dead: int
    oldest_wait_s: float
    failures: int
    paused_s: float
    error: str | None


class Queue:
    """The queue; methods block, and may be called from several threads."""

    def __init__(self, database: RelayDatabase) -> None:
        """Use the tables of a database."""
        self._database = database
        self._insert = database.insert
        self._write, self._read = database.write, database.read

    @repeated
    def store(self, deliveries: Sequence[tuple[Delivery, float]]) -> list[None]:
        """Store deliveries with the times of their receipt. One whose id is known adds nothing."""
        rows = [
            {"id": one.id, "event": one.event, "device": one.device, "body": one.body, "received_at": at, "open_since": at}
            for one, at in deliveries
        ]
        with self._write() as connection:
            connection.execute(_STORE, rows)
        return [None] * len(rows)

    def expand(self, recipients: Callable[[str, str | None], list[str]], now: float, limit: int = 50) -> int:
        """Make the dispatches of stored deliveries; return the number of deliveries. `recipients` gets event and device."""
        oldest = (
            sa.select(DELIVERIES.c.id, DELIVERIES.c.event, DELIVERIES.c.device)
            .where(DELIVERIES.c.open_since.is_not(None))
            .order_by(DELIVERIES.c.open_since)
            .limit(limit)
        )
        with self._read() as connection:
            if connection.execute(oldest.limit(1)).first() is None:
                return 0
        with self._write() as connection:
            found = connection.execute(oldest.with_for_update(skip_locked=True)).all()
            rows = [
                {"delivery": one.id, "repository": repository, "queued_at": now, "due_at": now, "claims": 0, "failures": 0}
                for one in found
                for repository in recipients(one.event, one.device)
            ]
            if rows:
                names = sorted({row["repository"] for row in rows})
                known = set(
                    connection.scalars(sa.select(DOWNSTREAMS.c.repository).where(DOWNSTREAMS.c.repository.in_(names)))
                )
                if new := [{"repository": name, "failures": 0, "paused_until": 0.0} for name in names if name not in known]:
                    connection.execute(self._insert(DOWNSTREAMS).on_conflict_do_nothing(), new)
                connection.execute(self._insert(DISPATCHES).on_conflict_do_nothing(), rows)
            if found:
                done = sa.update(DELIVERIES).where(DELIVERIES.c.id.in_([one.id for one in found]))
                connection.execute(done.values(open_since=None))
        return len(found)

    def due_downstreams(self, now: float) -> dict[str, int]:
        """Return the downstreams that have something due and are not paused, each with its failures in a row."""
        due = sa.exists().where(DISPATCHES.c.repository == DOWNSTREAMS.c.repository, DISPATCHES.c.due_at <= now)
        with self._read() as connection:
            if github_is_paused(connection, now):
                return {}
            found = connection.execute(
                sa.select(DOWNSTREAMS.c.repository, DOWNSTREAMS.c.failures).where(DOWNSTREAMS.c.paused_until <= now, due)
            )
            return {one.repository: one.failures for one in found}

    def claim(self, wanted: Sequence[tuple[str, int]], now: float, lease_s: float) -> list[list[Claim]]:
        """Claim what has been due the longest, for several downstreams, up to a number each.

        No other worker gets these dispatches for `lease_s`.
        """
        with self._write() as connection:
            return [self._claim(connection, repository, limit, now, lease_s) for repository, limit in wanted]

    def _claim(self, connection: sa.Connection, repository: str, limit: int, now: float, lease_s: float) -> list[Claim]:
        due = (
            sa.select(DISPATCHES, DELIVERIES.c.body, DELIVERIES.c.received_at)
            .join(DELIVERIES)
            .where(DISPATCHES.c.repository == repository, DISPATCHES.c.due_at <= now)
            .order_by(DISPATCHES.c.due_at, DELIVERIES.c.received_at)
            .limit(limit)
            .with_for_update(skip_locked=True, of=DISPATCHES)
        )
        found = connection.execute(due).all()
        if found:
            keys = [one.delivery for one in found]
            connection.execute(
                sa.update(DISPATCHES)
                .where(DISPATCHES.c.repository == repository, DISPATCHES.c.delivery.in_(keys))
                .values(
                    due_at=now + lease_s,
                    claims=DISPATCHES.c.claims + 1,
                    dispatched_at=sa.func.coalesce(DISPATCHES.c.dispatched_at, now),
                )
            )
        return [
            Claim(one.delivery, repository, one.body, one.received_at, one.queued_at, one.failures, one.claims + 1)
            for one in found
        ]

    @repeated
    def settle(self, settlements: Sequence[Settlement[Claim]]) -> list[None]:
        """Write the ends of tries. What was sent stays sent; the failure of a claim that another worker has is dropped."""
        of_claim = (
            (DISPATCHES.c.delivery == sa.bindparam("of_delivery"))
            & (DISPATCHES.c.repository == sa.bindparam("of_repository"))
            & DISPATCHES.c.sent_at.is_(None)
        )
        sent = [one for one in settlements if one.sent]
        others = [one for one in settlements if not one.sent]
        with self._write() as connection:
            if sent:
                connection.execute(
                    sa.update(DISPATCHES).where(of_claim).values(sent_at=sa.bindparam("at"), due_at=None, error=None),
                    [{**_key(one), "at": one.at} for one in sent],
                )
                connection.execute(
                    sa.update(DOWNSTREAMS)
                    .where(DOWNSTREAMS.c.repository.in_(sorted({one.claim.repository for one in sent})))
                    .where(DOWNSTREAMS.c.failures > 0)
                    .values(failures=0, paused_until=0.0)
                )
            if others:
                connection.execute(
                    sa.update(DISPATCHES)
                    .where(of_claim & (DISPATCHES.c.claims == sa.bindparam("of_claims")))
                    .values(
                        due_at=sa.bindparam("due"),
                        failures=DISPATCHES.c.failures + sa.bindparam("failed"),
                        error=sa.bindparam("reason"),
                    ),
                    [
                        {
                            **_key(one),
                            "of_claims": one.claim.number,
                            "due": one.due_at,
                            "failed": int(one.failed),
                            "reason": one.error,
                        }
                        for one in others
                    ],
                )
            self._pause(connection, others)
        return [None] * len(settlements)

    def _pause(self, connection: sa.Connection, settlements: Sequence[Settlement[Claim]]) -> None:
        for one in sorted((one for one in settlements if one.failed), key=lambda one: one.claim.repository):
            longer = sa.case(
                (DOWNSTREAMS.c.paused_until > one.paused_until, DOWNSTREAMS.c.paused_until), else_=one.paused_until
            )
            connection.execute(
                sa.update(DOWNSTREAMS)
                .where(DOWNSTREAMS.c.repository == one.claim.repository)
                .values(failures=DOWNSTREAMS.c.failures + 1, paused_until=longer)
            )
        if until := max((one.github_paused_until for one in settlements), default=0):
            pause_github(self._database, connection, until)

    def hasten(self, now: float, latest: float) -> int:
        """Let all be due now that is put off beyond `latest`, and end such pauses; return how many dispatches.

        A clock that was ahead has done that: it would be put off until the clock is there again.
        """
        is_far = DISPATCHES.c.sent_at.is_(None) & (DISPATCHES.c.due_at > latest)
        is_paused = DOWNSTREAMS.c.paused_until > latest
        with self._read() as connection:
            far = sa.union_all(
                sa.select(DISPATCHES.c.repository).where(is_far), sa.select(DOWNSTREAMS.c.repository).where(is_paused)
            )
            if connection.execute(far.limit(1)).first() is None:
                return 0
        with self._write() as connection:
            connection.execute(sa.update(DOWNSTREAMS).where(is_paused).values(paused_until=0.0))
            return connection.execute(sa.update(DISPATCHES).where(is_far).values(due_at=now)).rowcount

    def give_up(self, queued_before: float) -> int:
        """Make dead letters of all that waits since before a time; return how many."""
        waits = sa.and_(DISPATCHES.c.sent_at.is_(None), DISPATCHES.c.due_at.is_not(None))
        is_late = waits & (DISPATCHES.c.queued_at < queued_before)
        with self._read() as connection:
            if connection.scalar(sa.select(DISPATCHES.c.delivery).where(is_late).limit(1)) is None:
                return 0
        reason = sa.func.coalesce(DISPATCHES.c.error, "waited too long")
        with self._write() as connection:
            return connection.execute(sa.update(DISPATCHES).where(is_late).values(due_at=None, error=reason)).rowcount

    def forget(self, received_before: float, limit: int = FORGOTTEN_AT_ONCE) -> int:
        """Delete deliveries of before a time, with their dispatches, except for dead letters; return how many."""
        unsent = sa.exists().where(DISPATCHES.c.delivery == DELIVERIES.c.id, DISPATCHES.c.sent_at.is_(None))
        old = (
            sa.select(DELIVERIES.c.id)
            .where(DELIVERIES.c.received_at < received_before, DELIVERIES.c.open_since.is_(None), ~unsent)
            .limit(limit)
        )
        with self._read() as connection:  # what was sent stays sent; the writers wait for the deletion alone
            ids = connection.scalars(old).all()
        if not ids:
            return 0
        with self._write() as connection:
            connection.execute(sa.delete(DISPATCHES).where(DISPATCHES.c.delivery.in_(ids)))
            connection.execute(sa.delete(DELIVERIES).where(DELIVERIES.c.id.in_(ids)))
        return len(ids)

    def replay(self, now: float, delivery: str | None = None, repository: str | None = None) -> int:
        """Queue dead letters again, as new: all, or those of a delivery or a downstream. Return how many."""
        dead: list[sa.ColumnElement[bool]] = [DISPATCHES.c.due_at.is_(None), DISPATCHES.c.sent_at.is_(None)]
        if delivery is not None:
            dead.append(DISPATCHES.c.delivery == delivery)
        if repository is not None:
            dead.append(sa.func.lower(DISPATCHES.c.repository) == repository.lower())
        with self._write() as connection:
            names = connection.scalars(sa.select(DISPATCHES.c.repository).where(*dead).distinct()).all()
            again = sa.update(DISPATCHES).where(*dead).values(due_at=now, queued_at=now, failures=0)
            count = connection.execute(again).rowcount
            reset = sa.update(DOWNSTREAMS).where(DOWNSTREAMS.c.repository.in_(names))
            connection.execute(reset.values(failures=0, paused_until=0.0))
        return count

    def status(self, now: float, count_sent: bool = True) -> list[DownstreamStatus]:
        """Return the state of each downstream, by name; of GitHub's API, too, once it has asked for a pause.

        Counting what was sent reads all rows of two weeks, so it can be left out.
        """
        waiting = DISPATCHES.c.due_at.is_not(None)
        unsent = (
            sa.select(
                DISPATCHES.c.repository,
                sa.func.count().filter(waiting).label("waiting"),
                sa.func.count().filter(~waiting).label("dead"),
                sa.func.min(DISPATCHES.c.queued_at).filter(waiting).label("oldest"),
                sa.func.max(DISPATCHES.c.error).label("error"),
            )
            .where(DISPATCHES.c.sent_at.is_(None))
            .group_by(DISPATCHES.c.repository)
            .subquery()
        )
        sent = sa.select(DISPATCHES.c.repository, sa.func.count().label("sent")).where(DISPATCHES.c.sent_at.is_not(None))
        with self._read() as connection:
            counted = connection.execute(sent.group_by(DISPATCHES.c.repository)) if count_sent else ()
            sent_to: dict[str, int] = {one.repository: one.sent for one in counted}
            found = connection.execute(
                sa.select(DOWNSTREAMS, unsent)
                .join_from(DOWNSTREAMS, unsent, DOWNSTREAMS.c.repository == unsent.c.repository, isouter=True)
                .order_by(DOWNSTREAMS.c.repository)
            ).mappings()
            return [
                DownstreamStatus(
                    repository=(name := one[DOWNSTREAMS.c.repository]),
                    waiting=one["waiting"] or 0,
                    sent=sent_to.get(name, 0),
                    dead=one["dead"] or 0,
                    oldest_wait_s=max(0.0, now - one["oldest"]) if one["oldest"] is not None else 0.0,
                    failures=one["failures"],
                    paused_s=max(0.0, one["paused_until"] - now),
                    error=one["error"],
                )
                for one in found
            ]

    def unexpanded(self) -> int:
        """Count the deliveries that have no dispatches yet."""
        with self._read() as connection:
            count = sa.select(sa.func.count()).select_from(DELIVERIES).where(DELIVERIES.c.open_since.is_not(None))
            return int(connection.scalar(count) or 0)


def _key(one: Settlement[Claim]) -> dict[str, object]:
    return {"of_delivery": one.claim.delivery, "of_repository": one.claim.repository}


def github_is_paused(connection: sa.Connection, now: float) -> bool:
    """Return whether nothing may be sent to GitHub, since a rate limit is used up."""
    pause = connection.scalar(sa.select(DOWNSTREAMS.c.paused_until).where(DOWNSTREAMS.c.repository == GITHUB))
    return (pause or 0) > now


def pause_github(database: RelayDatabase, connection: sa.Connection, until: float) -> None:
    """Send nothing to GitHub before a time, in the caller's transaction.

    A longer pause stays: requests that are under way together get limits of different lengths.
    """
    pause = database.insert(DOWNSTREAMS).values(repository=GITHUB, failures=0, paused_until=until)
    longer = sa.case((DOWNSTREAMS.c.paused_until > until, DOWNSTREAMS.c.paused_until), else_=until)
    connection.execute(pause.on_conflict_do_update(index_elements=["repository"], set_={"paused_until": longer}))
