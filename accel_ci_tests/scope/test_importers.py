"""Rules from other projects' files: each format as those projects write it, and files that are something else."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import yaml

from accel_ci.config.scope_settings import RuleFile, Scope
from accel_ci.errors import ConfigError
from accel_ci.scope.apply import apply_scope
from accel_ci.scope.importers.disabled_tests import read_disabled_tests
from accel_ci.scope.importers.imported import DeviceNames, Imported
from accel_ci.scope.importers.skip_lists import read_skip_list
from accel_ci.scope.importers.test_suite_config import read_test_suite_config
from accel_ci.scope.table import FACTS

NPU, XPU, NONE = DeviceNames("npu", "emu"), DeviceNames("xpu", "emu"), DeviceNames(None, None)


def table(*tests: tuple[str, str, str, str]) -> pa.Table:
    """Return the facts of tests of a file: class, method, op and dtype, on the device type `emu`."""
    rows = [
        {
            "test": f"upstream/test/test_ops.py::{owner}EMU::{method}{f'_{op}' if op else ''}_emu_{dtype}",
            "file": "upstream/test/test_ops.py", "class_name": owner, "method": method, "op": op or None, "dtypes": [dtype],
            "device": "emu", "module": None, "markers": [], "decorators": [],
        }
        for owner, method, op, dtype in tests
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=FACTS)


OPS = table(
    ("TestOps", "test_forward", "add", "float32"), ("TestOps", "test_forward", "add", "int64"),
    ("TestOps", "test_forward", "mul", "float32"), ("TestOpsMore", "test_forward", "add", "float32"),
    ("TestOther", "test_x", "", "float32"),
)  # fmt: skip


def decided(imported: Imported) -> list[tuple[str, str]]:
    """Return the statuses and modes of `OPS` by rules as they are written to a file and read again."""
    rules = RuleFile.model_validate(yaml.safe_load(imported.as_yaml()))
    scope = Scope.model_validate({name: getattr(rules, name) for name in RuleFile.model_fields})
    rows = apply_scope("ops", scope, OPS).table
    return [
        (str(status), str(mode)) for status, mode in zip(rows["status"].to_pylist(), rows["mode"].to_pylist(), strict=True)
    ]


def out_of_scope(imported: Imported) -> list[int]:
    return [place for place, (status, _) in enumerate(decided(imported)) if status == "out_of_scope"]


@pytest.mark.parametrize(
    ("entry", "device", "places"),
    [
        ({"test_forward_add_npu_float32 (__main__.TestOpsPRIVATEUSE1)": ["", [""]]}, NPU, [0]),
        ({"test_forward_add (__main__.TestOps)": ["https://x.example/1", []]}, NONE, [0, 1, 3]),  # a class by its beginning
        ({"test_forward_add_emu_int64 (__main__.TestOpsEMU)": ["1", "https://x.example/1", ["linux"]]}, NONE, [1]),
        ({"test_forward_add (__main__.TestOps)": ["1", "https://x.example/1", ["rocm", "win"]]}, NONE, []),
        ({"test_forward_add (__main__.TestOps)": ["1", "https://x.example/1", ["spyre"]]}, NONE, [0, 1, 3]),
        ({"test_x (test_ops.TestOther)": ["", []]}, NONE, [4]),
        ({"test/test_ops.py::TestOpsPRIVATEUSE1::test_forward_add_npu_int64": {"category": "c", "reason": "r"}}, NPU, [1]),
    ],
)
def test_disabled_tests(entry: dict[str, Any], device: DeviceNames, places: list[int]) -> None:
    assert out_of_scope(read_disabled_tests(json.dumps(entry), device, "upstream_bug")) == places


def test_disabled_tests_of_one_class_and_issue_are_one_rule() -> None:
    entries = {f"test_{number} (__main__.TestA)": ["12", "https://x.example/1", []] for number in range(3)}
    entries |= {"test_3 (__main__.TestA)": ["13", "https://x.example/2", ["A2"]], "odd": []}
    found = read_disabled_tests(json.dumps(entries), NONE, "upstream_bug")
    names = ["test_0", "test_1", "test_2"]
    assert found.rules["exclude"] == [
        {"classes": ("TestA*",), "reason": "upstream_bug", "issue": "https://x.example/1", "methods": names},
        {"classes": ("TestA*",), "reason": "upstream_bug", "text": "A2", "issue": "https://x.example/2",
         "methods": ["test_3"]},
    ]  # fmt: skip
    assert (found.entries, found.left_out) == (5, ("odd: not of the form 'method (__main__.Class)' with a list",))


SKIPS = """
import os
os.system("touch executed")
PYTORCH_TEST_DIR = "../../../../test"
skip_dict = {
    "test_ops_xpu.py": (
        "test_forward_mul_xpu",  # a comment
        "test_forward_add_xpu_int" "64",
    ),
    f"{PYTORCH_TEST_DIR}/test_other.py": None,
    f"{PYTORCH_TEST_DIR}/nn/test_n.py": ["test_n"],
    "whole_xpu.py": ("whole_xpu.py::",),
    f"{os.name}.py": ("x",),
    "computed.py": tuple(range(3)),
}
"""


def test_skip_lists_are_parsed_and_not_executed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_skip_list(SKIPS, XPU, "not_implemented")
    assert out_of_scope(found) == [1, 2]
    assert [rule["files"] for rule in found.rules["exclude"]] == [["*test_ops.py"], ["*test/nn/test_n.py"], ["*whole.py"]]
    assert found.entries == 4
    assert [line.partition(":")[0] for line in found.left_out] == ["line 13", "line 14"]
    assert not list(tmp_path.iterdir())


CONFIG = """
test_suite_config:
  files:
    - path: ${TORCH_ROOT}/test/test_ops.py
      unlisted_test_mode: skip
      tests:
        - names: [TestOps::test_forward, 'TestOther::test_(?!x)y']
          edits: {dtypes: {exclude: [{name: int64}]}, functions: {cpu_move: [{name: assertEqual}]}}
        - names: ["TestOpsMore::test_.*"]
          mode: xfail_strict
    - path: ${TORCH_DEVICE_ROOT}/tests/test_more.py
      unlisted_test_mode: xfail
  global:
    supported_dtypes: [{name: float32, precision: {atol: 1}}, {name: int64}]
    input_config: [a]
