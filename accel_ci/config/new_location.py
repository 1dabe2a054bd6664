"""The files that add a backend to a shared deployment: its configuration, and its code location in the workspace file.

Files are only planned here, so that a dry run and a mistake write nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from accel_ci.config.loading import CONFIG_NAME
from accel_ci.config.section import as_mapping, as_sequence
from accel_ci.config.values import Location
from accel_ci.errors import ConfigError

WORKSPACE_NAME = "workspace.yaml"
_STARTER_LINE = "# location: my-backend\n"
_SERVER = "accel-ci-code"
_PORT = 4000
_FIRST_ON_CLUSTER = {"grpc_server": {"host": _SERVER, "port": _PORT, "location_name": "accel_ci"}}
"""The code server of `deploy/kubernetes/base`, which an overlay's workspace file replaces."""


def starter() -> str:
    """The commented starter file."""
    return (files("accel_ci.config") / "starter.yaml").read_text("utf-8")


def plan_location(name: str, folder: Path, workspace: Path, *, kubernetes: bool = False) -> dict[Path, str]:
    """Return the files to write, the workspace file last: a project in `folder`, and its entry in the file `workspace`.

    With `kubernetes`, the folder has the manifests of a code server, and the entry its address. A configuration that names
    the location is kept. Raises `ConfigError` where the name is taken or cannot be one, or a file is in the way.
    """
    try:
        TypeAdapter(Location).validate_python(name)
    except ValidationError as error:
        raise ConfigError(f"{name!r}: {error.errors()[0]['ctx']['error']}") from None
    own = ("kustomization.yaml", "code-server.yaml") if kubernetes else ("definitions.py",)
    planned = {}
    if not (folder / CONFIG_NAME).exists():
        planned[folder / CONFIG_NAME] = starter().replace(_STARTER_LINE, f"location: {name}\n")
    elif (known := _mapping(folder / CONFIG_NAME).get("location")) != name:
        has = f"names the location {known!r}" if known else "names no location"
        raise ConfigError(f"{folder / CONFIG_NAME} is there and {has}; write 'location: {name}' into it, then do this again")
    for each in own:
        if (folder / each).exists():
            raise ConfigError(f"{folder / each} already exists; move it away first")
        template = files("accel_ci.config") / "location" / (each if each.endswith(".yaml") else f"{each}.txt")
        planned[folder / each] = Template(template.read_text("utf-8")).substitute(location=name)
    if kubernetes:
        entry: dict[str, Any] = {
            "grpc_server": {"host": f"{_SERVER}-{name}", "port": _PORT, "location_name": name},
        }
    else:
        entry = {"python_file": {"relative_path": _from(workspace, folder / own[0]), "location_name": name}}
    return {**planned, workspace: _with_entry(workspace, entry, [_FIRST_ON_CLUSTER] if kubernetes else [])}


def _from(workspace: Path, file: Path) -> str:
    """The path of a file as the workspace file is to name it: relative where it is below its folder."""
    place = workspace.absolute().parent
    return str(file.absolute().relative_to(place)) if file.absolute().is_relative_to(place) else str(file.absolute())


def _mapping(path: Path) -> dict[str, Any]:
    try:
        return as_mapping(yaml.safe_load(path.read_text("utf-8")))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}; correct it first") from None


def _with_entry(workspace: Path, entry: dict[str, Any], first: list[dict[str, Any]]) -> str:
    """The text of the workspace file with one more code location, after all that it has; `first` begins a new one."""
    own = next(iter(entry.values()))
    if not workspace.exists():
        return yaml.safe_dump({"load_from": [*first, entry]}, sort_keys=False)
    document, text = _mapping(workspace), workspace.read_text("utf-8")
    if own["location_name"] in set(_names(document)):
        raise ConfigError(f"{workspace} has a code location {own['location_name']!r} already; choose another name")
    entries = as_sequence(document.get("load_from"))
    wanted = {**document, "load_from": [*entries, entry]}
    node = yaml.compose(text)
    value = node.value[-1][1] if isinstance(node, yaml.MappingNode) and node.value else None
    indent = value.start_mark.column if isinstance(value, yaml.SequenceNode) and not value.flow_style else 2
    lines = yaml.safe_dump([entry], sort_keys=False).splitlines()
    longer = "\n".join([text.rstrip("\n"), *(f"{' ' * indent}{line}" for line in lines), ""])
    try:
        if yaml.safe_load(longer) == wanted:  # comments stay
            return longer
    except yaml.YAMLError:
        pass
    raise ConfigError(
        f"{workspace} does not end with a list 'load_from' of lines that begin with '-'; add this to its list yourself: "
        f"{yaml.safe_dump([entry], default_flow_style=True, sort_keys=False).strip()}"
    )


def _names(document: Mapping[str, Any]) -> Iterator[str]:
    """The names of the code locations; one without a name has that of its module or file."""
    for entry in as_sequence(document.get("load_from")):
        for place in as_mapping(entry).values():
            fields = as_mapping(place)
            yield str(fields.get("location_name") or fields.get("module_name") or fields.get("relative_path") or place)
