"""Nightlies on both stacks: a pinned PyTorch and PyTorch main, the same backend, the same suites.

The wheels of main come from an index with a password, and lag behind upstream's repository, as nightly wheels do. In the
second night, PyTorch has dropped a function, and the backend has broken one of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from accel_ci.model import Build, Revision, RuntimeImage
from accel_ci.pipelines import RUNTIME_IMAGE
from accel_ci.results.store import open_results
from accel_ci.source.revision import resolve_revision
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.guarded_server import guarded_server
from accel_ci_tests.fixtures.stand_in_torch import write_torch
from accel_ci_tests.fixtures.stored_attempts import all_verdicts
from accel_ci_tests.fixtures.toy_night import LOADS, ToyNight, make_toy_night

DROPPED = "def dropped(n):\n    return n\n"
OF_UPSTREAM = """
import pytest
import torch

@pytest.mark.parametrize("n", range(3))
def test_function_that_main_drops(n): assert torch.dropped(n) == n

def test_of_{name}(): assert torch.version.git_version
"""
OF_BACKEND = """
import pytest
import toy_backend

@pytest.mark.parametrize("n", range(3))
def test_own_function(n): assert toy_backend.own(n) == n
"""
TESTS = {
    "backend/tests/unit/test_unit.py": OF_BACKEND,
    "backend/toy_backend/__init__.py": f"{LOADS}def own(n):\n    return n\n",
}
SUITES = {
    "unit": {"paths": ["tests/unit"]},
    "upstream": {"source": "upstream", "paths": ["test"]},
}
COMMON = {"python": f"3.{sys.version_info.minor}", "runtime": "none", "requirements": ["pytest"]}
PASSWORD = "not-for-everybody"


@dataclass(frozen=True)
class Stacks:
    """The project after its nights: the commits of the pinned PyTorch and of main's wheels, and the revisions."""

    night: ToyNight
    pinned: str
    main: tuple[str, str]
    revisions: tuple[Revision, Revision]
    output: tuple[str, str]

    def image(self, build: Build) -> RuntimeImage:
        """The image of a build."""
        found = Workspace(self.night.project).manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
        assert found is not None
        return found

    def verdicts(self, build: Build) -> dict[str, str]:
        """The verdicts of a build by the last part of the test's name."""
        return {
            each.test.rpartition("::")[2]: each.verdict for each in all_verdicts(open_results(self.night.project), build)
        }

    def causes(self, build: Build) -> dict[str, dict[str, str]]:
        """The output of `accel-ci causes` for a build, by the last part of the test's name."""
        failures = json.loads(self.night.accel_ci("causes", build.name, "--json"))["failures"]
        return {failure["test"].rpartition("::")[2]: failure for failure in failures}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    folder = tmp_path_factory.mktemp("stacks")
    upstream, nightlies = folder / "upstream", folder / "nightlies"
    nightlies.mkdir()
    with guarded_server(nightlies, "ci", PASSWORD) as server:
        variants = [
            {"name": "pinned", "torch": "torch==2.13.0+toy", **COMMON},
            {"name": "main", "torch": "torch", "torch_source": "main", "torch_index": f"{server}/simple", **COMMON},
        ]
        job = {"cron": "0 2 * * *", "suites": [*SUITES]}
        jobs = {"nightly": job, "intraday": job, "main": {"suites": ["unit"]}, "pr": {"suites": ["unit"]}}
        night = make_toy_night(folder, TESTS, suites=SUITES, device={"type": "toy"}, variants=variants, jobs=jobs)

        def upstream_moves_on(name: str) -> str:
            return commit(upstream, {"test/test_stack.py": OF_UPSTREAM.format(name=name), "tools/__init__.py": ""}, name)

        def run(day: int) -> tuple[Revision, str]:
            workspace, at = Workspace(night.project), datetime.now(timezone.utc) + timedelta(days=day)
            revision = resolve_revision(night.project, "nightly", workspace.manifests.revision, now=at)
            workspace.manifests.add_revision(revision)
            return revision, night.accel_ci("run", "nightly", "--revision", revision.key)

        pinned = upstream_moves_on("release")
        write_torch(folder / "links", "2.13.0+toy", pinned, DROPPED)
        before = upstream_moves_on("before")
        write_torch(nightlies, "2.14.0.dev20261126", before, DROPPED)
        upstream_moves_on("later")
        first = run(-1)
        after = upstream_moves_on("after")
        write_torch(nightlies, "2.14.0.dev20261127", after)
        upstream_moves_on("latest")
        commit(folder / "repository", {"backend/toy_backend/__init__.py": f"{LOADS}def own(n):\n    return n + 1\n"})
        second = run(0)
        yield Stacks(night, pinned, (before, after), (first[0], second[0]), (first[1], second[1]))