"""


def test_a_test_suite_config() -> None:
    found = read_test_suite_config(CONFIG, "not_implemented")
    assert decided(found) == [
        ("enabled", "must_pass"), ("enabled", "skip"), ("enabled", "must_pass"), ("enabled", "xfail_strict"),
        ("not_enabled", "must_pass"),
    ]  # fmt: skip
    assert found.rules["exclude"][0]["reason"] == "unsupported_dtype"
    assert "float64" in found.rules["exclude"][0]["dtypes"]
    assert found.rules["enabled"][-1] == {"files": ["tests/test_more.py"]}
    assert len(found.left_out) == 4
    assert found.entries == 3


def suite_config(unlisted: str, tests: list[dict[str, Any]], **device: Any) -> list[tuple[str, str]]:
    """The statuses and modes that a `test_suite_config` with these tests gives the tests in `OPS`."""
    file = {"path": "${TORCH_ROOT}/test/test_ops.py", "unlisted_test_mode": unlisted, "tests": tests}
    config = {"test_suite_config": {"files": [file], "global": device}}
    return decided(read_test_suite_config(yaml.safe_dump(config), "not_implemented"))


ENABLED, SKIPPED, XFAIL = ("enabled", "must_pass"), ("enabled", "skip"), ("enabled", "xfail")
OUT, LATER = ("out_of_scope", "must_pass"), ("not_enabled", "must_pass")
FORWARD: dict[str, Any] = {"names": ["TestOps::test_forward"]}


def test_the_last_entry_with_a_name_counts() -> None:
    entries = [{**FORWARD, "mode": "skip"}, {"names": ["TestOther::test_x"], "mode": "xfail"}, {**FORWARD, "mode": "xfail"}]
    assert suite_config("skip", entries) == [XFAIL, XFAIL, XFAIL, LATER, XFAIL]
    assert suite_config("skip", entries[::-1]) == [LATER, LATER, LATER, LATER, XFAIL]


def test_alternatives_of_a_regular_expression_are_patterns() -> None:
    names = ["TestO(ther|ps(More|Less))::test_(x|(?:back|for)ward)"]
    assert suite_config("skip", [{"names": names}]) == [LATER, LATER, LATER, ENABLED, ENABLED]
    many = [{"names": ["TestOps::test_" + "(a|b)" * 40, *names]}]
    assert suite_config("skip", many) == [LATER, LATER, LATER, ENABLED, ENABLED]


def test_dtypes_that_one_test_includes_are_left_to_it() -> None:
    both = [{**FORWARD, "edits": {"dtypes": {"include": [{"name": "int64"}]}}}, {"names": ["TestOther::test_x"]}]
    assert suite_config("skip", both, supported_dtypes=[{"name": "float32"}])[:2] == [ENABLED, ENABLED]
    assert suite_config("skip", both[1:], supported_dtypes=[{"name": "int64"}])[4] == OUT
    float32 = [FORWARD, {"names": ["TestOther::test_x"], "edits": {"dtypes": {"include": ["float32"]}}}]
    found = suite_config("must_pass", float32, supported_dtypes=[{"name": "int64"}])
    assert found == [SKIPPED, ENABLED, SKIPPED, LATER, ENABLED], "a mode that is not known is skip"
    found = suite_config("mandatory_success", float32, supported_dtypes=[{"name": "int64"}])
    assert found == [SKIPPED, ENABLED, SKIPPED, SKIPPED, ENABLED]


def test_operators_that_are_not_supported_are_skipped() -> None:
    add: dict[str, Any] = {"supported_ops": [{"name": "add"}]}
    assert suite_config("mandatory_success", [FORWARD], **add) == [ENABLED, ENABLED, SKIPPED, ENABLED, ENABLED]
    assert suite_config("xfail", [FORWARD], **add) == [ENABLED, ENABLED, SKIPPED, XFAIL, XFAIL]
    included = {**FORWARD, "mode": "xfail", "edits": {"ops": {"include": [{"name": "mul"}]}}}
    assert suite_config("skip", [included], **add) == [XFAIL, XFAIL, XFAIL, LATER, LATER]
    narrow = {"name": "add", "dtypes": [{"name": "float32"}]}
    assert suite_config("mandatory_success", [], supported_ops=[narrow])[:3] == [ENABLED, OUT, SKIPPED]


def test_what_is_forced_to_fail_is_what_would_have_to_pass() -> None:
    device = {"supported_ops": [{"name": "add", "force_xfail": True}], "supported_dtypes": [
        {"name": "float32", "force_xfail": True}, {"name": "int64"},
    ]}  # fmt: skip
    assert suite_config("mandatory_success", [], **device) == [XFAIL, XFAIL, SKIPPED, XFAIL, XFAIL]
    entries = [{**FORWARD, "mode": "skip"}, {"names": ["TestOther::test_x"], "mode": "xfail_strict"}]
    strict = ("enabled", "xfail_strict")
    assert suite_config("mandatory_success", entries, **device) == [SKIPPED, SKIPPED, SKIPPED, XFAIL, strict]


def test_modules_have_the_names_that_pytorch_gives_them() -> None:
    test = {"names": ["TestM::test_m"], "edits": {"modules": {"exclude": [{"name": "torch.nn.Linear"}]}}}
    config = {"test_suite_config": {"files": [{"path": "test_m.py", "tests": [test]}]}}
    found = read_test_suite_config(yaml.safe_dump(config), "not_implemented")
    assert found.rules["modes"][0]["modules"] == ["nn.Linear"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must be an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_list_of_disabled_tests(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_disabled_tests(text, NONE, "r")


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "assigns no dictionary"), ("if", "not Python"), ("(" * 10_000, "not Python"), ("\0", "not")],
)
def test_what_is_no_skip_list(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_skip_list(text, NONE, "r")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: 1", "must have a list of files"), ("a: [", "not YAML"), ("!!python/object:os.system {}", "not YAML")],
)
def test_what_is_no_test_suite_config(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_test_suite_config(text, "r")
