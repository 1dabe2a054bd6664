"""The wheel of PyTorch that a variant gets now, found by a real uv in folders, on pages and in an index with a password."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import BuildError
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.model import RuntimeImage, Source, Wheel
from accel_ci.redaction import without_credentials
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.torch_wheel import with_exact_torch
from accel_ci_tests.fixtures.guarded_server import guarded_server
from accel_ci_tests.fixtures.stand_in_torch import write_package, write_torch

PYTHON = f"3.{sys.version_info.minor}"
OLD, NEW = "1" * 40, "2" * 40
SOURCE = Source("toy", "HEAD", "0123456789abcdef" * 2 + "01234567", tree="f" * 40)
Make = Callable[..., Project]


def sha256_of(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def main_of(make_project: Make, toy_project: Project, **variant: object) -> Project:
    """Return the toy's project with one variant that follows PyTorch main."""
    main = {"name": "main", "python": PYTHON, "torch": "torch", "torch_source": "main", "runtime": "none", **variant}
    return make_project(backend=toy_project.settings.backend.model_dump(mode="json"), variants=[main])


def torch_of(project: Project, sha: str | None = None) -> str:
    """Return the requirement of PyTorch that the only variant of a project gets now."""
    [variant] = project.settings.variants
    return with_exact_torch(variant, packages_of(project.settings, variant), project.root, sha, timeout_s=60).torch


