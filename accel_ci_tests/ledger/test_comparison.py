"""The build that a build is compared with, and what fails since: the last finished one of the same trigger and suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.ledger.comparison import builds_to_compare, count_newly_failing, finished_before
from accel_ci.model import Build, Ledger, Verdict
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.hud.samples import VARIANTS, lay_build, lay_revision, workspace_of

FAILING: dict[Verdict, int] = {"failed": 5, "passed": 25}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A nightly whose five failures were there the night before the last; last night stopped, and `main` built since."""
    for day, until in ((0, "ledger"), (1, "device_test_results"), (2, "ledger")):
        lay_build(tmp_path, Build(lay_revision(tmp_path, day).key, VARIANTS[0]), FAILING, until=until)
    commit = lay_revision(tmp_path, 0, trigger="main", key="main-0123456789ab", hours=12)
    lay_build(tmp_path, Build(commit.key, VARIANTS[0]), {"passed": 32})
    return workspace_of(tmp_path)


def ledger_of(manifests: ManifestStore, revision: str) -> Ledger:
    return manifests.read(manifests.path("ledger", revision, VARIANTS[0]), Ledger)


def test_known_failures_are_not_new_whatever_other_triggers_built(workspace: Workspace) -> None:
    tonight = ledger_of(workspace.manifests, "nightly-20261127")
    before = finished_before(workspace.manifests, tonight)
    assert before is not None
    assert before.build.revision == "nightly-20261125"
    assert count_newly_failing(workspace.manifests, workspace.results, tonight) == 0


def test_the_newest_finished_build_is_compared_unless_another_is_named(workspace: Workspace) -> None:
    manifests, nightly = workspace.manifests, [Build(f"nightly-202611{day}", VARIANTS[0]) for day in (25, 26, 27)]
    lay_build(
        manifests.builds.parent,
        Build(lay_revision(manifests.builds.parent, 0, hours=1, key="nightly-b").key, VARIANTS[0]),
        {},
        until="wheel",
    )
    assert builds_to_compare(manifests) == builds_to_compare(manifests, nightly[2]) == (nightly[0], nightly[2])
    with pytest.raises(AccelCiError, match=r"nightly-20261126~.* has no ledger; name the two builds"):
        builds_to_compare(manifests, nightly[1])
    with pytest.raises(AccelCiError, match="no earlier build of the trigger and variant of nightly-20261125~"):
        builds_to_compare(manifests, nightly[0])
    with pytest.raises(AccelCiError, match="no build has a ledger; name the two builds"):
        builds_to_compare(ManifestStore(manifests.builds / "none"))


def test_a_build_without_one_of_the_suites_is_passed_over(workspace: Workspace) -> None:
    manifests = workspace.manifests
    tonight, other = (ledger_of(manifests, f"nightly-202611{day}") for day in (27, 25))
    del other.suites["integration"]
    manifests.write(manifests.path("ledger", other.build.revision, other.build.variant), other)
    assert finished_before(manifests, tonight) is None
    assert count_newly_failing(manifests, workspace.results, tonight) is None


def test_a_pull_request_is_compared_with_the_branch(tmp_path: Path) -> None:
    failing: dict[Verdict, int] = {"failed": 2, "passed": 30}
    passing: dict[Verdict, int] = {"passed": 32}
    for key, trigger, hours, counts in (
        ("nightly-20261125", "nightly", 3, failing), ("pr-6-a", "pr", 2, passing), ("pr-7-a", "pr", 1, failing),
    ):  # fmt: skip
        revision = lay_revision(tmp_path, 0, trigger=trigger, key=key, hours=hours)  # type: ignore[arg-type]
        lay_build(tmp_path, Build(revision.key, VARIANTS[0]), counts)
    workspace = workspace_of(tmp_path)
    own = ledger_of(workspace.manifests, "pr-7-a")
    before = finished_before(workspace.manifests, own)
    assert before is not None
    assert before.build.revision == "nightly-20261125"
    assert count_newly_failing(workspace.manifests, workspace.results, own) == 0
