"""The guide `docs/upstream.md`, followed to the letter on a fresh clone, and what it promises at each step.

Four things are other than on a reader's machine: the clone's environment has the packages of this one, so that `make setup`
finds nothing to do; PyTorch's repository is a small stand-in, or has the files that `ACCEL_CI_UPSTREAM` names (a checkout
of PyTorch, or a folder with its `test/` and `tools/`); `upstream.tests_sha` names the stand-in's commit, as the guide says;
and the wheel of PyTorch main has the code of the pinned one, by links, with another version and commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from accel_ci.config.loading import load_project
from accel_ci.model import Build, RuntimeImage
from accel_ci.pipelines import RUNTIME_IMAGE
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT, commit, git
from accel_ci_tests.fixtures.guarded_server import guarded_server
from accel_ci_tests.fixtures.stand_in_torch import write_other_torch
from accel_ci_tests.fixtures.stored_attempts import all_verdicts

GUIDE = (ROOT / "docs" / "upstream.md").read_text()
PLACEHOLDER, NIGHTLIES = "ADDRESS_OF_THIS_REPOSITORY", "https://pytorch-nightly.example/whl/cpu"
PINNED, MAIN = "py311-torch2.13", "py311-main"
FILE = """
import sys
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

assert not hasattr(sys, "of_file"), "each file has its own process"
sys.of_file = __name__

class {name}(TestCase):
    def test_on_the_device(self, device): assert torch.ones(3, device=device).sum().item() == 3
    def test_that_fails(self, device): assert device == "a device that nobody has"
    def test_main_breaks_one(self, device): assert "dev" not in torch.__version__
    def test_main_breaks_two(self, device): assert "dev" not in torch.__version__
    def test_main_breaks_three(self, device): assert "dev" not in torch.__version__

instantiate_device_type_tests({name}, globals())
"""
FILES = {
    "test/test_view_ops.py": FILE.format(name="TestViewOps"),
    "test/test_indexing.py": FILE.format(name="TestIndexing"),
    "tools/__init__.py": "",
    "version.txt": "2.13.0\n",
}
CLASSES = {"test_view_ops.py": "TestViewOps", "test_indexing.py": "TestIndexing"}
NAMES = ("test_on_the_device", "test_that_fails", *(f"test_main_breaks_{number}" for number in ("one", "two", "three")))
REAL = os.environ.get("ACCEL_CI_UPSTREAM")
OPERATORS = """
from torch.testing._internal.common_methods_invocations import op_db
print(*(op.full_name.replace(".", "_") for op in op_db if op.name.startswith("a") and op.supported_dtypes("emu")))
"""


def blocks_of(step: int) -> list[tuple[str, str]]:
    """Return the blocks of a numbered step of the guide, each with its language."""
    [text] = re.findall(rf"(?ms)^## {step}\. .*?(?=^## |\Z)", GUIDE)
    return re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text)


@dataclass
class Reader:
    """Somebody who does what the guide says, in one shell: the folder that it began in, and the one that it is in."""

    root: Path
    folder: Path
    environment: dict[str, str]
    upstream: dict[str, str]

    def follow(self, step: int, index: str = "") -> str:
        """Do a step, and return what its commands print."""
        printed = []
        for language, block in blocks_of(step):
            if language == "yaml":
                self.edit(block.replace(NIGHTLIES, index))
                continue
            for line in block.splitlines():
                printed.append(self.run(line.replace(PLACEHOLDER, str(self.root / "project"))))
                if line.startswith("git clone"):
                    set_up(self.root / "accel_ci")
        return "".join(printed)

    def run(self, line: str) -> str:
        """Run a line in the shell, and return what it prints. Fail the test when it fails."""
        state = self.root / "state"
        script = f'{line} || exit 1\n{{ pwd; env -0; }} > "$0"\n'
        done = subprocess.run(
            ["bash", "-c", script, str(state)], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=1500,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        where, _, variables = state.read_text().partition("\n")
        self.folder = Path(where)
        self.environment = dict(each.split("=", 1) for each in variables.split("\0") if each)
        return done.stdout + done.stderr

    def edit(self, block: str) -> None:
        """Put the sections of a block in the place of those in the configuration, and PyTorch's stand-in in its place."""
        path = self.folder / "accel_ci.yaml"
        sections = {**yaml.safe_load(path.read_text()), **yaml.safe_load(block), "upstream": self.upstream}
        path.write_text(yaml.safe_dump(sections))

    @property
    def workspace(self) -> Workspace:
        """The workspace of the configuration."""
        return Workspace(load_project(self.folder / "accel_ci.yaml"))

    def newest(self, variant: str = PINNED) -> Build:
        """The newest build of a variant."""
        return next(build for build in ManifestStore(self.workspace.project.home).list_builds() if build.variant == variant)

    def image(self, build: Build) -> RuntimeImage:
        """The image of a build."""
        found = self.workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
        assert found is not None
        return found

    def verdicts(self, build: Build, suite: str) -> dict[str, str]:
        """The verdicts of a suite by test."""
        return {each.test: each.verdict for each in all_verdicts(self.workspace.results, build) if each.suite == suite}


def snapshot(folder: Path) -> None:
    """Make a repository with the files of this checkout, as they are now."""
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    commit(folder, {})


