"""Pruning with a real Dagster instance: its partition keys go, and builds with unfinished runs stay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.defs.partitions import revisions_name
from accel_ci.defs.upkeep import prune_project
from accel_ci.model import Revision, Source
from accel_ci.workspace import Workspace

KEYS = [f"nightly-{number}" for number in range(4)]


@pytest.fixture
def project(make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with old revisions that Dagster knows."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    made = make_project(retention={"last_green": 0})
    source = Source("repository", "HEAD", "a" * 40)
    for key in KEYS:
        created = datetime.now(timezone.utc) - timedelta(days=90)
        Workspace(made).manifests.add_revision(Revision(key, "nightly", created, source, source))
    with open_instance(made) as instance:
        instance.add_dynamic_partitions(revisions_name(None), KEYS)
    return made


def test_partition_keys_go_and_unfinished_runs_keep_theirs(project: Project) -> None:
    @dg.job
    def empty() -> None:
        pass

    now = datetime.now(timezone.utc).timestamp()
    with open_instance(project) as instance:
        for key, status, started_at in (
            (KEYS[0], dg.DagsterRunStatus.NOT_STARTED, None),
            (KEYS[1], dg.DagsterRunStatus.SUCCESS, None),
            (KEYS[2], dg.DagsterRunStatus.NOT_STARTED, now - 3600),
            (KEYS[3], dg.DagsterRunStatus.NOT_STARTED, now - 90_000),  # killed: nothing ends it
        ):
            tags = {"dagster/partition/revision": key, "dagster/partition/variant": "py3"}
            run = instance.create_run_for_job(empty, tags=tags, status=status)
            if started_at is not None:
                event = dg.DagsterEvent(event_type_value="PIPELINE_START", job_name="empty")
                instance.report_dagster_event(event, run_id=run.run_id, timestamp=started_at)
    assert {item.name for item in prune_project(project, dry_run=True)} == {f"builds/{KEYS[1]}", f"builds/{KEYS[3]}"}
    with open_instance(project) as instance:
        assert sorted(instance.get_dynamic_partitions(revisions_name(None))) == KEYS
    prune_project(project)
    with open_instance(project) as instance:
        assert sorted(instance.get_dynamic_partitions(revisions_name(None))) == [KEYS[0], KEYS[2]]
    assert [each.key for each in Workspace(project).manifests.revisions()] == [KEYS[2], KEYS[0]]
