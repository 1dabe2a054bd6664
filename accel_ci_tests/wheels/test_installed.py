"""The files of a wheel after it is installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from accel_ci.wheels.installed import installed_differently, top_level_names

FILES = {"toy/__init__.py": "x = 1\n", "toy/table.csv": "1", "single.py": "", "toy-1.0.dist-info/METADATA": "Name: toy\n"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        place = tmp_path / "site" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "site"


def test_a_wheel_that_is_installed_as_it_is(wheel: Path, site: Path) -> None:
    (site / "toy-1.0.dist-info" / "METADATA").write_text("installers may write here")
    assert installed_differently(wheel, site) == []
    assert top_level_names([wheel]) == {"toy", "single"}


def test_files_that_are_changed_or_gone_are_named(wheel: Path, site: Path) -> None:
    (site / "toy" / "__init__.py").write_text("x = 2\n")
    (site / "single.py").unlink()
    changed, gone = installed_differently(wheel, site)
    assert changed == f"{site}/toy/__init__.py has other content than toy/__init__.py of {wheel.name}"
    assert gone == f"single.py of {wheel.name} is not installed"


@pytest.mark.parametrize(
    ("digest", "differs"), [("sha256=other", True), ("sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", False)]
)
def test_another_package_with_a_file_of_the_same_name(wheel: Path, site: Path, digest: str, differs: bool) -> None:
    info = site / "clobber-2.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"single.py,{digest},0\nelse.py,{digest},0\n")
    found = installed_differently(wheel, site)
    assert bool(found) == differs
    assert not found or found == [f"{site}/single.py is of {wheel.name} and, with other content, of clobber-2.0"]
