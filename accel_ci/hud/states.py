"""The state of a build in a few words, and the bar of its verdicts. Pure functions of its manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.stops import Stop, failed_attempts_of, find_stop
from accel_ci.hud.text import first_line, in_utc, number
from accel_ci.ledger.status import beside_the_ledger, shortcomings
from accel_ci.model import VERDICTS, Verdict
from accel_ci.pipelines import EVERY_STAGE, LEDGER

Kind = Literal["passed", "flaky", "failed", "incomplete", "stopped", "unreadable", "absent"]
"""The state of a build. Only `passed` and `flaky` pass."""

Bar = dict[Verdict, tuple[float, float]]
"""The parts of the bar of verdicts, worst first: where each starts and how wide it is, in percent of the bar."""

RECENT = timedelta(hours=6)
"""A build without a ledger may still be running while its newest manifest is younger than this."""

_WORST_FIRST: tuple[Verdict, ...] = ("failed", "infra", "not_run", "flaky", "xpassed", "xfailed", "skipped", "passed")


@dataclass(frozen=True)
class State:
    """The state of a build, with a short text for people. `since` is there for one that stopped: its last change."""

    kind: Kind
    words: str
    detail: str = ""
    since: datetime | None = None


def build_state(record: BuildRecord, now: datetime, tests: BuildTests | None = None) -> State:
    """Find the state of a build. It passes only if every expected test has a verdict, at least one ran, and none is bad.

    `tests` name the reason why a build stopped in its deviceless or smoke stage.
    """
    if LEDGER in record.unreadable:
        return State("unreadable", "ledger unreadable", "the manifest is broken")
    if (ledger := record.ledger) is None:
        return _unfinished_state(record, now, find_stop(record, tests.verdicts if tests else ()))
    counts = {verdict: ledger.counts.get(verdict, 0) for verdict in VERDICTS}
    detail = _joined(*beside_the_ledger(record.activity), _in_words(counts, ("passed", "skipped", "xfailed", "xpassed")))
    bad = shortcomings(ledger)
    if ledger.informative and not bad:
        return State("passed", f"{number(counts['passed'] + counts['xpassed'])} of {number(ledger.expected)} pass", detail)
    if (counts["failed"] > len(ledger.muted) or ledger.unexpected_failures) and not ledger.informative:
        return State("failed", bad[0], _joined(*bad[1:], _in_words(counts, ("flaky",)), detail))
    if bad:
        return State("incomplete", _joined(*bad), _joined(_in_words(counts, ("flaky",)), detail))
    if counts["flaky"] or ledger.muted:
        muted = f"{number(len(ledger.muted))} failed in quarantine" if ledger.muted else ""
        return State("flaky", _joined(_in_words(counts, ("flaky",)), muted), detail)
    return State("passed", "all passed" if counts["passed"] == ledger.expected else "none failed", detail)


def verdict_bar(counts: Mapping[Verdict, int]) -> Bar:
    """The verdicts as parts of a bar; a single bad test among thousands stays wide enough to be seen."""
    total = sum(counts.values())
    widths = {v: max(2.0, 100 * counts[v] / total) for v in _WORST_FIRST if counts.get(v, 0) > 0}
    start, bar = 0.0, {}
    for verdict, width in widths.items():
        share = width * 100 / sum(widths.values())
        bar[verdict] = (round(start, 2), round(share, 2))
        start += share
    return bar


def _unfinished_state(record: BuildRecord, now: datetime, stop: Stop) -> State:
    last = next((stage for stage in reversed(EVERY_STAGE) if stage in record.present), None)
    results = {"deviceless": record.deviceless_results, "smoke": record.smoke_results}
    failed = [f"{number(count)} {name} failed" for name, of in results.items() if (count := failed_attempts_of(of))]
    first = f"{stop.faults[0].subject}: {first_line(stop.faults[0].message)}" if stop.faults else ""
    more = f"{number(len(stop.faults) - 1)} more" if len(stop.faults) > 1 else ""
    broken = f"{', '.join(record.unreadable)} unreadable" if record.unreadable else ""
    after = "" if stop.by_itself else f"after {last}" if last else "no manifest yet"
    changed = in_utc(record.changed_at) if record.changed_at else None
    running = changed is not None and now - changed < RECENT and not stop.by_itself
    words = "; ".join(dict.fromkeys(record.activity.values()))
    words = words or f"{'unfinished' if running else 'stopped'} at {stop.stage}"
    return State(
        "stopped",
        words,
        _joined(*failed, first, more, broken, after),
        changed,
    )


def _in_words(counts: Mapping[Verdict, int], verdicts: Iterable[Verdict]) -> str:
    return _joined(*(f"{number(counts[v])} {v.replace('_', ' ')}" for v in verdicts if counts[v]))


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
