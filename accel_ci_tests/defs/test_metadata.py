from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from accel_ci.config.loading import load_project
from accel_ci.defs.metadata import check_result, plain_rows, pods_table, table
from accel_ci.model import Build, CheckResult, WorkerPod
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import write_project

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


def test_pods_are_linked_to_their_logs_and_a_hostile_name_is_no_link(tmp_path: Path) -> None:
    pods = [
        WorkerPod("round-1", "w0-0", "0", "tests", "accel-ci-round-1-x7"),
        WorkerPod("round-1", "w0-1", "1", "tests", "a](http://b/)"),
    ]
    write_project(tmp_path)
    plain = str(pods_table(Workspace(load_project(tmp_path / "accel_ci.yaml")), pods).value)
    assert "| round-1 | w0-0 | 0 | tests | accel-ci-round-1-x7 |" in plain
    places = {"ui": "http://u", "hud": "http://h", "pods": "https://logs.example.org/{namespace}?pod={pod}"}
    write_project(tmp_path, addresses=places)
    linked = str(pods_table(Workspace(load_project(tmp_path / "accel_ci.yaml")), pods, limit=1).value)
    assert "| [accel-ci-round-1-x7](https://logs.example.org/tests?pod=accel-ci-round-1-x7) |" in linked
    assert linked.endswith("… and 1 more")
    hostile = str(pods_table(Workspace(load_project(tmp_path / "accel_ci.yaml")), pods[1:]).value)
    assert "[a\\](http://b/)](https://logs.example.org/tests?pod=a%5D%28http%3A%2F%2Fb%2F%29)" in hostile
