"""Static checks on wheels that are compiled here; only the check for a fault finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.errors import BuildError
from accel_ci.wheels.audit import AUDIT_NAMES, audit_wheel
from accel_ci.wheels.front_end import Builder
from accel_ci.wheels.secret_strings import secrets_in
from accel_ci.wheels.uv_environment import PackageSource
from accel_ci_tests.fixtures.project import Run

from .compiled import compiled_wheel
from .wheel_files import METADATA, write_wheel

TOKEN = "ghp_" + "A1b2C3d4E5f6G7h8I9j0" * 2  # in parts, so that scanners do not report this file


def repair(wheel: Path, rules: Wheels, out: Path) -> Path:
    return Builder(None, rules, PackageSource(dict(os.environ)), out / "cache", 300, out).repair(wheel, out)


def failed(wheel: Path, rules: Wheels) -> dict[str, str]:
    results = audit_wheel(wheel, rules, dict(os.environ))
    assert tuple(result.name for result in results) == AUDIT_NAMES
    return {result.name: "\n".join((result.summary, *result.findings)) for result in results if not result.passed}


def test_a_sound_compiled_wheel_passes(tmp_path: Path) -> None:
    assert failed(compiled_wheel(tmp_path), Wheels(size_budget="1m", tags=("cp311-*-linux_*",))) == {}


@pytest.mark.parametrize(
    ("tag", "rules", "check", "message"),
    [
        ("cp311-cp311-manylinux_2_1_x86_64", {}, "platform_tag", "is newer than manylinux_2_1_x86_64 (libc.so.6 GLIBC_"),
        ("cp311-cp311-manylinux1_x86_64", {"platform": "manylinux_2_1_x86_64"}, "platform_tag", "newer than manylinux_2_1"),
        ("cp311-cp311-linux_x86_64", {"platform": "manylinux_2_39_x86_64"}, "platform_tag", "set wheels.repair"),
        ("py3-none-any", {}, "platform_tag", "toy/_own.so is compiled code"),
        ("cp311-cp311-linux_x86_64", {"tags": ["cp312-*-*"]}, "tags", "none matches cp312-*-*"),
        ("cp311-cp311-linux_x86_64", {"size_budget": "1k"}, "size", "toy/_own.so"),
    ],
)
def test_each_fault_is_found_by_its_check(
    tmp_path: Path, tag: str, rules: dict[str, object], check: str, message: str
) -> None:
    found = failed(compiled_wheel(tmp_path, tag), Wheels.model_validate(rules))
    assert message in found.pop(check)
    assert set(found) <= {"check_wheel_contents"}  # which also reports compiled code in a pure wheel


def test_a_vendor_library_must_be_allowed(tmp_path: Path) -> None:
    wheel = compiled_wheel(tmp_path, vendor="vendor_runtime")
    assert failed(wheel, Wheels()) == {
        "external_libraries": "1 external libraries are not in wheels.external_libraries: libvendor_runtime.so.1\n"
        "libvendor_runtime.so.1"
    }
    assert failed(wheel, Wheels(external_libraries=("libvendor_*.so.*",))) == {}


def test_a_wheel_tagged_abi3_must_use_only_the_stable_abi(tmp_path: Path) -> None:
    assert failed(compiled_wheel(tmp_path, "cp311-abi3-linux_x86_64"), Wheels()) == {}


def test_a_token_in_code_and_in_a_binary_is_found_but_not_shown(tmp_path: Path) -> None:
    files = {"toy/settings.py": f'token = "{TOKEN}"\n'.encode(), "toy/data.bin": b"\0\1\2" + TOKEN.encode() + b"\0"}
    found = failed(compiled_wheel(tmp_path, files=files), Wheels())["secrets"]
    assert "toy/settings.py: GitHub Token: ghp_A1…" in found
    assert "toy/data.bin: GitHub Token: ghp_A1…" in found
    assert TOKEN not in found


def test_the_header_of_a_key_alone_is_not_a_secret() -> None:
    header = b"-----BEGIN RSA " + b"PRIVATE KEY-----\n"
    assert list(secrets_in([b"\0" + header + b"\0\0"])) == []
    assert list(secrets_in([header[:9], header[9:] + b"MIIEpAIBAAKCAQEA" * 4])) == ["Private Key: -----B…"]


@pytest.mark.usefixtures("_vendor_path")
def test_repair_copies_libraries_that_are_not_allowed_outside(tmp_path: Path) -> None:
    wheel = compiled_wheel(tmp_path, vendor="vendor_runtime")
    rules = Wheels(repair=True, platform="manylinux_2_39_x86_64")
    repaired = repair(wheel, rules, tmp_path / "out")
    assert "manylinux" in repaired.name
    assert failed(repaired, rules) == {}
    external = Wheels(repair=True, platform="manylinux_2_39_x86_64", external_libraries=("libvendor_*",))
    kept = repair(wheel, external, tmp_path / "kept")
    assert kept.stat().st_size < repaired.stat().st_size
    assert "external_libraries" in failed(kept, rules)


def test_a_missing_library_is_an_error_of_the_repair_with_advice(tmp_path: Path) -> None:
    wheel = compiled_wheel(tmp_path, vendor="vendor_runtime")
    with pytest.raises(BuildError, match=r"libvendor_runtime\.so\.1[\s\S]*wheels\.external_libraries"):
        repair(wheel, Wheels(repair=True, platform="manylinux_2_39_x86_64"), tmp_path / "out")


@pytest.fixture
def _vendor_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_the_command_prints_findings_for_any_wheel(accel_ci: Run, tmp_path: Path) -> None:
    wheel = compiled_wheel(tmp_path, vendor="vendor_runtime")
    done = accel_ci("check-wheel", wheel.name)
    assert done.returncode == 1
    assert "libvendor_runtime.so.1" in done.stdout
    assert accel_ci("check-wheel", wheel.name, "--allow", "libvendor_*").returncode == 0
    mistake = accel_ci("check-wheel", wheel.name, "--platform", "windows")
    assert (mistake.returncode, "--platform" in mistake.stderr) == (2, True)


def test_the_command_reports_each_wheel_whatever_is_wrong_with_the_others(accel_ci: Run, tmp_path: Path) -> None:
    good = write_wheel(tmp_path / "good")
    misnamed = good.rename(tmp_path / "toy-1.0%2Bcpu-py3-none-any.whl")
    good = write_wheel(tmp_path / "good")
    html = tmp_path / "toy-2.0-py3-none-any.whl"
    html.write_bytes(b"<html>")
    unrecorded = write_wheel(tmp_path / "record", files={"toy/core.py": b""}, record={"toy/core.py": None})
    wheels = [misnamed, html, tmp_path / "missing.whl", tmp_path / "good", unrecorded, good]
    done = accel_ci("check-wheel", "--json", *map(str, wheels))
    assert (done.returncode, done.stderr) == (1, "")
    reports = json.loads(done.stdout)
    assert [report["path"] for report in reports] == list(map(str, wheels))
    causes = [
        {check["name"] for check in report["checks"] if not (check["passed"] or check["summary"].startswith("not checked"))}
        for report in reports
    ]
    assert causes == [{"file_name"}, {"archive"}, {"file_name", "archive"}, {"file_name", "archive"}, {"record"}, set()]
    assert accel_ci("check-wheel", "--json", str(good)).returncode == 0
    assert "toy/core.py: is not in RECORD" in accel_ci("check-wheel", str(good), str(unrecorded)).stdout


def test_a_missing_description_is_a_warning_unless_warnings_are_faults(tmp_path: Path) -> None:
    plain = METADATA.partition("Description")[0].encode()
    wheel = write_wheel(tmp_path, files={"toy-1.0.dist-info/METADATA": plain})
    results = {result.name: result for result in audit_wheel(wheel, Wheels(), dict(os.environ))}
    assert all(result.passed for result in results.values())
    assert "`long_description` missing." in results["twine"].warnings
    assert "`long_description` missing." in failed(wheel, Wheels(strict=True))["twine"]


def test_a_description_that_cannot_be_rendered_is_a_fault(tmp_path: Path) -> None:
    broken = METADATA.replace("text/plain", "text/x-rst").replace("A toy.", "A toy\n===\n\n.. no-such:: x\n\n*open").encode()
    found = failed(write_wheel(tmp_path, files={"toy-1.0.dist-info/METADATA": broken}), Wheels())
    assert "syntax errors in markup" in found.pop("twine")
    assert found == {}


def test_a_wheel_that_would_unpack_to_gigabytes_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy/zeros", bytes(1 << 26))
        entry = archive.infolist()[0]
        archive.filelist += [entry] * 127  # 8 GiB in files that overlap
    code = (
        "import sys; from pathlib import Path; from accel_ci.config.settings import Wheels;"
        "from accel_ci.wheels.audit import audit_wheel; results = audit_wheel(Path(sys.argv[1]), Wheels(), {});"
        # Not ru_maxrss, which a process inherits from the one that starts it.
        "peak = Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0];"
        "print(peak, results[1].findings[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(wheel)], capture_output=True, text=True, timeout=60, check=True)
    peak_kib, _, finding = done.stdout.partition(" ")
    assert finding.startswith("unpacks to 8,589,934,592 bytes")
    assert int(peak_kib) < 200_000


TRIALS = Path(__file__).parents[2].parent / "shared" / "cases" / "trials"
GOOD = {"toybackend-1.0+rocm6.4-py3-none-any.whl", "abi3ok"}


@pytest.mark.skipif(not TRIALS.is_dir(), reason="the trial cases are not there")
def test_the_trial_wheels_are_refused_but_for_the_good_ones(accel_ci: Run) -> None:
    wheels = sorted(TRIALS.glob("3[1347]-*/input/**/*.whl"))
    done = accel_ci("check-wheel", "--json", *map(str, wheels))
    for wheel, report in zip(wheels, json.loads(done.stdout), strict=True):
        good = wheel.name in GOOD or wheel.parent.name in GOOD
        assert all(check["passed"] for check in report["checks"]) == good, wheel
