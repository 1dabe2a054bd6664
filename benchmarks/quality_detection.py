"""The statistics of quality: how soon, how surely, and beside others: `python -m benchmarks.quality_detection [--json]`.

Five parts: the runs until a rise of the failure rate is seen; false alarms in series without a change; the calibration of
the credible intervals; flaky tests and breakages found by us and by the rules of others, on the same simulated nights; and
the public counts of flaky tests that were run 4,000 times (W. Lam et al., ISSRE 2020). `--svg` draws the calibration.
`--full` looks for false alarms in 100,000 series of each rate, some minutes long.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import ndtri

from accel_ci.quality.changepoints import LUCI, RISE_OR_FALL, ChangeModel, find_changepoints
from accel_ci.quality.flakiness import wilson_interval
from accel_ci.quality.posterior import (
    chance_above,
    chance_to_fail_all,
    crowded_builds,
    fit_prior,
    rate,
    upper_bound,
    within_revisions,
)

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

PASSES = 300
GOALS = {0.5: 3, 0.3: 7, 0.1: 30, 0.05: 114}
"""After 300 passes: the new failure rate, and within how many runs it is to be seen."""
LONGEST = {0.5: 60, 0.3: 100, 0.1: 300, 0.05: 800, 0.02: 1500}
STATIONARY = (0.01, 0.05, 0.2)
LEVELS = (0.5, 0.8, 0.9, 0.95)
MOST_POINTS = 3.0
MODELS = {"LUCI": LUCI, "accel_ci": RISE_OR_FALL}
NEVER = 1 << 30

COUNTS = (
    "https://raw.githubusercontent.com/TestingResearchIllinois/rerunning-no-tests/master/"
    "azure-data/rq-data/flake-rates/tso-flake-rate.csv"
)
FOUND_AFTER = {5: 8, 10: 13, 50: 34, 170: 54, 1000: 79}
"""Runs, and the percentage of the flaky tests that show both outcomes in them, as published summaries have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and give an exit code: 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_detection", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--full", action="store_true", help="100,000 stationary series of each rate instead of 1,000")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--svg", type=Path, help="where the plot of the calibration is written")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "accel-ci-benchmarks", help="where the public counts are kept"
    )
    options = parser.parse_args(argv)
    began = time.perf_counter()
    found: dict[str, Any] = {
        "detection": {name: detection(model, options.seed) for name, model in MODELS.items()},
        "false_alarms": {
            name: false_alarms(model, 100_000 if options.full else 1000, seed=options.seed) for name, model in MODELS.items()
        },
        "calibration": calibration(options.seed),
        "beside_others": beside_others(options.seed),
    }
    try:
        found["public_counts"] = public_counts(options.cache)
    except (OSError, httpx.HTTPError) as error:
        found["public_counts"] = {
            "missing": f"{type(error).__name__}: {error}",
            "get_it_by": f"curl -fL --create-dirs -o {options.cache / Path(COUNTS).name} {COUNTS}",
        }
    found["missed"] = missed(found)
    found["seconds"] = round(time.perf_counter() - began, 1)
    if options.svg:
        options.svg.write_text(draw_calibration(found["calibration"]["curve"]), encoding="utf-8")
    if options.json:
        json.dump(found, sys.stdout, indent=1)
    else:
        _print(found)
    return 1 if found["missed"] else 0


def missed(found: Mapping[str, Any]) -> list[str]:
    """The goals that accel_ci's methods miss, in words. `--full` has no goal: a false alarm is rare, not impossible."""
    wrong = [
        f"a rise to {share:.0%} is seen in {runs} runs, not in {goal}"
        for share, goal in GOALS.items()
        if (runs := found["detection"]["accel_ci"][f"{share:.0%}"]["median"]) > goal
    ]
    for share, alarms in found["false_alarms"]["accel_ci"].items():
        if alarms["series"] <= 1000 and alarms["alarms"]:
            wrong.append(f"{alarms['alarms']} false alarms at {share}")
    for row in found["calibration"]["levels"]:
        if abs(row["points"]) > MOST_POINTS:
            wrong.append(f"the {row['level']:.0%} intervals are {row['points']:+.1f} points off")
    return wrong


