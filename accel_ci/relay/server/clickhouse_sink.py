"""ClickHouse as a store of results, which dashboards can ask: the rows of jobs in one table.

The table and the insertion belong here. A row that comes again, and a corrected one, replace the earlier row of the same job
and status when ClickHouse merges; queries ask with `FINAL`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from accel_ci.errors import AccelCiError
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.settings import ClickHouseSettings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_TIME = "DateTime64(3, 'UTC')"
COLUMNS = {
    "delivery_id": "String",
    "event": "LowCardinality(String)",
    "upstream": "LowCardinality(String)",
    "pull_request": "Nullable(Int64)",
    "head_sha": "String",
    "repository": "LowCardinality(String)",
    "level": "LowCardinality(String)",
    "device": "LowCardinality(String)",
    "workflow": "LowCardinality(String)",
    "job_name": "String",
    "run_id": "String",
    "run_attempt": "String",
    "check_run_id": "String",
    "status": "LowCardinality(String)",
    "conclusion": "LowCardinality(Nullable(String))",
    "is_infrastructure": "Bool",
    "url": "String",
    "artifact_url": "String",
    "passed": "Nullable(Int64)",
    "failed": "Nullable(Int64)",
    "skipped": "Nullable(Int64)",
    "failed_tests": "String",
    "triage_verdict": "String",
    "at": _TIME,
    "dispatched_at": f"Nullable({_TIME})",
    "started_at": f"Nullable({_TIME})",
    "completed_at": f"Nullable({_TIME})",
    "queue_s": "Nullable(Float64)",
    "execution_s": "Nullable(Float64)",
}
"""The columns of a `JobRow`, in its order, with their types."""

_TIMES = frozenset(name for name, kind in COLUMNS.items() if _TIME in kind)
_CONNECT_S = 10


class ClickHouseSink:
    """The table; one thread uses it at a time."""

    def __init__(self, settings: ClickHouseSettings, password: str, folder: Path, timeout_s: float) -> None:
        """Prepare for a server; nothing is asked of it before the first row. Raises `AccelCiError` for a wrong address."""
        address = urlsplit(settings.url)
        try:
            port = address.port or (8443 if address.scheme == "https" else 8123)
        except ValueError:
            port = 0
        if not address.hostname or not port or address.username or address.path.strip("/") or address.query:
            raise AccelCiError("clickhouse.url must be http[s]://HOST[:PORT]; user and password are settings beside it")
        self._table = f"`{settings.database}`.`{settings.table}`"
        self._settings = settings
        self._connection: dict[str, Any] = {
            "host": address.hostname,
            "port": port,
            "secure": address.scheme == "https",
            "username": settings.user,
            "password": password,
            "ca_cert": str(folder / settings.ca_file) if settings.ca_file is not None else None,
            "connect_timeout": min(_CONNECT_S, timeout_s),
            "send_receive_timeout": timeout_s,
            "query_retries": 0,
            "autogenerate_session_id": False,
        }
        self._client: Client | None = None

    def add(self, rows: Sequence[JobRow]) -> None:
        """Insert rows. Raises the errors of clickhouse-connect; the rows can be added again then."""
        client = self._open()
        client.insert(
            self._settings.table,
            [[_value(row, name) for name in COLUMNS] for row in rows],
            column_names=list(COLUMNS),
            database=self._settings.database,
            column_type_names=list(COLUMNS.values()),
        )

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _open(self) -> Client:
        if self._client is None:
            from clickhouse_connect import get_client

            client = get_client(**self._connection)
            if not client.command(f"EXISTS TABLE {self._table}"):
                client.command(definition(self._table))
            self._client = client
        return self._client


def definition(table: str) -> str:
    """Return the statement that creates the table."""
    columns = ",\n    ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {table} (\n    {columns}\n)\n"
        "ENGINE = ReplacingMergeTree(at)\n"
        "ORDER BY (repository, delivery_id, run_id, run_attempt, job_name, status)"
    )


def _value(row: JobRow, name: str) -> object:
    value = getattr(row, name)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return datetime.fromtimestamp(value, timezone.utc) if name in _TIMES and value is not None else value
