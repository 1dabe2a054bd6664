"""The tags that release: which one a revision has, what a component's repository has, and what is new there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import ConfigError, SourceError
from accel_ci.model import Revision, Source, Trigger
from accel_ci.release.tags import index_for, new_and_moved, release_tags, releasing_components, tag_of
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.stack_repositories import make_stack

A, B, C = ("a" * 40, "b" * 40, "c" * 40)
INDEX = {"upload": "http://127.0.0.1:9/", "simple": "http://127.0.0.1:9/simple/"}


@pytest.fixture
def project(tmp_path: Path, make_project: Callable[..., Project]) -> Project:
    stack: Any = make_stack(tmp_path)
    for component in stack["components"]:
        component["release"] = True
    return make_project(stack=stack, release={"images": {"repository": "registry.example/toy"}, "index": INDEX})


def revision(backend: str = "refs/heads/main", trigger: Trigger = "manual", **refs: str) -> Revision:
    stack = {name: Source(name, refs.get(name, "refs/heads/main"), A) for name in ("library", "tool")}
    at = datetime(2026, 11, 27, 2, tzinfo=timezone.utc)
    return Revision("manual-1", trigger, at, Source("repository", backend, B), Source("upstream", "main", C), stack=stack)


def test_a_component_at_a_tag_releases_the_image_alone(project: Project, tmp_path: Path) -> None:
    sha = git(tmp_path / "tool", "rev-parse", "HEAD")
    git(tmp_path / "tool", "tag", "--annotate", "--message", "a release", "v1.2.3")
    found = tag_of(project, revision(tool="refs/tags/v1.2.3"))
    assert found is not None
    assert (found.component, found.sha, found.shown, found.of_image) == ("tool", sha, "tool=v1.2.3", "tool-1.2.3")
    assert tag_of(project, revision(), "tool=v1.2.3") == found
    section = project.settings.release
    assert section is not None
    assert index_for(section, found) is None
    missing = tag_of(project, revision(), "tool=v1.2.4")
    assert missing is not None
    assert missing.sha is None


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(revision(), id="no tag"),
        pytest.param(revision(tool="refs/tags/latest"), id="no version"),
        pytest.param(revision(tool="refs/tags/v1.2.3", trigger="nightly"), id="not asked for"),
        pytest.param(revision(tool="refs/tags/v1.2.3", library="refs/tags/v1.0.0"), id="two tags"),
    ],
)
def test_other_revisions_release_nothing(project: Project, of: Revision) -> None:
    assert tag_of(project, of) is None


def test_a_component_that_is_always_at_a_tag_releases_nothing(make_project: Callable[..., Project]) -> None:
    one = {"name": "tool", "repository": "tool", "ref": "refs/tags/v1.2.3", "build": [["make"]], "release": True}
    project = make_project(stack={"components": [one]}, release={"images": {"repository": "registry.example/toy"}})
    assert tag_of(project, revision(tool="refs/tags/v1.2.3")) is None


def test_a_component_that_releases_nothing_is_no_word_for_a_tag(
    tmp_path: Path, make_project: Callable[..., Project]
) -> None:
    project = make_project(stack=make_stack(tmp_path))
    assert releasing_components(project) == ()
    assert tag_of(project, revision(tool="refs/tags/v1.2.3")) is None
    with pytest.raises(ConfigError, match=r"no component 'tool' with `release: true`; known: none"):
        tag_of(project, revision(), "tool=v1.2.3")


def test_the_tags_of_a_repository_are_those_with_semantic_versions_by_their_commits(
    project: Project, tmp_path: Path
) -> None:
    _, tool = releasing_components(project)
    assert release_tags(project, tool, 30) == {}
    first = git(tmp_path / "tool", "rev-parse", "HEAD")
    git(tmp_path / "tool", "tag", "v1.0.0")
    second = commit(tmp_path / "tool", {"README": "2"})
    git(tmp_path / "tool", "tag", "--annotate", "--message", "a release", "v1.1.0")
    git(tmp_path / "tool", "tag", "latest")
    assert release_tags(project, tool, 30) == {"v1.0.0": first, "v1.1.0": second}
    (tmp_path / "tool").rename(tmp_path / "gone")
    with pytest.raises(SourceError):
        release_tags(project, tool, 30)


@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        pytest.param(None, {"v1.0.0": A}, ([], []), id="the first look"),
        pytest.param({}, {"v1.10.0": A, "v1.9.0": B}, (["v1.9.0", "v1.10.0"], []), id="in the order of versions"),
        pytest.param({"v1.0.0": A}, {"v1.0.0": B, "v1.0.1": B}, (["v1.0.1"], ["v1.0.0"]), id="moved"),
        pytest.param({"v1.0.0": A}, {}, ([], []), id="removed"),
    ],
)
def test_tags_are_new_once_and_one_that_moves_is_told(
    known: dict[str, str] | None, found: dict[str, str], expected: tuple[list[str], list[str]]
) -> None:
    assert new_and_moved(known, found) == expected