def test_each_stack_has_the_tests_of_its_own_commit(stacks: Stacks) -> None:
    names = {"pinned": ("release", "release"), "main": ("before", "after")}
    commits = {"pinned": (stacks.pinned, stacks.pinned), "main": stacks.main}
    for number, revision in enumerate(stacks.revisions):
        for variant, shas in commits.items():
            build = Build(revision.key, variant)
            assert stacks.image(build).torch_sha == shas[number]
            of_upstream = {test for test in stacks.verdicts(build) if test.startswith("test_of_")}
            assert of_upstream == {f"test_of_{names[variant][number]}"}


def test_a_wheel_that_lags_behind_is_told(stacks: Stacks) -> None:
    for revision, sha, output in zip(stacks.revisions, stacks.main, stacks.output, strict=True):
        assert revision.upstream.sha not in (None, sha)
        told = f"was built from {sha[:12]}, not from the revision's upstream {str(revision.upstream.sha)[:12]}"
        assert " ".join(output.split()).count(told) == 1


def test_what_fails_on_main_alone_is_upstreams_and_what_fails_on_both_is_the_backends(stacks: Stacks) -> None:
    first, second = (revision.key for revision in stacks.revisions)
    for variant in ("pinned", "main"):
        assert stacks.causes(Build(first, variant)) == {}
    on_main, on_pinned = (stacks.causes(Build(second, variant)) for variant in ("main", "pinned"))
    of_upstream = {f"test_function_that_main_drops[{n}]" for n in range(3)}
    of_backend = {f"test_own_function[{n}]" for n in range(3)}
    assert {test: blame["cause"] for test, blame in on_main.items()} == {
        **dict.fromkeys(of_upstream, "upstream"), **dict.fromkeys(of_backend, "backend"),
    }  # fmt: skip
    assert {test: blame["cause"] for test, blame in on_pinned.items()} == dict.fromkeys(of_backend, "backend")
    before, after = stacks.main
    assert {on_main[test]["sentence"] for test in of_upstream} == {
        f"A change of upstream broke it, between {before[:13]} and {after[:13]}: "
        "it fails in main but passes in pinned, with the same backend."
    }
    assert all("it fails in main and in pinned, with the same backend" in on_main[test]["sentence"] for test in of_backend)


def test_the_password_of_the_index_is_nowhere(stacks: Stacks) -> None:
    assert PASSWORD in stacks.night.project.config_path.read_text()
    kept = [path for path in stacks.night.project.home.rglob("*") if path.is_file()]
    assert [path for path in kept if PASSWORD.encode() in path.read_bytes()] == []
    assert PASSWORD not in str(stacks.output)


def test_the_script_of_a_failure_takes_the_same_wheel_of_main(stacks: Stacks, tmp_path: Path) -> None:
    build = Build(stacks.revisions[1].key, "main")
    test = "upstream/test/test_stack.py::test_function_that_main_drops[0]"
    script = stacks.night.accel_ci("reproduce", build.name, test)
    [pin] = [line for line in stacks.image(build).packages if line.startswith("torch @ ")]
    assert "2.14.0.dev20261127" in pin
    assert pin in script.splitlines()
    assert PASSWORD not in script
    output = stacks.night.accel_ci("reproduce", build.name, test, "--run", "--folder", str(tmp_path / "there"), status=1)
    assert "has no attribute 'dropped'" in output


def test_a_night_whose_commit_is_not_built_yet_goes_on_when_it_is(tmp_path: Path) -> None:
    variant = {"name": "main", "torch": "torch", "torch_source": "main", "torch_index": "builds/{sha}", **COMMON}
    suites, job = {"unit": SUITES["unit"]}, {"cron": "0 2 * * *", "suites": ["unit"]}
    jobs = {"nightly": job, "intraday": job, "main": {"suites": ["unit"]}, "pr": {"suites": ["unit"]}}
    night = make_toy_night(tmp_path, TESTS, suites=suites, variants=[variant], jobs=jobs)
    sha = git(tmp_path / "upstream", "rev-parse", "HEAD")
    stopped = " ".join(night.accel_ci("run", "nightly", status=1).split())
    assert f"main: there is no wheel of torch for Python {COMMON['python']} of commit {sha} at builds/{sha}" in stopped
    write_torch(tmp_path / "builds" / sha, "2.14.0a0", sha)
    [build] = ManifestStore(night.project.home).list_builds()
    output = night.accel_ci("resume", build.name)
    assert "not from the revision's upstream" not in output
    image = ManifestStore(night.project.home).find(RUNTIME_IMAGE, build, RuntimeImage)
    assert image is not None
    assert image.torch_sha == sha
