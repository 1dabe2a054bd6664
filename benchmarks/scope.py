"""Time scope rules: 32,068 of them on 100,000 tests, beside one regular expression per rule on a part of the tests.

`python -m benchmarks.scope`. The rules are what a list of disabled tests becomes: a class by prefix and a method each. In
the second case, each is a node-id pattern with wildcards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import click
import pyarrow as pa

from accel_ci.scope.rules import Rule, TestIndex, decide
from accel_ci.scope.table import FACTS

TESTS, RULES, NAIVE_TESTS = 100_000, 32_068, 50
DTYPES = ("float16", "float32", "float64", "int32", "int64", "bool", "complex64", "bfloat16")


def tests_table() -> pa.Table:
    """Tests like those of test_ops.py: 40 classes, 700 operators, 8 dtypes."""
    rows = []
    for number in range(TESTS):
        dtype, op, case = DTYPES[number % 8], f"op{number // 8 % 700}", number // 5600
        method = f"test_case{case % 9}_{op}_emu_{dtype}"
        rows.append(
            {
                "test": f"test/test_ops{case % 5}.py::TestOps{case}EMU::{method}", "file": f"test/test_ops{case % 5}.py",
                "class_name": f"TestOps{case}", "method": f"test_case{case % 9}", "op": op, "dtypes": [dtype],
                "device": "emu", "module": None, "markers": [], "decorators": ["onlyNativeDeviceTypes"],
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=FACTS)


def rule_lists(table: pa.Table) -> dict[str, list[Rule]]:
    """Rules of two kinds for every third test."""
    chosen = [table["test"][place * 3].as_py().split("::") for place in range(RULES)]
    listed = [{"classes": (f"{owner.removesuffix('EMU')}*",), "methods": (method,)} for _, owner, method in chosen]
    wild = [{"tests": (f"*::{owner}::{method.replace('_emu_', '*')}",)} for _, owner, method in chosen]
    kinds: dict[str, Sequence[dict[str, tuple[str, ...]]]] = {"class and method": listed, "node-id pattern": wild}
    return {kind: [Rule(f"exclude[{n}]", each) for n, each in enumerate(some)] for kind, some in kinds.items()}


def naive(rules: Sequence[Rule], tests: Sequence[str]) -> int:
    """Count the tests that a regular expression of each rule decides, one after another."""
    texts = (rule.criteria["tests"][0] for rule in rules)
    patterns = [re.compile(re.escape(text).replace(r"\*", ".*"), re.DOTALL) for text in texts]
    return sum(any(pattern.fullmatch(test) for pattern in patterns) for test in tests)


def main() -> None:
    """Print the seconds of both ways."""
    table = tests_table()
    for kind, rules in rule_lists(table).items():
        started, worked = time.perf_counter(), time.process_time()
        decisions = decide(rules, TestIndex(table))
        seconds, cpu = time.perf_counter() - started, time.process_time() - worked
        decided = sum(number >= 0 for number in decisions.rules)
        times = f"{seconds:.2f} s ({cpu:.2f} s of CPU)"
        click.echo(f"{kind}: {len(rules):,} rules on {len(table):,} tests: {times}, {decided:,} decided")
    some = table["test"].to_pylist()[:: TESTS // NAIVE_TESTS]
    started = time.perf_counter()
    naive(rules, some)
    seconds = time.perf_counter() - started
    whole = f"{seconds * TESTS / len(some):,.0f} s for all"
    click.echo(f"one regular expression per rule on {len(some)} tests: {seconds:.1f} s, so {whole}")


if __name__ == "__main__":
    main()
