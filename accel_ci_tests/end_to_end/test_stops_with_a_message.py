"""An error stops a run with a message: nothing is green, and nothing after it is made."""

from __future__ import annotations

from typing import Any

import pytest

from accel_ci.ledger.status import read_status
from accel_ci.model import Build
from accel_ci.pipelines import STAGES
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.toy_night import LOADS, TESTS, ToyNight, make_toy_night

CRASHES = "import os\ndef test_smoke(): os.abort()\n"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    """A project whose runs stop one after another."""
    return make_toy_night(tmp_path_factory.mktemp("stops"))


def made(night: ToyNight, build: Build) -> list[str]:
    """Return the stages that have a manifest."""
    manifests = ManifestStore(night.project.home)
    return [stage for stage in STAGES if manifests.path(stage, build.revision, build.variant).exists()]


@pytest.mark.parametrize(
    ("changes", "stopped_at", "message"),
    [
        ({"suites__smoke__paths": ["tests/pytest.ini"]}, "smoke_results", "have no 'tests/pytest.ini'"),
        ({"pool__health_probe": ["python", "-c", "raise SystemExit(1)"]}, "smoke_results", "no card is healthy"),
        ({"suites__unit__scope": {"include": ["*typo*"]}}, "test_selection",
         "suite 'unit': none of the 6 collected tests is in scope"),
        ({"suites__unit__paths": ["README.md"]}, "test_selection", "collected no tests from README.md"),
    ],
)  # fmt: skip
def test_an_error_before_the_tests(night: ToyNight, changes: dict[str, Any], stopped_at: str, message: str) -> None:
    name = f"{stopped_at}-{len(message)}".replace("_", "-")
    with night.changed(**changes):
        output = night.accel_ci("run", "manual", "--name", name, status=1)
    build, manifests = Build(f"manual-{name}", "py3"), ManifestStore(night.project.home)
    assert message in output
    assert read_status(manifests, build).state == f"stopped after {stopped_at} failed"
    assert "ledger" not in made(night, build)
    assert f"stopped after {stopped_at} failed" in (night.project.home / "hud" / "index.html").read_text()


def test_a_pytorch_that_cannot_be_installed_says_where_it_was_looked_for(night: ToyNight) -> None:
    with night.changed(variants__0__torch="torch==2.13.999"):
        output = night.accel_ci("run", "manual", "--name", "no pytorch", status=1)
    assert "the check clean_install failed" in output
    assert "torch==2.13.999" in output
    assert "PIP_FIND_LINKS" in output
    assert made(night, Build("manual-no-pytorch", "py3")) == ["wheel"]


def test_a_smoke_test_that_fails(night: ToyNight) -> None:
    repository = night.folder / "repository"
    commit(repository, {"backend/tests/smoke/test_smoke.py": CRASHES})
    try:
        output = night.accel_ci("run", "manual", "--name", "smoke fails", status=1)
    finally:
        commit(repository, {name: text for name, text in TESTS.items() if "smoke" in name})
    assert "the check smoke_passed failed" in output
    assert "crashed" in output
    assert made(night, Build("manual-smoke-fails", "py3")) == ["wheel", "runtime_image", "smoke_results"]


def test_a_wheel_that_does_not_import(night: ToyNight) -> None:
    module, repository = "backend/toy_backend/__init__.py", night.folder / "repository"
    commit(repository, {module: f"import no_such_module\n{LOADS}"})
    try:
        output = night.accel_ci("run", "manual", "--name", "no import", status=1)
    finally:
        commit(repository, {module: LOADS})
    assert "wheel: the check imports failed" in output
    assert "No module named 'no_such_module'" in output
    build = Build("manual-no-import", "py3")
    assert read_status(ManifestStore(night.project.home), build).state == "stopped after wheel failed"
    assert made(night, build) == ["wheel"]
