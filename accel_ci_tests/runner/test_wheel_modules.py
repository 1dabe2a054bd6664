"""The imported modules against the RECORD of the installed wheel, in real processes."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.checkout import ROOT

PROGRAM = """
import sys
sys.path[:0] = {places!r}
sys.path.append({root!r})
from accel_ci.runner.wheel_modules import WheelModules
modules = WheelModules({{"ACCEL_CI_WHEELS": "toy-backend=toy_backend,absent=absent_module"}})
{code}
for line in modules.differences(): print(line)
for line in modules.differences(): print("twice:", line)
"""
FILES = {"toy_backend/__init__.py": "", "toy_backend/kernels.py": "x = 1\n", "shared/own.py": "", "toy_single.py": ""}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages with a wheel, and beside it a checkout of the same package."""
    info = tmp_path / "site" / "toy_backend-1.0.dist-info"
    info.mkdir(parents=True)
    record = ""
    for name, text in FILES.items():
        place = tmp_path / "site" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "RECORD").write_text(record)
    (tmp_path / "site" / "shared" / "others.py").write_text("")
    (tmp_path / "checkout" / "toy_backend").mkdir(parents=True)
    for name in ("__init__.py", "kernels.py", "extra.py"):
        (tmp_path / "checkout" / "toy_backend" / name).write_text("")
    (tmp_path / "checkout" / "absent_module.py").write_text("")
    return tmp_path


def differences(folder: Path, code: str, *places: str) -> list[str]:
    program = PROGRAM.format(places=[str(folder / place) for place in places], root=str(ROOT), code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_the_modules_of_the_wheel_are_as_they_should_be(installed: Path) -> None:
    code = "import toy_backend.kernels, shared.own, shared.others, toy_single, json"
    assert differences(installed, code, "site", "checkout") == []


def test_a_checkout_in_front_is_told_with_both_places(installed: Path) -> None:
    found = differences(installed, "import toy_backend.kernels", "checkout", "site")
    wrong, right = (installed / place / "toy_backend" for place in ("checkout", "site"))
    assert found == [
        f"{name} was imported from {wrong / file}, and the wheel's is {right / file}"
        for name, file in (("toy_backend", "__init__.py"), ("toy_backend.kernels", "kernels.py"))
    ]


def test_a_module_that_the_wheel_does_not_have(installed: Path) -> None:
    other = str(installed / "checkout" / "toy_backend")
    code = f"import toy_backend; toy_backend.__path__.append({other!r}); import toy_backend.extra"
    [found] = differences(installed, code, "site")
    assert found.startswith(
        f"toy_backend.extra was imported from {installed}/checkout/toy_backend/extra.py, which the wheel"
    )


def test_a_file_that_was_changed_is_told_once(installed: Path) -> None:
    code = (
        f"import toy_backend.kernels; open({str(installed / 'site' / 'toy_backend' / 'kernels.py')!r}, 'a').write('x = 2')"
    )
    [found] = differences(installed, code, "site")
    assert "whose content is not the wheel's" in found


def test_a_wheel_that_is_not_installed_must_not_be_imported(installed: Path) -> None:
    assert differences(installed, "", "site", "checkout") == []
    [found] = differences(installed, "import absent_module", "site", "checkout")
    assert "the wheel absent is not installed" in found
