from __future__ import annotations

import dagster as dg
import pytest

from accel_ci.defs.metadata import check_result, plain_rows, table
from accel_ci.model import Build, CheckResult

BUILD = Build("nightly-20261127", "py3")
HOSTILE = ["a|b", "<script>alert(1)</script>", "`code` [link](javascript:x)", "back\\slash \\| &amp; &lt;", "plain"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_and_can_be_had_back(text: str) -> None:
    value = table(["finding"], [[text], ["other"]])
    assert plain_rows(value) == [text, "other"]
    assert "<" not in str(value.value)
    assert "[link]" not in str(value.value).replace("\\[link]", "")


def test_lines_are_one_row_and_rows_over_the_limit_are_counted() -> None:
    value = table(["a", "b"], [["two\nlines", 1]] * 3, limit=2)
    assert str(value.value).splitlines()[2:] == ["| two lines | 1 |", "| two lines | 1 |", "", "… and 1 more"]


def test_an_empty_table_says_so() -> None:
    assert (table(["a"], []).value, plain_rows(table(["a"], []))) == ("none", [])


def test_warnings_of_a_check_are_shown_and_stop_nothing() -> None:
    warned = check_result(CheckResult("twine", True, "no description", (), ("no description",)), BUILD)
    assert (warned.passed, warned.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert plain_rows(warned.metadata["findings"]) == ["no description"]
    failed = check_result(CheckResult("twine", False, "syntax", ("syntax",), ("no description",)), BUILD)
    assert (failed.passed, failed.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert check_result(CheckResult("twine", True, "passed"), BUILD).passed