def set_up(clone: Path) -> None:
    """Do what `make setup` does, with the packages of this environment; `make` then finds the work done."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clone / ".venv")], check=True, timeout=60)
    [packages] = (clone / ".venv").glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text(f"{clone}\n{sysconfig.get_path('purelib')}\n")
    program = clone / ".venv" / "bin" / "accel-ci"
    program.write_text(f"#!{clone}/.venv/bin/python\nimport sys\nfrom accel_ci.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    (clone / ".venv" / ".ready").touch()


def make_upstream(folder: Path) -> str:
    """Make the repository that takes the place of PyTorch's; return its commit."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    if not REAL:
        return commit(folder, FILES)
    for name in ("test", "tools"):
        shutil.copytree(Path(REAL) / name, folder / name, symlinks=True)
    for path in Path(REAL).iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    git(folder, "add", "--all", "--force")
    return commit(folder, {})


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The reader before the first step, in an empty folder."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "project").mkdir()
    snapshot(folder / "project")
    upstream = {"repository": "../pytorch", "ref": "refs/heads/main", "tests_sha": make_upstream(folder / "pytorch")}
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return Reader(folder, folder, environment, upstream)


@pytest.fixture(scope="module")
def first(reader: Reader) -> str:
    """The output of the first step."""
    return reader.follow(1)


@pytest.fixture(scope="module")
def second(reader: Reader, first: str) -> str:
    """The output of the second step."""
    return reader.follow(2)


@pytest.fixture(scope="module")
def third(reader: Reader, second: str) -> Iterator[tuple[str, str]]:
    """The output of the third step, and the commit of the wheel of PyTorch main."""
    pinned = Path(reader.image(reader.newest()).python).parents[1]
    [installed] = pinned.glob("lib/python*/site-packages")
    served = reader.root / "nightlies"
    served.mkdir()
    sha = commit(reader.root / "pytorch", {"version.txt": "2.14.0a0\n"})
    write_other_torch(served, "2.14.0.dev20261127", sha, installed, reader.root / "links")
    commit(reader.root / "pytorch", {"version.txt": "2.14.0a1\n"})
    with guarded_server(served, "ci", "not-for-everybody") as server:
        yield reader.follow(3, index=f"{server}/simple"), sha


def test_the_first_number_is_a_verdict_for_each_operator(reader: Reader, first: str) -> None:
    build = reader.newest()
    python = reader.image(build).python
    done = subprocess.run([python, "-c", OPERATORS], capture_output=True, text=True, timeout=300, check=True)
    verdicts = reader.verdicts(build, "op_db")
    operators = [re.sub(r".*::TestOpDbEMU::test_op_(.*)_emu_\w+", r"\1", test) for test in verdicts]
    assert sorted(operators) == sorted(done.stdout.split())
    assert set(verdicts.values()) == {"passed"}
    expected = len(verdicts) + len(reader.verdicts(build, "smoke"))
    assert re.search(rf"tests expected\W+{expected}\b", first), "`status` shows the number"
    [page] = set(re.findall(r"HUD: file://(\S+)", first))
    assert build.name in Path(page).read_text()


def test_files_of_pytorch_run_on_the_device(reader: Reader, second: str) -> None:
    build = reader.newest()
    verdicts = reader.verdicts(build, "upstream")
    files = {test.partition("::")[0] for test in verdicts}
    assert files == {"upstream/test/test_view_ops.py", "upstream/test/test_indexing.py"}
    told = rf"the tests are of PyTorch [\w. ]+ at {reader.upstream['tests_sha'][:12]}, but torch 2\.13\.0"
    assert re.search(told, " ".join(second.split()))
    failures = {test for test, verdict in verdicts.items() if verdict == "failed"}
    assert all(test in second for test in failures), "`results failures` lists them"
    if not REAL:
        tests = {f"upstream/test/{file}::{name}EMU::" for file, name in CLASSES.items()}
        assert failures == {f"{test}test_that_fails_emu" for test in tests}
        assert verdicts.keys() == {f"{test}{name}_emu" for test in tests for name in NAMES}


def test_both_stacks_run_the_same_suites_in_one_night(reader: Reader, third: tuple[str, str]) -> None:
    printed, sha = third
    pinned, main = reader.newest(PINNED), reader.newest(MAIN)
    assert pinned.revision == main.revision
    assert reader.image(main).torch_version == "2.14.0.dev20261127"
    assert reader.image(main).torch_sha == sha
    told = f"torch 2.14.0.dev20261127 was built from {sha[:12]}, not from the revision's upstream"
    assert told in " ".join(printed.split())
    for suite in ("smoke", "op_db", "upstream"):
        assert reader.verdicts(pinned, suite).keys() == reader.verdicts(main, suite).keys() != set()
    if not REAL:
        causes = json.loads(reader.run(f"accel-ci causes {main.name} --json"))["failures"]
        of_main = {each["test"]: each for each in causes if "test_main_breaks" in each["test"]}
        assert len(of_main) == 6
        assert {each["cause"] for each in of_main.values()} == {"upstream"}
        told = f"it fails in {MAIN} but passes in {PINNED}, with the same backend"
        assert all(told in each["sentence"] for each in of_main.values())
