"""The jobs of downstreams: their states, the rate of their callbacks, and those that were lost.

Only the tables and their transactions belong here; which step a job may take is decided in `callback`. A step, its forwards
and its place in the rate window are one transaction: after a crash or an answer of 503, all of it is there or nothing. So a
callback may always be sent again.

A job in progress has `look_at`, when the relay looks for it because its end is overdue. A server claims that look by moving
`look_at` to the end of its lease, as in the queue of dispatches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from typing import Any

import sqlalchemy as sa

from accel_ci.relay.allowlist import Downstream
from accel_ci.relay.rows import JobRow, UnreadableRowError, read_row
from accel_ci.relay.server.callback import (
    REPORTS,
    Callback,
    CallbackError,
    KnownJob,
    Step,
    Subject,
    next_step,
    subject_of,
)
from accel_ci.relay.server.database import METADATA, RelayDatabase, repeated
from accel_ci.relay.server.outbox import FORWARDS, Forward, enqueue, job_key
from accel_ci.relay.server.queue import DELIVERIES, DISPATCHES
from accel_ci.relay.server.settings import CallbackSettings

WINDOW_S = 60.0
FORGOTTEN_AT_ONCE = 1000

JOBS = sa.Table(
    "relay_jobs",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("repository", sa.String(140), nullable=False),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False, index=True),
    sa.Column("look_at", sa.Double, index=True),
    sa.Column("has_check_run", sa.Boolean, nullable=False),
    sa.Column("swept", sa.Boolean, nullable=False),
    sa.Column("started", sa.String(64)),
    sa.Column("ended", sa.String(64)),
    sa.Column("row", sa.LargeBinary, nullable=False),
    sa.Index("relay_jobs_of_repository", "repository", "status"),
)
"""The jobs; `started` and `ended` are digests of the callbacks that were taken. `row` is without the failed tests."""

WINDOWS = sa.Table(
    "relay_callback_windows",
    METADATA,
    sa.Column("repository", sa.String(140), primary_key=True),
    sa.Column("taken", sa.Text, nullable=False),
)
"""The times of the steps that were taken in the last minute. Its row is also the lock of a repository's callbacks."""


@dataclass(frozen=True)
class Call:
    """A callback whose form is good, of a downstream that may report, received at a time."""

    callback: Callback
    downstream: Downstream
    at: float


@dataclass(frozen=True)
class Taken:
    """The step was taken, with its row; or there was none to take, because it had been."""

    step: Step
    row: JobRow


@dataclass(frozen=True)
class Refused:
    """The callback was not taken. With 429, it may be sent again after some seconds."""

    status: int
    detail: str
    retry_after_s: int = 0


Outcome = Taken | Refused


@dataclass(frozen=True)
class Overdue:
    """A job in progress whose end is overdue. No other server looks at it until `look_at`."""

    key: str
    row: JobRow
    look_at: float


@dataclass(frozen=True)
class JobsStatus:
    """The jobs of a downstream that the relay remembers, and the forwards of their steps that wait or are dead."""

    repository: str
    in_progress: int
    completed: int
    forwards_waiting: int
    forwards_dead: int


