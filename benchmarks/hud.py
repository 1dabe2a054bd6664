"""The HUD at size: `python -m benchmarks.hud [--json] [--days 90 --builds-per-day 3 --variants 24 --tests 200000]`.

A store of many builds is laid on disk, of which only some are really written: the others are further names of the same
files. Data compress better then: to know their size, let all builds of a week be written (`--days 7 --written 1000`). Then
one more build comes, and the data and the pages are written again in a new process. Chromium opens them from a server on
loopback and from the folder, with a processor that is made 4 times as slow.

Of the tests 5 % are skipped, 0.5 % are flaky in one of five builds, and 40 are broken for ten builds each; each failure has
a message unlike all others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.table import Table

from accel_ci.config.loading import load_project
from accel_ci.hud.addresses import test_address
from accel_ci.hud.data.update import update_test_data
from accel_ci.hud.serve import HudServer
from accel_ci.hud.site import write_site
from accel_ci.model import VERDICTS, Build, Ledger, Revision, Source
from accel_ci.pipelines import LEDGER
from accel_ci.quality.current_quarantine import QUARANTINE, QuarantineState, read_quarantine
from accel_ci.quality.flakiness import Flakiness, FlakyTest, wilson_interval
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import INCIDENTS, Incidents, read_incidents
from accel_ci.quality.quarantine import Entry
from accel_ci.results.columns import constant
from accel_ci.results.rows import ATTEMPTS
from accel_ci.results.signature import signatures
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import write_project

GOALS = {
    "one more build, s": 10.0, "one more build, peak MB": 1000.0, "data on disk, MB": 1000.0, "all pages, s": 10.0,
    "first view, ms": 1000.0, "first view, kB": 300.0, "build page, ms": 1500.0, "pages of builds on disk, MB": 1000.0,
    "test page, newest results, ms": 1000.0, "test page, all results, ms": 2000.0,
    "test page, kB": 1500.0, "a search, ms": 200.0, "names, ms": 2500.0, "names, kB": 2500.0,
}  # fmt: skip
"""At most so much."""

SUITE = "pytorch"
SKIPPED, FLAKY, FLAKES, BROKEN = 0.05, 0.005, 0.2, 40
SLOWER = 4
NOW = datetime.now(timezone.utc).replace(hour=20, minute=0, second=0, microsecond=0)
QUERIES = ("softmax", "test", "ops float16 conv", "no such test at all", "test_ops.py::TestCommon matmul float32 17", "e")
OPS = (
    "add", "addmm", "bmm", "conv2d", "cumsum", "einsum", "fft_rfft", "gather", "index_select", "layer_norm", "linalg_solve",
    "logsumexp", "matmul", "nn_functional_interpolate_bicubic", "scatter_reduce_amax", "softmax", "topk",
)  # fmt: skip
DTYPES = ("float16", "float32", "float64", "bfloat16", "int8", "int32", "int64", "complex64")


@dataclass(frozen=True)
class Size:
    """The size of the history. Attempts are really written for the first `written` builds."""

    days: int
    builds_per_day: int
    variants: int
    tests: int
    written: int

    @property
    def builds(self) -> int:
        """The number of builds."""
        return self.days * self.builds_per_day * self.variants


def names_of(tests: int) -> list[str]:
    """Names like those of PyTorch's own tests, in order."""
    found = []
    for number in range(tests):
        op, dtype = OPS[number * 7919 % len(OPS)], DTYPES[number % len(DTYPES)]
        place = f"test/test_ops_{number % 97}.py::TestCommonPRIVATEUSE1::test_out_warning_{op}"
        found.append(f"{place}_case_{number // 97}_privateuse1_{dtype}")
    return sorted(found)


