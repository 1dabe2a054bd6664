"""A pull request that runs the tests that its change may concern, after a nightly."""

import json
from pathlib import Path

import pytest

from accel_ci.model import Build, Ledger, TestSelection
from accel_ci.pipelines import LEDGER, TEST_SELECTION
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

THREE = """
import pytest

@pytest.mark.parametrize("n", range({0}))
def test_n(n):
    pass
"""
FILES = {
    "backend/tests/smoke/test_smoke.py": TESTS["backend/tests/smoke/test_smoke.py"],
    "backend/tests/unit/test_unit.py": THREE.format(3),
    "backend/tests/unit/test_other.py": THREE.format(30),
}


@pytest.fixture
def night(tmp_path: Path) -> ToyNight:
    """The toy's project, whose pull requests run a subset."""
    job = {"cron": "0 2 * * *", "suites": ["smoke", "unit"]}
    suites = {"suites": job["suites"]}
    jobs = {"nightly": job, "intraday": job, "main": suites, "pr": {**suites, "tests": "changed"}}
    return make_toy_night(tmp_path, FILES, jobs=jobs)


def test_a_pull_request_runs_what_its_change_may_concern_and_nothing_vanishes(night: ToyNight) -> None:
    repository = night.folder / "repository"
    outline = night.accel_ci("run", "pr", "--number", "7", "--dry-run")
    assert "the tests that its change may concern" in outline
    night.accel_ci("run", "nightly", "--strict")
    main = git(repository, "rev-parse", "HEAD")
    proposed = commit(repository, {"backend/tests/unit/test_unit.py": THREE.format(4), "backend/README.md": "# Toys\n"})
    git(repository, "update-ref", "refs/pull/7/head", proposed)
    git(repository, "reset", "--quiet", "--hard", main)
    output = night.accel_ci("run", "pr", "--number", "7", "--strict")
    words = "5 of 34 tests: 4 of changed files, 1 as a sample"
    assert f"runs {words}" in output
    assert f"device tests: {words}" in output
    status = json.loads(night.accel_ci("status", "--json"))
    assert status["build"].startswith("pr-7-")
    assert (status["verdicts"]["expected"], status["verdicts"]["passed"], status["state"]) == (6, 6, "passed")
    manifests, found = Workspace(night.project).manifests, Build(*status["build"].split("~"))
    selection, ledger = manifests.find(TEST_SELECTION, found, TestSelection), manifests.find(LEDGER, found, Ledger)
    assert selection is not None
    assert ledger is not None
    assert selection.subset is not None
    assert selection.subset.reasons == {"its file changed": 4, "sample of tests/unit/test_other.py": 1}
    assert selection.subset.base == main
    assert [(suite.selected, suite.not_chosen, suite.in_scope) for suite in selection.suites] == [(5, 29, 34)]
    assert (ledger.incomplete, ledger.vanished, ledger.vanished_reasons, ledger.missing_suites) == ((), None, (), ())
    page = (night.project.home / "hud" / "builds" / f"{found.name}.html").read_text()
    assert f"Runs {words}" in page
    assert found.revision in (night.project.home / "hud" / "pulls.html").read_text()
