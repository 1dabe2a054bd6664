"""The stack in Dagster: nothing without its section, its assets before the wheel, and the sensor of its components."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.stack import changed_components
from accel_ci.errors import AccelCiError
from accel_ci.pipelines import INTEGRATION, STACK, STACK_TEST_RESULTS
from accel_ci.source.revision import resolve_stack
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stack_repositories import make_stack


@pytest.fixture
def project(tmp_path: Path, repository: Path, make_project: Callable[..., Project]) -> Project:
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "--quiet", "-b", "main")
    commit(tmp_path / "upstream", {"version.txt": "1"})
    jobs: Any = minimal_config()["jobs"]
    jobs["main"]["minimum_interval_minutes"] = 0
    return make_project(stack=make_stack(tmp_path), jobs=jobs)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as temporary:
        yield temporary


def tick(project: Project, instance: dg.DagsterInstance, cursor: str | None, sensor: str = "stack_sensor") -> Any:
    repository = build_definitions(project).get_repository_def()
    context = dg.build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, repository_def=repository
    )
    return repository.get_sensor_def(sensor).evaluate_tick(context)


def test_its_assets_are_a_group_before_the_wheel(project: Project) -> None:
    definitions = build_definitions(project)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert {name for name, group in groups.items() if group == "stack"} == {STACK, STACK_TEST_RESULTS}

    def above(name: str) -> set[str]:
        return {key.to_user_string() for key in graph.get(dg.AssetKey(name)).parent_keys}

    assert above(STACK) == {"revision"}
    assert above(STACK_TEST_RESULTS) == {STACK}
    assert above("wheel") == {"revision", STACK}
    assert above("runtime_image") == {"wheel", STACK}
    assert above("ledger") == {"device_test_results", STACK_TEST_RESULTS}
    job = definitions.resolve_job_def("nightly_integration").asset_layer.executable_asset_keys
    assert {STACK, STACK_TEST_RESULTS} <= {key.to_user_string() for key in job}


def test_without_its_section_there_is_nothing_of_it(make_project: Callable[..., Project]) -> None:
    project = make_project()
    definitions = build_definitions(project)
    names = {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()}
    assert names.isdisjoint({STACK, STACK_TEST_RESULTS})
    assert "stack_sensor" not in {sensor.name for sensor in definitions.sensors or ()}
    assert Workspace(project).pipelines[0] is INTEGRATION


def test_a_component_that_moves_has_main_built_once(project: Project, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    first = tick(project, instance, None)
    assert "noted library, tool" in first.skip_message
    assert "no component has moved" in tick(project, instance, first.cursor).skip_message
    sha = commit(tmp_path / "tool", {"README": "moved"})
    moved = tick(project, instance, first.cursor)
    [request] = moved.run_requests
    assert request.tags["accel_ci/build"].endswith("~py3/integration")
    revision = ManifestStore(project.home).revision(request.partition_key.partition("|")[0])
    assert revision is not None
    assert (revision.trigger, revision.stack["tool"].sha) == ("main", sha)
    assert json.loads(moved.cursor)["tool"] == f"g{sha[:12]}"
    assert "no component has moved" in tick(project, instance, moved.cursor).skip_message


def test_a_repository_that_is_away_fails_the_tick_with_its_name(
    project: Project, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    first = tick(project, instance, None)
    (tmp_path / "tool").rename(tmp_path / "gone")
    with pytest.raises(AccelCiError, match=r"the stack cannot be asked: .*the component tool of the stack"):
        tick(project, instance, first.cursor)


@pytest.fixture
def releasing(project: Project, make_project: Callable[..., Project]) -> Project:
    """The project, whose tool has release tags."""
    settings = project.settings.model_dump(mode="json", exclude_unset=True)
    settings["stack"]["components"][1]["release"] = True
    return make_project(stack=settings["stack"], release={"images": {"repository": "registry.example/toy"}})


def test_each_new_tag_of_a_component_is_built_once_with_the_others_as_configured(
    releasing: Project, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    tool = tmp_path / "tool"
    git(tool, "tag", "v1.0.0")
    first = tick(releasing, instance, None, "stack_tags_sensor")
    assert "noted 1 tags of tool" in first.skip_message
    released = commit(tool, {"README": "1.1.0"})
    git(tool, "tag", "v1.1.0")
    git(tool, "tag", "latest")
    commit(tool, {"README": "after it"})
    asked = tick(releasing, instance, first.cursor, "stack_tags_sensor")
    [request] = asked.run_requests
    assert (request.tags["accel_ci/trigger"], request.run_key) == ("manual", "stack_tag:tool:v1.1.0:py3")
    key = request.partition_key.partition("|")[0]
    revision = ManifestStore(releasing.home).revision(key)
    assert revision is not None
    assert (key, revision.trigger) == ("manual-tool-v1-1-0", "manual")
    assert (revision.stack["tool"].ref, revision.stack["tool"].sha) == ("refs/tags/v1.1.0", released)
    assert revision.stack["library"].ref == "refs/heads/main"
    assert "no component has a new release tag" in tick(releasing, instance, asked.cursor, "stack_tags_sensor").skip_message
    # The daemon was killed before it kept the cursor, and the library has moved since.
    commit(tmp_path / "library", {"README": "moved"})
    [again] = tick(releasing, instance, first.cursor, "stack_tags_sensor").run_requests
    assert (again.run_key, again.partition_key) == (request.run_key, request.partition_key)


def test_a_tag_that_moves_is_refused_with_both_commits(
    releasing: Project, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    tool = tmp_path / "tool"
    before = git(tool, "rev-parse", "HEAD")
    git(tool, "tag", "v1.0.0")
    first = tick(releasing, instance, None, "stack_tags_sensor")
    now = commit(tool, {"README": "moved"})
    git(tool, "tag", "--force", "v1.0.0")
    for _ in range(2):
        refused = tick(releasing, instance, first.cursor, "stack_tags_sensor")
        assert f"tool v1.0.0 was moved from {before[:12]} to {now[:12]} and releases nothing" in refused.skip_message
        assert refused.cursor == first.cursor
    git(tool, "tag", "--delete", "v1.0.0")
    gone = tick(releasing, instance, first.cursor, "stack_tags_sensor")
    git(tool, "tag", "v1.0.0")
    assert "was moved" in tick(releasing, instance, gone.cursor, "stack_tags_sensor").skip_message


def test_a_repository_of_tags_that_is_away_is_named_and_asked_again(
    releasing: Project, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (tmp_path / "tool").rename(tmp_path / "gone")
    with pytest.raises(AccelCiError, match="no component can be asked for its tags: tool cannot be asked"):
        tick(releasing, instance, None, "stack_tags_sensor")
    (tmp_path / "gone").rename(tmp_path / "tool")
    git(tmp_path / "tool", "tag", "v1.0.0")
    assert "noted 1 tags of tool" in tick(releasing, instance, None, "stack_tags_sensor").skip_message


def test_without_a_component_that_releases_there_is_no_sensor_of_tags(project: Project) -> None:
    names = {sensor.name for sensor in build_definitions(project).sensors or ()}
    assert "stack_sensor" in names
    assert "stack_tags_sensor" not in names


@pytest.mark.parametrize(
    ("known", "changed"),
    [
        pytest.param({}, [], id="the first look"),
        pytest.param({"a": "1", "b": "1"}, ["b"], id="moved"),
        pytest.param({"a": "1"}, ["b"], id="a new component"),
        pytest.param({"a": "1", "b": "2", "c": "3"}, [], id="a component that was removed"),
    ],
)
def test_components_that_changed_are_those_with_another_state(known: dict[str, str], changed: list[str]) -> None:
    assert changed_components(known, {"a": "1", "b": "2"}) == changed


def test_a_revision_without_a_stack_of_an_earlier_version_is_read(project: Project) -> None:
    manifests = ManifestStore(project.home)
    path = manifests.path("revision", "nightly-20261127")
    source = {"repository": "r", "ref": "HEAD", "sha": "a" * 40}
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({
        "key": "nightly-20261127", "trigger": "nightly", "created_at": "2026-11-27T02:00:00Z",
        "backend": source, "upstream": source,
    }))  # fmt: skip
    found = manifests.revision("nightly-20261127")
    assert found is not None
    assert found.stack == {}
    assert list(resolve_stack(project, {})) == ["library", "tool"]
