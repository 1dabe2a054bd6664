"""Every test file of the project is collected: none is in a folder that pytest passes over by its name."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from accel_ci_tests.fixtures.checkout import ROOT


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    files = sorted((ROOT / "accel_ci_tests").rglob("test_*.py"))
    folders = {part for file in files for part in file.relative_to(ROOT).parent.parts}
    assert "pool" in folders
    assert not [folder for folder in folders if any(fnmatch(folder, pattern) for pattern in patterns)]
