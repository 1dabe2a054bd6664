"""Measure what a nightly leaves in PostgreSQL and asks of S3, with a project whose tests take no time.

Its steps are those of every nightly. What depends on the number of tests (attempts, rollups, pages) is in files whose number
does not, so that the counts of requests and rows hold for larger suites as well; their bytes do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from sqlalchemy import create_engine, text

from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night
from benchmarks.counted_requests import Requests, counting_proxy


@dataclass(frozen=True)
class Table:
    """A table of Dagster's: its rows, and its bytes with indexes."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class MeasuredNight:
    """The cost of one nightly: rows and bytes by table, and requests to S3."""

    tables: dict[str, Table]
    requests: Requests

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(table.rows for table in self.tables.values())

    @property
    def bytes(self) -> int:
        """The bytes of all tables."""
        return sum(table.bytes for table in self.tables.values())


def measure_nights(folder: Path, prefix: str, nights: int) -> list[MeasuredNight]:
    """Run nightlies of one variant, one after the other, and return what each added."""
    with contextmanager(empty_postgres)() as url, counting_proxy(os.environ["ACCEL_CI_S3_ENDPOINT"]) as (endpoint, counted):
        home = folder / "dagster"
        home.mkdir(parents=True)
        storage = {"storage": {"postgres": {"postgres_url": url}}, "telemetry": {"enabled": False}}
        (home / "dagster.yaml").write_text(yaml.safe_dump(storage))
        store = {"bucket": os.environ["ACCEL_CI_S3_BUCKET"], "endpoint": endpoint, "prefix": prefix}
        night = make_toy_night(folder / "night", store=store)
        night.environment["DAGSTER_HOME"] = str(home)
        return list(_nights(night, url, counted, nights))


def _nights(night: ToyNight, url: str, counted: Requests, nights: int) -> Iterator[MeasuredNight]:
    before: dict[str, Table] = {}
    for number in range(nights):
        counted.clear()
        night.accel_ci("run", "manual", "--name", f"night-{number}")  # the pipeline of a nightly
        after = _tables(url)
        added = {
            name: Table(table.rows - before.get(name, Table(0, 0)).rows, table.bytes - before.get(name, Table(0, 0)).bytes)
            for name, table in after.items()
        }
        before = after
        yield MeasuredNight({name: table for name, table in added.items() if table.rows}, Requests(counted))


def _tables(url: str) -> dict[str, Table]:
    """Return the tables of the schema that the URL selects."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://", 1))
    with engine.connect() as connection:
        of_schema = text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        names = connection.execute(of_schema).scalars().all()
        found = {}
        for name in names:
            rows = connection.execute(text(f'SELECT count(*) FROM "{name}"')).scalar_one()  # noqa: S608
            size = connection.execute(text("SELECT pg_total_relation_size(CAST(:name AS regclass))"), {"name": f'"{name}"'})
            found[name] = Table(rows, size.scalar_one())
    engine.dispose()
    return found
