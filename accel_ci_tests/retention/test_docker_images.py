"""Pruning images of a real Docker engine."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accel_ci.docker.client import CLIENT_ENVIRONMENT, ask_docker, docker_client, run_docker
from accel_ci.model import ContainerImage, RuntimeImage
from accel_ci_tests.retention.data_folder import DataFolder

MakeFolder = Callable[..., DataFolder]


@pytest.fixture
def build_image(base: str, tmp_path: Path) -> Iterator[Callable[[str, str], ContainerImage]]:
    """Builds a small image with a name and the digest of its content in the label; removes all of them in the end."""
    made: list[ContainerImage] = []

    def build(name: str, digest: str) -> ContainerImage:
        context = tmp_path / name
        context.mkdir()
        (context / "file").write_text(digest + name)
        (context / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
        tag = f"accel-ci-test-{name}:{digest[:16]}"
        arguments = ["build", "--label", f"accel-ci.content={digest}", "--tag", tag, "--iidfile", str(context / "id")]
        done = run_docker([*arguments, str(context)])
        assert done.status == 0, done.output
        made.append(ContainerImage("runtime", (context / "id").read_text(), tag, 100, ()))
        return made[-1]

    yield build
    for image in made:
        run_docker(["image", "rm", "--force", image.id])


def in_engine(image: ContainerImage) -> bool:
    return run_docker(["image", "inspect", image.id]).status == 0


def test_docker_images_go_with_their_records_unless_they_are_foreign_or_in_use(
    make_folder: MakeFolder, build_image: Callable[[str, str], ContainerImage]
) -> None:
    folder = make_folder(last_green=0)
    young = folder.lay_build(1)
    manifests, images = folder.workspace.manifests, folder.workspace.images

    def lay_record(*names: str, content: str | None = None) -> tuple[RuntimeImage, Path]:
        """Builds images and the record of them; `content` is what their label has instead of the record's digest."""
        digest = secrets.token_hex(32)
        containers = tuple(build_image(name, content or digest) for name in names)
        image = RuntimeImage("docker", "/python", digest, "3", "2", None, (), False, 1.0, containers=containers)
        record = images / f"docker-{digest[:16]}.json"
        manifests.write(record, image)
        return image, record

    (kept, kept_record), (old, old_record) = lay_record("kept"), lay_record("development", "runtime")
    (foreign, foreign_record), (used, used_record) = lay_record("foreign", content="f" * 64), lay_record("used")
    manifests.write(manifests.path("runtime_image", young.revision, young.variant), kept)
    folder.age()
    container = ask_docker(["create", used.containers[0].id, "/nothing"], "make a container")
    try:
        planned = folder.prune(dry_run=True)
        assert all(map(in_engine, (*kept.containers, *old.containers, *foreign.containers, *used.containers)))
        found = folder.prune()
    finally:
        ask_docker(["rm", container], "remove the container")
    goes = {("Docker image", one.reference, 100) for one in old.containers}
    assert goes | {("Docker image", used.containers[0].reference, 100)} <= {(o.kind, o.name, o.size_bytes) for o in planned}
    assert goes <= {(item.kind, item.name, item.size_bytes) for item in found}
    [stays] = [item for item in found if item.problem]
    assert (stays.kind, stays.name, stays.size_bytes) == ("Docker image", used.containers[0].reference, 0)
    assert re.match(r"Docker could not remove accel-ci-test-used:\w+: .*container", str(stays.problem))
    assert not any(map(in_engine, old.containers))
    assert all(map(in_engine, (*kept.containers, *foreign.containers, *used.containers)))
    records = (kept_record, old_record, foreign_record, used_record)
    assert [record.exists() for record in records] == [True, False, False, True]
    assert {item.name for item in folder.prune()} == {used.containers[0].reference, f"images/{used_record.name}"}
    assert not in_engine(used.containers[0])


def test_a_record_stays_while_no_engine_can_be_asked(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    container = ContainerImage("runtime", f"sha256:{'0' * 64}", "toy:1", 100, ())
    image = RuntimeImage("docker", "/python", "a" * 64, "3", "2", None, (), False, 1.0, containers=(container,))
    record = folder.workspace.images / f"docker-{'a' * 16}.json"
    folder.workspace.manifests.write(record, image)
    folder.age()
    monkeypatch.setenv(CLIENT_ENVIRONMENT, str(folder.home / "no-client"))
    docker_client.cache_clear()
    try:
        [item] = folder.prune()
    finally:
        docker_client.cache_clear()
    assert (item.kind, item.name, item.size_bytes) == ("Docker image", "toy:1", 0)
    assert item.problem is not None
    assert record.exists()
