"""Real builds and checks of wheels; only PyTorch is left out because of its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import BuildError, SourceError
from accel_ci.images.runtime_image import make_runtime_image
from accel_ci.model import Source, Wheel
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.checks import CHECK_NAMES

SOURCE = Source("toy", "HEAD", "0123456789abcdef" * 2 + "01234567", tree="f" * 40)


def build(project: Project, sources: Path, source: Source = SOURCE, *, public: bool = False, trusted: bool = True) -> Wheel:
    variant = project.settings.variants[0]
    artifacts, cache = ArtifactStore(project.home / "artifacts"), project.home / "cache"
    return build_wheel(
        project.settings, variant, source, sources, artifacts, cache, project.root, public=public, trusted=trusted
    )


def failed(wheel: Wheel) -> dict[str, str]:
    return {check.name: "\n".join((check.summary, *check.findings)) for check in wheel.checks if not check.passed}


def test_a_good_wheel_passes_every_check_and_is_reused(toy_project: Project, toy_sources: Path) -> None:
    wheel = build(toy_project, toy_sources)
    assert failed(wheel) == {}
    assert tuple(check.name for check in wheel.checks) == CHECK_NAMES
    assert (wheel.name, wheel.version, wheel.reused) == ("toy-backend", "1.0+g0123456789ab", False)
    again = build(toy_project, toy_sources)
    assert (again.reused, again.work_s, again.wheel) == (True, 0.0, wheel.wheel)
    other = build(toy_project, toy_sources, replace(SOURCE, sha="f" * 40))
    assert (other.reused, other.version) == (False, "1.0+gffffffffffff")
    assert sorted(path.name for path in toy_sources.iterdir()) == ["README.md", "pyproject.toml", "setup.py", "toy_backend"]


def test_trusted_builds_take_no_wheel_of_a_pull_request_even_of_the_same_commit(
    toy_project: Project, toy_sources: Path
) -> None:
    assert not build(toy_project, toy_sources, trusted=False).reused
    assert build(toy_project, toy_sources, trusted=False).reused
    assert not build(toy_project, toy_sources).reused
    assert build(toy_project, toy_sources).reused


@pytest.mark.parametrize(
    ("file", "text", "check", "message"),
    [
        ("toy_backend/__init__.py", "import no_such_module\n", "imports", "No module named 'no_such_module'"),
        ("toy_backend/__init__.py", "load = None\n", "entry_points", "torch.backends:toy does not load: AttributeError"),
        (
            "setup.py",
            "from setuptools import setup\nsetup(version='1.0')\n",
            "identity",
            "does not contain the source state",
        ),
        ("toy_backend/kernels.txt", "not named as package data\n", "check_wheel_contents", "W101: Wheel library is missing"),
    ],
)
def test_a_faulty_wheel_is_reported_and_not_reused(
    toy_project: Project, toy_sources: Path, file: str, text: str, check: str, message: str
) -> None:
    (toy_sources / file).write_text(text)
    wheel = build(toy_project, toy_sources)
    assert message in failed(wheel)[check]
    assert not build(toy_project, toy_sources).reused


def test_a_missing_description_is_a_warning_that_stops_no_build(toy_project: Project, toy_sources: Path) -> None:
    pyproject = toy_sources / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('readme = "README.md"\n', ""))
    wheel = build(toy_project, toy_sources)
    assert failed(wheel) == {}
    [twine] = [check for check in wheel.checks if check.name == "twine"]
    assert "`long_description` missing." in twine.warnings
    assert build(toy_project, toy_sources).reused


def test_a_missing_dependency_fails_the_installation(toy_project: Project, toy_sources: Path) -> None:
    pyproject = toy_sources / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('["version"]', '["version"]\ndependencies = ["iniconfig>=9999"]'))
    assert "iniconfig>=9999" in failed(build(toy_project, toy_sources))["clean_install"]


def test_a_build_that_fails_shows_its_last_lines(toy_project: Project, toy_sources: Path) -> None:
    (toy_sources / "setup.py").write_text("raise SystemExit('the compiler is missing')\n")
    with pytest.raises(BuildError, match="the compiler is missing"):
        build(toy_project, toy_sources)


def test_an_image_without_pytorch_is_an_error(toy_project: Project, toy_sources: Path) -> None:
    artifacts = ArtifactStore(toy_project.home / "artifacts")
    with pytest.raises(BuildError, match="PyTorch does not import in the runtime image"):
        make_runtime_image(
            toy_project.settings,
            toy_project.settings.variants[0],
            build(toy_project, toy_sources),
            artifacts,
            toy_project.home / "images",
        )


def test_a_requirement_that_cannot_be_resolved_is_named(toy_project: Project, toy_sources: Path) -> None:
    variant = toy_project.settings.variants[0].model_copy(update={"requirements": ("iniconfig==9999",)})
    artifacts = ArtifactStore(toy_project.home / "artifacts")
    wheel = build(toy_project, toy_sources)
    with pytest.raises(BuildError, match=r"iniconfig==9999[\s\S]*PIP_FIND_LINKS"):
        make_runtime_image(toy_project.settings, variant, wheel, artifacts, toy_project.home / "images")


def test_companions_and_patches_are_built_checked_and_installed_together(
    make_project: Callable[..., Project], toy_project: Project, toy_sources: Path, tmp_path: Path
) -> None:
    (toy_sources / "runtime" / "toy_runtime").mkdir(parents=True)
    (toy_sources / "runtime" / "toy_runtime" / "__init__.py").write_text("answer = 41\n")
    plain = (toy_sources / "pyproject.toml").read_text().partition("[project.entry-points")[0]
    (toy_sources / "runtime" / "pyproject.toml").write_text(plain.replace("toy-backend", "toy-runtime"))
    for name in ("setup.py", "README.md"):
        (toy_sources / "runtime" / name).write_text((toy_sources / name).read_text())
    pyproject = toy_sources / "pyproject.toml"
    packages = '\n[tool.setuptools]\npackages = ["toy_backend"]\n'
    pyproject.write_text(
        pyproject.read_text().replace('["version"]', '["version"]\ndependencies = ["toy-runtime"]') + packages
    )
    (toy_sources / "toy_backend" / "__init__.py").write_text(
        "import toy_runtime\nassert toy_runtime.answer == 42, 'not patched'\n\n\ndef autoload():\n    pass\n"
    )
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "0001-answer.patch").write_text(
        "--- a/runtime/toy_runtime/__init__.py\n+++ b/runtime/toy_runtime/__init__.py\n"
        "@@ -1 +1 @@\n-answer = 41\n+answer = 42\n"
    )
    document = toy_project.settings.model_dump(mode="json")
    companion = {"distribution": "toy-runtime", "subdirectory": "runtime", "import_name": "toy_runtime"}
    project = make_project(
        backend={**document["backend"], "companions": [companion]},
        variants=document["variants"],
        wheels={"patches": "patches"},
    )
    wheel = build(project, toy_sources)
    assert failed(wheel) == {}
    assert wheel.patches == ("0001-answer.patch",)
    assert [each.name.partition("-")[0] for each in wheel.wheels] == ["toy_runtime", "toy_backend"]
    assert build(project, toy_sources).reused
    (tmp_path / "patches" / "0001-answer.patch").write_text("not a patch\n")
    with pytest.raises(SourceError, match=r"0001-answer\.patch does not apply"):
        build(project, toy_sources)


def test_a_public_wheel_has_no_local_version(toy_project: Project, toy_sources: Path) -> None:
    wheel = build(toy_project, toy_sources, public=True)
    assert (failed(wheel), wheel.version, wheel.public) == ({}, "1.0", True)
    assert build(toy_project, toy_sources).version == "1.0+g0123456789ab"
    again = build(toy_project, toy_sources, public=True)
    assert (again.reused, again.wheel) == (True, wheel.wheel)
    other = build(toy_project, toy_sources, replace(SOURCE, sha="f" * 40), public=True)
    assert (other.reused, other.version, other.source) == (False, "1.0", "f" * 40), "each commit has wheels of its own"


def test_a_public_wheel_with_a_local_version_is_reported(toy_project: Project, toy_sources: Path) -> None:
    (toy_sources / "setup.py").write_text("from setuptools import setup\nsetup(version='1.0+g1')\n")
    assert "version 1.0+g1 has a local part" in failed(build(toy_project, toy_sources, public=True))["identity"]
