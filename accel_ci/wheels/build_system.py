"""The requirements of a project's build (PEP 517 and 518), which we install, and not its own code.

The answers come from the sources, which may be hostile: only plain requirements pass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from accel_ci.errors import BuildError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ASK = """
import importlib, json, os, sys
backend, paths, answer = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
sys.path[:0] = [os.path.abspath(path) for path in paths]
module, _, names = backend.partition(":")
found = importlib.import_module(module)
for name in filter(None, names.split(".")):
    found = getattr(found, name)
wanted = []
for kind in ("sdist", "wheel"):
    ask = getattr(found, f"get_requires_for_build_{kind}", None)
    wanted += ask(None) if ask is not None else []
with open(answer, "w") as file:
    json.dump(wanted, file)
"""
"""A program that writes what a build backend asks for. Arguments: the backend, `backend-path` as JSON, the file to write."""

_DEFAULT = {"requires": ["setuptools>=40.8.0"], "build-backend": "setuptools.build_meta:__legacy__"}
_LARGEST_ANSWER = 1 << 20


@dataclass(frozen=True)
class BuildSystem:
    """The table `build-system` of a `pyproject.toml`."""

    requires: tuple[str, ...]
    backend: str
    paths: tuple[str, ...]


def read_build_system(folder: Path) -> BuildSystem:
    """Read the build system of a project, or the one that is meant where there is none. Raises `BuildError`."""
    file = folder / "pyproject.toml"
    table: Any = _DEFAULT
    if file.is_file():
        try:
            table = tomllib.loads(file.read_text("utf-8")).get("build-system", _DEFAULT)
        except (ValueError, OSError) as error:
            raise BuildError(f"pyproject.toml cannot be read: {error}; correct it") from None
    if not isinstance(table, dict):
        raise BuildError("pyproject.toml: build-system is no table; correct it")
    backend, paths = table.get("build-backend", _DEFAULT["build-backend"]), table.get("backend-path", [])
    if not isinstance(backend, str) or not _are_texts(paths):
        raise BuildError("pyproject.toml: build-system.build-backend or backend-path has the wrong type; correct it")
    return BuildSystem(checked_requirements(table.get("requires", [])), backend, tuple(paths))


def read_answer(file: Path) -> Any:
    """Read what the program `ASK` has written. Raises `BuildError`."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGEST_ANSWER:
            raise ValueError("it is no small file")
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BuildError(f"the build backend gave no list of requirements: {error}") from None


def checked_requirements(values: Any) -> tuple[str, ...]:
    """Return requirements, each in one line and as packaging writes it: no option of pip can be among them."""
    if not _are_texts(values):
        raise BuildError("the requirements of the build are no list of texts; correct build-system.requires")
    try:
        return tuple(" ".join(str(Requirement(value)).split()) for value in values)
    except InvalidRequirement as error:
        raise BuildError(f"a requirement of the build is not one of PEP 508: {str(error).splitlines()[0]}") from None


def _are_texts(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(each, str) for each in values)
