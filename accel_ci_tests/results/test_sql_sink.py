"""The sink, on SQLite always and on the real PostgreSQL of `ACCEL_CI_POSTGRES_URL`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Table, event, select
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError
from sqlalchemy.schema import CreateIndex, CreateTable

from accel_ci.errors import AccelCiError
from accel_ci.model import Attempt, Build
from accel_ci.results.rollups import test_key
from accel_ci.results.sql_sink import ATTEMPTS_TABLE, BATCH_ROWS, METADATA, SUITES, TRIES, open_sink, sink
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.postgres import administer, empty_postgres, real_postgres
from accel_ci_tests.fixtures.stored_attempts import write_attempts

BUILD, DAY = Build("r'; --", "v"), date(2026, 11, 27)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=real_postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "postgres":
        yield from empty_postgres()
    else:
        yield f"sqlite:///{tmp_path}/a.db"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_sink(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results")


def written(engine: Engine) -> list[tuple[str, int, int, str, str | None]]:
    columns = (ATTEMPTS_TABLE.c[name] for name in ("test", "round", "attempt", "outcome", "message"))
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(*columns).order_by("test", "round", "attempt"))]


def test_a_suite_is_stored_once_however_often_it_is_written(
    engine: Engine, url: str, store: ResultsStore, attempt: Callable[..., Attempt]
) -> None:
    write_attempts(
        store,
        BUILD,
        DAY,
        [attempt("a", "failed", message="off"), attempt("a", "passed", round=2), attempt("o", "passed", suite="o")],
    )
    unit, other = (store.suites(suite=suite)[0] for suite in ("unit", "o"))
    for _ in range(2):
        assert [sink(engine, store, stored) for stored in (unit, other)] == [2, 1]
    rows = [("a", 1, 0, "failed", "off"), ("a", 2, 0, "passed", None)]
    assert written(engine) == [*rows, ("o", 1, 0, "passed", None)]
    write_attempts(store, BUILD, DAY, [attempt("b", "passed")])
    sink(engine, store, store.suites(suite="unit")[0])
    assert [row[0] for row in written(engine)] == ["b", "o"]
    assert written(open_sink(url)) == written(engine)
    with engine.connect() as connection:
        row = connection.execute(select(ATTEMPTS_TABLE).where(ATTEMPTS_TABLE.c.test == "b")).one()
    assert (row.day, row.revision, row.card, row.duration_s) == (DAY, "r'; --", "0", 1.0)
    assert row.test_key % (1 << 64) == test_key("b")
    assert row.started_at.replace(tzinfo=None).isoformat() == "2026-11-27T00:01:00"


def test_rows_are_written_in_batches(engine: Engine, store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    write_attempts(store, BUILD, DAY, [attempt(f"t{number}", "passed") for number in range(BATCH_ROWS + 3)])
    batches: list[int] = []
    assert sink(engine, store, store.suites()[0], batches.append) == BATCH_ROWS + 3
    assert batches == [BATCH_ROWS, 3]


def test_hostile_texts_are_stored(engine: Engine, store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    names = ["'; DROP TABLE accel_ci_attempts; --", "%s %(a)s :b", "a\nb", "\U0001f4a9", "x" * 10_000]
    write_attempts(store, BUILD, DAY, [attempt(name, "failed", message=name, infra=name) for name in [*names, "a\x00b"]])
    sink(engine, store, store.suites()[0])
    assert {row[0] for row in written(engine)} == {*names, r"a\u{0}b"}


def test_a_failed_write_changes_nothing(engine: Engine, store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    write_attempts(store, BUILD, DAY, [attempt("a", "passed")])
    sink(engine, store, store.suites()[0])
    before = written(engine)
    write_attempts(store, BUILD, DAY, [attempt(f"t{number}", "passed") for number in range(BATCH_ROWS + 3)])

    def refuse(_: int) -> None:
        raise DataError("INSERT", {}, Exception("disk full"))

    with pytest.raises(AccelCiError, match="the database refused r'; --~v, suite unit: disk full"):
        sink(engine, store, store.suites()[0], refuse)
    assert written(engine) == before


@real_postgres
def test_of_concurrent_writers_one_wins(postgres: str, tmp_path: Path, attempt: Callable[..., Attempt]) -> None:
    stores = [ResultsStore(tmp_path / str(number)) for number in range(TRIES + 4)]  # more than any of them has tries
    for number, store in enumerate(stores):
        write_attempts(store, BUILD, DAY, [attempt(f"{number}-{row}", "passed") for row in range(200)])
    engine = open_sink(postgres)
    with ThreadPoolExecutor(len(stores)) as threads:
        assert list(threads.map(lambda store: sink(engine, store, store.suites()[0]), stores)) == [200] * len(stores)
    rows = written(engine)
    engine.dispose()
    assert len(rows) == 200
    assert len({test.partition("-")[0] for test, *_ in rows}) == 1


@real_postgres
def test_writers_that_start_at_every_statement_of_another_cause_no_deadlock(
    postgres: str, tmp_path: Path, attempt: Callable[..., Attempt]
) -> None:
    stores = [ResultsStore(tmp_path / str(number)) for number in range(4)]
    for number, store in enumerate(stores):
        write_attempts(store, BUILD, DAY, [attempt(f"{number}-{row}", "passed") for row in range(3)])
    first, *others = stores
    engine, engine_of_others = open_sink(postgres), open_sink(postgres)
    errors: list[str] = []
    for one in (engine, engine_of_others):
        event.listen(one, "handle_error", lambda context: errors.append(type(context.original_exception).__name__))
    with ThreadPoolExecutor(len(others)) as threads:
        begun: list[Future[int]] = []

        def begin_another(*_: object) -> None:
            if len(begun) < len(others):
                store = others[len(begun)]
                begun.append(threads.submit(sink, engine_of_others, store, store.suites()[0]))
                wait(begun[-1:], timeout=0.5)  # it ends, or waits for a lock

        event.listen(engine, "after_cursor_execute", begin_another)
        assert sink(engine, first, first.suites()[0]) == 3
        assert [one.result() for one in begun] == [3] * len(others)
    assert len({test.partition("-")[0] for test, *_ in written(engine)}) == 1
    assert "DeadlockDetected" not in errors
    for one in (engine, engine_of_others):
        one.dispose()


@real_postgres
def test_waiting_writers_succeed_at_the_first_try(postgres: str, tmp_path: Path, attempt: Callable[..., Attempt]) -> None:
    store = ResultsStore(tmp_path)
    write_attempts(store, BUILD, DAY, [attempt("a", "passed")])
    engine = open_sink(postgres)
    stored = store.suites()[0]
    sink(engine, store, stored)
    errors: list[object] = []
    event.listen(engine, "handle_error", lambda context: errors.append(context.original_exception))
    others: list[Future[int]] = []
    with ThreadPoolExecutor(TRIES + 2) as threads:

        def let_others_wait(_: int) -> None:
            if not others:
                others.extend(threads.submit(sink, engine, store, stored) for _ in range(TRIES + 2))
                wait(others, timeout=0.5)
                write_attempts(store, BUILD, DAY, [attempt("a", "passed"), attempt("b", "passed")])

        assert sink(engine, store, stored, let_others_wait) == 1
        assert [other.result() for other in others] == [2] * (TRIES + 2), (
            "each writes what the store holds when its turn comes"
        )
    assert [row[0] for row in written(engine)] == ["a", "b"]
    assert errors == []
    engine.dispose()


def test_tables_created_by_another_writer_are_used(url: str, engine: Engine) -> None:
    METADATA.drop_all(engine)

    made: list[Table] = []

    def make_them_first(table: Table, *_: object, **__: object) -> None:
        if not made:
            made.append(table)
            METADATA.create_all(engine)

    event.listen(SUITES, "before_create", make_them_first)
    try:
        opened = open_sink(url)
    finally:
        event.remove(SUITES, "before_create", make_them_first)
    assert made == [SUITES]
    assert written(opened) == []
    opened.dispose()


@real_postgres
@pytest.mark.parametrize("times", [TRIES - 1, TRIES])
def test_a_connection_closed_by_the_database_is_opened_again(
    postgres: str, store: ResultsStore, attempt: Callable[..., Attempt], times: int
) -> None:
    write_attempts(store, BUILD, DAY, [attempt(f"t{number}", "passed") for number in range(BATCH_ROWS + 3)])
    engine = open_sink(postgres)
    batches: list[int] = []

    def end_connections(rows: int) -> None:
        batches.append(rows)
        if len(batches) <= times:
            ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
            administer(ends, name=postgres.rpartition("=")[2])

    if times < TRIES:
        assert sink(engine, store, store.suites()[0], end_connections) == len(written(engine)) == BATCH_ROWS + 3
    else:
        with pytest.raises(AccelCiError, match=f"refused r'; --~v, suite unit {TRIES} times; the last error: "):
            sink(engine, store, store.suites()[0], end_connections)
        assert written(engine) == []
    engine.dispose()


def test_mysql_can_hold_the_tables() -> None:
    dialect = mysql.dialect()
    made = [str(CreateTable(table).compile(dialect=dialect)) for table in METADATA.sorted_tables]
    made += [str(CreateIndex(index).compile(dialect=dialect)) for index in ATTEMPTS_TABLE.indexes]
    assert any("started_at DATETIME(6)" in statement and "test MEDIUMTEXT NOT NULL" in statement for statement in made)
    assert any("id BIGINT NOT NULL AUTO_INCREMENT" in statement for statement in made)
    keys = [SUITES.primary_key.columns, *(index.columns for index in ATTEMPTS_TABLE.indexes)]
    assert all(sum(4 * (getattr(column.type, "length", None) or 2) for column in key) <= 3072 for key in keys)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no url", "URL of the database is not usable"),
        ("nodialect://u:hunter2@h/d", "URL of the database is not usable"),
        ("postgresql://u:hunter2@127.0.0.1:9/d", "cannot use the database"),
    ],
)
def test_errors_of_the_database_do_not_show_its_password(url: str, message: str) -> None:
    with pytest.raises(AccelCiError, match=message) as raised:
        open_sink(url)
    assert "hunter2" not in str(raised.value)
