"""Images in a real registry, of nights in containers and of a component's tag: versions are set once, `nightly` moves on."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accel_ci.docker.client import ask_docker, run_docker
from accel_ci.errors import BuildError
from accel_ci.images.registry import Destination
from accel_ci.model import Build, RuntimeImage, Wheel
from accel_ci.pipelines import RUNTIME_IMAGE, WHEEL
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import PROJECT_LABEL
from accel_ci.progress import LineProgress
from accel_ci.release.publish import RELEASE, Published
from accel_ci.release.verify import verify
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.cluster_pool import cluster_settings
from accel_ci_tests.fixtures.package_index import TOKEN, PackageIndex, bridge_address, package_index
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stack_repositories import make_stack
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

TESTS = {
    "backend/tests/smoke/test_smoke.py": "import stack_tool\nimport toy_backend\n\n\ndef test_smoke():\n"
    "    assert stack_tool.BUILT_WITH and toy_backend.autoload\n",
    "backend/tests/unit/test_unit.py": "def test_unit():\n    pass\n",
}
UNIT = "backend/tests/unit/test_unit.py"


@dataclass(frozen=True)
class Place:
    """The project, its release repository and its index."""

    night: ToyNight
    repository: Destination
    index: PackageIndex

    @property
    def workspace(self) -> Workspace:
        """The stores of the project."""
        return Workspace(self.night.project)

    def newest(self) -> Build:
        """The newest build."""
        return next(iter(self.workspace.manifests.list_builds()))

    def digest(self, build: Build) -> str:
        """The digest of a build's image."""
        image = self.workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
        container = image.container("runtime") if image is not None else None
        assert container is not None
        return container.reference.partition("@")[2]

    def latest(self) -> str:
        """The build that the channel's pointer names."""
        return str(json.loads((self.night.project.home / "channel" / "py3" / "latest.json").read_bytes())["build"])


