"""The image tags of nights in a real registry: a day is set once, and `nightly` follows the channel's pointer forward."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from accel_ci.config.settings import Project
from accel_ci.images.registry import Destination
from accel_ci.model import Build, ContainerImage, RuntimeImage, Wheel
from accel_ci.pipelines import LEDGER, RUNTIME_IMAGE, WHEEL
from accel_ci.release.gate import Decision
from accel_ci.release.publish import publish_nightly
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import write_ledger, write_night
from accel_ci_tests.fixtures.small_image import push_image
from accel_ci_tests.fixtures.stand_in_torch import write_package


@pytest.fixture
def source(registry: str) -> Destination:
    """The repository of the builds' images."""
    return Destination(f"{registry}/test-{uuid.uuid4().hex}")


@pytest.fixture
def released(source: Destination) -> Destination:
    """The repository of released images."""
    return Destination(f"{source.name}-released")


@pytest.fixture
def workspace(make_project: Callable[..., Project], released: Destination) -> Workspace:
    variants = [{"name": name, "python": "3.11", "torch": "torch", "runtime": "none"} for name in ("py3", "other")]
    release = {"gate": {"suites": ["unit"]}, "channel": {}, "images": {"repository": released.name}}
    return Workspace(make_project(variants=variants, release=release))


def lay_night(workspace: Workspace, source: Destination, night: int, variant: str = "py3") -> tuple[Build, str]:
    """Lay a night that passed on disk, with a wheel and an image of its own; return the digest of the image, too."""
    build = write_night(workspace, night, {}, backend=night, variant=variant)
    digest = push_image(source, build.name.encode())
    container = ContainerImage("runtime", "sha256:1", f"{source.name}@{digest}", 1, ())
    image = RuntimeImage("docker", "python", "0" * 64, "3.11", "2.13.0", None, (), False, 1.0, containers=(container,))
    name = f"toy_backend-1.0.dev{night}"
    file = workspace.artifacts.put(write_package(workspace.project.root, name, {"toy_backend.py": f"night = {night}\n"}))
    wheel = Wheel("toy-backend", f"1.0.dev{night}", file, file, (), False, 1.0)
    for manifest, value in ((WHEEL, wheel), (RUNTIME_IMAGE, image)):
        workspace.manifests.write(workspace.manifests.path(manifest, build.revision, build.variant), value)
    return build, digest


def publish(workspace: Workspace, build: Build) -> dict[str, str]:
    """Publish a night, and return the states of its tags."""
    done = publish_nightly(workspace, build)
    assert not isinstance(done, Decision)
    return {each.tag: each.state for each in done[2]}


def test_a_day_is_set_once_and_the_moving_tag_goes_forward(
    workspace: Workspace, source: Destination, released: Destination
) -> None:
    (first, one), (second, two), (third, three) = (lay_night(workspace, source, night) for night in (11, 12, 13))
    days = [build.revision for build in (first, second, third)]
    assert publish(workspace, second) == {days[1]: "set", "nightly": "set"}
    assert publish(workspace, second) == {days[1]: "there", "nightly": "there"}
    assert publish(workspace, first) == {days[0]: "set"}, "it ended after the next one"
    assert released.digest_of("nightly") == two
    assert publish(workspace, third) == {days[2]: "set", "nightly": "moved"}
    assert publish(workspace, second) == {days[1]: "there"}
    assert [released.digest_of(tag) for tag in (*days, "nightly")] == [one, two, three, three]


def test_a_night_that_is_refused_moves_nothing_until_it_passes(
    workspace: Workspace, source: Destination, released: Destination
) -> None:
    (good, digest), (bad, _) = (lay_night(workspace, source, night) for night in (12, 13))
    publish(workspace, good)
    ledger = workspace.manifests.path(LEDGER, bad.revision, bad.variant)
    workspace.manifests.remove(ledger)
    refused = publish_nightly(workspace, bad)
    assert isinstance(refused, Decision)
    assert [each.name for each in refused.refused_by] == ["ledger"]
    assert released.digest_of("nightly") == digest
    assert released.digest_of(bad.revision) is None
    write_ledger(workspace, bad)
    assert publish(workspace, bad) == {bad.revision: "set", "nightly": "moved"}
    assert released.digest_of(good.revision) == digest


def test_tags_of_other_variants_have_their_names(workspace: Workspace, source: Destination, released: Destination) -> None:
    build, digest = lay_night(workspace, source, 13, "other")
    assert publish(workspace, build) == {f"{build.revision}-other": "set", "nightly-other": "set"}
    assert released.digest_of("nightly-other") == digest
    assert released.digest_of("nightly") is None
