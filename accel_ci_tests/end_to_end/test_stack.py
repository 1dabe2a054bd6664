"""A nightly with a software stack of two components, which the backend's tests use, on both stacks of PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from accel_ci.model import Build, Ledger, Revision, RuntimeImage, SoftwareStack, TestSelection
from accel_ci.pipelines import LEDGER, RUNTIME_IMAGE, STACK, TEST_SELECTION
from accel_ci.source.revision import ComponentChange, resolve_revision
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stack_repositories import make_stack
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

USES_THE_STACK = "import stack_tool\n\n\ndef test_smoke():\n    assert stack_tool.BUILT_WITH in (42, 7)\n"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    folder = tmp_path_factory.mktemp("night")
    common = {"python": f"3.{sys.version_info.minor}", "torch": "torch==2.13.0+toy", "runtime": "none"}
    sources = {"py3": "pinned", "py3-main": "main"}
    variants = [{"name": name, "torch_source": of, **common, "requirements": ["pytest"]} for name, of in sources.items()]
    tests = {**TESTS, "backend/tests/smoke/test_smoke.py": USES_THE_STACK}
    stack = make_stack(folder)
    jobs: Any = minimal_config()["jobs"]
    stack["components"][1]["changes"] = {"trust_all": True}
    jobs["pr"]["tests"] = "changed"
    made = make_toy_night(folder, tests, stack=stack, variants=variants, jobs=jobs)
    made.accel_ci("run", "nightly", "--variant", "py3")
    return made


def of_newest(night: ToyNight, kind: str = "") -> tuple[Workspace, Build, Revision]:
    """Return the newest build whose revision begins so."""
    workspace = Workspace(night.project)
    build = next(each for each in workspace.manifests.list_builds() if each.revision.startswith(kind))
    revision = workspace.manifests.revision(build.revision)
    assert revision is not None
    return workspace, build, revision


def test_a_nightly_uses_what_the_components_install_and_has_their_unit_tests_in_its_ledger(night: ToyNight) -> None:
    workspace, build, revision = of_newest(night, "nightly-")
    shas = {name: git(night.folder / name, "rev-parse", "HEAD") for name in ("library", "tool")}
    assert {name: source.sha for name, source in revision.stack.items()} == shas
    stack = workspace.manifests.find(STACK, build, SoftwareStack)
    image = workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    ledger = workspace.manifests.find(LEDGER, build, Ledger)
    assert stack is not None
    assert image is not None
    assert ledger is not None
    assert image.environment == stack.environment == {"PYTHONPATH": f"{stack.prefix}/lib"}
    assert ledger.suites["smoke"]["passed"] == 1, "it imports the tool, which was built with the library"
    assert ledger.suites["stack:library"]["failed"] == 2, "a unit test, and so the command that ran it"
    assert ledger.suites["stack:tool"]["passed"] == 1
    assert ledger.missing_suites == ()
    script = night.accel_ci("reproduce", build.name, "tests/unit/test_unit.py::test_n[0]")
    assert f"PYTHONPATH={stack.prefix}/lib" in script
    assert "is a unit test of the stack" in night.accel_ci("reproduce", build.name, "test_library::test_wrong", status=2)


def test_the_other_variant_has_the_same_stack_but_for_a_component_at_another_ref(night: ToyNight) -> None:
    git(night.folder / "tool", "checkout", "--quiet", "-b", "topic")
    sha = commit(night.folder / "tool", {"README": "a topic"})
    git(night.folder / "tool", "checkout", "--quiet", "main")
    night.accel_ci("run", "manual", "--name", "topic", "--variant", "py3-main", "--component", "tool=refs/heads/topic")
    workspace, build, revision = of_newest(night)
    assert (build.revision, revision.stack["tool"].sha) == ("manual-topic", sha)
    stack = workspace.manifests.find(STACK, build, SoftwareStack)
    assert stack is not None
    assert [component.reused for component in stack.components] == [True, False]
    ledger = workspace.manifests.find(LEDGER, build, Ledger)
    assert ledger is not None
    assert (build.variant, ledger.suites["smoke"]["passed"]) == ("py3-main", 1)


def test_a_change_request_of_a_component_runs_all_tests_with_it(night: ToyNight) -> None:
    tool = night.folder / "tool"
    git(tool, "checkout", "--quiet", "-b", "change")
    change = ComponentChange("tool", 7, "refs/pull/7/head", commit(tool, {"README": "a change"}))
    git(tool, "update-ref", change.ref, change.sha)
    git(tool, "checkout", "--quiet", "main")
    git(tool, "branch", "--quiet", "-D", "change")
    manifests = Workspace(night.project).manifests
    asked = manifests.add_revision(resolve_revision(night.project, "pr", manifests.revision, change=change))
    night.accel_ci("run", "pr", "--revision", asked.key, "--variant", "py3")
    workspace, build, revision = of_newest(night)
    assert (build.revision, revision.stack["tool"].sha) == (f"pr-tool-7-{change.sha[:12]}", change.sha)
    selection = workspace.manifests.find(TEST_SELECTION, build, TestSelection)
    ledger = workspace.manifests.find(LEDGER, build, Ledger)
    assert selection is not None
    assert ledger is not None
    assert selection.subset is None, "a change of the backend would choose some"
    assert ledger.suites["smoke"]["passed"] == ledger.suites["stack:tool"]["passed"] == 1


def test_a_component_that_cannot_be_built_stops_the_build_with_its_last_words(night: ToyNight) -> None:
    commit(night.folder / "tool", {"assemble.py": "raise SystemExit('the tool needs a newer library')\n"})
    try:
        output = night.accel_ci("run", "manual", "--name", "broken", "--variant", "py3", status=1)
    finally:
        git(night.folder / "tool", "reset", "--quiet", "--hard", "HEAD~1")
    assert "the component tool at g" in output
    assert "the tool needs a newer library" in output
    assert "stopped after stack failed" in night.accel_ci("status", "manual-broken~py3")
    _, build, _ = of_newest(night)
    assert not Path(night.project.home, "builds", build.revision, "py3", "wheel.json").exists()
    assert build.revision == "manual-broken"
