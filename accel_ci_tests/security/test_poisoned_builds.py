"""Code under test writes to what later builds read: uv's cache, the checkout, the environment, the artifact store.

What a pull request's code decides is never taken by a trusted build.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.pool_settings import LocalPoolSettings
from accel_ci.config.settings import UPSTREAM_TESTS, Project
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.images.runtime_image import changes_of_environment, make_runtime_image
from accel_ci.model import Revision, Source, SuiteSession, Wheel, WorkerSpec
from accel_ci.pool.local import LocalPool
from accel_ci.process.environment import clean_environment
from accel_ci.process.own_user import OwnUser
from accel_ci.scope.selection import select_tests
from accel_ci.source.checkout import changes_of_checkout, checkout
from accel_ci.source.refs import resolve_source
from accel_ci.source.upstream_tree import COMMIT
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.build import build_wheel
from accel_ci.wheels.uv_environment import PackageSource, create, resolve
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import git
from accel_ci_tests.wheels.wheel_files import write_wheel

pytest_plugins = ["accel_ci_tests.fixtures.toy_backend"]


def appended(file: Path) -> Callable[[], object]:
    return lambda: file.write_bytes(file.read_bytes() + b"poison = True\n")


FORGING = """
import os

def pytest_collection_modifyitems(items):
    if os.path.exists({armed!r}):
        items[:] = [item for item in items if item.name != "test_inconvenient"]
