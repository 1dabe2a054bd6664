"""The sessions of suites: what PyTorch's own tests learn from the environment, and the files that they need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Device, Project
from accel_ci.errors import SourceError
from accel_ci.pool.sessions import disabled_for, files_of_pytorch_suites, session_of

SOURCES = Path("/sources")
FOR_DEVICE = {
    "ACCEL_CI_DEVICE": "emu",
    "TORCH_TEST_DEVICES": "/sources/pytorch_tests/device_base.py",
    "PYTORCH_TESTING_DEVICE_ONLY_FOR": "emu",
    "PYTORCH_TESTING_DEVICE_FOR_CUSTOM": "emu",
}


@pytest.fixture
def settings(make_project: Callable[..., Project]) -> Callable[..., Any]:
    def _settings(device: dict[str, str] | None = None, **suite: Any) -> Any:
        suites = {
            "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
            "unit": {"paths": ["tests/unit"], **suite},
        }
        return make_project(suites=suites, device=device or {"type": "emu"}).settings

    return _settings


def test_a_suite_of_the_backend_knows_nothing_of_devices(settings: Callable[..., Any]) -> None:
    given = settings(environment={"A": "1"}, test_timeout_seconds=7)
    session = session_of(given, given.suites["unit"], SOURCES, "nightly")
    assert (session.paths, session.environment, session.test_timeout_s) == (("tests/unit",), {"A": "1"}, 7)
    assert not session.isolate
    assert files_of_pytorch_suites(given.device, [given.suites["unit"]], SOURCES) == {}


def test_a_suite_of_upstream_is_instantiated_for_the_device(settings: Callable[..., Any]) -> None:
    given = settings(source="upstream", paths=["test/test_a.py"], environment={"PYTORCH_TEST_WITH_SLOW": "1"})
    session = session_of(given, given.suites["unit"], SOURCES, "nightly")
    assert session.paths == ("upstream/test/test_a.py",)
    assert session.isolate, "PyTorch runs each of its files in a process of its own, too"
    assert session.environment == {**FOR_DEVICE, "PYTORCH_TEST_WITH_SLOW": "1"}
    assert files_of_pytorch_suites(given.device, [given.suites["unit"]], SOURCES).keys() == {"pytorch_tests/device_base.py"}


def test_tolerances_are_told_to_the_base_class(settings: Callable[..., Any]) -> None:
    rule = {"ops": ["mm", "linalg.*"], "atol": 0.01, "rtol": 0.5, "reason": "not_implemented"}
    given = settings(source="upstream", scope={"tolerances": [{**rule, "dtypes": ["float16"]}, rule]})
    environment = session_of(given, given.suites["unit"], SOURCES, "nightly").environment
    expected = {"ops": ["mm", "linalg.*"], "atol": 0.01, "rtol": 0.5}
    assert json.loads(environment["ACCEL_CI_TOLERANCES"]) == [{**expected, "dtypes": ["float16"]}, expected]


def test_a_suite_may_be_instantiated_for_the_cpu(settings: Callable[..., Any]) -> None:
    given = settings(source="upstream", instances="cpu")
    session = session_of(given, given.suites["unit"], SOURCES, "nightly")
    assert session.environment == {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}


@pytest.mark.parametrize("kind", ["op_db", "opinfo", "module_db"])
def test_a_ready_suite_brings_its_file(settings: Callable[..., Any], kind: str) -> None:
    given = settings(kind=kind, paths=[])
    suite = given.suites["unit"]
    assert session_of(given, suite, SOURCES, "nightly").paths == (f"pytorch_tests/test_{kind}.py",)
    names = files_of_pytorch_suites(given.device, [suite], SOURCES).keys()
    assert names == {f"pytorch_tests/{name}.py" for name in ("device_base", "compared_with_cpu", f"test_{kind}")}


def test_the_base_and_the_lists_of_the_backend_are_used(settings: Callable[..., Any], tmp_path: Path) -> None:
    lists = {"disabled_tests": "ci/disabled.json", "slow_tests": "ci/slow.json"}
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci/disabled.json").write_text('{"test_a (__main__.TestA)": ["https://example.org/1", ["emu"]]}')
    (tmp_path / "ci/slow.json").write_text('{"test_b (__main__.TestB)": 61.5}')
    given = settings(device={"type": "emu", "test_base": "ci/base.py", **lists}, source="upstream")
    session = session_of(given, given.suites["unit"], tmp_path, "nightly")
    files = files_of_pytorch_suites(given.device, [given.suites["unit"]], tmp_path)
    assert session.environment["ACCEL_CI_TEST_BASE"] == str(tmp_path / "ci/base.py")
    for variable, content in (
        ("DISABLED_TESTS_FILE", {"test_a (__main__.TestA)": ["https://example.org/1", []]}),
        ("SLOW_TESTS_FILE", {"test_b (__main__.TestB)": 61.5}),
    ):
        name = Path(session.environment[variable]).relative_to(tmp_path).as_posix()
        assert json.loads(files[name]) == content


@pytest.mark.parametrize("text", [None, "[", "[]"])
def test_a_list_that_cannot_be_read_is_named(tmp_path: Path, settings: Callable[..., Any], text: str | None) -> None:
    if text is not None:
        (tmp_path / "disabled.json").write_text(text)
    given = settings(source="upstream")
    device = Device(type="emu", disabled_tests="disabled.json")
    with pytest.raises(SourceError, match=r"device\.disabled_tests: disabled\.json"):
        files_of_pytorch_suites(device, [given.suites["unit"]], tmp_path)


def test_tests_that_are_disabled_elsewhere_run_here() -> None:
    """PyTorch drops platforms that it does not know, and takes a list that is empty then for all platforms."""
    given = {
        "test_everywhere (__main__.T)": ["1", "https://example.org/1", []],
        "test_here (__main__.T)": ["2", "https://example.org/2", ["linux", "emu"]],
        "test_there (__main__.T)": ["3", "https://example.org/3", ["rocm"]],
        "test_local (__main__.T)": ["https://example.org/4", ["spyre"]],
    }
    assert disabled_for("emu", given) == {
        "test_everywhere (__main__.T)": ("https://example.org/1", []),
        "test_here (__main__.T)": ("https://example.org/2", []),
    }
