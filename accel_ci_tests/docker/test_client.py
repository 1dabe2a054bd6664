"""The choice of the Docker client, tested with scripts in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci.docker import client
from accel_ci.docker.client import CLIENT_ENVIRONMENT, ask_docker, docker_client
from accel_ci.errors import BuildError

WITHOUT_BUILDX = '[ "$1" = --version ] && echo "Docker version 28.2.2, build e6534b4" && exit; echo no buildx >&2; exit 1'
OLD = '[ "$1" = --version ] && echo "Docker version 20.10.24+dfsg1, build 297e128" && exit; exit 1'
WITH_BUILDX = '[ "$1" = buildx ] && echo "github.com/docker/buildx v0.21.0" && exit; exit 1'


@pytest.fixture(autouse=True)
def _nothing_found_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CLIENT_ENVIRONMENT, raising=False)
    for cached in (docker_client, client._builds):
        cached.cache_clear()
    yield
    for cached in (docker_client, client._builds):
        cached.cache_clear()


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, *clients: str) -> list[str]:
    paths = []
    for number, script in enumerate(clients):
        path = folder / str(number) / "docker"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        paths.append(str(path))
    monkeypatch.setenv("PATH", ":".join(str(Path(path).parent) for path in paths))
    return paths


@pytest.mark.parametrize("other", [OLD, WITH_BUILDX])
def test_a_client_that_builds_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    paths = on_path(tmp_path, monkeypatch, WITHOUT_BUILDX, other)
    assert docker_client() == docker_client(builds=True) == paths[1]


def test_a_client_that_cannot_build_serves_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = on_path(tmp_path, monkeypatch, WITHOUT_BUILDX)
    assert docker_client() == path
    with pytest.raises(BuildError, match=r"docker cannot build images: install the buildx plug-in"):
        docker_client(builds=True)
    with pytest.raises(BuildError, match=r"^Docker could not list images: no buildx$"):
        ask_docker(["images"], "list images")


def test_a_named_client_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, WITH_BUILDX)
    monkeypatch.setenv(CLIENT_ENVIRONMENT, "/opt/own/docker")
    assert docker_client(builds=True) == "/opt/own/docker"


def test_a_missing_client_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BuildError, match=r"there is no `docker` on PATH; install Docker, or name its client in ACCEL_CI_DOCKER"
    ):
        docker_client()


def test_a_question_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, "[ $1 = buildx ] && echo v0.21.0 || exec /bin/sleep 600")
    with pytest.raises(BuildError, match="Docker could not ask within 1 s"):
        ask_docker(["version"], "ask", timeout_s=1)
