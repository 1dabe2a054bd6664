"""The causes that real nightlies of the example backend get when faults are injected into its device.

Five nights, each of a new commit: nothing; one op flaky and a card missing; one op crashes from now on; a card goes bad as
well; another op hangs. Takes ten minutes.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci.quality.judgement import read_causes, read_incidents
from accel_ci.source.revision import resolve_revision
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bench import make_bench
from accel_ci_tests.fixtures.checkout import commit

FAULTS = (
    "",
    "flaky:atan2,missing_device:1",
    "crash:tan",
    "crash:tan,bad_card:1@5",
    "crash:tan,hang:erfinv",
)


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)")
def test_each_fault_has_its_cause(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    builds = []
    for night, faults in enumerate(FAULTS):
        commit(bench.folder / "backend", {"NIGHT": f"{night}\n"})
        environment = {"pool__environment__EMU_FAULTS": faults} if faults else {}
        bench.configure(limits__test_timeout_seconds=25, **environment)
        workspace = Workspace(bench.project)
        known = workspace.manifests.revision
        at = datetime.now(timezone.utc) - timedelta(days=len(FAULTS) - 1 - night)
        revision = workspace.manifests.add_revision(resolve_revision(bench.project, "nightly", known, now=at))
        bench.accel_ci("run", "nightly", "--revision", revision.key)
        builds.append(Build(revision.key, bench.project.settings.variants[0].name))
    causes = []
    for build in builds:
        found = read_causes(workspace, build)
        assert found is not None
        causes.append({blame.test.rpartition("[")[2].rstrip("]"): blame.cause for blame in found.blames})
    always = {"to_sparse"}  # it has never passed
    told = [{test: cause for test, cause in night.items() if test not in always} for night in causes]
    assert told[0] == {}
    assert told[1] == {"atan2": "flaky"}
    assert told[2].pop("tan") in ("backend", "unknown"), "one night proves little"
    assert told[2] == {}
    assert told[3].pop("tan") == "backend"
    assert set(told[3].values()) <= {"infra"}, "what the bad card did"
    assert told[4].pop("tan") == "backend"
    assert told[4].pop("erfinv") in ("backend", "unknown")
    assert told[4] == {}
    [broken] = [each for each in read_incidents(workspace).of(builds[-1].revision) if each.cause == "backend"]
    assert (broken.first, broken.revisions) == (builds[2].revision, 3)
