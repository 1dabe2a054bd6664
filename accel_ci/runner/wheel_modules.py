"""Compare the modules that a session has imported with the wheel under test, by the RECORD of the installed package.

A checkout on `sys.path`, or a package that overwrites a file of the wheel, would be tested in its place without a sign.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

WHEELS = "ACCEL_CI_WHEELS"
"""The variable with the wheels under test: `distribution=import_name`, separated by commas."""

_CODE = (".py", ".so", ".pyd")


class WheelModules:
    """Compares `sys.modules` with the RECORD of each wheel under test; finds each difference once."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._hashes: dict[str, str] = {}  # the digests of the wheels' files by real path
        self._files: dict[str, str] = {}  # the real path of each module of the wheels
        self._packages: dict[str, str] = {}  # the folder or file of each top-level module that is a wheel's alone
        self._missing: dict[str, str] = {}  # distributions that are not installed, by import name
        self._known: dict[str, tuple[int, int]] = {}  # the size and time of files whose digest is right
        self._told: set[str] = set()
        for entry in filter(None, environment.get(WHEELS, "").split(",")):
            distribution, _, import_name = entry.partition("=")
            try:
                self._read(importlib.metadata.distribution(distribution))
            except importlib.metadata.PackageNotFoundError:
                self._missing[import_name] = distribution

    def _read(self, distribution: importlib.metadata.Distribution) -> None:
        for file in distribution.files or ():
            if not file.name.endswith(_CODE) or file.parts[0] == "..":
                continue
            place = os.path.realpath(str(distribution.locate_file(file)))
            self._files[_module_name(file)] = place
            if file.hash is not None and file.hash.mode == "sha256":
                self._hashes[place] = file.hash.value
            if len(file.parts) == 1 or (len(file.parts) == 2 and file.stem == "__init__"):
                self._packages[_module_name(file)] = place if len(file.parts) == 1 else str(Path(place).parent)

    def differences(self) -> list[str]:
        """Return a sentence for each imported module that is not the wheel's, and was not told before."""
        found = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and (problem := self._problem(name, os.path.realpath(file))) is not None:
                found[name] = problem
        fresh = [problem for name, problem in sorted(found.items()) if name not in self._told]
        self._told.update(found)
        return fresh

    def _problem(self, name: str, file: str) -> str | None:
        top = name.partition(".")[0]
        if (distribution := self._missing.get(top)) is not None:
            return f"{name} was imported from {file}, but the wheel {distribution} is not installed for this Python"
        expected = self._files.get(name)
        if expected is None and top in self._packages and file not in self._hashes:
            inside = self._packages[top]
            return f"{name} was imported from {file}, which the wheel does not have: its package is {inside}"
        if expected is not None and file != expected:
            return f"{name} was imported from {file}, and the wheel's is {expected}"
        if file in self._hashes and not self._is_whole(file):
            return f"{name} was imported from {file}, whose content is not the wheel's: its digest differs from RECORD"
        return None

    def _is_whole(self, file: str) -> bool:
        try:
            found = os.stat(file)  # noqa: PTH116 - a path may be inside an archive
            stamp = found.st_size, found.st_mtime_ns
            if self._known.get(file) == stamp:
                return True
            digest = hashlib.sha256(Path(file).read_bytes()).digest()
        except OSError:
            return False
        whole = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii") == self._hashes[file]
        if whole:
            self._known[file] = stamp
        return whole


def _module_name(file: PurePosixPath) -> str:
    """Return the name of the module in a file below site-packages."""
    parts = [*file.parts[:-1], file.name.partition(".")[0]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
