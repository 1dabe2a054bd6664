"""The relay's database: one that an earlier version made, statements that read little, and those that take too long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from accel_ci.errors import AccelCiError
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.jobs import JOBS, Jobs
from accel_ci.relay.server.outbox import Forward, Outbox, enqueue
from accel_ci.relay.server.queue import DELIVERIES, Queue
from accel_ci.relay.server.settings import CallbackSettings
from accel_ci.relay.server.webhook import Delivery
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres
from accel_ci_tests.fixtures.relay_rows import NOW, begun, ended


def change(url: str, *statements: str) -> None:
    database = RelayDatabase(url)
    with database.write() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    database.close()


def test_a_database_of_an_earlier_version_gets_what_it_lacks(url: str) -> None:
    change(
        url,
        "DROP INDEX ix_relay_deliveries_open_since",
        "ALTER TABLE relay_deliveries DROP COLUMN device",
        "INSERT INTO relay_deliveries (id, event, received_at, body) VALUES ('old', 'push', 1, '{}')",
    )
    database = RelayDatabase(url)
    Queue(database).store([(Delivery("new", "push", "emu", b"{}"), 2.0)])
    with database.read() as connection:
        found = connection.execute(sa.select(DELIVERIES.c.id, DELIVERIES.c.device).order_by(DELIVERIES.c.id)).all()
        assert [tuple(one) for one in found] == [("new", "emu"), ("old", None)]
        indexes = sa.inspect(connection).get_indexes("relay_deliveries")
        assert "ix_relay_deliveries_open_since" in {one["name"] for one in indexes}
    database.close()


@pytest.mark.parametrize(
    ("statements", "difference"),
    [
        (["ALTER TABLE relay_jobs DROP COLUMN has_check_run"], "relay_jobs has no column has_check_run"),
        (
            [
                "DROP TABLE relay_callback_windows",
                "CREATE TABLE relay_callback_windows (repository TEXT, taken TEXT, later TEXT NOT NULL)",
            ],
            "relay_callback_windows has a column later",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_told(url: str, statements: list[str], difference: str) -> None:
    change(url, *statements)
    with pytest.raises(AccelCiError, match=difference):
        RelayDatabase(url)


def test_no_periodic_work_reads_a_whole_table(tmp_path: Path) -> None:
    """Two weeks of deliveries, and jobs with rows of megabytes: while they are read, SQLite's writers may wait."""
    database = RelayDatabase(f"sqlite:///{tmp_path / 'relay.sqlite'}")
    queue, outbox, jobs = Queue(database), Outbox(database), Jobs(database, "a/b", CallbackSettings())
    with database.write() as connection:
        enqueue(database, connection, [Forward("results", begun()), Forward("check_run", ended())], NOW)
    work: Sequence[Callable[[], object]] = (
        lambda: queue.hasten(1, 9), lambda: outbox.hasten(1, 9),
        lambda: queue.give_up(1), lambda: queue.forget(1), lambda: queue.due_downstreams(1),
        lambda: queue.expand(lambda event, device: [], 1), lambda: queue.status(1, count_sent=False), queue.unexpanded,
        lambda: queue.claim([("a/b", 2)], 1, 1), lambda: outbox.give_up(1), lambda: outbox.forget(1),
        lambda: outbox.status(1, count_sent=False), lambda: outbox.claim("results", 5, NOW, 1),
        lambda: jobs.forget(1), lambda: jobs.overdue(1, 1), jobs.status,
    )  # fmt: skip
    seen: dict[str, Any] = {}

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, _context: object, many: bool) -> None:
        seen[statement] = parameters[0] if many else parameters

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        for one in work:
            one()
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)
    asked = {text: values for text, values in seen.items() if text.startswith(("SELECT", "UPDATE", "DELETE"))}
    assert len(asked) > 15
    with database.read() as connection:
        for text, values in asked.items():
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values):
                small = ("relay_downstreams", "USING COVERING INDEX", "_unsent")
                assert not step[3].startswith("SCAN relay") or any(part in step[3] for part in small), (step[3], text)
    database.close()


def test_a_statement_of_postgresql_does_not_wait_for_ever() -> None:
    """A row is locked by somebody who has gone: the callback is refused in time, and the next one is taken."""
    if POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    for url in empty_postgres():
        database, other = RelayDatabase(url, statement_s=0.5), RelayDatabase(url)
        with database.write() as connection:
            enqueue(database, connection, [Forward("results", begun())], NOW)
        locked, release = threading.Event(), threading.Event()

        def hold(other: RelayDatabase, locked: threading.Event, release: threading.Event) -> None:
            with other.write() as connection:
                connection.execute(sa.text("LOCK TABLE relay_forwards IN ACCESS EXCLUSIVE MODE"))
                locked.set()
                release.wait(60)

        holder = threading.Thread(target=hold, args=(other, locked, release))
        holder.start()
        assert locked.wait(60)
        with pytest.raises(SQLAlchemyError, match="statement timeout"):
            Outbox(database).give_up(NOW + 1)
        release.set()
        holder.join(60)
        assert Outbox(database).give_up(NOW + 1) == 1
        database.close()
        other.close()


def test_old_jobs_are_deleted_in_steps(url: str) -> None:
    """Each deletion is small, and none is left for the next time: callbacks may bring thousands in a minute."""
    database = RelayDatabase(url)
    jobs = Jobs(database, "a/b", CallbackSettings())
    row = {"repository": "a/b", "status": "completed", "has_check_run": False, "swept": False, "row": b"{}"}
    with database.write() as connection:
        connection.execute(
            sa.insert(JOBS), [{**row, "key": f"job {number}", "changed_at": float(number)} for number in range(25)]
        )
    assert [jobs.forget(20, limit=8) for _ in range(4)] == [8, 8, 4, 0]
    assert jobs.status()[0].completed == 5
    database.close()
