"""A backend joins a shared deployment: what `accel-ci init --location` writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster_k8s.container_context import K8sContainerContext

from accel_ci.config.loading import parse_settings
from accel_ci.config.new_location import plan_location
from accel_ci.config.settings import Project
from accel_ci.errors import ConfigError
from accel_ci_tests.fixtures.project import Run

HOSTILE = ("../x", "a b", "Torch", "-x", "x" * 41, "a\nb", "${HOME}", "x}: {", "", "torch_npu", "a/b")


def write(planned: dict[Path, str]) -> None:
    for path, text in planned.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def locations(workspace: Path) -> list[str]:
    return [origin.location_name for origin in location_origins_from_yaml_paths([str(workspace)])]


def test_a_second_backend_is_added_after_the_first(accel_ci: Run, tmp_path: Path) -> None:
    shown = accel_ci("init", "--location", "torch-npu", "--dry-run")
    assert (shown.returncode, list(tmp_path.iterdir())) == (0, [])
    assert "location: torch-npu\n" in shown.stdout
    for name in ("torch-npu", "torch-emu"):
        done = accel_ci("init", "--location", name)
        assert done.returncode == 0, done.stderr
        assert parse_settings((tmp_path / name / "accel_ci.yaml").read_text()).location == name
    assert locations(tmp_path / "workspace.yaml") == ["torch-npu", "torch-emu"]
    again = accel_ci("init", "elsewhere", "--location", "torch-emu", "--workspace", "workspace.yaml")
    assert again.returncode == 2
    assert again.stderr == "accel-ci: workspace.yaml has a code location 'torch-emu' already; choose another name\n"
    assert not (tmp_path / "elsewhere").exists()
    assert accel_ci("init", "--kubernetes").returncode == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="must be the name of a code location"):
        plan_location(name, tmp_path / "folder", tmp_path / "workspace.yaml")


def test_a_project_that_is_there_keeps_its_configuration(make_project: Callable[..., Project], tmp_path: Path) -> None:
    workspace = tmp_path / "workspace.yaml"
    make_project()
    with pytest.raises(ConfigError, match=r"is there and names no location; write 'location: torch-npu' into it"):
        plan_location("torch-npu", tmp_path, workspace)
    make_project(location="torch-emu")
    with pytest.raises(ConfigError, match="names the location 'torch-emu'"):
        plan_location("torch-npu", tmp_path, workspace)
    assert set(plan_location("torch-emu", tmp_path, workspace)) == {tmp_path / "definitions.py", workspace}


def test_what_the_workspace_file_has_stays_as_it_is(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace.yaml"
    before = "# ours\nload_from:\n  - python_module: # the first\n      module_name: a.b\n      location_name: first\n"
    workspace.write_text(before)
    after = plan_location("torch-npu", tmp_path / "torch-npu", workspace)[workspace]
    assert after.startswith(before)
    workspace.write_text(after)
    assert locations(workspace) == ["first", "torch-npu"]


@pytest.mark.parametrize(
    ("text", "refusal"),
    {
        "not YAML": ("load_from: [", "cannot be read as YAML"),
        "flow style": (
            "load_from: [{grpc_server: {host: a, port: 1, location_name: a}}]\n",
            "add this to its list yourself: .*b",
        ),
        "another key after it": ("load_from:\n- python_file: a.py\nx: 1\n", "does not end with a list 'load_from'"),
        "taken by a module": ("load_from:\n- python_module: b\n", "has a code location 'b' already"),
    }.values(),
)
def test_a_workspace_file_that_cannot_be_added_to(tmp_path: Path, text: str, refusal: str) -> None:
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(text)
    with pytest.raises(ConfigError, match=refusal):
        plan_location("b", tmp_path / "b", workspace)
    assert workspace.read_text() == text


def test_a_code_server_on_kubernetes_has_its_own_configuration_and_so_have_its_runs(tmp_path: Path) -> None:
    workspace, folder = tmp_path / "workspace.yaml", tmp_path / "torch-npu"
    write(plan_location("torch-npu", folder, workspace, kubernetes=True))
    write(plan_location("torch-emu", tmp_path / "torch-emu", workspace, kubernetes=True))
    assert locations(workspace) == ["accel_ci", "torch-npu", "torch-emu"]
    servers = [entry["grpc_server"] for entry in yaml.safe_load(workspace.read_text())["load_from"]]
    deployment, service, policy = yaml.safe_load_all((folder / "code-server.yaml").read_text())
    assert service["metadata"]["name"] == servers[1]["host"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    command = container["command"]
    context = K8sContainerContext.create_from_config(json.loads(command[command.index("--container-context") + 1]))
    [variable] = context.run_k8s_config.container_config["env"]
    assert variable == container["env"][0] == {"name": "ACCEL_CI_CONFIG", "value": "/projects/torch-npu/accel_ci.yaml"}
    [volume] = context.run_k8s_config.pod_spec_config["volumes"]
    [made] = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    assert volume["config_map"]["name"] == made["name"] == "accel-ci-project-torch-npu"
    with pytest.raises(ConfigError, match="already exists"):
        plan_location("torch-npu", folder, tmp_path / "other.yaml", kubernetes=True)
