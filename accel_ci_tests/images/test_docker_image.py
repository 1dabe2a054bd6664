"""Real builds of images by each builder, with a small package in the place of PyTorch."""

from __future__ import annotations

import json
import shutil
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.config.release_settings import Index
from accel_ci.config.settings import Image, PrebuiltImage, Project
from accel_ci.docker.client import run_docker
from accel_ci.docker.image import has_images, pull_image
from accel_ci.errors import BuildError
from accel_ci.images.buildah_builder import steps_of as steps_of_buildah
from accel_ci.images.docker_builder import steps_of
from accel_ci.images.docker_image import IMAGE_CHECK_NAMES, render_dockerfile, secret_options
from accel_ci.images.published_image import image_from_index
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.model import RuntimeImage, SoftwareStack, Source, Wheel
from accel_ci.pool.choose_pool import pool_for, worker_spec_for
from accel_ci.release.index import index_alone, pins_of
from accel_ci.stack.build import write_archive
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.uv_environment import PackageSource
from accel_ci_tests.fixtures.package_index import bridge_address, package_index
from accel_ci_tests.fixtures.stand_in_torch import write_torch

SOURCE = Source("https://someone:secret@example.org/toy.git", "HEAD", "0123456789abcdef" * 2 + "01234567", tree="f" * 40)
TORCH = {
    "torch/__init__.py": b"__version__ = '9.9+cpu'\nfrom torch import version\n",
    "torch/version.py": b"git_version = 'cafe'\n",
    "torch/include/all.h": b"x" * 8_000_000,
    "torch-9.9+cpu.dist-info/METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 9.9+cpu\nLicense: BSD-3-Clause\n",
    "torch-9.9+cpu.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An additional source of packages: a folder with a package `torch`."""
    folder = tmp_path / "packages"
    folder.mkdir()
    with zipfile.ZipFile(folder / "torch-9.9+cpu-py3-none-any.whl", "w") as archive:
        for name, content in TORCH.items():
            archive.writestr(name, content)
        record = "".join(f"{name},,\n" for name in [*TORCH, "torch-9.9+cpu.dist-info/RECORD"])
        archive.writestr("torch-9.9+cpu.dist-info/RECORD", record)
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(params=["docker", "buildah"])
def built_by(
    request: pytest.FixtureRequest, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    """The settings of each builder; that of Buildah needs a registry, which is the one that has the base."""
    if request.param == "docker":
        return {}
    if shutil.which("buildah") is None:
        pytest.skip("`buildah` is not installed")
    registry = base.partition("/")[0]
    (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    name = f"{registry}/test-{uuid.uuid4().hex}"
    return {"builder": {"kind": "buildah", "cache": f"{name}-cache"}, "registry": name}


def docker_project(make_project: Callable[..., Project], toy_project: Project, image: Mapping[str, object]) -> Project:
    settings = toy_project.settings.model_dump(mode="json")
    variant = {"name": "py3", "python": "3.11", "torch": "torch==9.9+cpu", "runtime": "toy-1"}
    pool = {"kind": "docker", "cards": 1, "card_environment": "TOY_CARD"}
    return make_project(backend=settings["backend"], variants=[variant], image=image, pool=pool)


def wheel_of(project: Project, sources: Path, source: Source = SOURCE) -> Wheel:
    artifacts, cache = ArtifactStore(project.home / "artifacts"), project.home / "cache"
    return build_wheel(project.settings, project.settings.variants[0], source, sources, artifacts, cache, project.root)


def image_of(project: Project, wheel: Wheel, *, trusted: bool = True) -> RuntimeImage:
    artifacts, variant = ArtifactStore(project.home / "artifacts"), project.settings.variants[0]
    return make_runtime_image(project.settings, variant, wheel, artifacts, project.home / "images", trusted=trusted)


def names_of_images() -> set[str]:
    return set(run_docker(["images", "--format", "{{.Repository}}:{{.Tag}}"]).output.split())


def ids_of(name: str) -> str:
    return run_docker(["image", "inspect", "--format", "{{.Id}}", name]).output.strip()


def test_two_targets_are_built_described_reused_and_run(
    make_project: Callable[..., Project],
    toy_project: Project,
    toy_sources: Path,
    base: str,
    packages: Path,
    tmp_path: Path,
    built_by: dict[str, object],
) -> None:
    section = {"base": base, "development_packages": [], "environment": {"TOY_HOME": 'a "$b"'}, "runtime_budget": "1m"}
    project = docker_project(make_project, toy_project, section | built_by)
    wheel = wheel_of(project, toy_sources)
    image = image_of(project, wheel)

    assert (image.kind, image.torch_version, image.torch_sha, image.reused) == ("docker", "9.9+cpu", "cafe", False)
    development, runtime = image.container("development"), image.container("runtime")
    assert development is not None
    assert runtime is not None
    assert runtime.size_bytes < development.size_bytes - 8_000_000, "no uv, no headers"
    assert sum(layer.size_bytes for layer in runtime.layers) == pytest.approx(runtime.size_bytes, rel=0.01)
    assert any("uv pip install" in layer.made_by for layer in runtime.layers)
    assert tuple(check.name for check in image.checks) == IMAGE_CHECK_NAMES
    assert [check.name for check in image.checks if not check.passed] == ["runtime_size"]
    assert "over image.runtime_budget" in image.checks[0].summary

    pull_image(runtime.reference, 120)
    [seen] = json.loads(run_docker(["image", "inspect", runtime.reference]).output)
    assert seen["Id"] == runtime.id
    labels = seen["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == SOURCE.sha
    assert labels["org.opencontainers.image.source"] == "https://example.org/toy.git"
    assert labels["org.opencontainers.image.base.digest"] == base.partition("@")[2]
    assert labels["accel-ci.upstream.revision"] == "cafe"
    assert seen["Config"]["User"] == "10001:10001"
    assert 'TOY_HOME=a "$b"' in seen["Config"]["Env"]

    assert image.sbom is not None
    bill = json.loads(ArtifactStore(project.home / "artifacts").path(image.sbom).read_bytes())
    assert {"torch", "toy-backend", "dpkg"} <= {each["name"] for each in bill["components"]}

    again = image_of(project, wheel)
    assert (again.reused, again.work_s, again.containers) == (True, 0.0, image.containers)
    next((project.home / "images").glob("docker-*.json")).unlink()
    rebuilt = image_of(project, wheel)
    assert rebuilt.cached_steps == rebuilt.steps > 0, "a builder tells fewer steps of a build that shares them with another"
    assert [each.id for each in rebuilt.containers] == [each.id for each in image.containers]

    (tmp_path / "work").mkdir()
    spec = worker_spec_for(project.settings, rebuilt, toy_sources)
    probe = "import toy_backend, torch, os; print(torch.__version__, os.environ['TOY_HOME'])"
    done = pool_for(project.settings).execute([spec.python, "-c", probe], spec, tmp_path / "work", 60)
    assert (done.status, done.output.strip()) == (0, '9.9+cpu a "$b"')
    run_docker(["image", "rm", *(each.reference for each in image.containers)])


ORIGIN = (
    "import importlib.metadata, toy_backend; "
    "print(importlib.metadata.distribution('toy-backend').read_text('direct_url.json'))"
)


def test_an_image_is_made_anew_with_what_an_index_has(
    make_project: Callable[..., Project],
    toy_project: Project,
    toy_sources: Path,
    base: str,
    packages: Path,
    tmp_path: Path,
    built_by: dict[str, object],
) -> None:
    project = docker_project(make_project, toy_project, {"base": base, "development_packages": []} | built_by)
    wheel, settings = wheel_of(project, toy_sources), project.settings
    image, section = image_of(project, wheel), settings.image
    assert section is not None
    (tmp_path / "work").mkdir()

    def origin(of: RuntimeImage) -> str:
        """Return the origin of the wheel in an image: the address of a file, or None for an index."""
        spec = worker_spec_for(settings, of, toy_sources)
        done = pool_for(settings).execute([spec.python, "-c", ORIGIN], spec, tmp_path / "work", 60)
        assert done.status == 0, done.output
        return done.output.strip()

    assert "file:///build/wheels" in origin(image)
    with package_index(tmp_path / "index", host=bridge_address()) as served:
        index = Index(upload=served.upload, simple=served.simple)
        alone = index_alone(index, packages_of(settings, settings.variants[0], in_container=True))
        pins, name = list(pins_of(wheel).values()), settings.backend.import_name
        shutil.copy(ArtifactStore(project.home / "artifacts").path(wheel.wheel), served.folder / wheel.wheel.name)
        with image_from_index(section, image, pins, name, alone, 300) as made:
            assert origin(made) == "None"
            assert made.containers[0].id not in {each.id for each in image.containers}
        assert not has_images([made.containers[0].id])
        assert f"accel-ci/published:{image.digest[:12]}" not in names_of_images()
        # The index is asked anew each time.
        (served.folder / wheel.wheel.name).write_bytes(b"other content")
        with (
            pytest.raises(BuildError, match="what was published cannot be used"),
            image_from_index(section, image, pins, name, alone, 300),
        ):
            pass
    assert origin(image)
    run_docker(["image", "rm", "--force", *(each.id for each in image.containers)])


def test_an_image_has_the_files_of_the_stack_where_they_were_built(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, base: str, packages: Path, tmp_path: Path
) -> None:
    artifacts, installed = ArtifactStore(tmp_path / ".accel_ci" / "artifacts"), tmp_path / "prefix"
    (installed / "bin").mkdir(parents=True)
    tool = installed / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho $TOY_STACK\n")
    tool.chmod(0o755)
    (installed / "bin" / "same-tool").symlink_to("tool")
    write_archive(installed, tmp_path / "stack.tar.gz")
    where = "/var/lib/a stack/prefix"
    archive = artifacts.put(tmp_path / "stack.tar.gz")
    stack = SoftwareStack((), archive, "d" * 64, where, {"TOY_STACK": f"{where}/lib"}, 0.0)
    project = docker_project(make_project, toy_project, {"base": base, "development_packages": []})
    wheel, variant, images = wheel_of(project, toy_sources), project.settings.variants[0], project.home / "images"
    image = make_runtime_image(project.settings, variant, wheel, artifacts, images, stack)
    for container in image.containers:
        ran = run_docker(["run", "--rm", "--entrypoint", f"{where}/bin/same-tool", container.id])
        assert ran.output.strip() == f"{where}/lib", ran
    without = image_of(project, wheel)
    assert without.digest != image.digest
    run_docker(["image", "rm", "--force", *(each.id for each in (*image.containers, *without.containers))])


def test_the_newest_images_have_names_where_no_registry_has_them(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, base: str, packages: Path
) -> None:
    project = docker_project(make_project, toy_project, {"base": base, "development_packages": []})
    wheel = wheel_of(project, toy_sources)
    image = image_of(project, wheel)
    names = {f"accel-ci/toy-backend:py3{end}" for end in ("", "-development")}
    assert names <= names_of_images(), "`docker images` lists them, and `docker image prune` spares what has a name"
    (toy_sources / "README.md").write_text("# Another toy\n")
    newer = image_of(project, wheel_of(project, toy_sources))
    assert {ids_of(name) for name in names} == {each.id for each in newer.containers}, "the newest have the names"
    assert image_of(project, wheel).reused
    assert {ids_of(name) for name in names} == {each.id for each in image.containers}
    run_docker(["image", "rm", *names])


def test_the_image_of_a_pull_request_is_where_no_trusted_build_takes_from(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, base: str, packages: Path
) -> None:
    registry = f"{base.partition('/')[0]}/test-{uuid.uuid4().hex}"
    section = {"base": base, "development_packages": [], "registry": registry, "registry_of_pulls": f"{registry}-of-pulls"}
    project = docker_project(make_project, toy_project, section)
    wheel = wheel_of(project, toy_sources)
    for trusted, place in ((False, f"{registry}-of-pulls"), (True, registry)):
        image = image_of(project, wheel, trusted=trusted)
        assert {each.reference.partition("@")[0] for each in image.containers} == {place}


def test_an_image_that_was_built_elsewhere_must_have_the_wheel(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, base: str, packages: Path
) -> None:
    registry = f"{base.partition('/')[0]}/test-{uuid.uuid4().hex}"
    section = {"base": base, "development_packages": [], "registry": registry}
    project = docker_project(make_project, toy_project, section)
    wheel = wheel_of(project, toy_sources)
    built = image_of(project, wheel)
    runtime = built.container("runtime")
    assert runtime is not None

    def settings(reference: str) -> Project:
        changed = project.settings.model_copy(update={"prebuilt_image": PrebuiltImage(reference=reference)})
        return replace(project, settings=changed)

    image = image_of(settings(runtime.reference), wheel)
    taken = image.container("runtime")
    assert taken is not None
    assert (image.kind, image.torch_version, taken.reference) == ("docker", "9.9+cpu", runtime.reference)
    assert set(built.packages) == set(image.packages)
    assert taken.size_bytes == pytest.approx(runtime.size_bytes, rel=0.1)
    (toy_sources / "toy_backend" / "__init__.py").write_text("def autoload():\n    return 2\n")
    other = wheel_of(project, toy_sources, replace(SOURCE, tree="e" * 40))
    assert other.wheel.sha256 != wheel.wheel.sha256
    with pytest.raises(BuildError, match=r"has not the wheel of this build: toy_backend/__init__\.py"):
        image_of(settings(runtime.reference), other)
    with pytest.raises(BuildError, match="has no PyTorch"):
        image_of(settings(base), wheel)
    with pytest.raises(BuildError, match="see that it was pushed"):
        image_of(settings(f"{registry}@sha256:{'0' * 64}"), wheel)


def test_a_runtime_without_a_requirement_of_pytorch_is_an_error(
    make_project: Callable[..., Project],
    toy_project: Project,
    toy_sources: Path,
    base: str,
    packages: Path,
    built_by: dict[str, object],
) -> None:
    section = {"base": base, "development_packages": [], "stripped": ["torch/version.py"]}
    project = docker_project(make_project, toy_project, section | built_by)
    with pytest.raises(BuildError, match=r"cannot import name 'version'[\s\S]*image\.stripped"):
        image_of(project, wheel_of(project, toy_sources))


def test_a_step_that_fails_is_shown(
    make_project: Callable[..., Project],
    toy_project: Project,
    toy_sources: Path,
    base: str,
    packages: Path,
    built_by: dict[str, object],
) -> None:
    section = {"base": base, "development_packages": ["no-such-package-anywhere"]}
    project = docker_project(make_project, toy_project, section | built_by)
    with pytest.raises(BuildError, match=r"the target development [\s\S]*no-such-package-anywhere"):
        image_of(project, wheel_of(project, toy_sources))


@pytest.mark.parametrize("only_wheels", [False, True])
def test_wheels_are_built_in_the_builder(toy_project: Project, toy_sources: Path, base: str, only_wheels: bool) -> None:
    rules = toy_project.settings.wheels.model_copy(update={"builder": base, "only_wheels": only_wheels})
    settings = toy_project.settings.model_copy(update={"wheels": rules})
    (toy_sources / "setup.py").write_text(
        "import os, pathlib, setuptools\n"
        "assert pathlib.Path('/.dockerenv').exists()\n"
        "setuptools.setup(version='1.0+' + os.environ['TOY_LABEL'])\n"
    )
    wheel = wheel_of(replace(toy_project, settings=settings), toy_sources)
    assert wheel.built_in == base
    assert [check for check in wheel.checks if not check.passed] == []


def test_a_torch_of_a_folder_is_built_with_and_in_the_image(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, base: str, tmp_path: Path
) -> None:
    variant = {
        "name": "main", "python": "3.11", "torch": "torch", "torch_source": "main", "torch_index": "builds/{sha}",
        "runtime": "toy-1", "wheels": {"builder": base},
    }  # fmt: skip
    project = make_project(
        backend=toy_project.settings.backend.model_dump(mode="json"),
        variants=[variant],
        image={"base": base, "development_packages": []},
        pool={"kind": "docker", "cards": 1, "card_environment": "TOY_CARD"},
    )
    pyproject, setup = toy_sources / "pyproject.toml", toy_sources / "setup.py"
    pyproject.write_text(pyproject.read_text().replace('"setuptools>=77"', '"setuptools>=77", "torch"'))
    plain = setup.read_text()
    artifacts, cache = ArtifactStore(project.home / "artifacts"), project.home / "cache"
    for sha in ("1" * 40, "2" * 40):
        write_torch(tmp_path / "builds" / sha, "2.14.0a0+mine", sha)
        setup.write_text(f"import torch\nassert torch.version.git_version == {sha!r}\n{plain}")
        wheel = build_wheel(
            project.settings, project.settings.variants[0], SOURCE, toy_sources, artifacts, cache, tmp_path, sha
        )
        assert ([check for check in wheel.checks if not check.passed], wheel.built_in) == ([], base)
        image = image_of(project, wheel)
        assert (image.torch_version, image.torch_sha, image.reused) == ("2.14.0a0+mine", sha, False)


def test_command_lines_have_no_passwords_of_package_indexes(tmp_path: Path) -> None:
    index = "http://user:not-for-everybody@example.org/simple"
    source = PackageSource.from_settings(None, {"UV_DEFAULT_INDEX": index, "UV_FIND_LINKS": "/wheels,http://a:b@c/d"})
    options = secret_options(tmp_path, source)
    assert "not-for-everybody" not in " ".join(options)
    assert "a:b@c" not in " ".join(options)
    handed = (tmp_path / "packages").read_text()
    assert f"export UV_DEFAULT_INDEX={index}\n" in handed
    assert "export UV_FIND_LINKS=/build/find-links,http://a:b@c/d\n" in handed
    assert (tmp_path / "packages").stat().st_mode & 0o077 == 0


def test_the_dockerfile_quotes_values_of_the_configuration(make_project: Callable[..., Project]) -> None:
    section = {
        "base": "debian@sha256:" + "0" * 64,
        "stripped": ["torch/a b;c", "torch/*.a"],
        "environment": {"WORDS": 'a "quoted" $word\nand a line'},
        "runtime_packages": ["libnuma1"],
    }
    project = make_project(image=section)
    text = render_dockerfile(Image.model_validate(section), project.settings.variants[0], PackageSource({}))
    assert "rm -rf -- 'torch/a b;c' torch/*.a" in text
    assert r'ENV WORDS="a \"quoted\" \$word\nand a line"' in text
    assert text.count("libnuma1") == 1
    assert "find-links" in text
    careful = render_dockerfile(
        Image.model_validate(section), project.settings.variants[0], PackageSource({}, only_wheels=True)
    )
    assert (text.count("--no-build"), careful.count("--no-build")) == (0, 1)
    of_pulls = render_dockerfile(
        Image.model_validate(section), project.settings.variants[0], PackageSource({}), trusted=False
    )
    assert ("id=accel-ci-uv," in text, "id=accel-ci-uv," in of_pulls, "id=accel-ci-uv-of-pulls," in of_pulls) == (
        True,
        False,
        True,
    )


def test_cached_steps_are_counted_without_base_images() -> None:
    progress = (
        "#1 [internal] load build definition\n#1 DONE\n#4 [tools 1/2] FROM debian\n#4 DONE\n"
        "#5 [tools 2/2] RUN one\n#5 CACHED\n#6 [runtime 2/2] RUN two\n#6 0.1 #5 CACHED\n#6 DONE 0.1s\n"
    )
    assert steps_of(progress) == {"[tools 2/2] RUN one": True, "[runtime 2/2] RUN two": False}


def test_cached_steps_of_buildah_are_counted_without_base_images() -> None:
    progress = (
        "[1/3] STEP 1/2: FROM debian AS tools\n[1/3] STEP 2/2: RUN one\n--> Using cache 0f\n--> Pushing cache a:5f\n"
        "[3/3] STEP 1/4: FROM debian\n[3/3] STEP 2/4: COPY --from=two a b\n"
        "[2/3] STEP 1/2: FROM 0f AS two\n[2/3] STEP 2/2: RUN two\n--> Cache pulled from remote example.org/cache:5f\n"
        "--> Using cache 5a\n[3/3] STEP 3/4: RUN three\nSTEP of a command\n[3/3] STEP 4/4: RUN four\n"
    )
    cached = {"RUN one": True, "COPY --from=two a b": True, "RUN two": True, "RUN three": False, "RUN four": False}
    assert steps_of_buildah(progress) == cached
