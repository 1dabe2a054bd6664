"""`accel-ci replay`: a failure that depends on the order is reproduced from the stored results of a build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.model import Build, Revision, RuntimeImage, Source
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.progress import LineProgress
from accel_ci.source.refs import resolve_source
from accel_ci.source.revision import checkout_backend
from accel_ci.steps.device_tests import collect_tests, plan_device_tests, run_device_stage
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.project import Run

BUILD = Build("manual-order", "py3")


@pytest.fixture
def built(repository: Path, make_project: Callable[..., Project]) -> Project:
    """A project with a build in which a test fails after another one on the same card."""
    commit(
        repository,
        {
            "backend/tests/unit/test_a.py": "import builtins\ndef test_poison(): builtins.poisoned = True\n"
            "def test_1(): pass\ndef test_2(): pass\n",
            "backend/tests/unit/test_b.py": "import builtins\ndef test_victim(): assert not hasattr(builtins, 'poisoned')\n"
            "def test_after(): pass\n",
        },
    )
    project = make_project(pool={"cards": 1, "card_environment": "TOY_CARD", "rounds": 2})
    settings, home = project.settings, project.home
    source = resolve_source(str(repository), "HEAD", "backend", project.root, timeout_s=30)
    upstream = Source("upstream", "refs/heads/main", None)
    now = datetime.now(timezone.utc)
    image = RuntimeImage("venv", sys.executable, "", "3.11", "2", None, (), True, 0.0)
    revision = Revision(BUILD.revision, "manual", now, source, upstream)
    manifests = ManifestStore(home)
    manifests.write(manifests.path("revision", BUILD.revision), revision)
    manifests.write(manifests.path("runtime_image", BUILD.revision, BUILD.variant), image)
    context = Workspace(project).stage_context(revision, BUILD.variant, "device")
    spec = worker_spec_for(settings, image, checkout_backend(project, source))
    suites = {"unit": settings.suites["unit"]}
    selection = collect_tests(settings, suites, spec, context)
    plan = plan_device_tests(settings, selection, {}, context.artifacts)
    with LineProgress().step("device") as step:
        results = run_device_stage(settings, selection.tests, ["unit"], plan, spec, context, step)
    assert results.counts == {"passed": 6, "failed": 1}
    return project


def test_a_worker_is_listed_and_replayed_in_order(accel_ci: Run, built: Project) -> None:
    listed = accel_ci("replay", "--dry-run")
    assert listed.stdout.splitlines() == [
        "--stage device --round 1 --worker w0-0 (card 0): 5 tests, 1 failed",
        "--stage device --round 2 --worker w0-0 (card 0): 1 tests, 0 failed",
        "--stage device --round 4 --worker w0-0 (card 0): 1 tests, 0 failed",
    ]
    victim = "tests/unit/test_b.py::test_victim"
    order = accel_ci("replay", BUILD.name, "--test", victim, "--dry-run")
    assert order.stdout.splitlines()[::3] == ["passed\tunit\ttests/unit/test_a.py::test_poison", f"failed\tunit\t{victim}"]
    again = accel_ci("replay", BUILD.name, "--test", victim)
    assert again.returncode == 1, again.stderr
    assert f"failed: {victim}" in again.stdout
    assert "4 of 4 tests ran again, 1 failed" in again.stdout
    alone = accel_ci("replay", "--round", "2", "--worker", "w0-0")
    assert (alone.returncode, alone.stdout.splitlines()[-1]) == (0, "1 of 1 tests ran again, 0 failed")


def test_errors_explain_what_cannot_be_replayed(accel_ci: Run, built: Project) -> None:
    unclear = accel_ci("replay", "--worker", "w0-0")
    assert unclear.returncode == 2
    assert "3 sessions match, but one is needed; choose one of: --stage device --round 1 --worker w0-0" in unclear.stderr
    assert "0 sessions match" in accel_ci("replay", "--test", "no/such.py::test").stderr
    for entry in (built.home / "results").rglob("*.parquet"):
        entry.unlink()
    assert "no workers are stored for manual-order~py3" in accel_ci("replay", "--dry-run").stderr
