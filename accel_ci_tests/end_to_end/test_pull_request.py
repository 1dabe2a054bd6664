"""A pull request that runs the tests that its change may concern, after a nightly, and a nightly after it."""

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


def propose(night: ToyNight, number: int, files: dict[str, str]) -> None:
    """Make a pull request of the toy."""
    repository = night.folder / "repository"
    main = git(repository, "rev-parse", "HEAD")
    git(repository, "update-ref", f"refs/pull/{number}/head", commit(repository, files))
    git(repository, "reset", "--quiet", "--hard", main)


def test_a_pull_request_runs_what_its_change_may_concern_and_nothing_vanishes(night: ToyNight) -> None:
    outline = night.accel_ci("run", "pr", "--number", "7", "--dry-run")
    assert "the tests that its change may concern" in outline
    night.accel_ci("run", "nightly", "--strict")
    propose(night, 7, {"backend/tests/unit/test_unit.py": THREE.format(4), "backend/README.md": "# Toys\n"})
    output = night.accel_ci("run", "pr", "--number", "7", "--strict")
    words = "5 of 34 tests: 4 of changed files, 1 as a sample"
    assert f"runs {words}" in output
    assert f"device tests: {words}" in output
    status = json.loads(night.accel_ci("status", "--json"))
    assert status["build"].startswith("pr-7-")
    assert (status["verdicts"]["expected"], status["verdicts"]["passed"], status["state"]) == (6, 6, "passed")
    manifests = Workspace(night.project).manifests
    [_, _, build] = status["build"], *status["build"].partition("~")[::2]
    found = Build(status["build"].partition("~")[0], build)
    selection, ledger = manifests.find(TEST_SELECTION, found, TestSelection), manifests.find(LEDGER, found, Ledger)
    assert selection is not None
    assert ledger is not None
    assert selection.subset is not None
    assert selection.subset.reasons == {"its file changed": 4, "sample of tests/unit/test_other.py": 1}
    assert selection.subset.base == git(night.folder / "repository", "rev-parse", "HEAD")
    assert [(suite.selected, suite.not_chosen, suite.in_scope) for suite in selection.suites] == [(5, 29, 34)]
    assert (ledger.incomplete, ledger.vanished, ledger.vanished_reasons, ledger.missing_suites) == ((), None, (), ())
    propose(night, 8, {"backend/setup.py": (night.folder / "repository" / "backend" / "setup.py").read_text() + "\n"})
    assert "all 33 tests: setup.py changes, which may concern all tests" in night.accel_ci("run", "pr", "--number", "8")
    assert json.loads(night.accel_ci("status", "--json"))["state"] == "passed"
    page = (night.project.home / "hud" / "index.html").read_text()
    assert f"Runs {words}" in page
    commit(night.folder / "repository", {"backend/README.md": "# Toy\n\nIt moves.\n"})
    night.accel_ci("run", "nightly", "--strict")