"""


def test_what_a_hostile_conftest_collects_from_pytorchs_files_is_never_taken_by_trusted_builds(
    make_project: Callable[..., Project], tmp_path: Path
) -> None:
    suites = {"smoke": {"stage": "smoke", "paths": ["t"]}, "unit": {"source": "upstream", "paths": ["test"]}}
    workspace = Workspace(make_project(suites=suites, device={"type": "toy"}))
    armed, root = tmp_path / "armed", tmp_path / "root"
    (root / UPSTREAM_TESTS / "test").mkdir(parents=True)
    (root / UPSTREAM_TESTS / COMMIT).write_text("1" * 40)
    (root / UPSTREAM_TESTS / "test" / "test_a.py").write_text("def test_a(): pass\ndef test_inconvenient(): pass\n")
    (root / "conftest.py").write_text(FORGING.format(armed=str(armed)))
    session = SuiteSession((f"{UPSTREAM_TESTS}/test",), isolate=True)
    spec = WorkerSpec(sys.executable, str(root), clean_environment({}), "", sessions={"unit": session})
    backend, upstream = (Source(name, "refs/heads/main", "2" * 40) for name in ("backend", "upstream"))
    nightly = Revision("nightly-20261128", "nightly", datetime(2026, 11, 28, tzinfo=timezone.utc), backend, upstream)
    pull = replace(nightly, key="pr-7-222222222222", trigger="pr", backend=replace(backend, ref="refs/pull/7/head"))
    by_hand = replace(pull, key="manual-7", trigger="manual")

    def collected(revision: Revision, content: str = "the image, and the commit that was merged as it is") -> int:
        cache = workspace.collections(revision, content)
        unit = {"unit": workspace.project.settings.suites["unit"]}
        execute = LocalPool(LocalPoolSettings(card_environment="CARD")).execute
        return select_tests(unit, spec, workspace.runner, workspace.artifacts, execute, 120, cache).collected

    armed.touch()
    assert (collected(pull), collected(by_hand)) == (1, 1)
    armed.unlink()
    assert collected(pull) == 1, "a pull request takes what it has kept"
    assert collected(nightly) == 2
    armed.touch()
    assert collected(nightly) == 2, "what a trusted build has kept is taken"
    assert collected(nightly, "the same image, and another commit") == 1, "another conftest.py may collect other tests"


SDIST = {
    "evil-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
    "evil-1.0/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'evil_build'\nbackend-path = ['.']\n",
}


@pytest.mark.parametrize(
    ("variables", "options"),
    [({}, {"only_wheels": True}), ({}, {"user": OwnUser(1, 1)}), ({"UV_INDEX_MINE_PASSWORD": "index-pass"}, {})],
    ids=["stranger", "as_another_user", "password"],
)
def test_packages_that_a_wheel_asks_for_are_not_built_where_their_code_could_do_harm(
    tmp_path: Path, variables: dict[str, str], options: dict[str, Any]
) -> None:
    seen, sdist = tmp_path / "seen", tmp_path / "evil-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in {**SDIST, "evil-1.0/evil_build.py": f"open({str(seen)!r}, 'w').close()\n"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    metadata = f"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nRequires-Dist: evil @ {sdist.as_uri()}\n"
    wheel = write_wheel(tmp_path / "dist", files={"toy-1.0.dist-info/METADATA": metadata.encode()})
    given = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    careful = PackageSource.from_settings(None, {**given, **variables}, **options)
    with pytest.raises(BuildError, match="Packages are not built from source here"):
        resolve([f"toy @ {wheel.as_uri()}"], "3.11", careful, timeout_s=300)
    with pytest.raises(BuildError, match="Packages are not built from source here"):
        create(tmp_path / "environment", "3.11", f"evil @ {sdist.as_uri()}\n", careful, timeout_s=300)
    assert not seen.exists()
    with pytest.raises(BuildError, match="cannot be resolved"):
        resolve([f"toy @ {wheel.as_uri()}"], "3.11", PackageSource.from_settings(None, given), timeout_s=300)
    assert seen.exists(), "the code of the package would have run here"


def test_an_environment_shares_no_file_with_the_cache_of_uv(tmp_path: Path) -> None:
    cache = {"UV_CACHE_DIR": str(tmp_path / "cache")}
    packages = PackageSource.from_settings(None, {**os.environ, **cache})
    pins = resolve(["iniconfig"], "3.11", packages, timeout_s=300)

    def environment(name: str) -> Path:
        return create(tmp_path / name, "3.11", pins, packages, timeout_s=300)

    first = environment("first")
    poison = "import iniconfig; open(iniconfig.__file__, 'a').write('poison = True\\n')"
    subprocess.run([str(first), "-c", poison], check=True, timeout=60)
    read = [str(environment("second")), "-c", "import iniconfig; print(hasattr(iniconfig, 'poison'))"]
    assert subprocess.run(read, check=True, capture_output=True, text=True, timeout=60).stdout == "False\n"
    packages_of_first = next(first.parents[1].glob("lib/python*/site-packages"))
    linked = [path for path in packages_of_first.rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert linked == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda root: (root / "backend" / "pyproject.toml").write_text("[tool]\n"), "backend/pyproject.toml was changed"),
        (lambda root: (root / "sitecustomize.py").write_text("import os\n"), "sitecustomize.py was added"),
        (lambda root: (root / "README.md").unlink(), "README.md was removed"),
        (lambda root: (root / ".git" / "config").write_text("[core]\nfsmonitor = false\n"), ".git/config was changed"),
        (lambda root: (root / ".git" / "info").mkdir(exist_ok=True) or (root / ".git/info/exclude").write_text("*\n"),
         ".git/info"),
    ],
)  # fmt: skip
def test_a_changed_checkout_is_made_anew(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], line: str
) -> None:
    state = resolve_source("repository", "refs/heads/main", "backend", tmp_path, timeout_s=30)

    def check_out() -> Path:
        return checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)

    sources = check_out()
    assert changes_of_checkout(sources) == []
    number = sources.stat().st_ino
    assert check_out().stat().st_ino == number  # an unchanged one is used again
    change(sources.parent)
    assert line in changes_of_checkout(sources)[0]
    assert check_out() == sources
    assert changes_of_checkout(sources) == []
    assert git(sources.parent, "status", "--porcelain", "--ignored") == ""
    assert git(sources.parent, "rev-parse", "HEAD") == state.sha
    assert line in caplog.text
    assert changes_of_checkout(sources.parent.with_name(f"{sources.parent.name}.changed") / "backend")


def test_what_bazel_writes_itself_is_no_change(repository: Path, tmp_path: Path) -> None:
    state = resolve_source("repository", "refs/heads/main", "backend", tmp_path, timeout_s=30)
    sources = checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)
    for name in ("MODULE.bazel", "MODULE.bazel.lock"):
        (sources / name).write_text("{}")
    assert changes_of_checkout(sources) == []
    (sources / "BUILD.bazel").write_text("")
    assert changes_of_checkout(sources) == ["backend/BUILD.bazel was added"]


@pytest.fixture
def wheel(toy_project: Project, toy_sources: Path, tmp_path: Path) -> Wheel:
    """The toy backend's wheel, in the store `artifacts`."""
    settings = toy_project.settings
    state = Source("toy", "refs/heads/main", "1" * 40, ".")
    store, cache = ArtifactStore(tmp_path / "artifacts"), tmp_path / "cache"
    return build_wheel(settings, settings.variants[0], state, toy_sources, store, cache, tmp_path)


