from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Attempt, Build
from accel_ci.reports.parse import read_chunks
from accel_ci.results.export import export
from accel_ci.results.ingest import ingest
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts

BUILD, DAY = Build("r", "v"), date(2026, 11, 27)
HOSTILE = [
    "'; DROP",
    '<script>"&',
    "a\x00b\x1b\ufffe",
    "a\nb\tc",
    "naïve \U0001f4a9",
    "]]>",
    "=cmd()",
    r"\u{0}",
    "x" * 10_000,
]


@pytest.fixture
def store(tmp_path: Path, attempt: Callable[..., Attempt]) -> ResultsStore:
    store = ResultsStore(tmp_path / "results")
    rows = [
        attempt("tests/test_a.py::T::test_p", "passed", seconds=0.25),
        attempt("tests/test_a.py::test_f[x::y]", "failed", message="off by 3", seconds=None),
        attempt("tests/test_a.py::test_f[x::y]", "crashed", message="SIGSEGV", round=2),
        attempt("tests/test_a.py::test_flaky", "timeout", message="too long"),
        attempt("tests/test_a.py::test_flaky", "passed", round=2),
        attempt("tests/test_a.py::test_t", "timeout", message="60 s"),
        attempt("tests/test_a.py::test_e", "error", message="fixture"),
        attempt("tests/test_a.py::test_s", "skipped", message="no card"),
        attempt("tests/test_a.py::test_x", "xfailed", message="known"),
        attempt("tests/test_a.py::test_xp", "xpassed"),
        attempt("tests/test_a.py::test_n", "not_run", seconds=None, infra="bad card"),
        attempt("tests/test_a.py::test_again", "failed", message="2 is not 3"),
        attempt("tests/test_a.py::test_again", "skipped", round=2, message="test_open has not run"),
    ]
    rows += [attempt(name, "failed", message=name, suite='<h&"') for name in HOSTILE]
    write_attempts(store, BUILD, DAY, rows)
    return store


def exported(store: ResultsStore, form: str, suite: str | None = None) -> bytes:
    sink = io.BytesIO()
    assert export(store, BUILD, sink, form, suite) == (13 if suite == "unit" else 22)  # type: ignore[arg-type]
    return sink.getvalue()


def test_exported_junit_has_the_same_outcomes(store: ResultsStore) -> None:
    report = read_chunks([exported(store, "junit", "unit")])
    assert (report.status, report.warnings - {"duration_missing"}) == ("complete", set())
    found = {(row.classname, row.name, row.attempt): row for row in report.rows}
    outcomes = {key[1:]: row.outcome for key, row in found.items()}
    assert outcomes == {
        ("test_p", 0): "passed", ("test_f[x::y]", 0): "failed", ("test_f[x::y]", 1): "crashed", ("test_flaky", 0): "timeout",
        ("test_flaky", 1): "passed", ("test_t", 0): "timeout", ("test_e", 0): "error", ("test_s", 0): "skipped",
        ("test_x", 0): "xfailed", ("test_xp", 0): "xpassed", ("test_n", 0): "not_run",
        ("test_again", 0): "failed",
    }  # fmt: skip
    passed = found["tests.test_a.T", "test_p", 0]
    assert (passed.file, passed.duration_s, passed.message) == ("tests/test_a.py", 0.25, None)
    assert found["tests.test_a", "test_f[x::y]", 1].message == "SIGSEGV (worker 'accel-ci' crashed while running)"
    assert ("infra", "bad card") in found["tests.test_a", "test_n", 0].properties


def test_exported_junit_has_the_same_verdicts(store: ResultsStore, tmp_path: Path) -> None:
    (tmp_path / "out.xml").write_bytes(exported(store, "junit", "unit"))
    again = ResultsStore(tmp_path / "again")
    found = ingest([tmp_path / "out.xml"], BUILD, "unit", DAY, again)
    assert (found.exit_code, found.rows) == (0, 12)
    [before], [after] = store.suites(suite="unit"), again.suites()
    verdicts = []
    for kept, stored in ((store, before), (again, after)):
        verdicts.append(kept.judged(stored).select(["test", "verdict"]).to_pylist())
        assert {row["card"] for row in kept.read(stored, ["card"]).to_pylist()} - {None} == {"0"}
    infra = "tests/test_a.py::test_n"  # JUnit has a status for it, and the pool's reason is a property
    assert [row for row in verdicts[0] if row["test"] != infra] == [row for row in verdicts[1] if row["test"] != infra]


def test_hostile_names_are_escaped_in_junit(store: ResultsStore) -> None:
    report = read_chunks([exported(store, "junit")])
    assert report.status == "complete"
    names = {row.name for row in report.rows}
    assert {"'; DROP", '<script>"&', "naïve \U0001f4a9", "]]>", "=cmd()", "x" * 10_000} <= names
    assert len({row.name for row in report.rows if not row.name.startswith("test_")}) == len(HOSTILE)


def test_csv_and_parquet_hold_every_row(store: ResultsStore) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(store, "csv").decode(), newline="")))
    table = pq.read_table(io.BytesIO(exported(store, "parquet"))).to_pylist()
    assert [row["test"] for row in rows] == [row["test"] for row in table]
    assert {row["test"] for row in table} >= set(HOSTILE)
    assert (rows[-1]["suite"], rows[-1]["outcome"]) == ("unit", table[-1]["outcome"])


def test_nothing_to_export_is_an_error(store: ResultsStore) -> None:
    with pytest.raises(AccelCiError, match="no results are stored for r~v, suite gone"):
        export(store, BUILD, io.BytesIO(), "csv", "gone")
