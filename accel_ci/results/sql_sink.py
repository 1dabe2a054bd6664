"""The same rows in a SQL database, for trend queries by others; any database that SQLAlchemy knows.

Here belongs writing rows to a database alone: the store stays the truth, and what is here can be written anew from it. A
suite of a build is written in one transaction and replaces itself; of two writers of one suite the second waits. The
suite's own row is what they wait for: a transaction that has not got it touches no other, so that none holds what the
other needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import date

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    insert,
    make_url,
    update,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DataError, NoSuchModuleError, NotSupportedError, ProgrammingError, SQLAlchemyError

from accel_ci.errors import AccelCiError
from accel_ci.results.rollups import test_key
from accel_ci.results.store import ResultsStore, StoredSuite

BATCH_ROWS = 5000
TRIES = 5
CONNECT_S = 10
_WITH_TIMEOUT = ("postgresql", "mysql", "mariadb")

# MySQL's utf8mb4 allows 3,072 bytes in a key: three columns of 255 characters fit.
_NAME = String(255)
_LONG = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_MOMENT = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_SERIAL = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

METADATA = MetaData()

SUITES = Table(
    "accel_ci_suites",
    METADATA,
    Column("revision", _NAME, primary_key=True),
    Column("variant", _NAME, primary_key=True),
    Column("suite", _NAME, primary_key=True),
    Column("day", Date, nullable=False),
    Column("attempts", Integer, nullable=False),
)
"""What was written."""

ATTEMPTS_TABLE = Table(
    "accel_ci_attempts",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("day", Date, nullable=False),
    Column("revision", _NAME, nullable=False),
    Column("variant", _NAME, nullable=False),
    Column("suite", _NAME, nullable=False),
    Column("test_key", BigInteger, nullable=False),
    Column("test", _LONG, nullable=False),
    Column("classname", _LONG),
    Column("name", _LONG),
    Column("file", _LONG),
    Column("target", _LONG),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("started_at", _MOMENT),
    Column("duration_s", Double),
    Column("message", _LONG),
    Column("signature", _LONG),
    Column("card", _LONG),
    Column("host", _LONG),
    Column("worker", _LONG),
    Column("infra", _LONG),
    Column("cached", Boolean),
    Index("accel_ci_attempts_by_build", "revision", "variant", "suite"),
    Index("accel_ci_attempts_by_test", "test_key", "day"),
)
"""The rows of the store. `test_key` is `test_key(test)` as a signed number: an index that any length of name fits in."""


def open_sink(url: str) -> Engine:
    """Connect, and make the tables where they are missing.

    Raises `AccelCiError` when that fails; the URL, which may hold a password, is not repeated.
    """
    try:
        address = make_url(url)
        if address.drivername == "postgresql":  # the driver that we install, whichever SQLAlchemy prefers
            address = address.set(drivername="postgresql+psycopg2")
        timeout = {"connect_timeout": CONNECT_S} if address.get_backend_name() in _WITH_TIMEOUT else {}
        engine = create_engine(address, connect_args=timeout, pool_pre_ping=True)
        _make_tables(engine)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        kind = type(error).__name__
        raise AccelCiError(f"the database's URL cannot be used ({kind}); it has the form dialect+driver://…") from None
    except SQLAlchemyError as error:
        raise AccelCiError(f"the database cannot be used ({_brief(error)}); look at its address, user and rights") from None
    return engine


def _make_tables(engine: Engine) -> None:
    with engine.connect():
        pass
    for table in METADATA.sorted_tables:
        with suppress(SQLAlchemyError):  # another writer may make it between our look and our statement
            table.create(engine, checkfirst=True)
    METADATA.create_all(engine)


def sink(engine: Engine, store: ResultsStore, stored: StoredSuite, written: Callable[[int], None] | None = None) -> int:
    """Write a stored suite of a build, in place of what the database had of it. `written` hears of every batch of every try.

    What is written is what the store holds when this writer's turn has come, so that the last of several writes the newest.
    Tries again after what a database does to one of several writers that are in each other's way: a deadlock (MySQL locks
    gaps between rows too), a lock that was waited for too long, a connection that it ended. Drivers call these by different
    errors, so it gives up at once only where the statements or the values are at fault.

    All or nothing: raises `AccelCiError` when the database refuses, and then holds what it held. Returns the number of rows.
    """
    what = f"{stored.build.name}, suite {stored.suite}"
    refusal = ""
    for _ in range(TRIES):
        try:
            return _write(engine, store, stored, written)
        except (ProgrammingError, DataError, NotSupportedError) as error:
            raise AccelCiError(f"the database refused {what}: {_brief(error)}") from None
        except SQLAlchemyError as error:
            refusal = _brief(error)
    raise AccelCiError(f"the database refused {what} {TRIES} times, at last: {refusal}")


def _write(engine: Engine, store: ResultsStore, stored: StoredSuite, written: Callable[[int], None] | None) -> int:
    names = _names(stored)
    with engine.begin() as connection:
        _await_turn(connection, names, stored.day)
        stored = store.newest(stored)
        rows = store.read(stored)
        connection.execute(update(SUITES).where(*_is(SUITES, names)).values(day=stored.day, attempts=len(rows)))
        connection.execute(delete(ATTEMPTS_TABLE).where(*_is(ATTEMPTS_TABLE, names)))
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            records = [
                {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}
                | {"day": stored.day, "test_key": _signed(test_key(row["test"]))}
                for row in batch.to_pylist()
            ]
            connection.execute(insert(ATTEMPTS_TABLE), records)
            if written is not None:
                written(len(records))
    return len(rows)


def _await_turn(connection: Connection, names: dict[str, str], day: date) -> None:
    """Get the suite's row. Writers that wait for a row which is there get it one after the other."""
    if not connection.execute(update(SUITES).where(*_is(SUITES, names)).values(day=day)).rowcount:
        connection.execute(insert(SUITES), [{**names, "day": day, "attempts": 0}])


def _is(table: Table, names: dict[str, str]) -> list[ColumnElement[bool]]:
    return [table.c[column] == value for column, value in names.items()]


def _names(stored: StoredSuite) -> dict[str, str]:
    words = {"revision": stored.build.revision, "variant": stored.build.variant, "suite": stored.suite}
    return {name: _clean(word) for name, word in words.items()}


def _clean(text: str) -> str:
    """PostgreSQL's texts hold no NUL."""
    return text.replace("\x00", "\\u{0}")


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def _brief(error: SQLAlchemyError) -> str:
    """The database's own words, without the statement and the address."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0][:200]
