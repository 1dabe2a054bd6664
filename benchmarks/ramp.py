"""Proposals of the ramp beside "cheapest first" and "random": `python -m benchmarks.ramp OPS.json [--seed N] [--json]`.

OPS.json has the real ops and dtypes of a PyTorch: `python -m benchmarks.ramp --dump | PYTHON - > OPS.json` writes it with a
Python that has torch. They are crossed with the templates of PyTorch's op tests. Durations and failures are drawn by a
seeded model (`make_world`). What is known of them comes from sweeps that had a tenth of all card-seconds. Each choice may
propose the same tests: those that did not fail in a sweep. The others choose until they have used as many card-seconds as
the proposal, by the same estimates.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from accel_ci.ramp.chances import RampTest, estimate_tests
from accel_ci.ramp.evidence import EVIDENCE, with_evidence
from accel_ci.ramp.proposal import propose
from accel_ci.results.rollups import test_key
from accel_ci.scope.table import SCOPE

DUMP = """
import json, sys
from torch.testing._internal.common_methods_invocations import op_db
dtypes = lambda op: sorted(str(dtype).removeprefix("torch.") for dtype in op.supported_dtypes("cpu"))
json.dump({op.full_name: dtypes(op) for op in op_db}, sys.stdout)
"""

SHARES = (0.05, 0.25, 0.50, 0.80)
SWEPT = 0.10
"""The share of all card-seconds that the sweeps before had."""

BREAKAGES = 400
"""So many kernels break later: half of them of an op in one dtype, half of an op as a whole."""

_FLOAT = ("float32", "float64")
_GRAD = ("float64", "complex128")


@dataclass(frozen=True)
class Template:
    """A test of PyTorch's that is made for each op and dtype: where it is, for which dtypes, and its median seconds."""

    file: str
    owner: str
    name: str
    seconds: float
    dtypes: tuple[str, ...] = ()


TEMPLATES = (
    Template("test/test_ops.py", "TestCommonEMU", "test_dtypes_samples", 0.05),
    Template("test/test_ops.py", "TestCommonEMU", "test_noncontiguous_samples", 0.12),
    Template("test/test_ops.py", "TestCommonEMU", "test_variant_consistency_eager", 0.2),
    Template("test/test_ops.py", "TestCommonEMU", "test_out", 0.06),
    Template("test/test_ops.py", "TestMathBitsEMU", "test_neg_view", 0.1, _FLOAT),
    Template("test/test_ops_jit.py", "TestJitEMU", "test_variant_consistency_jit", 0.8, _FLOAT),
    Template("test/test_ops_gradients.py", "TestBwdGradientsEMU", "test_fn_grad", 0.7, _GRAD),
    Template("test/test_ops_gradients.py", "TestBwdGradientsEMU", "test_fn_gradgrad", 2.5, _GRAD),
    Template("test/test_ops_fwd_gradients.py", "TestFwdGradientsEMU", "test_fn_fwgrad_bwgrad", 1.8, _GRAD),
    Template("test/test_meta.py", "TestMetaEMU", "test_dispatch_meta_inplace", 0.04),
    Template("test/test_meta.py", "TestMetaEMU", "test_dispatch_meta_outplace", 0.05),
)

DTYPE_FAILS = {"complex32": 0.6, "complex64": 0.25, "complex128": 0.25, "float16": 0.06, "bfloat16": 0.08, "float64": 0.05}
"""The chance that an op does not work in a dtype; 0.03 for others."""


@dataclass(frozen=True)
class World:
    """The truth that a choice does not see: the seconds of each test, and those that fail."""

    rows: list[dict[str, object]]
    seconds: dict[str, float]
    failing: frozenset[str]


def make_world(ops: dict[str, list[str]], seed: int) -> World:
    """Draw a world. Failures have causes that tests share, as a young backend's have.

    A test fails if its op is missing (7 %), if the op does not work in its dtype (`DTYPE_FAILS`), if the op fails this
    template (3 %), or by itself (0.5 %). Its seconds are its template's, times a lognormal factor of its op (σ = 0.9) and
    one of the test (σ = 0.3).
    """
    rng = random.Random(seed)  # noqa: S311 (a simulation)
    rows: list[dict[str, object]] = []
    seconds: dict[str, float] = {}
    failing = set()
    for op, dtypes in sorted(ops.items()):
        missing, factor = rng.random() < 0.07, rng.lognormvariate(0, 0.9)
        broken = {dtype for dtype in dtypes if rng.random() < DTYPE_FAILS.get(dtype, 0.03)}
        for template in TEMPLATES:
            bad_here = rng.random() < 0.03
            for dtype in dtypes:
                if template.dtypes and dtype not in template.dtypes:
                    continue
                method = f"{template.name}_{op.replace('.', '_')}"
                test = f"{template.file}::{template.owner}::{method}_emu_{dtype}"
                rows.append(_row(test, template, method, op, dtype))
                seconds[test] = template.seconds * factor * rng.lognormvariate(0, 0.3)
                if missing or bad_here or dtype in broken or rng.random() < 0.005:
                    failing.add(test)
    return World(rows, seconds, frozenset(failing))


