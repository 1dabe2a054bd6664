"""One reader of JUnit XML in a process of its own, for `benchmarks.reports`: `reports_reader.py READER QUESTION FILES…`.

Runs in the project's environment for `accel_ci`, in a throw-away one for the peers, so it imports nothing of the project at
the top. The question `time` returns the seconds, cases and peak memory for one file, `store` the same with the rows stored,
`rows` the rows of each file.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

Row = tuple[str | None, str | None, str]
"""Class name, name, outcome."""


def accel_ci() -> tuple[Callable[[Path], Any], Callable[[Any], Iterator[Row]]]:
    """This project's reader, to columns."""
    from accel_ci.reports.parse import read_file

    return read_file, lambda report: zip(report.columns.classname, report.columns.name, report.columns.outcome, strict=True)


def junitparser() -> tuple[Callable[[Path], Any], Callable[[Any], Iterator[Row]]]:
    """`junitparser`, to its objects."""
    from junitparser import JUnitXml

    outcomes = {"Failure": "failed", "Error": "error", "Skipped": "skipped"}

    def rows(document: Any) -> Iterator[Row]:
        for suite in document if document._tag == "testsuites" else [document]:
            for case in suite:
                kinds = [outcomes[type(result).__name__] for result in case.result if type(result).__name__ in outcomes]
                yield case.classname, case.name, min(kinds, default="passed")

    return lambda path: JUnitXml.fromfile(str(path)), rows


def xunitparser() -> tuple[Callable[[Path], Any], Callable[[Any], Iterator[Row]]]:
    """`xunitparser`, to its objects."""
    import xunitparser as package

    outcomes = {"success": "passed", "failure": "failed"}

    def rows(parsed: Any) -> Iterator[Row]:
        return ((case.classname, case.methodname, outcomes.get(case.result, case.result)) for case in parsed[0])

    return lambda path: package.parse(path.open("rb")), rows


def test_results_parser() -> tuple[Callable[[Path], Any], Callable[[Any], Iterator[Row]]]:
    """`test-results-parser` (Codecov's, in Rust), to its objects."""
    from test_results_parser import parse_junit_xml

    outcomes = {"Pass": "passed", "Failure": "failed", "Error": "error", "Skip": "skipped"}

    def rows(parsed: Any) -> Iterator[Row]:
        for run in parsed.testruns:
            outcome = str(run.outcome).rpartition(".")[2]
            yield run.classname, run.name, outcomes.get(outcome, outcome)

    return lambda path: parse_junit_xml(path.read_bytes()), rows


def stored_rows() -> Callable[[Path], int]:
    """This project's whole path, from a file to stored rows, in one process."""
    from accel_ci.model import Build
    from accel_ci.results.ingest import ingest
    from accel_ci.results.store import ResultsStore

    def store(path: Path) -> int:
        with tempfile.TemporaryDirectory() as folder:
            build = Build("nightly-20260801", "py3")
            return ingest([path], build, "pytorch", date(2026, 8, 1), ResultsStore(Path(folder)), processes=1).rows

    return store


READERS = {
    "accel_ci": accel_ci,
    "junitparser": junitparser,
    "xunitparser": xunitparser,
    "test-results-parser": test_results_parser,
}


def main(reader: str, question: str, files: list[str]) -> None:
    """Answer one question about one reader as JSON."""
    read, rows = READERS[reader]()
    if question in ("time", "store"):
        store = stored_rows() if question == "store" else None
        began, cpu = time.perf_counter(), time.process_time()
        count = store(Path(files[0])) if store else sum(1 for _ in rows(read(Path(files[0]))))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "rows": count, "peak_mb": peak_mb}))
        return
    answers = {}
    for file in files:
        try:
            answers[file] = list(rows(read(Path(file))))
        except BaseException as problem:  # peers raise exceptions of any kind
            answers[file] = str(type(problem))
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
