"""Every test file is collected, none is imported, and the tiers name places that exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from itertools import chain

import pytest

from accel_ci_tests import tiers
from accel_ci_tests.fixtures.checkout import ROOT


def test_no_folder_of_tests_is_skipped(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    files = sorted((ROOT / "accel_ci_tests").rglob("test_*.py"))
    folders = {part for file in files for part in file.relative_to(ROOT).parent.parts}
    assert "pool" in folders
    assert not [folder for folder in folders if any(fnmatch(folder, pattern) for pattern in patterns)]


def test_tiers_name_files_and_folders_that_exist() -> None:
    places = [ROOT / "accel_ci_tests" / place for place in (*tiers.SLOW, *tiers.NIGHTLY, *chain(*tiers.PROCESSES))]
    assert [place for place in places if not place.exists()] == [], "moved or removed, correct accel_ci_tests/tiers.py"


def test_no_test_module_and_no_conftest_is_imported() -> None:
    imports = re.compile(r"from (accel_ci_tests)?\.([\w.]*\.)?(test_\w+|conftest) import|from \.+ import test_")
    files = (ROOT / "accel_ci_tests").rglob("*.py")
    assert [str(file) for file in files if imports.search(file.read_text("utf-8"))] == []