@contextmanager
def make_place(folder: Path, base: str, pool: dict[str, Any]) -> Iterator[Place]:
    """A project with a stack, whose tests run in its images on a pool; what it leaves goes."""
    registry, name = base.partition("/")[0], uuid.uuid4().hex
    stack = make_stack(folder)
    commit(folder / "library", {"test_library.py": "def test_answer(): pass\n"})
    stack["components"][1]["release"] = True
    backend = {
        **minimal_config()["backend"],  # type: ignore[dict-item]
        "entry_points": ["torch.backends:toy"], "build_environment": {"TOY_LABEL": "{label}"},
    }  # fmt: skip
    variant = {
        "name": "py3", "python": f"3.{sys.version_info.minor}", "torch": "torch==2.13.0+toy", "runtime": "none",
        "requirements": ["pytest"],
    }  # fmt: skip
    with package_index(folder / "index", host=bridge_address()) as index:
        night = make_toy_night(
            folder,
            TESTS,
            backend=backend,
            variants=[variant],
            stack=stack,
            image={"base": base, "registry": f"{registry}/test-{name}", "development_packages": []},
            pool=pool,
            release={
                "channel": {}, "images": {"repository": f"{registry}/test-{name}-released"}, "index": index.section(),
            },
        )  # fmt: skip
        night.environment["TOY_INDEX_TOKEN"] = TOKEN
        yield Place(night, Destination(f"{registry}/test-{name}-released"), index)
    for image in (folder / ".accel_ci" / "images").glob("docker-*.json"):
        containers = json.loads(image.read_bytes())["containers"]
        run_docker(["image", "rm", "--force", *(each["id"] for each in containers)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, base: str) -> Iterator[Place]:
    """A project whose nightly has passed in containers of its image."""
    pool = {"kind": "docker", "cards": 1, "card_environment": "TOY_CARD"}
    with make_place(tmp_path_factory.mktemp("project"), base, pool) as made:
        made.night.accel_ci("run", "nightly")
        yield made


def test_nights_set_their_day_once_and_move_the_moving_tag_forward(place: Place) -> None:
    night, repository = place.night, place.repository
    first = place.newest()
    day = f"nightly-{first.revision.removeprefix('nightly-')}"
    assert place.latest() == first.name
    assert repository.digest_of(day) == repository.digest_of("nightly") == place.digest(first)

    # The same night again, and its publication again.
    night.accel_ci("run", "nightly", "--again")
    assert place.newest() == first
    output = night.accel_ci("release", "channel", first.name)
    assert "nothing new" in output
    assert "(there)" in output
    assert "(moved)" not in output
    assert repository.digest_of(day) == repository.digest_of("nightly") == place.digest(first)

    # A night that fails moves nothing.
    files = {path: path.stat().st_mtime_ns for path in (night.project.home / "channel").rglob("*") if path.is_file()}
    commit(night.folder / "repository", {UNIT: "def test_unit():\n    raise AssertionError\n"})
    night.accel_ci("run", "nightly")
    failed = place.newest()
    assert failed.revision == f"{first.revision}.2"
    assert "refused: green" in night.accel_ci("release", "check", failed.name, status=1).replace(f"{failed.name} is ", "")
    night.accel_ci("release", "channel", failed.name, status=2)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert repository.digest_of(day) == repository.digest_of("nightly") == place.digest(first)

    # The next one that passes moves `nightly`, and leaves the day to the first.
    commit(night.folder / "repository", {UNIT: TESTS[UNIT], "backend/toy_backend/new.py": ""})
    night.accel_ci("run", "nightly")
    passed = place.newest()
    assert place.latest() == passed.name
    assert repository.digest_of("nightly") == place.digest(passed) != place.digest(first)
    assert repository.digest_of(day) == place.digest(first)

    # An earlier night that is published again moves nothing back.
    night.accel_ci("release", "channel", first.name)
    assert place.latest() == passed.name
    assert repository.digest_of("nightly") == place.digest(passed)


def test_a_tag_of_a_component_releases_the_image_once(place: Place) -> None:
    night, repository, tool = place.night, place.repository, place.night.folder / "tool"
    commit(tool, {"README": "1.2.3"})
    git(tool, "tag", "v1.2.3")
    commit(tool, {"README": "after it"})
    night.accel_ci("run", "manual", "--name", "tool-1.2.3", "--component", "tool=refs/tags/v1.2.3")
    build = place.newest()
    released = place.workspace.manifests.find(RELEASE, build, Published)
    assert released is not None
    assert (released.kind, released.tag, released.index) == ("release", "tool=v1.2.3", None)
    assert [(each.tag, each.digest, each.state) for each in released.images] == [("tool-1.2.3", place.digest(build), "set")]
    assert repository.digest_of("tool-1.2.3") == place.digest(build)
    assert released.provenance is not None
    statement = json.loads(place.workspace.artifacts.path(released.provenance).read_bytes())
    sources = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert git(tool, "rev-parse", "v1.2.3") in [each["digest"]["gitCommit"] for each in sources]
    assert "(there)" in night.accel_ci("release", "publish", build.name)

    # Another build of the same tag has another image, and does not get the version.
    commit(night.folder / "repository", {"backend/toy_backend/newer.py": ""})
    night.accel_ci("run", "manual", "--name", "tool-again", "--component", "tool=refs/tags/v1.2.3", status=1)
    assert "a version never moves" in night.accel_ci("release", "publish", place.newest().name, status=2)
    git(tool, "tag", "--force", "v1.2.3")
    output = night.accel_ci("release", "publish", build.name, "--tag", "tool=v1.2.3", status=2)
    assert "tag: tool=v1.2.3 is" in output
    assert repository.digest_of("tool-1.2.3") == place.digest(build)


def test_what_the_index_has_passes_smoke_in_a_container_of_the_pool(place: Place) -> None:
    night, index = place.night, place.index
    git(night.folder / "repository", "tag", "v1.0.0")
    night.accel_ci("run", "manual", "--name", "release", "--backend-ref", "refs/tags/v1.0.0")
    build = Build("manual-release", "py3")
    released = place.workspace.manifests.find(RELEASE, build, Published)
    assert released is not None
    assert released.verified == f"installed from {index.simple}, 1 tests of smoke passed"
    assert place.repository.digest_of("1.0.0") == place.digest(build)
    registry = place.repository.name.removesuffix("-released")
    names = ask_docker(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], "list images").split()
    assert not [name for name in names if name.startswith(f"{registry}:published-")]
    made = place.workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    assert made is not None
    assert Destination(registry).digest_of(f"published-{made.digest[:12]}") is None

    workspace = place.workspace
    wheel, image = (
        workspace.manifests.find(WHEEL, build, Wheel),
        workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage),
    )
    revision, section = workspace.manifests.revision(build.revision), workspace.project.settings.release
    assert wheel is not None
    assert image is not None
    assert revision is not None
    assert section is not None
    assert section.index is not None
    for name in index.names:
        Path(index.folder, name).rename(index.folder.parent / name)
    with LineProgress().step("verify") as step, pytest.raises(BuildError, match="what was published cannot be"):
        verify(workspace, build, revision, wheel, image, section.index, step)


def test_what_the_index_has_passes_smoke_in_a_pod(tmp_path: Path, base: str) -> None:
    settings, store = cluster_settings(), round_store()
    pool = {
        "kind": "kubernetes", "cards": 1, "resource": settings.resource, "host_network": True, "queue_seconds": 300,
        "bucket": {"bucket": store.bucket, "prefix": store.prefix, "endpoint": store.endpoint},
    }  # fmt: skip
    with make_place(tmp_path, base, pool) as place:
        git(place.night.folder / "repository", "tag", "v1.0.0")
        place.night.accel_ci("run", "manual", "--name", "release", "--backend-ref", "refs/tags/v1.0.0")
        build, manifests = Build("manual-release", "py3"), place.workspace.manifests
        released = manifests.find(RELEASE, build, Published)
        assert released is not None
        assert released.verified == f"installed from {place.index.simple}, 1 tests of smoke passed"
        made = manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
        assert made is not None
        registry = Destination(place.repository.name.removesuffix("-released"))
        assert registry.digest_of(f"published-{made.digest[:12]}") is None
    assert not Cluster(settings).jobs(f"{PROJECT_LABEL}=toy")
    assert not store.of_round("toy").listed(""), "nothing of the verification is left in the bucket"
