"""The status of builds, from their manifests alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.ledger.status import find_build, read_status
from accel_ci.model import Build, DeviceTestResults, Ledger
from accel_ci.pipelines import PIPELINES
from accel_ci.storage.manifests import ManifestStore, PipelineRun
from accel_ci_tests.hud.samples import NOW, VARIANTS, lay_build, lay_revision

BUILD = Build("nightly-20261127", VARIANTS[0])


@pytest.fixture
def manifests(tmp_path: Path) -> ManifestStore:
    """Two revisions, of which the newer one has two builds."""
    for day, variants in ((0, VARIANTS), (1, VARIANTS[:1])):
        revision = lay_revision(tmp_path, day)
        for variant in variants:
            lay_build(tmp_path, Build(revision.key, variant), {"passed": 30})
    return ManifestStore(tmp_path)


def test_a_build_is_found_by_its_name_or_its_revision(manifests: ManifestStore) -> None:
    assert find_build(manifests, None) == Build("nightly-20261127", VARIANTS[1])
    assert find_build(manifests, BUILD.name) == BUILD
    assert find_build(manifests, "nightly-20261126") == Build("nightly-20261126", VARIANTS[0])
    both = ", ".join(f"nightly-20261127~{variant}" for variant in VARIANTS)
    with pytest.raises(AccelCiError, match=f"'nightly-20261127' names 2 builds; choose of: {both}"):
        find_build(manifests, "nightly-20261127")
    with pytest.raises(AccelCiError, match=f"'nightly~x' names 0 builds; the newest are: nightly-20261126~.*, {both}"):
        find_build(manifests, "nightly~x")


def test_the_makespan_is_explained_by_set_up_and_a_ratio(manifests: ManifestStore) -> None:
    path = manifests.path("ledger", BUILD.revision, BUILD.variant)
    account = replace(manifests.read(path, Ledger), makespan_s=20.0, lower_bound_s=10.0, setup_s=5.0)
    manifests.write(path, account)
    status = read_status(manifests, BUILD)
    assert (status.setup_s, status.ratio) == (5.0, 1.5)
    assert json.loads(status.as_json()).items() >= {"setup_s": 5.0, "ratio": 1.5}.items()
    manifests.write(path, replace(account, setup_s=None))
    assert read_status(manifests, BUILD).ratio is None, "an account of an earlier version does not say"


def test_a_build_that_stopped_names_the_stage_of_the_pipeline_that_ran_last(tmp_path: Path) -> None:
    manifests, build = ManifestStore(tmp_path), Build(lay_revision(tmp_path, 1).key, VARIANTS[0])
    integration, rbe = PIPELINES
    for number, (pipeline, stage) in enumerate([(integration, "wheel"), (rbe, "source_build"), (integration, "wheel")]):
        manifests.write(manifests.run_file(pipeline, build), PipelineRun(f"run-{number}", NOW + timedelta(hours=number)))
        assert read_status(manifests, build).state == f"stopped at {stage}"
    manifests.begin("wheel", build)
    manifests.path("source_build", build.revision, build.variant).write_text("{}")
    manifests.write(manifests.run_file(rbe, build), PipelineRun("run-3", NOW + timedelta(hours=3)))
    assert read_status(manifests, build).state == "stopped at bazel_test_results"


def test_the_wall_time_is_that_of_the_last_run_of_each_pipeline(manifests: ManifestStore) -> None:
    integration, rbe = (manifests.run_file(pipeline, BUILD) for pipeline in PIPELINES)
    assert read_status(manifests, BUILD).wall_s is None
    times = PipelineRun("run-1", NOW, NOW + timedelta(seconds=1000))
    manifests.write(integration, times)
    status = read_status(manifests, BUILD)
    assert (status.wall_s, status.overhead_s) == (1000.0, round(1000 - status.work_s, 3))
    continued = replace(times, began=("device_test_results", "ledger"))
    manifests.write(integration, continued)
    tested = manifests.read(manifests.path("device_test_results", BUILD.revision, BUILD.variant), DeviceTestResults)
    assert 0 < tested.work_s < status.work_s
    assert read_status(manifests, BUILD).work_s == tested.work_s, "the rest was made by the run before"
    manifests.write(integration, times)
    manifests.write(rbe, replace(times, run="run-2"))
    assert read_status(manifests, BUILD).wall_s == 2000.0
    manifests.write(rbe, times)  # one run of both
    assert read_status(manifests, BUILD).wall_s == 1000.0
    manifests.write(rbe, PipelineRun("run-3", NOW))
    assert read_status(manifests, BUILD).wall_s is None, "a run that has not ended"
