from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from accel_ci.model import Attempt, Build
from accel_ci.results.columns import conform
from accel_ci.results.rows import ATTEMPTS, REPORT_ORDER, from_report
from accel_ci_tests.fixtures.stored_attempts import rows_of, to_attempts

BUILD = Build("nightly-20261127", "py3")


def report(**columns: list[Any]) -> pa.Table:
    length = len(next(iter(columns.values())))
    return pa.table({"outcome": ["passed"] * length, "attempt": [0] * length, **columns})


def rows_of_report(table: pa.Table, *arguments: Any) -> pa.Table:
    return pa.concat_tables(from_report(BUILD, "s", table, *arguments))


@pytest.mark.parametrize(
    ("target", "file", "classname", "name", "test"),
    [
        (None, "tests/test_a.py", "tests.test_a", "test_b[0]", "tests/test_a.py::test_b[0]"),
        (None, "tests/test_a.py", "tests.test_a.TestC.TestD", "test_b", "tests/test_a.py::TestC::TestD::test_b"),
        (None, r"tests\test_a.py", "tests.test_a", "test_b", r"tests\test_a.py::test_b"),
        (None, "tests/test_a.py", "tests.test_ab", "test_b", "tests/test_a.py::tests.test_ab::test_b"),
        (None, "src/FooTest.java", "com.acme.FooTest", "works", "src/FooTest.java::com.acme.FooTest::works"),
        (None, "tests/test_a.py", "", "test_b", "tests/test_a.py::test_b"),
        (None, None, "com.acme.FooTest", "works", "com.acme.FooTest::works"),
        (None, None, "", "works", "works"),
        ("//a/b:c", None, "Suite", "works", "//a/b:c::Suite::works"),
        (None, "a[*].py", "a[*]", "'; --\x00", "a[*].py::'; --\x00"),
    ],
)
def test_canonical_ids(target: str | None, file: str | None, classname: str, name: str, test: str) -> None:
    rows = rows_of_report(report(target=[target], file=[file], classname=[classname], name=[name]))
    assert rows["test"].to_pylist() == [test]
    assert rows.schema == ATTEMPTS


def test_attempts_of_a_test_go_on_from_file_to_file() -> None:
    rows = rows_of_report(
        report(
            classname=["C"] * 6,
            name=["a", "b", "a", "a", "b", "c"],
            attempt=[0, 0, 0, 1, 0, 0],
            outcome=["passed", "failed", "failed", "passed", "passed", "skipped"],
            **{REPORT_ORDER: [1, 1, 0, 0, 2, 2]},
        ),
    )
    found = [(row["test"], row["attempt"], row["outcome"]) for row in rows.to_pylist()]
    assert found == [
        ("C::a", 0, "failed"), ("C::a", 1, "passed"), ("C::a", 2, "passed"),
        ("C::b", 0, "failed"), ("C::b", 1, "passed"), ("C::c", 0, "skipped"),
    ]  # fmt: skip


@pytest.mark.parametrize("slice_rows", [1, 2, 3, 7, 100])
def test_slices_hold_whole_tests(slice_rows: int) -> None:
    names = [f"t{number % 5}" for number in range(12)] + ["u"] * 4
    table = report(classname=["C"] * len(names), name=names)
    slices = list(from_report(BUILD, "s", table, None, slice_rows))
    tests = [set(rows["test"].to_pylist()) for rows in slices]
    assert sum(map(len, tests)) == len(set(names)), "a test is in one slice"
    assert all(len(rows) >= min(slice_rows, len(names)) for rows in slices[:-1])
    assert pa.concat_tables(slices).equals(rows_of_report(table))
    assert list(from_report(BUILD, "s", table.slice(0, 0))) == []


def test_what_a_report_leaves_out_is_filled_in() -> None:
    began = datetime(2026, 11, 27, tzinfo=timezone.utc)
    table = report(classname=["C", "D"], name=["a", "b"], outcome=["failed", "passed"], message=["at 0x12", "ran 3 s"])
    first, second = rows_of_report(table, began).to_pylist()
    assert (first["round"], first["started_at"], first["signature"], first["card"]) == (1, began, "at <hex>", None)
    assert (second["message"], second["signature"]) == ("ran 3 s", None), "a pass has no failure's signature"
    assert (first["revision"], first["variant"], first["suite"]) == ("nightly-20261127", "py3", "s")


def test_attempts_of_the_runner_come_back_as_they_were(attempt: Callable[..., Attempt]) -> None:
    given = [
        attempt("b", "failed", message="1"), attempt("a", "crashed", infra="bad card"), attempt("b", "passed"),
        attempt("b", "passed", round=2),
    ]  # fmt: skip
    rows = rows_of(BUILD, "unit", given)
    assert [(row["test"], row["round"], row["attempt"]) for row in rows.to_pylist()] == [
        ("a", 1, 0), ("b", 1, 0), ("b", 1, 1), ("b", 2, 0),
    ]  # fmt: skip
    assert to_attempts(rows) == [given[1], given[0], given[2], given[3]]


def test_columns_of_earlier_versions_are_null() -> None:
    old = pa.table({"test": ["a"], "round": pa.array([1], pa.int64()), "unknown": [1]})
    table = conform(old, ATTEMPTS)
    assert table.schema == ATTEMPTS
    assert (table["round"][0].as_py(), table["attempt"][0].as_py()) == (1, None)
