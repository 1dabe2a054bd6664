"""Speed and correctness of the report reader and its peers: `python -m benchmarks.reports [--json]`.

One file of 200,000 cases, each reader in a process of its own. The score is the number of XML files of the corpus
whose rows (class name, name, outcome) are exact; status, warnings, durations and messages do not count. A peer that does not
install is reported as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PEERS = ("junitparser", "xunitparser", "test-results-parser")
READER = Path(__file__).with_name("reports_reader.py")
CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "reports"
SIZE = 200_000
_TIMEOUT_S = 600


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_argument("--cases", type=Path, default=CASES, help="reports with expected rows, for the scores")
    chosen = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="accel-ci-reports-") as name:
        results = measure(chosen.cases, Path(name))
    if chosen.json:
        sys.stdout.write(json.dumps({"load": os.getloadavg()[0], "readers": results}, indent=1) + "\n")
    else:
        Console().print(table(results))
    return 0


def measure(cases: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Times and scores by reader."""
    large = folder / "large.xml"
    write_large(large, SIZE)
    expected = {
        str(cases / f"{path.name.removesuffix('.expected.json')}.xml"): json.loads(path.read_text("utf-8"))
        for path in sorted(cases.glob("*.expected.json"))
    }
    expected = {path: document for path, document in expected.items() if Path(path).exists()}
    results: dict[str, dict[str, Any]] = {}
    for reader in ("accel_ci", *PEERS):
        python = sys.executable if reader == "accel_ci" else environment(folder / reader, reader)
        if python is None:
            results[reader] = {"missing": True}
            continue
        answers = ask(python, reader, "rows", *expected)
        right = sum(is_right(document, answers.get(path)) for path, document in expected.items())
        timed = ask(python, reader, "time", str(large))
        results[reader] = {**timed, "right": right, "of": len(expected)}
        if reader == "accel_ci":
            results["accel_ci, to stored rows"] = ask(python, reader, "store", str(large))
    for result in results.values():
        if "rows" in result:
            result["rows_per_s"] = result["rows"] / result["seconds"]
    return results


def write_large(path: Path, cases: int) -> None:
    """A report as pytest writes one for PyTorch's tests: 2 % failed with a message and a text, 28 % skipped."""
    with path.open("w") as file:
        file.write(f'<testsuites><testsuite name="pytest" tests="{cases}" timestamp="2026-08-01T00:00:00">')
        for case in range(cases):
            draw = case * 7919 % 100
            head = (
                f'<testcase classname="test.test_{case // 500}.TestCommonPRIVATEUSE1" '
                f'name="test_out_op_{case % 500}_privateuse1_float32" time="{draw / 50:.3f}"'
            )
            body = '<skipped type="pytest.skip" message="slow">test_ops.py:12: slow</skipped>' if draw < 30 else ""
            if draw < 2:
                text = "\n".join(f"    line {line} of a traceback" for line in range(20))
                body = f'<failure message="AssertionError: {case} is not close">{text}</failure>'
            file.write(f"{head}>{body}</testcase>\n" if body else f"{head} />\n")
        file.write("</testsuite></testsuites>")


def environment(folder: Path, package: str) -> str | None:
    """A throw-away environment with one package; None if it does not install."""
    python = str(folder / "bin" / "python")
    for command in (
        ["uv", "venv", "--quiet", str(folder)],
        ["uv", "pip", "install", "--quiet", "--python", python, package],
    ):
        if subprocess.run([sys.executable, "-m", *command], capture_output=True, timeout=_TIMEOUT_S).returncode:
            return None
    return python


def ask(python: str, reader: str, question: str, *files: str) -> dict[str, Any]:
    """Run one reader in a process of its own and return its answer, or its failure."""
    command = [python, str(READER), reader, question, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2]}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def is_right(expected: dict[str, Any], rows: object) -> bool:
    """True if the rows are the expected ones; a reader may also raise for a file that must be refused."""
    wanted = sorted([row["classname"], row["name"], row["outcome"]] for row in expected["rows"])
    if not isinstance(rows, list):
        return not wanted and expected["report"]["status"] in ("rejected", "empty")
    return wanted == sorted([[str(field) for field in row] for row in rows])


def table(results: dict[str, dict[str, Any]]) -> Table:
    """The results as a table."""
    shown = Table("reader", "seconds", "rows/s", "peak MB", "right", title=f"{SIZE:,} cases, each reader on one core")
    for reader, result in results.items():
        right = f"{result['right']} of {result['of']}" if "right" in result else ""
        if "rows" in result:
            numbers = (f"{result['seconds']:.2f}", f"{result['rows_per_s']:,.0f}", f"{result['peak_mb']:.0f}")
            shown.add_row(reader, *numbers, right)
        else:
            shown.add_row(reader, str(result.get("failed", "missing")), "", "", right)
    return shown


if __name__ == "__main__":
    sys.exit(main())