class Jobs:
    """The jobs; methods block, and may be called from several threads."""

    def __init__(self, database: RelayDatabase, upstream: str, settings: CallbackSettings) -> None:
        """Use the tables of a database."""
        self._database, self._upstream, self._settings = database, upstream, settings

    @repeated
    def take(self, calls: Sequence[Call]) -> list[Outcome]:
        """Take callbacks in one transaction, each by itself: one that is refused changes nothing for the others."""
        with self._database.write() as connection:
            # In one order, so that two servers cannot wait for each other.
            windows = {name: self._window(connection, name) for name in sorted({_lower(one) for one in calls})}
            return [self._take(connection, windows[_lower(one)], one) for one in calls]

    def _window(self, connection: sa.Connection, repository: str) -> list[float]:
        """Lock the callbacks of a repository, and return the times of those that were taken."""
        new = self._database.insert(WINDOWS).values(repository=repository, taken="[]")
        connection.execute(new.on_conflict_do_nothing())
        mine = sa.select(WINDOWS.c.taken).where(WINDOWS.c.repository == repository).with_for_update()
        times: list[float] = json.loads(connection.execute(mine).scalar_one())
        return times

    def _take(self, connection: sa.Connection, window: list[float], call: Call) -> Outcome:
        # A time that is still to come is out, too, after a clock was set back: it would count for too long.
        recent = [at for at in window if abs(call.at - at) < WINDOW_S]
        limit = self._settings.per_minute
        if len(recent) >= limit:
            wait_s = max(1, math.ceil(sorted(recent)[-limit] + WINDOW_S - call.at))
            return Refused(429, f"more than {limit} callbacks in {WINDOW_S:g} s", wait_s)
        try:
            end = self._step(connection, call)
        except CallbackError as error:
            return Refused(400, str(error))
        if end.step != "known":
            window[:] = [*recent, round(call.at, 3)]
            mine = sa.update(WINDOWS).where(WINDOWS.c.repository == _lower(call))
            connection.execute(mine.values(taken=json.dumps(window)))
        return end

    def _step(self, connection: sa.Connection, call: Call) -> Taken:
        callback, at = call.callback, call.at
        begun = _new_row(call, self._upstream)
        key = job_key(begun)
        found = connection.execute(sa.select(JOBS).where(JOBS.c.key == key).with_for_update()).one_or_none()
        if found is None:
            subject, dispatched_at = self._subject(connection, call)
            step = next_step(None, callback)
            begun = replace(begun, pull_request=subject.pull_request, head_sha=subject.head_sha, dispatched_at=dispatched_at)
            has_check_run = wants_check_run(call.downstream, subject)
        else:
            try:
                begun, has_check_run = read_row(found.row), found.has_check_run
            except UnreadableRowError:
                raise CallbackError("the stored state of the job cannot be read; run the job again") from None
            if begun.event != callback.event:
                raise CallbackError(f"event_type: the delivery is a {begun.event}")
            step = next_step(KnownJob(found.status, found.started, found.ended, found.swept), callback)
            if step == "known":
                return Taken(step, begun)
        row = _stepped(begun, callback, at)
        state = _state(row) | (
            {"started": callback.digest, "look_at": at + self._settings.zombie_s}
            if step == "in_progress"
            else {"ended": callback.digest, "look_at": None, "swept": False}
        )
        if found is None:
            constant = {"key": key, "repository": row.repository, "has_check_run": has_check_run, "swept": False}
            connection.execute(sa.insert(JOBS).values({**constant, **state}))
        else:
            connection.execute(sa.update(JOBS).where(JOBS.c.key == key).values(state))
        enqueue(self._database, connection, _forwards(row, has_check_run), at)
        return Taken(step, row)

    def _subject(self, connection: sa.Connection, call: Call) -> tuple[Subject, float | None]:
        """Return the event that a new job is of, and the time of its dispatch; a report has none."""
        callback = call.callback
        if callback.event in REPORTS:
            return Subject(callback.event, None, callback.delivery_id), None
        at = sa.func.coalesce(DISPATCHES.c.sent_at, DISPATCHES.c.dispatched_at)
        dispatch = (
            sa.select(DELIVERIES.c.event, DELIVERIES.c.device, DELIVERIES.c.body, at.label("at"))
            .join_from(DISPATCHES, DELIVERIES)
            .where(
                DISPATCHES.c.delivery == callback.delivery_id,
                sa.func.lower(DISPATCHES.c.repository) == call.downstream.repository.lower(),
                at > call.at - self._settings.keep_s,
            )
        )
        found = connection.execute(dispatch).first()
        if found is None:
            raise CallbackError(f"delivery_id: no dispatch of it to {call.downstream.repository} is known")
        if found.event != callback.event:
            raise CallbackError(f"event_type: the delivery is a {found.event}")
        return subject_of(found.event, found.device, bytes(found.body)), found.at

    def overdue(self, now: float, lease_s: float, limit: int = 20) -> list[Overdue]:
        """Claim jobs whose end is overdue. No other server gets them for `lease_s`.

        Each downstream has its turn: one that begins thousands of jobs and ends none holds up no other. One whose row cannot
        be read is not looked for any more, and is forgotten in time.
        """
        every = sa.select(JOBS.c.key, JOBS.c.repository).where(JOBS.c.look_at <= now).order_by(JOBS.c.look_at)
        by_repository: dict[str, list[str]] = {}
        with self._database.read() as connection:
            for one in connection.execute(every):
                by_repository.setdefault(one.repository, []).append(one.key)
        turns = (key for turn in zip_longest(*by_repository.values()) for key in turn if key is not None)
        first = list(islice(turns, limit))
        if not first:
            return []
        due = sa.select(JOBS.c.key, JOBS.c.row).where(JOBS.c.key.in_(first), JOBS.c.look_at <= now)
        with self._database.write() as connection:
            found, unreadable = [], []
            for one in connection.execute(due.with_for_update(skip_locked=True)).all():
                try:
                    found.append(Overdue(one.key, read_row(one.row), now + lease_s))
                except UnreadableRowError:
                    unreadable.append(one.key)
            leased = sa.update(JOBS).where(JOBS.c.key.in_([one.key for one in found]))
            connection.execute(leased.values(look_at=now + lease_s))
            connection.execute(sa.update(JOBS).where(JOBS.c.key.in_(unreadable)).values(look_at=None))
        return found

    def look_later(self, job: Overdue, look_at: float) -> None:
        """Look for a job at another time; nothing where it has ended, or another server has it."""
        with self._database.write() as connection:
            connection.execute(sa.update(JOBS).where(*_still(job)).values(look_at=look_at))

    @repeated
    def end_lost(self, job: Overdue, now: float) -> JobRow | None:
        """End a job as lost, with its forwards. Return its row; None where it has ended, or another server has it."""
        row = _ended(replace(job.row, conclusion="timed_out", is_infrastructure=True), now)
        with self._database.write() as connection:
            state = {**_state(row), "look_at": None, "swept": True}
            found = connection.execute(
                sa.update(JOBS).where(*_still(job)).values(state).returning(JOBS.c.has_check_run)
            ).first()
            if found is None:
                return None
            enqueue(self._database, connection, _forwards(row, found.has_check_run), now)
        return row

    def forget(self, changed_before: float, limit: int = FORGOTTEN_AT_ONCE) -> int:
        """Delete jobs that ended before a time, at most so many; return how many."""
        is_old = sa.and_(JOBS.c.changed_at < changed_before, JOBS.c.look_at.is_(None))
        with self._database.read() as connection:
            keys = connection.scalars(sa.select(JOBS.c.key).where(is_old).limit(limit)).all()
        if not keys:
            return 0
        with self._database.write() as connection:
            return connection.execute(sa.delete(JOBS).where(JOBS.c.key.in_(keys), is_old)).rowcount

    def status(self) -> list[JobsStatus]:
        """Return the state of each downstream that has reported, by name."""
        by_job = sa.select(JOBS.c.repository, JOBS.c.status, sa.func.count().label("jobs"))
        waiting = FORWARDS.c.due_at.is_not(None)
        by_forward = (
            sa.select(
                JOBS.c.repository,
                sa.func.count().filter(waiting).label("waiting"),
                sa.func.count().filter(~waiting).label("dead"),
            )
            .join_from(FORWARDS, JOBS, FORWARDS.c.job == JOBS.c.key)
            .where(FORWARDS.c.sent_at.is_(None))
        )
        with self._database.read() as connection:
            jobs = connection.execute(by_job.group_by(JOBS.c.repository, JOBS.c.status)).all()
            forwards = {one.repository: one for one in connection.execute(by_forward.group_by(JOBS.c.repository))}
        counts = {(one.repository, one.status): one.jobs for one in jobs}
        return [
            JobsStatus(
                repository=name,
                in_progress=counts.get((name, "in_progress"), 0),
                completed=counts.get((name, "completed"), 0),
                forwards_waiting=forwards[name].waiting if name in forwards else 0,
                forwards_dead=forwards[name].dead if name in forwards else 0,
            )
            for name in sorted({one.repository for one in jobs})
        ]


