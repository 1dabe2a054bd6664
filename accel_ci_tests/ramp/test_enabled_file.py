"""The file of enabled tests: patterns where a class or a method is whole, a short diff, and comments that stay."""

from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from accel_ci.errors import ConfigError
from accel_ci.ramp.enabled_file import extend, read_enabled, write_enabled
from accel_ci_tests.fixtures.scoped_builds import Row, op_rows, scope_row, scope_table

ROWS = op_rows(["add", "addmm"], ["float32", "int64"])
ADD, ADDMM = [row["test"] for row in ROWS[:2]], [row["test"] for row in ROWS[2:]]


def test_single_tests_have_their_ids_and_a_whole_method_or_class_has_a_pattern() -> None:
    scope = scope_table(ROWS)
    assert extend([], ADD[:1], scope) == (ADD[:1], set())
    method = "test/test_ops.py::TestCommonEMU::test_out_add_emu_*"
    assert extend([], ADD, scope) == ([method], set())
    assert extend([method], ADDMM, enabled(ROWS, ADD)) == (["test/test_ops.py::TestCommonEMU::*"], {method})


def enabled(rows: list[Row], tests: list[str]) -> pa.Table:
    return scope_table([{**row, "status": "enabled"} if row["test"] in tests else row for row in rows])


def test_a_test_out_of_scope_does_not_keep_a_class_from_a_pattern() -> None:
    rows = [*ROWS[:2], {**ROWS[2], "status": "out_of_scope"}]
    assert extend(ADD[:1], ADD, scope_table(rows))[0] == ["test/test_ops.py::TestCommonEMU::*"]


def test_a_pattern_matches_no_test_of_another_group() -> None:
    rows = [scope_row(f"t.py::TestA::test_{name}", "not_enabled", method="test_a") for name in ("a", "ab")]
    rows += [scope_row("t.py::TestA::test_abc", "not_enabled", method="test_abc")]
    tests = [row["test"] for row in rows[:2]]
    assert extend([], tests, scope_table(rows)) == (tests, set())


def test_new_lines_are_in_order_and_others_stay_with_their_comments(tmp_path: Path) -> None:
    path = tmp_path / "scope" / "enabled.yaml"
    assert read_enabled(path) == []
    assert write_enabled(path, ADDMM[:1], scope_table(ROWS)) == (1, 0)
    text = "# not enabled:\n" + path.read_text()
    path.write_text(text.replace("  - ", "  # ours\n  - ") + "  - ops: [mul]\n    dtypes: [bool]\n  - zz.py::*  # all of it")
    assert write_enabled(path, ADD[:1], scope_table(ROWS)) == (1, 0)
    assert path.read_text().splitlines()[-6:] == [
        f'  - "{ADD[0]}"',
        "  # ours",
        f'  - "{ADDMM[0]}"',
        "  - ops: [mul]",
        "    dtypes: [bool]",
        "  - zz.py::*  # all of it",
    ]
    assert read_enabled(path) == [ADD[0], ADDMM[0], "zz.py::*"]
    assert write_enabled(path, [*ADD, *ADDMM], scope_table(ROWS)) == (1, 2)
    assert read_enabled(path) == ["test/test_ops.py::TestCommonEMU::*", "zz.py::*"]
    before = path.read_text()
    assert write_enabled(path, [], scope_table(ROWS)) == (0, 0)
    assert path.read_text() == before
    assert before.startswith("# not enabled:\n# The enabled tests")


def test_hostile_ids_survive(tmp_path: Path) -> None:
    tests = [
        "t.py::a[: #- \"'\\]",
        "t.py::b[\u202e\u2028é]",
        "t.py::c[\x00\x07\x7f\x85\ufeff]",
        "- x: {",
        "t.py::d[\U0001f600]",
    ]
    path = tmp_path / "enabled.yaml"
    write_enabled(path, tests, scope_table([scope_row(f"f::{number}") for number in range(2)]))
    assert read_enabled(path) == sorted(tests)
    assert yaml.safe_load(path.read_text("utf-8")) == {"enabled": sorted(tests)}


@pytest.mark.parametrize("text", ["enabled: 3", "enabled: [1]", "[", "just text"])
def test_a_file_of_another_shape_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "enabled.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"enabled\.yaml"):
        read_enabled(path)


@pytest.mark.parametrize("indent", ["", "    "])
def test_new_lines_begin_where_others_do(tmp_path: Path, indent: str) -> None:
    path = tmp_path / "enabled.yaml"
    path.write_text(f"enabled:\n{indent}- b\n")
    write_enabled(path, ["a", "c"], scope_table(ROWS))
    assert read_enabled(path) == ["a", "b", "c"]
    assert path.read_text() == f'enabled:\n{indent}- "a"\n{indent}- b\n{indent}- "c"\n'


@pytest.mark.parametrize("text", ["enabled:\n - b\n - >-\n  a b\n", "enabled:\n- &x b\n- *x\n", "enabled:\n - 'a\n   b'\n"])
def test_yaml_that_lines_do_not_keep_keeps_its_meaning(tmp_path: Path, text: str) -> None:
    path = tmp_path / "enabled.yaml"
    path.write_text(text)
    before = read_enabled(path)
    write_enabled(path, ["aa", "zz"], scope_table(ROWS))
    assert sorted(read_enabled(path)) == sorted([*before, "aa", "zz"])


def test_a_file_in_another_form_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "enabled.yaml"
    path.write_text("{enabled: [b, {ops: [mul]}, a]}\n")
    write_enabled(path, ["aa"], scope_table(ROWS))
    assert yaml.safe_load(path.read_text()) == {"enabled": ["aa", "b", {"ops": ["mul"]}, "a"]}
