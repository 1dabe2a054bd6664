"""Suites that need no card: they run before the others, hold no card, and gate the others in pull requests alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_ci.ledger.status import find_build
from accel_ci.model import Build, DeviceTestResults, Ledger
from accel_ci.pipelines import DEVICELESS_RESULTS, LEDGER, SMOKE_RESULTS
from accel_ci.pull_requests.answer import conclude, title
from accel_ci.pull_requests.progress import look_at_build
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

pytestmark = pytest.mark.timeout(900)
"""Three runs."""

EMULATED = """
import os


def test_no_card_is_visible():
    assert (os.environ["TOY_CARD"], os.environ["TOY_EMULATE"]) == ("", "1")


def test_flaky(tmp_path):
    mark = __import__("pathlib").Path(os.environ["MARKS"], "flaked")
    seen = mark.exists()
    mark.touch()
    assert seen
"""
BROKEN = """
import os


def test_broken():
    raise AssertionError(f"card={os.environ['TOY_CARD']!r} emulated={os.environ['TOY_EMULATE']!r}")
"""
UNIT = "import os\n\n\ndef test_on_a_card():\n    assert os.environ['TOY_CARD'] in '01'\n"
FILES = {
    "backend/tests/smoke/test_smoke.py": TESTS["backend/tests/smoke/test_smoke.py"],
    "backend/tests/unit/test_unit.py": UNIT,
    "backend/tests/emulated/test_emulated.py": EMULATED,
}
LINT = "import sys; sys.exit(any('TODO' in open(name).read() for name in sys.argv[1:]))"
NAMES = ["lint", "emulated", "smoke", "unit"]


@pytest.fixture
def night(tmp_path: Path) -> ToyNight:
    job = {"cron": "0 2 * * *", "suites": NAMES}
    suites = {
        "lint": {"stage": "deviceless", "commands": [["python", "-c", LINT, "toy_backend/__init__.py"], ["python", "-V"]]},
        "emulated": {
            "stage": "deviceless",
            "paths": ["tests/emulated"],
            "environment": {"TOY_EMULATE": "1", "MARKS": str(tmp_path)},
        },
        "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
        "unit": {"paths": ["tests/unit"]},
    }
    jobs = {"nightly": job, "intraday": job, "main": {"suites": NAMES}, "pr": {"suites": NAMES}}
    pool = {"cards": 2, "card_environment": "TOY_CARD", "processes": 2}
    return make_toy_night(tmp_path, FILES, suites=suites, jobs=jobs, pool=pool)


def propose(night: ToyNight, number: int, files: dict[str, str]) -> None:
    repository = night.folder / "repository"
    main = git(repository, "rev-parse", "HEAD")
    sha = commit(repository, files)
    git(repository, "update-ref", f"refs/pull/{number}/head", sha)
    git(repository, "reset", "--quiet", "--hard", main)


def newest(workspace: Workspace) -> Build:
    return find_build(workspace.manifests, None)


def test_deviceless_suites_hold_no_card_and_gate_pull_requests(night: ToyNight, tmp_path: Path) -> None:
    outline = night.accel_ci("run", "nightly", "--dry-run")
    assert "[lint, emulated] without a card, then smoke [smoke]" in outline
    night.accel_ci("run", "nightly", "--strict")
    workspace = Workspace(night.project)
    manifests, build = workspace.manifests, newest(workspace)
    ledger = manifests.find(LEDGER, build, Ledger)
    assert ledger is not None
    assert list(ledger.suites) == NAMES
    assert (ledger.counts["passed"], ledger.counts["flaky"], ledger.missing_suites) == (5, 1, ())
    stored = {each.suite: workspace.results.read(each, ["test", "card"]).to_pylist() for each in workspace.results.suites()}
    assert {row["card"] for suite in ("lint", "emulated") for row in stored[suite]} == {None}
    assert None not in {row["card"] for suite in ("smoke", "unit") for row in stored[suite]}
    results = manifests.find(DEVICELESS_RESULTS, build, DeviceTestResults)
    assert results is not None
    assert (results.suites, results.cards) == (("lint", "emulated"), ())

    todo = {"backend/toy_backend/__init__.py": "def autoload():\n    pass  # TODO\n"}
    propose(night, 7, {**todo, "backend/tests/emulated/test_broken.py": BROKEN})
    output = night.accel_ci("run", "pr", "--number", "7", status=1)
    assert "deviceless_results: the check deviceless_passed failed" in output
    assert "2 failed; no card is taken" in output
    build = newest(workspace)
    assert build.revision.startswith("pr-7-")
    assert manifests.find(SMOKE_RESULTS, build, DeviceTestResults) is None
    [pipeline] = workspace.pipelines[:1]
    tested = look_at_build(workspace, pipeline, build)
    assert title(tested) == "2 new; no card was taken"
    assert conclude(tested, blocking=True) == "failure"
    assert conclude(tested, blocking=False) == "neutral"
    failed = {failure.suite: failure.test for failure in tested.failures}
    assert {suite: test.partition(":")[0] for suite, test in failed.items()} == {
        "lint": "command 1",
        "emulated": "tests/emulated/test_broken.py",
    }
    reproduced = night.accel_ci(
        "reproduce", build.name, failed["emulated"], "--run", "--folder", str(tmp_path / "a"), status=1
    )
    assert "AssertionError: card='' emulated='1'" in reproduced
    script = night.accel_ci("reproduce", build.name)
    assert f"# {failed['emulated']} without a card" in script
    assert failed["lint"] not in script, "a command is not run by pytest"
    advice = night.accel_ci("reproduce", build.name, failed["lint"], status=2)
    assert "is a command of the suite lint: run it in a checkout of the backend" in " ".join(advice.split())

    commit(night.folder / "repository", todo)
    night.accel_ci("run", "nightly", "--strict", status=1)
    status = json.loads(night.accel_ci("status", "--json"))
    assert status["build"].startswith("nightly-")
    assert status["state"] == "1 failed"
    ledger = manifests.find(LEDGER, newest(workspace), Ledger)
    assert ledger is not None
    assert ledger.suites["unit"]["passed"] == 1, "a night is not lost to lint"