def detection(model: ChangeModel, seed: int, series: int = 4000) -> dict[str, dict[str, Any]]:
    """The runs after a rise until it is seen, for each new rate, when the series is looked at after each run.

    A series has 300 passes, and then fails at the new rate. It is seen when the newest of its segments fails more often than
    the one before. `median` is the least number of runs after which at least half of the series are seen, or none if they
    are not. Series are drawn in antithetic pairs (u and 1 - u), so that a share of exactly one half is no matter of luck.
    """
    table = {}
    for share, longest in LONGEST.items():
        generator = np.random.default_rng([seed, int(1000 * share)])
        count = series if share > 0.02 else series // 5
        drawn = generator.random((count // 2, longest))
        failed = np.concatenate([drawn, 1 - drawn]) < share
        history = np.concatenate([np.zeros((len(failed), PASSES), np.bool_), failed], axis=1)
        nights = first_rises(np.ones(history.shape, np.int16), history.astype(np.int16), model)
        runs = np.sort(np.where(nights == NEVER, NEVER, nights - PASSES + 1))
        median, most = int(runs[(len(runs) - 1) // 2]), int(runs[len(runs) * 9 // 10 - 1])
        table[f"{share:.0%}"] = {
            "median": None if median == NEVER else median,
            "nine_tenths": None if most == NEVER else most,
            "within": longest,
            "goal": GOALS.get(share),
        }
    return table


def false_alarms(model: ChangeModel, series: int = 1000, builds: int = 500, seed: int = 14) -> dict[str, dict[str, int]]:
    """The number of series with a changepoint, of those whose failure rate never changes, for each rate.

    `alarms` counts those that have one at the end. `at_any_look` counts, in the first 100 builds of at most 1,000 series,
    those that had one on any day, when they are looked at after each build.
    """
    table = {}
    for share in STATIONARY:
        generator = np.random.default_rng([seed, int(1000 * share)])
        alarms = looked = 0
        for first in range(0, series, 10_000):
            count = min(10_000, series - first)
            failed = (generator.random((count, builds)) < share).astype(np.int16)
            alarms += int(find_changepoints(np.ones_like(failed), failed, model).changed.sum())
            if not first:
                some = failed[:1000, :100]
                looked = int((first_changes(np.ones_like(some), some, model) < NEVER).sum())
        table[f"{share:.0%}"] = {"series": series, "builds": builds, "alarms": alarms, "at_any_look": looked}
    return table


def first_changes(
    runs: NDArray[np.integer], failures: NDArray[np.integer], model: ChangeModel, rises: bool = False
) -> Integers:
    """The first build after which each series has a changepoint, if it is looked at after each build; else `NEVER`.

    Only builds that failed, or follow one that did, are looked at: a rise appears after a failure.
    """
    failing = failures > 0
    turns = failing if rises else np.diff(failing, axis=1, prepend=failing[:, :1]) | failing
    build, found = np.arange(runs.shape[1]), np.full(len(runs), NEVER)
    order, turn = turns.cumsum(axis=1), 0
    pending = np.flatnonzero(turns.any(axis=1))
    while len(pending):
        turn += 1
        ends = (order[pending] >= turn).argmax(axis=1)
        seen = build[: ends.max() + 1] <= ends[:, None]
        so_far = (np.where(seen, each[pending, : ends.max() + 1], 0) for each in (runs, failures))
        parts = find_changepoints(*so_far, model)
        hit = parts.changed
        if rises:
            newest = parts.newest[hit]
            rates = parts.failures / np.maximum(parts.runs, 1)
            hit[hit] = rates[newest] > rates[newest + 1]
        found[pending[hit]] = ends[hit]
        pending = pending[~hit & (order[pending, -1] > turn)]
    return found


def first_rises(runs: NDArray[np.integer], failures: NDArray[np.integer], model: ChangeModel) -> Integers:
    """The first build after which the newest segment of each series fails more often than the one before, or `NEVER`."""
    return first_changes(runs, failures, model, rises=True)


def draw_rates(generator: np.random.Generator, tests: int) -> Floats:
    """Failure rates of a fleet: 93 % healthy (10⁻⁷ to 5·10⁻⁵), 6 % flaky and 1 % that mostly fail.

    The flaky ones have the median of the public counts, 0.475 %, and their spread.
    """
    kind = generator.random(tests)
    flaky = np.minimum(np.exp(generator.normal(np.log(0.00475), 1.95, tests)), 0.98)
    rates = np.where(kind < 0.93, 10 ** generator.uniform(-7, -4.3, tests), flaky)
    return np.where(kind < 0.99, rates, generator.beta(8, 0.6, tests))


def calibration(seed: int = 14, tests: int = 200_000) -> dict[str, Any]:
    """The share of the intervals that contain the true rate, for tests of a fleet with 10 to 1,000 runs each.

    Intervals are judged on the tests that failed at least once: nobody can tell a rate of 10⁻⁷ from one of 10⁻⁵ in 1,000
    runs, and no interval of a test without a failure is looked at, but its upper bound is. Bounds are judged on all tests.
    """
    generator = np.random.default_rng(seed)
    true = draw_rates(generator, tests)
    runs = generator.choice([10, 30, 60, 100, 300, 1000], tests)
    failures = generator.binomial(runs, true)
    prior, failed = fit_prior(failures, runs), failures > 0
    seen = failures[failed], runs[failed]
    rows = []
    for level in LEVELS:
        found = rate(*seen, prior, level)
        covered = _share_within(true[failed], found.low, found.high)
        bounded = float(np.mean(true <= upper_bound(failures, runs, prior, level)))
        rows.append(
            {
                "level": level,
                "covered": round(covered, 4),
                "points": round(100 * (covered - level), 2),
                "wilson": round(_wilson_coverage(true[failed], *seen, level), 4),
                "below_bound": round(bounded, 4),
            }
        )
    curve = []
    for level in np.arange(0.05, 1.0, 0.05):
        found = rate(*seen, prior, float(level))
        ours = _share_within(true[failed], found.low, found.high)
        curve.append((round(float(level), 2), ours, _wilson_coverage(true[failed], *seen, float(level))))
    return {"tests": tests, "tests_that_failed": int(failed.sum()), "levels": rows, "curve": curve}


def _share_within(true: Floats, low: Floats, high: Floats) -> float:
    return float(np.mean((low <= true) & (true <= high)))


def _wilson_coverage(true: Floats, failures: Integers, runs: Integers, level: float) -> float:
    z = float(ndtri((1 + level) / 2))
    counts, place = np.unique(np.stack([failures, runs], axis=1), axis=0, return_inverse=True)
    low, high = np.array([wilson_interval(int(hits), int(tries), z) for hits, tries in counts])[place.ravel()].T
    return _share_within(true, low, high)


def draw_calibration(curve: Sequence[tuple[float, float, float]]) -> str:
    """Return an SVG of the share of the intervals that contain the true rate over their nominal level."""
    size, edge = 320, 50

    def points(column: int) -> str:
        inner = size - 2 * edge
        return " ".join(f"{edge + inner * row[0]:.1f},{size - edge - inner * row[column]:.1f}" for row in curve)

    low, high = edge, size - edge
    marks = [
        f'<rect x="{low}" y="{low}" width="{high - low}" height="{high - low}" fill="none" stroke="#888"/>',
        f'<line x1="{low}" y1="{high}" x2="{high}" y2="{low}" stroke="#888" stroke-dasharray="3 4"/>',
        f'<polyline fill="none" stroke="#c0392b" stroke-width="2" points="{points(2)}"/>',
        f'<polyline fill="none" stroke="#2f6fde" stroke-width="2" points="{points(1)}"/>',
        f'<text x="{low + 8}" y="{low + 18}" fill="#2f6fde">accel_ci, prior from all tests</text>',
        f'<text x="{low + 8}" y="{low + 34}" fill="#c0392b">Wilson, no prior</text>',
        f'<text x="{size / 2}" y="{size - 10}" text-anchor="middle">nominal level</text>',
        f'<text x="12" y="{size / 2}" text-anchor="middle" transform="rotate(-90 12 {size / 2})">true rate inside</text>',
    ]
    marks += [
        f'<text x="{low - 4}" y="{high - share * (high - low) + 4}" text-anchor="end">{share:.0%}</text>'
        f'<text x="{low + share * (high - low)}" y="{high + 14}" text-anchor="middle">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" height="{size}" '
        f'font-family="sans-serif" font-size="11" fill="#888">{"".join(marks)}</svg>\n'
    )


@dataclass(frozen=True)
class Nights:
    """Simulated nights of a fleet: whether the first run failed, and all runs and failures, `[tests, nights]`.

    `kind` of each test is healthy, flaky, broken (fails in all runs from `begins` on) or worse (fails in 30 % of them).
    """

    first_failed: Booleans
    runs: Integers
    failures: Integers
    kind: NDArray[np.str_]
    begins: Integers


def simulate(
    seed: int, nights: int = 60, healthy: int = 20_000, flaky: int = 1000, each: int = 200, bad_nights: int = 3
) -> Nights:
    """Draw nights of a fleet in which a test that fails runs again, at most twice, until it passes.

    Half of the breakages are mended after 1 to 14 nights. On `bad_nights` nights a bad card fails 2 % of all tests in their
    first run.
    """
    generator = np.random.default_rng([seed, 3])
    kind = np.repeat(["healthy", "flaky", "broken", "worse"], [healthy, flaky, each, each])
    tests = len(kind)
    chance = np.repeat(10 ** generator.uniform(-7, -4.3, tests)[:, None], nights, axis=1)
    flaky_rates = np.minimum(np.exp(generator.normal(np.log(0.00475), 1.95, tests)), 0.98)
    chance[kind == "flaky"] = flaky_rates[kind == "flaky", None]
    begins = np.where((kind == "broken") | (kind == "worse"), generator.integers(20, nights - 10, tests), NEVER)
    mended = np.where((kind == "broken") & (generator.random(tests) < 0.5), begins + generator.integers(1, 15, tests), NEVER)
    night = np.arange(nights)
    bad = (night >= begins[:, None]) & (night < mended[:, None])
    chance = np.where(bad, np.where(kind == "worse", 0.3, 1.0)[:, None], chance)
    failed = generator.random((3, tests, nights)) < chance
    card = np.zeros((tests, nights), np.bool_)
    for each_night in generator.choice(nights, bad_nights, replace=False):
        card[:, each_night] = generator.random(tests) < 0.02
    first = failed[0] | card
    again, last = first & failed[1], first & failed[1] & failed[2]
    return Nights(first, 1 + first.astype(np.int64) + again, first.astype(np.int64) + again + last, kind, begins)


Rule = Callable[[Nights], Integers]
"""The first night after which each test is called flaky, or broken; `NEVER` if it is not."""


def pass_on_retry(nights: Nights) -> Integers:
    """A test that failed and passed in one build is flaky: Trunk, Datadog, and many more."""
    return _first((nights.failures > 0) & (nights.failures < nights.runs))


def failed_all_runs(nights: Nights) -> Integers:
    """A test that failed all runs of a build is broken: the other half of pass-on-retry."""
    return _first(nights.failures == nights.runs)


def transition_count(nights: Nights, threshold: float = 0.05) -> Integers:
    """The changes of the outcome over the window, divided by its runs: Buildkite's transition count monitor."""
    changes, runs = _changes(nights)
    return _first((runs.cumsum(axis=1) >= 20) & (changes.cumsum(axis=1) / runs.cumsum(axis=1) >= threshold))


def entropy_and_flips(nights: Nights, threshold: float = 0.05) -> Integers:
    """The mean entropy of the builds' outcomes plus the flip rate: E. Kowalczyk et al., Apple, ICSE-SEIP 2020."""
    share = np.clip(nights.failures / nights.runs, 1e-12, 1 - 1e-12)
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    changes, runs = _changes(nights)
    seen = np.arange(1, runs.shape[1] + 1)
    score = entropy.cumsum(axis=1) / seen + changes.cumsum(axis=1) / np.maximum(runs.cumsum(axis=1) - 1, 1)
    return _first((seen >= 20) & (score >= threshold))


def luci_rise(nights: Nights) -> Integers:
    """A changepoint in the first runs, after which the test fails more often: LUCI's model."""
    return first_rises(np.ones_like(nights.runs), nights.first_failed.astype(np.int64), LUCI)


def our_breakage(nights: Nights, most_chance: float = 1e-3) -> Integers:
    """A changepoint in all runs, reruns included, after which the test fails more often.

    Or all runs of a build failed, two at least, which a flake of the test's known rate would do with less than 0.1 %.
    """
    found = first_rises(nights.runs, nights.failures, RISE_OR_FALL)
    all_failed = (nights.failures == nights.runs) & (nights.runs > 1)
    for night in np.flatnonzero(all_failed.any(axis=0)):
        failures, runs, _ = _pooled(nights, int(night))
        chance = chance_to_fail_all(nights.runs[:, night], failures, runs, fit_prior(failures, runs))
        broken = all_failed[:, night] & (chance <= most_chance)
        found[broken] = np.minimum(found[broken], night)
    return found


def our_flaky(nights: Nights, least_rate: float = 0.001, least_chance: float = 0.7) -> Integers:
    """A test that failed and passed in one build, and whose rate is above 0.1 % with 70 %, given what all tests do.

    Builds in which far more tests did so than usual do not count.
    """
    found = np.full(len(nights.runs), NEVER)
    for night in range(nights.runs.shape[1]):
        failures, runs, mixed = _pooled(nights, night + 1)
        prior = fit_prior(failures, runs)
        flaky = (mixed > 0) & (chance_above(least_rate, failures, runs, prior) >= least_chance)
        found[flaky & (found == NEVER)] = night
    return found


def _pooled(nights: Nights, count: int) -> tuple[Integers, Integers, Integers]:
    """The failures, runs and mixed builds of each test in the first nights, without the crowded ones."""
    runs, failures = nights.runs[:, :count], nights.failures[:, :count]
    usual = ~crowded_builds(runs, failures)
    pooled = within_revisions(runs[:, usual], failures[:, usual])
    return pooled.failures, pooled.runs, pooled.mixed


RULES: dict[str, tuple[Rule | None, Rule | None]] = {
    "pass on retry (Trunk, Datadog)": (pass_on_retry, failed_all_runs),
    "transitions per window (Buildkite)": (transition_count, None),
    "entropy + flip rate (Apple)": (entropy_and_flips, None),
    "LUCI": (None, luci_rise),
    "accel_ci": (our_flaky, our_breakage),
}


def beside_others(seed: int = 14, bad_nights: int = 3) -> dict[str, Any]:
    """Precision, recall and nights to detection of each rule on the same nights, for flaky tests and for breakages.

    A test that became worse is no case for or against a rule for flaky tests. A breakage that is called before it began is
    wrong. `seen` is the share of the flaky tests that failed at all, which bounds the recall. `broken_called_flaky` counts,
    of the 200 tests that fail in all runs once they are broken, those that are called flaky.
    """
    nights = simulate(seed, bad_nights=bad_nights)
    flaky, breakage = nights.kind == "flaky", nights.begins < NEVER
    rows = {}
    for name, (flaky_rule, break_rule) in RULES.items():
        row: dict[str, Any] = {}
        if flaky_rule:
            called = flaky_rule(nights)
            row["flaky"] = _scores(called, flaky, np.zeros_like(called), nights.kind != "worse")
            row["flaky"]["broken_called_flaky"] = int(((nights.kind == "broken") & (called < NEVER)).sum())
        if break_rule:
            row["breakages"] = _scores(break_rule(nights), breakage, nights.begins, np.ones_like(breakage))
        rows[name] = row
    return {
        "tests": len(nights.kind),
        "nights": nights.runs.shape[1],
        "seen": round(float((nights.failures[flaky].sum(axis=1) > 0).mean()), 3),
        "rules": rows,
    }


def _scores(called: Integers, true: Booleans, begins: Integers, judged: Booleans) -> dict[str, Any]:
    hits = (called < NEVER) & true & (called >= begins)
    wrong = (called < NEVER) & judged & ~hits
    nights = (called - begins + 1)[hits]
    return {
        "precision": round(float(hits.sum() / max(1, hits.sum() + wrong.sum())), 3),
        "recall": round(float(hits.sum() / true.sum()), 3),
        "wrong": int(wrong.sum()),
        "median_nights": float(np.median(nights)) if len(nights) else None,
        "mean_nights": round(float(nights.mean()), 1) if len(nights) else None,
    }


def _first(true: Booleans) -> Integers:
    return np.where(true.any(axis=1), true.argmax(axis=1), NEVER)


def _changes(nights: Nights) -> tuple[Integers, Integers]:
    """The changes of the outcome in each build, from the last run of the build before on, and its runs."""
    last_failed = nights.failures == nights.runs
    between = np.diff(nights.first_failed, axis=1, prepend=False)  # replaced: what counts is the last run before
    between[:, 1:] = nights.first_failed[:, 1:] != last_failed[:, :-1]
    within = nights.first_failed & ~last_failed
    return between.astype(np.int64) + within, nights.runs


def public_counts(cache: Path) -> dict[str, Any]:
    """The share of the publicly counted flaky tests that show both outcomes in k runs. Raises `httpx.HTTPError`.

    The file is downloaded once into the cache.
    """
    path = cache / Path(COUNTS).name
    if not path.exists():
        answer = httpx.get(COUNTS, follow_redirects=True, timeout=20).raise_for_status()
        cache.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answer.content)
    with path.open(encoding="utf-8", newline="") as lines:
        counts = [(int(row[5]), int(row[5]) - int(row[6])) for row in csv.reader(lines)]
    runs, failures = np.array(counts, dtype=np.float64).T
    rates = failures / runs
    found = {
        str(k): {"found": round(100 * float(np.mean(1 - (1 - rates) ** k - rates**k)), 1), "published": published}
        for k, published in FOUND_AFTER.items()
    }
    median = f"{float(np.median(rates)):.3%}"
    return {"tests": len(counts), "median_runs": float(np.median(runs)), "median_rate": median, "found_after": found}


def _print(found: Mapping[str, Any]) -> None:
    console = Console()
    table = Table("after 300 passes, fails in", *MODELS, "9 of 10", "goal", title="Runs until a rise is seen (median)")
    for share, ours in found["detection"]["accel_ci"].items():
        medians = [found["detection"][name][share]["median"] for name in MODELS]
        cells = [f"not within {ours['within']}" if cell is None else str(cell) for cell in (*medians, ours["nine_tenths"])]
        table.add_row(share, *cells, str(ours["goal"] or "–"))
    console.print(table)
    table = Table(
        "rate", "series", *MODELS, *(f"{name}, each day" for name in MODELS), title="False alarms without a change"
    )
    for share, ours in found["false_alarms"]["accel_ci"].items():
        rows = [found["false_alarms"][name][share] for name in MODELS]
        cells = [str(row["alarms"]) for row in rows] + [
            f"{row['at_any_look']} of {min(1000, row['series'])}" for row in rows
        ]
        table.add_row(share, f"{ours['series']:,}", *cells)
    console.print(table)
    table = Table("level", "true rate inside", "points off", "Wilson", "below upper bound", title="Calibration")
    for row in found["calibration"]["levels"]:
        cells = [f"{row['covered']:.1%}", f"{row['points']:+.1f}", f"{row['wilson']:.1%}", f"{row['below_bound']:.1%}"]
        table.add_row(f"{row['level']:.0%}", *cells)
    console.print(table)
    others = found["beside_others"]
    for what in ("flaky", "breakages"):
        title = f"{what}: {others['tests']:,} tests, {others['nights']} nights"
        table = Table("rule", "precision", "recall", "wrong", "broken", "median nights", "mean nights", title=title)
        for name, row in others["rules"].items():
            if what in row:
                scores = row[what]
                cells = [f"{scores['precision']:.1%}", f"{scores['recall']:.1%}", str(scores["wrong"])]
                cells.append(str(scores.get("broken_called_flaky", "–")))
                table.add_row(name, *cells, str(scores["median_nights"]), str(scores["mean_nights"]))
        console.print(table)
    console.print(f"Of the flaky tests {others['seen']:.1%} failed at all.")
    counts = found["public_counts"]
    if "missing" in counts:
        console.print(f"No public counts ({counts['missing']}). Get them by: {counts['get_it_by']}", soft_wrap=True)
    else:
        title = f"{counts['tests']} flaky tests, {counts['median_runs']:,.0f} runs each, median rate {counts['median_rate']}"
        table = Table("runs", "both outcomes seen", "published", title=title)
        for runs, row in counts["found_after"].items():
            table.add_row(runs, f"{row['found']} %", f"{row['published']} %")
        console.print(table)
    console.print("Goals missed: " + ("; ".join(found["missed"]) or "none") + f". {found['seconds']} s.")


if __name__ == "__main__":
    raise SystemExit(main())