def _lower(call: Call) -> str:
    """The name of a repository, in which case does not count: the allowlist may write it in another way tomorrow."""
    return call.downstream.repository.lower()


def wants_check_run(downstream: Downstream, subject: Subject) -> bool:
    """Return whether a job has a check run: on each pull request at L4, and by the label of its device at L3."""
    if subject.event != "pull_request":
        return False
    return downstream.level == "L4" or (downstream.level == "L3" and downstream.device in subject.devices)


def _new_row(call: Call, upstream: str) -> JobRow:
    """The row of a job that is not known yet, without what its delivery says."""
    one, downstream = call.callback, call.downstream
    return JobRow(
        delivery_id=one.delivery_id, event=one.event, upstream=upstream, pull_request=None, head_sha="",
        repository=downstream.repository, level=downstream.level, device=downstream.device, workflow=one.workflow,
        job_name=one.job_name, run_id=one.run_id, run_attempt=one.run_attempt, check_run_id=one.check_run_id,
        status=one.status, conclusion=None, is_infrastructure=False, url=one.url, artifact_url="", passed=None, failed=None,
        skipped=None, failed_tests="[]", triage_verdict="", at=call.at, dispatched_at=None, started_at=None,
        completed_at=None, queue_s=None, execution_s=None,
    )  # fmt: skip


def _stepped(row: JobRow, callback: Callback, at: float) -> JobRow:
    """The row after a step."""
    if callback.status == "in_progress":
        queue_s = None if row.dispatched_at is None else max(0.0, at - row.dispatched_at)
        return replace(row, at=at, artifact_url=callback.artifact_url, started_at=at, queue_s=queue_s)
    ended = replace(
        row, conclusion=callback.conclusion, is_infrastructure=callback.is_infrastructure, url=callback.url or row.url,
        artifact_url=callback.artifact_url or row.artifact_url, passed=callback.passed, failed=callback.failed,
        skipped=callback.skipped, failed_tests=callback.failed_tests, triage_verdict=callback.triage_verdict,
    )  # fmt: skip
    return _ended(ended, at)


def _ended(row: JobRow, at: float) -> JobRow:
    execution_s = None if row.started_at is None else max(0.0, at - row.started_at)
    return replace(row, status="completed", at=at, completed_at=at, execution_s=execution_s)


def _state(row: JobRow) -> dict[str, Any]:
    kept = json.dumps(asdict(replace(row, failed_tests="[]"))).encode()
    return {"status": row.status, "changed_at": row.at, "row": kept}


def _forwards(row: JobRow, has_check_run: bool) -> list[Forward]:
    return [Forward("results", row)] + ([Forward("check_run", row)] if has_check_run else [])


def _still(job: Overdue) -> Iterable[sa.ColumnElement[bool]]:
    """The job is as it was when this server claimed the look at it."""
    return (JOBS.c.key == job.key, JOBS.c.status == "in_progress", JOBS.c.look_at == job.look_at)