def _row(test: str, template: Template, method: str, op: str, dtype: str) -> dict[str, object]:
    return {
        "suite": "upstream", "test": test, "file": template.file, "class_name": template.owner, "method": method, "op": op,
        "dtypes": [dtype], "device": "emu", "module": None, "markers": [], "decorators": [], "status": "not_enabled",
        "reason": None, "rule": None, "mode": "must_pass",
    }  # fmt: skip


def sweep(world: World, seed: int) -> pa.Table:
    """Return the evidence of sweeps that ran tests at random until they had `SWEPT` of the card-seconds."""
    rng = random.Random(seed + 1)  # noqa: S311
    left = SWEPT * sum(world.seconds.values())
    rows = []
    for test in rng.sample(sorted(world.seconds), len(world.seconds)):
        left -= world.seconds[test]
        if left < 0:
            break
        failed = test in world.failing
        rows.append(
            {"suite": "upstream", "key": test_key(test), "tries": 1, "passes": int(not failed),
             "last": "failed" if failed else "passed", "last_day": None, "duration_s": world.seconds[test]}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=EVIDENCE)


@dataclass(frozen=True)
class Row:
    """The result of a choice: its tests, real card-hours, ops and pairs of op and dtype covered by a passing test.

    `red` of its tests fail on the first night, and it finds `found` of `BREAKAGES` that come later.
    """

    share: float
    choice: str
    tests: int
    card_hours: float
    ops: int
    pairs: int
    red: int
    found: int
    seconds: float


def compare(world: World, tests: Sequence[RampTest], seed: int) -> list[Row]:
    """Compare the choices at each share."""
    rows = []
    pairs = sorted({(test.op, test.dtypes[0]) for test in tests})
    ops = sorted({test.op for test in tests})
    rng = random.Random(seed + 2)  # noqa: S311
    broken = [*rng.sample(pairs, BREAKAGES // 2), *((op, None) for op in rng.sample(ops, BREAKAGES // 2))]
    allowed = [test for test in tests if not test.doubtful]
    orders = {
        "cheapest first": sorted(allowed, key=lambda test: (test.cost_s, test.test)),
        "random": rng.sample(allowed, len(allowed)),
    }
    for share in SHARES:
        began = time.process_time()
        proposal = propose(tests, share)
        spent = time.process_time() - began
        rows.append(_judge(world, share, "proposal", proposal.tests, broken, spent))
        for name, order in orders.items():
            rows.append(_judge(world, share, name, _until(order, proposal.card_s), broken, 0.0))
    return rows


def _until(order: Sequence[RampTest], card_s: float) -> list[RampTest]:
    chosen = []
    for test in order:
        card_s -= test.cost_s
        if card_s < 0:
            break
        chosen.append(test)
    return chosen


def _judge(
    world: World,
    share: float,
    name: str,
    chosen: Sequence[RampTest],
    broken: Sequence[tuple[str | None, str | None]],
    spent: float,
) -> Row:
    passing = [test for test in chosen if test.test not in world.failing]
    pairs = {(test.op, test.dtypes[0]) for test in passing}
    ops = {op for op, _ in pairs}
    found = sum((op, dtype) in pairs if dtype else op in ops for op, dtype in broken)
    hours = sum(world.seconds[test.test] for test in chosen) / 3600
    return Row(share, name, len(chosen), hours, len(ops), len(pairs), len(chosen) - len(passing), found, spent)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", type=Path, nargs="?")
    parser.add_argument("--dump", action="store_true", help="print the program that writes OPS.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.dump or options.ops is None:
        sys.stdout.write(DUMP)
        return
    ops = json.loads(options.ops.read_text())
    world = make_world(ops, options.seed)
    scope = pa.Table.from_pylist(world.rows, schema=SCOPE)
    tests = estimate_tests(with_evidence(scope, sweep(world, options.seed)), {})
    known = sum(test.known for test in tests)
    rows = compare(world, tests, options.seed)
    if options.json:
        json.dump([vars(row) for row in rows], sys.stdout)
        return
    console = Console()
    console.print(
        f"{len(ops):,} ops, {len({(t.op, t.dtypes) for t in tests}):,} pairs, {len(tests):,} tests of "
        f"{sum(world.seconds.values()) / 3600:.1f} card-hours, {len(world.failing):,} fail; {known:,} were swept"
    )
    table = Table("share", "choice", "tests", "card-hours", "ops", "pairs", "red at first", f"of {BREAKAGES}", "CPU s")
    for row in rows:
        table.add_row(
            f"{row.share:.0%}", row.choice, f"{row.tests:,}", f"{row.card_hours:.2f}", f"{row.ops}", f"{row.pairs:,}",
            f"{row.red:,} ({row.red / max(1, row.tests):.1%})", f"{row.found}", f"{row.seconds:.1f}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