def test_a_changed_environment_is_made_anew(
    wheel: Wheel, toy_project: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, store = toy_project.settings, ArtifactStore(tmp_path / "artifacts")
    variant = settings.variants[0].model_copy(update={"torch": toy_torch(tmp_path), "requirements": ()})

    def make() -> Path:
        return Path(make_runtime_image(settings, variant, wheel, store, tmp_path / "images").python)

    python = make()
    subprocess.run([str(python), "-c", "import torch"], check=True, timeout=60, env={})
    assert changes_of_environment(python) == [], "the byte code of all packages was there"
    before = python.parents[1].stat().st_ino
    assert make().parents[1].stat().st_ino == before
    poison = "import torch; open(torch.__file__, 'a').write('poison = True\\n')"
    subprocess.run([str(python), "-B", "-c", poison], check=True, timeout=60)
    assert [line.rpartition("/")[2] for line in changes_of_environment(python)] == ["__init__.py was changed"]
    assert make() == python
    assert changes_of_environment(python) == []
    read = [str(python), "-B", "-c", "import torch; print(hasattr(torch, 'poison'))"]
    assert subprocess.run(read, check=True, capture_output=True, text=True, timeout=60).stdout == "False\n"
    assert "torch/__init__.py was changed" in caplog.text
    forged = "import torch; open(torch.__cached__, 'r+b').write(b'x' * 64)"
    subprocess.run([str(python), "-c", forged], check=True, timeout=60)
    [line] = changes_of_environment(python)
    assert "torch/__pycache__/__init__" in line
    make()
    assert changes_of_environment(python) == []


def toy_torch(folder: Path) -> str:
    """Make a small package that takes the place of PyTorch; return its requirement."""
    sources = folder / "toy-torch"
    (sources / "torch").mkdir(parents=True)
    (sources / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "torch"\nversion = "2.0"\n'
    )
    (sources / "torch" / "__init__.py").write_text("from types import SimpleNamespace\n__version__ = '2.0'\n"
                                                   "version = SimpleNamespace(git_version='0' * 40)\n")  # fmt: skip
    out = folder / "toy-torch-dist"
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--quiet", "--out-dir", str(out), str(sources)]
    subprocess.run(command, check=True, timeout=300)
    return f"torch @ {next(out.glob('*.whl')).as_uri()}"


def test_a_changed_artifact_is_not_used(wheel: Wheel, toy_project: Project, toy_sources: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    file = store.path(wheel.wheel)
    assert file.stat().st_mode & 0o222 == 0
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    settings = toy_project.settings
    with pytest.raises(AccelCiError, match="has changed since it was stored"):
        make_runtime_image(settings, settings.variants[0], wheel, store, tmp_path / "images")
    state = Source("toy", "refs/heads/main", "1" * 40, ".")
    again = build_wheel(settings, settings.variants[0], state, toy_sources, store, tmp_path / "cache", tmp_path)
    assert not again.reused
    assert store.checked_path(again.wheel).is_file()
