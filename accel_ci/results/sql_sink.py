"""Copy rows to a SQL database for trend queries by other tools. Works with any database that SQLAlchemy supports.

Only writing to a database belongs here. The results store remains the source of truth, and the database can be rebuilt
from it. A suite of a build is written in one transaction and replaces its earlier rows; of two writers of one suite, the
second waits. They wait for the suite's own row: a transaction without it touches no other row, so that no writer holds a
lock that another needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import date

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DataError, NoSuchModuleError, NotSupportedError, ProgrammingError, SQLAlchemyError

from accel_ci.config.extras import require_extra
from accel_ci.errors import AccelCiError
from accel_ci.results.rollups import test_key
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite

BATCH_ROWS = 5000
TRIES = 5
CONNECT_S = 10
_LOG = logging.getLogger(__name__)
_WITH_TIMEOUT = ("postgresql", "mysql", "mariadb")

# MySQL's utf8mb4 allows 3,072 bytes in a key: three columns of 255 characters fit.
_NAME = sa.String(255)
_LONG = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_SERIAL = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

METADATA = sa.MetaData()

SUITES = sa.Table(
    "accel_ci_suites",
    METADATA,
    *(sa.Column(name, _NAME, primary_key=True) for name in ("revision", "variant", "suite")),
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
)
"""The suites that were written."""

ATTEMPTS_TABLE = sa.Table(
    "accel_ci_attempts",
    METADATA,
    sa.Column("id", _SERIAL, primary_key=True, autoincrement=True),
    sa.Column("day", sa.Date, nullable=False),
    *(sa.Column(name, _NAME, nullable=False) for name in ("revision", "variant", "suite")),
    sa.Column("test_key", sa.BigInteger, nullable=False),
    sa.Column("test", _LONG, nullable=False),
    *(sa.Column(name, _LONG) for name in ("classname", "name", "file", "target")),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("started_at", _MOMENT),
    sa.Column("duration_s", sa.Double),
    *(sa.Column(name, _LONG) for name in ("message", "signature", "card", "host", "worker", "infra")),
    sa.Column("cached", sa.Boolean),
    sa.Index("accel_ci_attempts_by_build", "revision", "variant", "suite"),
    sa.Index("accel_ci_attempts_by_test", "test_key", "day"),
)
"""The rows of the store. `test_key` is `test_key(test)` as a signed number, so that names of any length can be indexed."""


def open_sink(url: str) -> Engine:
    """Connect, and create missing tables.

    Raises `AccelCiError` if that fails; the message does not contain the URL, which may hold a password.
    """
    try:
        address = sa.make_url(url)
        if address.drivername == "postgresql":  # the driver that we install; SQLAlchemy may prefer another
            require_extra("postgres", "a PostgreSQL database")
            address = address.set(drivername="postgresql+psycopg2")
        timeout = {"connect_timeout": CONNECT_S} if address.get_backend_name() in _WITH_TIMEOUT else {}
        engine = sa.create_engine(address, connect_args=timeout, pool_pre_ping=True)
        with engine.connect():
            pass
        for table in METADATA.sorted_tables:
            with suppress(SQLAlchemyError):  # another writer may create it between our check and our statement
                table.create(engine, checkfirst=True)
        METADATA.create_all(engine)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        kind = type(error).__name__
        raise AccelCiError(f"the URL of the database is not usable ({kind}); its form is dialect+driver://…") from None
    except SQLAlchemyError as error:
        raise AccelCiError(f"cannot use the database ({_brief(error)}); check its address, user and permissions") from None
    return engine


def sink(engine: Engine, store: ResultsStore, stored: StoredSuite, written: Callable[[int], None] | None = None) -> int:
    """Write a stored suite of a build, replacing its earlier rows. Calls `written` with the size of each batch of each try.

    Writes what the store holds once it is this writer's turn, so that the last of several writers writes the newest rows.
    Retries after conflicts between writers: a deadlock (MySQL also locks gaps between rows), a lock timeout, or a connection
    that the database closed. Drivers report these with different errors, so only errors in the statements or values fail at
    once.

    All or nothing: if the database refuses, raises `AccelCiError` and changes nothing. Returns the number of rows.
    """
    what = f"{stored.build.name}, suite {stored.suite}"
    refusal = ""
    for number in range(1, TRIES + 1):
        try:
            return _write(engine, store, stored, written)
        except (ProgrammingError, DataError, NotSupportedError) as error:
            raise AccelCiError(f"the database refused {what}: {_brief(error)}") from None
        except SQLAlchemyError as error:
            refusal = _brief(error)
            _LOG.info("the database refused %s, try %d of %d: %s", what, number, TRIES, refusal)
    raise AccelCiError(f"the database refused {what} {TRIES} times; the last error: {refusal}")


def _write(engine: Engine, store: ResultsStore, stored: StoredSuite, written: Callable[[int], None] | None) -> int:
    build, suite = stored.build, stored.suite
    names = {"revision": _clean(build.revision), "variant": _clean(build.variant), "suite": _clean(suite)}
    with engine.begin() as connection:
        _await_turn(connection, names, stored.day)
        stored = store.newest(stored)
        rows = store.read(stored)
        connection.execute(sa.update(SUITES).filter_by(**names).values(day=stored.day, attempts=len(rows)))
        connection.execute(sa.delete(ATTEMPTS_TABLE).filter_by(**names))
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            records = [
                {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}
                | {"day": stored.day, "test_key": _signed(test_key(row["test"]))}
                for row in batch.to_pylist()
            ]
            connection.execute(sa.insert(ATTEMPTS_TABLE), records)
            if written is not None:
                written(len(records))
    return len(rows)


def _await_turn(connection: sa.Connection, names: dict[str, str], day: date) -> None:
    """Lock the suite's row, or create it. Writers that wait for an existing row get it one after the other."""
    if not connection.execute(sa.update(SUITES).filter_by(**names).values(day=day)).rowcount:
        connection.execute(sa.insert(SUITES), [{**names, "day": day, "attempts": 0}])


def _clean(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store."""
    return text.replace("\x00", "\\u{0}")


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def _brief(error: SQLAlchemyError) -> str:
    """The database's own message, without the statement and the address."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0][:200]
