"""A release from its tag to the index: built, judged, uploaded, installed from there and tested again, and never twice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from accel_ci.model import Build
from accel_ci.release.publish import RELEASE, Published
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.package_index import TOKEN, PackageIndex, package_index
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

BUILD = Build("manual-release", "py3")
TESTS = {
    "backend/tests/smoke/test_smoke.py": "import toy_backend\n\n\ndef test_smoke():\n    assert toy_backend.autoload\n",
    "backend/tests/unit/test_unit.py": "def test_unit():\n    pass\n",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    with package_index(tmp_path_factory.mktemp("index") / "wheels") as served:
        yield served


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, index: PackageIndex) -> ToyNight:
    """A project whose release tag was built and went out by the run itself."""
    own = {"entry_points": ["torch.backends:toy"], "build_environment": {"TOY_LABEL": "{label}"}}
    backend = {**minimal_config()["backend"], **own}  # type: ignore[dict-item]
    channel = {"triggers": ["manual"], "keep_builds": 3}
    release = {"channel": channel, "index": {**index.section(), "local_versions": False}, "public_versions": True}
    made = make_toy_night(tmp_path_factory.mktemp("project"), TESTS, backend=backend, release=release)
    git(made.folder / "repository", "tag", "v1.0.0")
    made.environment["TOY_INDEX_TOKEN"] = TOKEN
    made.accel_ci("run", "manual", "--name", "release", "--backend-ref", "refs/tags/v1.0.0")
    return made


def published(night: ToyNight) -> Published:
    found = Workspace(night.project).manifests.find(RELEASE, BUILD, Published)
    assert found is not None
    return found


def test_a_release_tag_goes_out_and_passes_smoke_from_the_index(night: ToyNight, index: PackageIndex) -> None:
    found = published(night)
    assert (found.kind, found.tag) == ("release", "v1.0.0")
    assert list(found.uploaded) == index.names == ["toy_backend-1.0-py3-none-any.whl"]
    assert found.verified == f"installed from {index.simple}, 1 tests of smoke passed"
    assert all(each.met for each in found.decision.criteria)
    assert found.provenance is not None
    statement = json.loads(Workspace(night.project).artifacts.path(found.provenance).read_bytes())
    assert [each["name"] for each in statement["subject"]] == index.names
    sources = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sources[0]["digest"]["gitCommit"] == git(night.folder / "repository", "rev-parse", "v1.0.0")
    latest = json.loads((night.project.home / "channel" / "py3" / "latest.json").read_bytes())
    assert latest["build"] == BUILD.name
    assert TOKEN not in "".join(path.read_text(errors="replace") for path in night.project.home.rglob("*.json"))


def test_a_repetition_publishes_nothing(night: ToyNight, index: PackageIndex) -> None:
    before = {path: path.stat().st_mtime_ns for path in index.folder.iterdir()}
    output = night.accel_ci("release", "publish", BUILD.name)
    assert "nothing uploaded" in output
    assert "1 tests of smoke passed" in output
    assert "nothing new" in night.accel_ci("release", "channel", BUILD.name)
    assert {path: path.stat().st_mtime_ns for path in index.folder.iterdir()} == before


def test_a_refusal_names_each_criterion_until_a_person_overrides_it(night: ToyNight) -> None:
    with night.changed(release__gate={"passed": 1000, "level": "L2"}, quality={"level": "L1"}):
        output = night.accel_ci("release", "check", BUILD.name, status=1)
        assert f"{BUILD.name} is refused: passed, level" in output
        output = night.accel_ci("release", "publish", BUILD.name, "--dry-run", status=2)
        assert "passed: 2 passed (wanted: at least 1000); level: L1 (wanted: L2 or higher)" in output
        night.accel_ci("release", "channel", BUILD.name, status=2)
        night.accel_ci("release", "override", BUILD.name, "--by", "robin", "--reason", "customers wait for the fix")
        output = night.accel_ci("release", "publish", BUILD.name, "--dry-run", "--json")
        word = json.loads(output.splitlines()[-1])["decision"]["override"]
        assert (word["person"], word["reason"]) == ("robin", "customers wait for the fix")
        assert word["criteria"] == ["passed", "level"]


def test_a_tag_that_moved_or_says_another_version_is_refused(night: ToyNight) -> None:
    repository = night.folder / "repository"
    git(repository, "tag", "v2.0.0")
    assert "version: 1.0 (wanted: 2.0.0" in night.accel_ci("release", "publish", BUILD.name, "--tag", "v2.0.0", status=2)
    assert "no release tag" in night.accel_ci("release", "publish", BUILD.name, "--tag", "main", status=2)
    commit(repository, {"README.md": "new\n"})
    git(repository, "tag", "--force", "v1.0.0")
    assert "tag: v1.0.0 is" in night.accel_ci("release", "publish", BUILD.name, status=2)