def build(project: Project, sources: Path, sha: str | None = None) -> tuple[Wheel, RuntimeImage]:
    """Build the only variant of a project."""
    settings, artifacts = project.settings, ArtifactStore(project.home / "artifacts")
    [variant] = settings.variants
    wheel = build_wheel(settings, variant, SOURCE, sources, artifacts, project.home / "cache", project.root, sha)
    assert [check for check in wheel.checks if not check.passed] == []
    return wheel, make_runtime_image(settings, variant, wheel, artifacts, project.home / "images")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of a page that lists the wheels of the folder `served`, without their digests."""
    (tmp_path / "served").mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "served"))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_pinned_pytorch_stays_as_it_is(toy_project: Project) -> None:
    assert torch_of(toy_project) == "iniconfig"


def test_a_folder_may_hold_a_build_of_each_commit(make_project: Make, toy_project: Project, tmp_path: Path) -> None:
    wheels = {sha: write_torch(tmp_path / "builds" / sha, "2.14.0a0", sha) for sha in (OLD, NEW)}
    project = main_of(make_project, toy_project, torch_index="builds/{sha}")
    for sha, wheel in wheels.items():
        assert torch_of(project, sha) == f"torch @ {wheel.as_uri()}#sha256={sha256_of(wheel)}"


def test_the_newest_nightly_wheel_of_an_index_is_taken_and_nothing_else_from_there(
    make_project: Make, toy_project: Project, tmp_path: Path
) -> None:
    for version in ("2.13.0", "2.14.0.dev20261126", "2.14.0.dev20261127"):
        write_torch(tmp_path / "served", version)
    write_package(tmp_path / "served", "iniconfig-99.0", {"iniconfig.py": ""})
    with guarded_server(tmp_path / "served", "ci", "not-for-everybody") as server:
        project = main_of(make_project, toy_project, torch_index=f"{server}/simple", requirements=["iniconfig"])
        found = torch_of(project)
        address, _, digest = found.partition("#sha256=")
        plain = server.replace("ci:not-for-everybody@", "")
        assert address == f"torch @ {plain}/torch-2.14.0.dev20261127-py3-none-any.whl"
        assert len(digest) == 64
        packages = packages_of(project.settings, project.settings.variants[0])
        assert packages.is_apart, "the password is not for code of the sources"
        pinned = main_of(make_project, toy_project, torch_index=f"{server}/simple", torch_source="pinned")
        assert "/torch-2.13.0-" in torch_of(pinned), "a pinned one is no pre-release"


def test_a_page_of_wheels_without_digests_is_read(
    make_project: Make, toy_project: Project, tmp_path: Path, page: str
) -> None:
    project = main_of(make_project, toy_project, torch_index=f"{page}/{{sha}}/")
    wheel = write_torch(tmp_path / "served" / NEW, "2.14.0a0+cpu", NEW)
    assert torch_of(project, NEW).endswith(f"/{NEW}/torch-2.14.0a0%2Bcpu-py3-none-any.whl#sha256={sha256_of(wheel)}")
    wheel = write_torch(tmp_path / "served" / NEW, "2.14.0a0+cpu", NEW, "again = True\n")
    os.utime(wheel, (later := wheel.stat().st_mtime + 60, later))  # HTTP counts in seconds
    assert torch_of(project, NEW).endswith(f"#sha256={sha256_of(wheel)}"), "the same address has another wheel now"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("builds/{sha}", ["No such file or directory"]),
        ("http://ci:not-for-everybody@{server}/{sha}", ["404"]),
        ("http://ci:wrong-for-everybody@{server}/{sha}", ["401"]),
        ("http://ci:not-for-everybody@{server}/other/simple", ["404"]),
    ],
)
def test_a_wheel_that_is_not_there_is_said_without_a_password(
    make_project: Make, toy_project: Project, tmp_path: Path, place: str, words: list[str]
) -> None:
    with guarded_server(tmp_path, "ci", "not-for-everybody") as server:
        place = place.replace("{server}", server.partition("@")[2])
        with pytest.raises(BuildError) as raised:
            torch_of(main_of(make_project, toy_project, torch_index=place), NEW)
    of_commit = "{sha}" in place
    words = [*words, without_credentials(place).replace("{sha}", NEW), "accel-ci resume" if of_commit else "torch_index"]
    text = str(raised.value)
    assert text.startswith(
        f"main: there is no wheel of torch for Python {PYTHON}{f' of commit {NEW}' if of_commit else ''} at "
    )
    assert [word for word in words if word not in text] == []
    assert "for-everybody" not in text


def test_a_commit_that_is_not_known_is_said(make_project: Make, toy_project: Project) -> None:
    with pytest.raises(BuildError, match="needs the commit of upstream"):
        torch_of(main_of(make_project, toy_project, torch_index="builds/{sha}"))


def test_another_torch_under_the_same_name_is_another_wheel_and_another_image(
    make_project: Make, toy_project: Project, toy_sources: Path, tmp_path: Path
) -> None:
    write_torch(tmp_path / "links", "2.14.0a0", OLD)
    project = main_of(make_project, toy_project, torch_index="links")
    first, old = build(project, toy_sources)
    assert [again.reused for again in build(project, toy_sources)] == [True, True]
    write_torch(tmp_path / "links", "2.14.0a0", NEW)
    second, new = build(project, toy_sources)
    settings, artifacts = project.settings, ArtifactStore(project.home / "artifacts")
    assert (second.reused, new.reused, old.torch_sha, new.torch_sha) == (False, False, OLD, NEW)
    assert first.torch is not None
    assert second.torch in new.packages
    with pytest.raises(BuildError, match="Hash mismatch"):
        make_runtime_image(settings, settings.variants[0], first, artifacts, tmp_path / "new")


def test_without_a_place_main_has_what_the_usual_sources_have_now(
    make_project: Make, toy_project: Project, toy_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'links'} {os.environ.get('PIP_FIND_LINKS', '')}")
    wheel = write_torch(tmp_path / "links", "99.0.0.dev1", OLD)
    project = main_of(make_project, toy_project)
    assert torch_of(project) == f"torch==99.0.0.dev1 --hash=sha256:{sha256_of(wheel)}"
    built, image = build(project, toy_sources)
    assert "torch==99.0.0.dev1" in image.packages
    write_torch(tmp_path / "links", "99.0.0.dev1", NEW)
    again, other = build(project, toy_sources)
    assert (built.reused, again.reused, image.torch_sha, other.torch_sha) == (False, False, OLD, NEW)


def test_a_build_that_needs_pytorch_gets_the_same_one_with_its_password_hidden(
    make_project: Make, toy_project: Project, toy_sources: Path, tmp_path: Path
) -> None:
    write_torch(tmp_path / "served", "2.14.0.dev1", NEW)
    pyproject = toy_sources / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"setuptools>=77"', '"setuptools>=77", "torch>=2.13"'))
    setup = toy_sources / "setup.py"
    seen = "json.dump([torch.version.git_version, dict(os.environ)], open('toy_backend/built_with.json', 'w'))"
    setup.write_text(
        f"import json, os, torch\n{seen}\n" + setup.read_text().replace("setup(v", "setup(package_data={'': ['*.json']}, v")
    )
    with guarded_server(tmp_path / "served", "ci", "not-for-everybody") as server:
        places = {"password": f"{server}/simple", "folder": "served"}
        for name, place in places.items():
            project = main_of(make_project, toy_project, torch_index=place)
            _, image = build(replace(project, home=tmp_path / name), toy_sources)
            code = "import json, toy_backend as t; print(open(t.__path__[0] + '/built_with.json').read())"
            done = subprocess.run([image.python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
            built_with, environment = json.loads(done.stdout)
            assert built_with == NEW, name
            assert "not-for-everybody" not in str(environment)
            assert "not-for-everybody" not in str(image)
