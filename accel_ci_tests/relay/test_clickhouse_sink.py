"""The rows of jobs in ClickHouse: in a real server, or in its engine behind HTTP."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import Error
from urllib3.util import parse_url

from accel_ci.errors import AccelCiError
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.clickhouse_sink import COLUMNS, ClickHouseSink, definition
from accel_ci.relay.server.settings import ClickHouseSettings
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.relay_rows import begun, ended

pytest_plugins = ["accel_ci_tests.fixtures.clickhouse_server"]


def sink_for(server: tuple[str, str, str], table: str, password: str | None = None) -> ClickHouseSink:
    url, user, known = server
    settings = ClickHouseSettings(url=url, user=user, table=table)
    return ClickHouseSink(settings, known if password is None else password, Path(), 10)


def connect(server: tuple[str, str, str]) -> Client:
    url, user, password = server
    address = parse_url(url)
    return clickhouse_connect.get_client(host=address.host, port=address.port, username=user, password=password)


def rows_of(server: tuple[str, str, str], table: str, columns: str) -> list[tuple[Any, ...]]:
    found = connect(server).query(f"SELECT {columns} FROM `{table}` FINAL ORDER BY job_name, status DESC").result_rows
    return [tuple(row) for row in found]


def test_the_columns_are_those_of_a_row() -> None:
    assert list(COLUMNS) == [field.name for field in dataclasses.fields(JobRow)]


def test_the_documentation_has_the_table() -> None:
    assert definition("`default`.`relay_jobs`") in (ROOT / "docs" / "relay.md").read_text()


def test_rows_are_inserted_and_repeated_and_corrected(clickhouse: tuple[str, str, str]) -> None:
    table = f"jobs_{uuid.uuid4().hex[:8]}"
    sink = sink_for(clickhouse, table)
    hostile = ended(job_name="b'; DROP TABLE x; --\ud800", failed_tests='["\\"é"]', pull_request=None)
    sink.add([begun(job_name="a"), hostile])
    sink.add([begun(job_name="a"), ended(job_name="a", conclusion="timed_out", is_infrastructure=True)])
    again = sink_for(clickhouse, table)
    again.add([ended(job_name="a", at=ended().at + 100)])
    columns = "job_name, status, conclusion, is_infrastructure, pull_request, passed, queue_s, failed_tests"
    assert rows_of(clickhouse, table, columns) == [
        ("a", "in_progress", None, False, 7, None, 60.0, "[]"),
        ("a", "completed", "success", False, 7, 3, 60.0, "[]"),
        ("b'; DROP TABLE x; --?", "completed", "success", False, None, 3, 60.0, '["\\"é"]'),
    ]
    _, (started, completed), _ = rows_of(clickhouse, table, "started_at, toUnixTimestamp(completed_at)")
    assert (started.timestamp(), completed) == (begun().started_at, ended().completed_at)
    sink.close()
    again.close()


def test_a_wrong_password_is_an_error_without_it(clickhouse: tuple[str, str, str]) -> None:
    with pytest.raises(Error) as raised:
        sink_for(clickhouse, "jobs", "wrong-Password-1").add([begun()])
    assert "wrong-Password-1" not in str(raised.value)


def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(Error):
        sink_for(("http://127.0.0.1:9", "relay", ""), "jobs").add([begun()])


@pytest.mark.parametrize("url", ["http://u:p@h", "http://h:x", "http://h/path", "http://h?q=1"])
def test_addresses_that_are_wrong(url: str) -> None:
    with pytest.raises(AccelCiError, match=r"clickhouse\.url must be"):
        ClickHouseSink(ClickHouseSettings(url=url), "", Path(), 10)
