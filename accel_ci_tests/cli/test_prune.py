"""`accel-ci prune` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from accel_ci.config.settings import Project
from accel_ci.model import Build, Revision, Source
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import Run


def test_prune_shows_what_goes_and_removes_it(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project(retention={"last_green": 0})
    manifests, source = Workspace(project).manifests, Source("repository", "HEAD", "a" * 40)
    for days in (1, 90):
        created = datetime.now(timezone.utc) - timedelta(days=days)
        manifests.add_revision(Revision(f"nightly-{days}", "nightly", created, source, source))
        manifests.begin("wheel", Build(f"nightly-{days}", "py3"))
    rounds = project.home / "runs" / "nightly-90" / "py3" / "device" / "events"
    rounds.parent.mkdir(parents=True)
    rounds.write_bytes(b"x" * 12_000)

    shown = accel_ci("prune", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[:2] == ["rounds runs/nightly-90/py3: 12.0 kB", "build builds/nightly-90/py3: 0 B"]
    assert lines[2].startswith("revision builds/nightly-90: ")
    assert lines[3] == "would free 12.5 kB"
    assert rounds.exists()

    done = json.loads(accel_ci("prune", "--json").stdout)
    assert {item["name"] for item in done["items"]} == {
        "runs/nightly-90/py3", "builds/nightly-90/py3", "builds/nightly-90",
    }  # fmt: skip
    assert done["freed_bytes"] == sum(item["size_bytes"] for item in done["items"]) > 12_000
    assert [build.revision for build in manifests.list_builds()] == ["nightly-1"]
    assert accel_ci("prune").stdout == "freed 0 B\n"


def test_prune_fails_when_something_stays(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project(retention={"last_green": 0})
    manifests, source = Workspace(project).manifests, Source("repository", "HEAD", "a" * 40)
    created = datetime.now(timezone.utc) - timedelta(days=90)
    manifests.add_revision(Revision("nightly-90", "nightly", created, source, source))
    manifests.begin("wheel", Build("nightly-90", "py3"))
    outside = project.root / "elsewhere"
    (outside / "nightly-90" / "py3").mkdir(parents=True)
    (project.home / "runs").symlink_to(outside)
    done = accel_ci("prune")
    assert done.returncode == 1
    assert "stays: rounds runs/nightly-90/py3: it lies behind a symbolic link" in done.stdout
    assert (outside / "nightly-90" / "py3").is_dir()