def write_template(workspace: Workspace, names: pa.Array[Any], build: Build, at: datetime, seed: int) -> dict[str, int]:
    """Store the attempts of a build, and return the counts of its verdicts."""
    rng = np.random.default_rng(seed)
    count = len(names)
    skipped = np.flatnonzero(np.arange(count) % round(1 / SKIPPED) == 3)
    broken = (np.arange(BROKEN) * 31 + seed // 10 * 1301) % count
    flaky = np.flatnonzero((np.arange(count) % round(1 / FLAKY) == 7) & (rng.random(count) < FLAKES))
    broken, flaky = np.setdiff1d(broken, skipped), np.setdiff1d(flaky, np.concatenate([broken, skipped]))
    again = np.concatenate([broken, flaky])
    rows = np.concatenate([np.arange(count), again, flaky])
    rounds = np.concatenate([np.ones(count), np.full(len(again), 2), np.full(len(flaky), 3)]).astype(np.int32)
    order = np.lexsort((rounds, rows))
    rows, rounds = rows[order], rounds[order]
    is_skipped, is_broken = np.isin(rows, skipped), np.isin(rows, broken)
    failed = is_broken | (np.isin(rows, flaky) & (rounds == 1))
    messages: list[str | None] = [None] * len(rows)
    for row in np.flatnonzero(failed).tolist():
        a, b, c = rng.integers(1, 400, 3).tolist()
        messages[row] = (
            f"AssertionError: Tensor-likes are not close!\n\nMismatched elements: {a} / 400 ({a / 4:.1f}%)\n"
            f"Greatest absolute difference: 0.0{a * b} at index ({b}, {c}) (up to 1e-05 allowed)"
        )
    for row in np.flatnonzero(is_skipped).tolist():
        messages[row] = f"Skipped: {DTYPES[rows[row] % 8]} is not supported on this device"
    texts = pa.array(messages, pa.string())
    failures = pa.array([text if bad else None for text, bad in zip(messages, failed.tolist(), strict=True)], pa.string())
    usual = np.random.default_rng(0).lognormal(-1, 1.2, count)
    cards = (rows * 7 + rounds * 13 + seed) % 128
    began = np.full(len(rows), int(at.timestamp() * 1e6))
    columns: dict[str, Any] = {
        "test": names.take(pa.array(rows)),
        "round": pa.array(rounds),
        "attempt": pa.array(np.zeros(len(rows), np.int32)),
        "outcome": pa.array(np.where(failed, "failed", np.where(is_skipped, "skipped", "passed"))),
        "started_at": pa.array(began, pa.int64()).cast(ATTEMPTS.field("started_at").type),
        "duration_s": pa.array(usual[rows] * rng.lognormal(0, 0.15, len(rows))),
        "message": texts,
        "signature": signatures(failures),
        "card": pa.array((cards % 8).astype(str)),
        "host": pa.array(np.char.add("host", (cards // 8).astype(str))),
        "worker": pa.array(np.char.add("w", cards.astype(str))),
    }  # fmt: skip
    for name, value in (("revision", build.revision), ("variant", build.variant), ("suite", SUITE)):
        columns[name] = constant(value, len(rows), pa.string())
    missing = {field.name: pa.nulls(len(rows), field.type) for field in ATTEMPTS if field.name not in columns}
    table = pa.table({field.name: (columns | missing)[field.name] for field in ATTEMPTS}, schema=ATTEMPTS)
    workspace.results.write_rows(build, at.date(), SUITE, [table])
    counts = {
        "passed": count - len(again) - len(skipped),
        "failed": len(broken),
        "flaky": len(flaky),
        "skipped": len(skipped),
    }
    return dict.fromkeys(VERDICTS, 0) | counts


def lay_store(workspace: Workspace, size: Size) -> None:
    """Lay the store and the manifests on disk, without the last build."""
    variants = [variant.name for variant in workspace.project.settings.variants]
    names = pa.array(names_of(size.tests))
    templates: list[tuple[str, dict[str, int]]] = []
    root, builds = workspace.project.home / "results", 0
    for age in reversed(range(size.days * size.builds_per_day)):
        at = NOW - timedelta(
            days=age // size.builds_per_day, hours=1 + 20 * (age % size.builds_per_day) // size.builds_per_day
        )
        key = f"{'intraday' if age % size.builds_per_day else 'nightly'}-{at:%Y%m%dT%H}"
        backend, upstream = Source("repository", "HEAD", f"{age:040x}"), Source("upstream", "HEAD", f"{age // 3:040x}")
        workspace.manifests.add_revision(
            Revision(key, "intraday" if age % size.builds_per_day else "nightly", at, backend, upstream)
        )
        for variant in variants:
            build = Build(key, variant)
            name = f"day={at:%Y-%m-%d}/{build.name}~{SUITE}"
            builds += 1
            if builds == size.builds:
                return
            if is_written := len(templates) < size.written:
                templates.append((name, write_template(workspace, names, build, at, len(templates))))
            chosen, counts = templates[-1 if is_written else builds * 5 % len(templates)]
            for source, target in (
                (f"{chosen}.parquet", f"{name}.parquet"),
                (f"rollups/{chosen}.arrow", f"rollups/{name}.arrow"),
            ):
                (root / target).parent.mkdir(parents=True, exist_ok=True)
                if not (root / target).exists():
                    (root / target).hardlink_to(root / source)
            _lay_ledger(workspace, build, size.tests, counts)


def _lay_ledger(workspace: Workspace, build: Build, tests: int, counts: Any) -> None:
    ledger = Ledger(build, tests, counts, {SUITE: counts}, (), (), 0, 1.0, 1.0, digest=build.name)
    workspace.manifests.write(workspace.manifests.path(LEDGER, build.revision, build.variant), ledger)


def lay_quality(workspace: Workspace, size: Size) -> Flakiness:
    """Lay incidents and a quarantine on disk, and return flaky tests: as many as such a store would have."""
    variants = [variant.name for variant in workspace.project.settings.variants]
    names, builds = names_of(size.tests), min(30, size.days) * size.builds_per_day
    step, hits = round(1 / FLAKY), max(1, round(builds * FLAKES))
    flaky = tuple(
        FlakyTest(variant, SUITE, test, builds, hits, hits / builds, *wilson_interval(hits, builds), "not close")
        for variant in variants for test in names[7::step]
    )  # fmt: skip
    newest = workspace.manifests.revisions()[0].key
    found = []
    for number in range(20):
        tests = frozenset((variant, SUITE, test) for variant in variants for test in names[number :: size.tests // BROKEN])
        found.append(
            Incident(
                f"{number:012x}", "backend", "RuntimeError: not implemented", "the backend changed", 0.97, newest, newest,
                "fixed" if number else "open", tests, tests, frozenset({"RuntimeError: not implemented"}),
            )
        )  # fmt: skip
    manifests, today = workspace.manifests, NOW.date()
    manifests.write(manifests.path(INCIDENTS), Incidents(tuple(found)))
    entries = tuple(
        Entry(SUITE, test, variant, "muted", "flaky", "rule", today, today + timedelta(days=30))
        for variant in variants for test in names[7 :: step * 10]
    )  # fmt: skip
    manifests.write(manifests.path(QUARANTINE), QuarantineState(today, entries))
    return Flakiness(30, size.tests * size.variants, flaky)


def measure_writing(folder: Path, size: Size) -> dict[str, float]:
    """Write the data and then the pages in this process, and return the seconds of each and the peak memory."""
    workspace = Workspace(load_project(folder / "accel_ci.yaml"))
    flakiness = lay_quality(workspace, size)
    incidents, quarantine = read_incidents(workspace).incidents, read_quarantine(workspace) or QuarantineState(NOW.date())
    entries, manifests = quarantine.entries, workspace.manifests
    workspace.hud.mkdir(exist_ok=True)
    began = time.perf_counter()
    update_test_data(workspace.results, manifests, workspace.hud, flakiness, entries, incidents, (), NOW)
    written = time.perf_counter()
    write_site(workspace, flakiness, workspace.hud, now=NOW)
    pages = time.perf_counter()
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))  # that of this process alone
    return {"data_s": round(written - began, 2), "pages_s": round(pages - written, 2), "peak_mb": round(peak / 1000)}


def _in_process(folder: Path, size: Size) -> dict[str, float]:
    numbers = [size.days, size.builds_per_day, size.variants, size.tests, size.written]
    command = [sys.executable, "-m", "benchmarks.hud", "--part", str(folder), *map(str, numbers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_site(folder: Path, size: Size) -> dict[str, float]:
    """Write the site from nothing, add a build, write it again; return the numbers."""
    workspace = Workspace(load_project(folder / "accel_ci.yaml"))
    first = _in_process(folder, size)
    again = _in_process(folder, size)
    newest, variant = workspace.manifests.revisions()[0], workspace.project.settings.variants[-1].name
    build = Build(newest.key, variant)
    if not workspace.results.suites(build=build):
        counts = write_template(workspace, pa.array(names_of(size.tests)), build, newest.seen_at, size.written)
        _lay_ledger(workspace, build, size.tests, counts)
    more = _in_process(folder, size)
    scripts = [path.stat() for path in (workspace.hud / "data").rglob("*") if path.is_file()]
    pages = [path.stat() for path in (workspace.hud / "builds").iterdir()]
    state = [path.stat().st_size for path in Path(f"{workspace.hud}.state").rglob("*") if path.is_file()]
    return {
        "from nothing, s": first["data_s"],
        "from nothing, peak MB": first["peak_mb"],
        "nothing new, s": again["data_s"],
        "one more build, s": more["data_s"],
        "one more build, peak MB": more["peak_mb"],
        "all pages, s": more["pages_s"],
        "data on disk, MB": round(sum(one.st_blocks for one in scripts) * 512 / 1e6, 1),
        "data, MB of content": round(sum(one.st_size for one in scripts) / 1e6, 1),
        "scripts": len(scripts),
        "pages of builds": len(pages),
        "pages of builds on disk, MB": round(sum(one.st_blocks for one in pages) * 512 / 1e6, 1),
        "state, MB": round(sum(state) / 1e6, 1),
    }


def measure_pages(folder: Path, size: Size) -> dict[str, dict[str, float]]:
    """Open the pages in Chromium, from a server and from the folder; return the numbers of each."""
    workspace = Workspace(load_project(folder / "accel_ci.yaml"))
    chromium = os.environ.get("ACCEL_CI_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no browser: set ACCEL_CI_CHROMIUM to a Chromium, or install chromium")
    server = HudServer(workspace.hud, workspace.artifacts, 0)
    server.start()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        bases = {"http": server.address, "file": f"{workspace.hud.as_uri()}/"}
        found = {name: _measure_pages(browser, base, size) for name, base in bases.items()}
        browser.close()
    server.shutdown()
    return found


def _measure_pages(browser: Browser, base: str, size: Size) -> dict[str, float]:
    names = names_of(size.tests)
    found: dict[str, float] = {}
    page, taken = _open(browser, f"{base}index.html")
    found["first view, ms"] = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    found["first view, kB"] = taken() / 1e3
    build = str(page.locator("a.cell").first.get_attribute("href"))
    page.close()
    page, taken = _open(browser, base + build)
    found["build page, ms"] = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    found["build page, kB"] = taken() / 1e3
    page.close()
    newest, whole, sizes = list[float](), list[float](), list[float]()
    for test in (names[7], names[8], names[len(names) // 2], names[3]):
        page, taken = _open(browser, base + test_address(SUITE, test))
        whole.append(_mark(page, "all results"))
        newest.append(_mark(page, "newest results"))
        sizes.append(taken() / 1e3)
        page.close()
    found["test page, newest results, ms"] = statistics.median(newest)
    found["test page, all results, ms"] = statistics.median(whole)
    found["test page, kB"] = statistics.median(sizes)
    page, taken = _open(browser, f"{base}search.html?q=softmax")
    found["names, ms"] = _mark(page, "all names")
    found["names, kB"] = taken() / 1e3
    page.wait_for_timeout(1000)  # what loading began has ended
    searches: dict[str, float] = {}
    for query in QUERIES:
        searches[query] = statistics.median(page.evaluate(_SEARCH, query) for _ in range(5))
        expected = sum(all(word in f"{SUITE}/{name}".lower() for word in query.lower().split()) for name in names)
        told = page.inner_text("#told")
        if not told.startswith(f"{expected:,} test"):
            raise RuntimeError(f"{query!r} has {expected:,} matches, and the page says: {told}")
    found["a search, ms"] = max(searches.values())
    found |= {f"  {query!r}, ms": value for query, value in searches.items()}
    page.close()
    return {name: round(value, 1) for name, value in found.items()}


_SEARCH = """(query) => new Promise((resolve) => {
  const began = performance.now(), input = document.querySelector("nav input");
  input.value = query;
  input.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
})"""


def _open(browser: Browser, address: str) -> tuple[Page, Any]:
    """A page on a slow processor, and a function that tells how many bytes it took."""
    page = browser.new_context().new_page()
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(address, wait_until="load")

    def taken() -> int:
        sizes = [
            Path(url.partition("?")[0].partition("#")[0].removeprefix("file://")).stat().st_size
            if url.startswith("file:") else int(page.request.head(url).headers["content-length"])
            for url in asked
        ]  # fmt: skip
        return sum(sizes)

    return page, taken


def _mark(page: Page, name: str) -> float:
    """The milliseconds from the navigation to a mark of the page."""
    page.wait_for_function("(name) => performance.getEntriesByName(name).length", arg=name, timeout=60_000)
    return float(page.evaluate("(name) => performance.getEntriesByName(name)[0].startTime", name))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and give an exit code: 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hud", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--builds-per-day", type=int, default=1)
    parser.add_argument("--variants", type=int, default=4)
    parser.add_argument("--tests", type=int, default=20_000)
    parser.add_argument(
        "--written", type=int, default=60, help="builds whose attempts are written, not names of other files"
    )
    parser.add_argument("--folder", type=Path, help="where the store is, or is made [default: a temporary folder]")
    parser.add_argument("--part", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.part:
        sys.stdout.write(json.dumps(measure_writing(Path(given.part[0]), Size(*map(int, given.part[1:])))))
        return 0
    size = Size(given.days, given.builds_per_day, given.variants, given.tests, given.written)
    with tempfile.TemporaryDirectory(prefix="accel-ci-hud-") as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "accel_ci.yaml").exists():
            common = {"python": "3.11", "torch": "torch", "runtime": "none"}
            variants = [
                {"name": f"py3.{10 + n % 4}-torch{'main' if n % 2 else '2.13'}-runtime{n // 8}-{n}", **common}
                for n in range(size.variants)
            ]
            write_project(folder, variants=variants)
            lay_store(Workspace(load_project(folder / "accel_ci.yaml")), size)
        found = measure_site(folder, size)
        pages = measure_pages(folder, size)
    rows: list[dict[str, Any]] = [
        {"what": what, "from": "", "value": value, "goal": GOALS.get(what)} for what, value in found.items()
    ]
    rows += [
        {"what": what, "from": source, "value": value, "goal": GOALS.get(what)}
        for source, of_source in pages.items() for what, value in of_source.items()
    ]  # fmt: skip
    passed = all(row["goal"] is None or row["value"] <= row["goal"] for row in rows)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    if given.json:
        sys.stdout.write(json.dumps({**machine, **vars(size), "builds": size.builds, "rows": rows, "passed": passed}) + "\n")
    else:
        table = Table("", "from", "measured", "goal", title=f"{size.builds:,} builds of {size.tests:,} tests; {machine}")
        for row in rows:
            goal = f"≤ {row['goal']:,g}" if row["goal"] else ""
            table.add_row(row["what"], row["from"], f"{row['value']:,}", goal)
        Console().print(table)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
