"""The database of the relay's server: SQLite for one machine, PostgreSQL for several servers.

Connections, transactions and the errors of both belong here. The tables are where they are used; each is in `METADATA`, and
is created when the database is opened. Times in all of them are seconds of Unix time, by the clock of the server that writes
them.
"""

from __future__ import annotations

import fcntl
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from accel_ci.config.extras import require_extra
from accel_ci.errors import AccelCiError
from accel_ci.redaction import redact

METADATA = sa.MetaData()

_POSTGRESQL = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 10,
    "keepalives_count": 2,
    "tcp_user_timeout": 30_000,
}
"""A server that has gone without a word is known to be gone after half a minute."""

_STATEMENT_S = 30.0
_IDLE_MS = 60_000
_BUSY_MS = 30_000
_SHOWN = 200
_LOG = logging.getLogger(__name__)
_STATEMENTS = 16
"""Statements that a connection of SQLite keeps prepared. Lists of other lengths are other statements, and so the 128 that
Python keeps become many long ones: a worker grew by 8 MiB over 150,000 deliveries."""


repeated = retry(
    retry=retry_if_exception_type(OperationalError), stop=stop_after_attempt(3), wait=wait_random(0.05, 0.2), reraise=True
)
"""Repeats a transaction that may be repeated, after a deadlock of two servers or a restart of the database."""


class RelayDatabase:
    """The connections; methods block, and may be called from several threads."""

    def __init__(self, url: str, statement_s: float = _STATEMENT_S) -> None:
        """Connect, and create missing tables, columns and indexes. No statement of PostgreSQL may take longer than given.

        Raises `AccelCiError` if that fails, also for a database of another version whose tables this one cannot use. The
        message does not contain the URL, which may hold a password.
        """
        try:
            address = sa.make_url(url)
            if address.drivername == "postgresql":
                require_extra("postgres", "a PostgreSQL database")
                address = address.set(drivername="postgresql+psycopg2")
            self._is_sqlite = address.get_backend_name() == "sqlite"
            if not self._is_sqlite and address.get_backend_name() != "postgresql":
                raise AccelCiError(f"the relay keeps its queue in SQLite or PostgreSQL, not in {address.get_backend_name()}")
            given = {"cached_statements": _STATEMENTS} if self._is_sqlite else _POSTGRESQL
            self._engine = sa.create_engine(address, connect_args=given, pool_pre_ping=not self._is_sqlite, pool_size=10)
            if self._is_sqlite:
                sa.event.listen(self._engine, "connect", _set_up_sqlite)
                sa.event.listen(self._engine, "begin", _begin_at_once)
            else:
                sa.event.listen(self._engine, "connect", partial(_limit_postgresql, statement_s))
            self._one_writer = threading.Lock()
            self._lock_file = Path(f"{address.database}.lock") if self._is_sqlite else None
            if not self._has_all():
                self._make_all()
        except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
            raise AccelCiError(f"the URL of the database is not usable ({type(error).__name__})") from None
        except SQLAlchemyError as error:
            raise AccelCiError(
                f"cannot use the relay's database ({brief(error)}); check its address and permissions"
            ) from None
        self.insert = sqlite.insert if self._is_sqlite else postgresql.insert
        """The `INSERT` of this database, which knows `ON CONFLICT`."""

    def _has_all(self) -> bool:
        """Return whether nothing is to be created: then one who only reads waits for no writer."""
        with suppress(SQLAlchemyError), self.read() as connection:
            inspector = sa.inspect(connection)
            names = set(inspector.get_table_names())
            return all(
                table.name in names
                and {column["name"] for column in inspector.get_columns(table.name)} == set(table.columns.keys())
                and {index.name for index in table.indexes} <= {one["name"] for one in inspector.get_indexes(table.name)}
                for table in METADATA.sorted_tables
            )
        return False

    def _make_all(self) -> None:
        with self.write() as connection:
            if not self._is_sqlite:  # servers that start together must not create the tables together
                connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(7165203)"))
            METADATA.create_all(connection)
            _add_what_is_new(connection)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes. SQLite has one writer: the others wait in line here, as SQLite itself would poll."""
        if self._lock_file is not None:
            with self._one_writer, _locked(self._lock_file), self._engine.begin() as connection:
                yield connection
        else:
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that reads."""
        with self._engine.connect().execution_options(read_only=True) as connection:
            yield connection

    def ping(self) -> None:
        """Ask the database for nothing. Raises `SQLAlchemyError` when it does not answer."""
        with self.read() as connection:
            connection.execute(sa.text("SELECT 1"))


def brief(error: SQLAlchemyError) -> str:
    """Return the database's own message, without the statement, the address and secrets."""
    cause = getattr(error, "orig", None) or error
    return shown((str(cause).strip().splitlines() or [type(cause).__name__])[0])


def shown(reason: object) -> str:
    """Return one line about a failure, short enough for a log and a column, without secrets.

    It is redacted before it is cut, as the half of a secret is not known any more. What programs and other servers write may
    have any characters; a text of PostgreSQL has no NUL, and one of SQLite no halves of characters.
    """
    line = "".join(letter if letter.isprintable() else " " for letter in redact(str(reason)))
    return line.strip()[:_SHOWN]


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Log an error inside, and go on: a loop must outlast a database that is away, and a row that nobody thought of."""
    try:
        yield
    except SQLAlchemyError as error:
        _LOG.error("the database refuses %s: %s", what, brief(error))
    except Exception:
        _LOG.exception("%s failed, and will be tried again", what)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. Raises `OperationalError`, as SQLite does where its own files cannot be opened."""
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(path.open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise OperationalError(f"lock {path.name}", None, error) from None
        yield


def _add_what_is_new(connection: sa.Connection) -> None:
    """Add columns and indexes that the tables of an earlier version lack. Raises `AccelCiError` where that is not enough."""
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        found = {column["name"]: column for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name in found:
                continue
            if not column.nullable:
                raise _other_version(f"{table.name} has no column {column.name}")
            described = CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {described}"))
        for name in sorted(found.keys() - table.columns.keys()):
            if not found[name]["nullable"] and found[name]["default"] is None:
                raise _other_version(f"{table.name} has a column {name}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _other_version(difference: str) -> AccelCiError:
    return AccelCiError(
        f"the relay's database is of another version: {difference}. Go on with that version, or let it send what waits and "
        "begin with an empty database"
    )


def _limit_postgresql(statement_s: float, connection: Any, _: object) -> None:
    """Limit how long a statement may take, and how long a transaction may wait for this process."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {round(statement_s * 1000)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
    connection.commit()


def _set_up_sqlite(connection: object, _: object) -> None:
    """Prepare a connection: a write-ahead log, and a commit that is on the disk when it returns."""
    connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's advice: the driver begins too late
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_at_once(connection: sa.Connection) -> None:
    """Take the lock of the writer at the beginning: one that reads first and writes later may find it taken, and fails."""
    read_only = connection.get_execution_options().get("read_only")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
