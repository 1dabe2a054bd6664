"""Backup, restore and upgrade of a project with Dagster on PostgreSQL and its data in a bucket of a real S3 server."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import dagster_postgres
import pytest
import yaml
from dagster._core.storage.sql import run_alembic_downgrade
from dagster_postgres.utils import pg_alembic_config
from sqlalchemy import Engine, create_engine, text

from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.s3 import environment_keys
from accel_ci_tests.fixtures.postgres import real_postgres
from accel_ci_tests.fixtures.stored_attempts import real_s3
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

pytestmark = [real_postgres, real_s3, pytest.mark.timeout(900)]
BEFORE_THE_LAST = "6b7fb194ff9c"
"""The revision of Dagster's tables before those of 1.13: without `concurrency_limits.using_default_limit`."""


@pytest.fixture
def night(tmp_path: Path, database: str) -> ToyNight:
    """A project whose data are in a bucket, and whose Dagster has a database."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump({"storage": {"postgres": {"postgres_url": database}}}))
    store = {"bucket": os.environ["ACCEL_CI_S3_BUCKET"], "endpoint": os.environ["ACCEL_CI_S3_ENDPOINT"]}
    made = make_toy_night(tmp_path / "night", store={**store, "prefix": f"test-{uuid.uuid4().hex}"})
    made.environment.update({"DAGSTER_HOME": str(home), "ACCEL_CI_HOME": str(tmp_path / "one")})
    return made


def engine_of(database: str) -> Engine:
    return create_engine(database.replace("postgresql://", "postgresql+psycopg2://", 1))


def runs_in(database: str) -> list[tuple[str, str]]:
    engine = engine_of(database)
    with engine.connect() as connection:
        found = [(row.run_id, row.status) for row in connection.execute(text("SELECT run_id, status FROM runs ORDER BY id"))]
    engine.dispose()
    return found


def test_a_project_that_is_wrecked_is_restored(night: ToyNight, database: str, tmp_path: Path) -> None:
    folder, store = tmp_path / "backup", night.project.settings.store
    assert store is not None
    night.accel_ci("run", "manual", "--name", "a")
    before, runs = night.accel_ci("status", "--json"), runs_in(database)
    assert [status for _, status in runs] == ["SUCCESS"]
    night.accel_ci("restore", "--yes", str(folder), status=2)  # there is none yet
    first = night.accel_ci("backup", str(folder))
    kept = {path: path.stat().st_mtime_ns for path in (folder / "builds").rglob("*.json")}
    assert kept
    assert "files and the database" in first
    night.accel_ci("backup", str(folder))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "only what has changed is copied again"

    bucket = open_bucket(store.bucket, store.prefix, tmp_path / "cache", store.endpoint, environment_keys(), None, 0.0)
    for part in ("builds", "results", "artifacts"):
        for entry in bucket.list_below(part):
            bucket.delete(entry.name)
    bucket.put_bytes("builds/later/revision.json", b"{}")
    engine = engine_of(database)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE runs CASCADE"))
        connection.execute(text("CREATE TABLE of_a_newer_release (id integer)"))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        refused = night.accel_ci("restore", "--yes", str(folder), status=2)
    assert "1 connection(s) to the database are open: stop the daemon" in refused
    engine.dispose()

    night.accel_ci("restore", "--yes", str(folder))
    assert runs_in(database) == runs
    night.environment["ACCEL_CI_HOME"] = str(tmp_path / "another_machine")
    assert json.loads(night.accel_ci("status", "--json")) == json.loads(before)
    assert not bucket.list_below("builds/later")
    engine = engine_of(database)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT to_regclass('of_a_newer_release')")).scalar_one() is None
    engine.dispose()
    night.accel_ci("run", "manual", "--name", "b")
    assert [status for _, status in runs_in(database)] == ["SUCCESS"] * 2


def test_tables_of_an_older_dagster_are_refused_until_they_are_upgraded(night: ToyNight, database: str) -> None:
    night.accel_ci("upgrade")
    engine = engine_of(database)
    with engine.begin() as connection:
        run_alembic_downgrade(
            pg_alembic_config(str(Path(dagster_postgres.__file__).parent / "run_storage" / "_")), connection, BEFORE_THE_LAST
        )
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == BEFORE_THE_LAST
    engine.dispose()
    refused = night.accel_ci("run", "manual", "--name", "a", status=2)
    assert f"the tables in PostgreSQL are of another release of Dagster (revision {BEFORE_THE_LAST}; this one has" in refused
    assert "make a backup and run `accel-ci upgrade`" in refused
    night.accel_ci("upgrade")
    night.accel_ci("run", "manual", "--name", "a")
    assert [status for _, status in runs_in(database)] == ["SUCCESS"]


def test_data_of_a_newer_release_stop_a_run_before_it_begins(night: ToyNight, tmp_path: Path) -> None:
    store = night.project.settings.store
    assert store is not None
    bucket = open_bucket(store.bucket, store.prefix, tmp_path / "cache", store.endpoint, environment_keys(), None, 0.0)
    bucket.put_bytes("layout.json", b'{"version": 99}')
    for command in (("run", "manual", "--name", "a"), ("status",), ("upgrade",)):
        said = night.accel_ci(*command, status=2)
        assert "layout.json: a newer release has changed the data (version 99; this one knows 1): use that release" in said
