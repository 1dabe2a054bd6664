"""The facts of the quality engine about tests, as pages load them."""

from __future__ import annotations

import json
import zlib
from datetime import date
from pathlib import Path
from typing import Any

from accel_ci.hud.data.facts import write_facts
from accel_ci.quality.flakiness import Flakiness, FlakyTest
from accel_ci.quality.incidents import Incident
from accel_ci.quality.quarantine import Entry
from accel_ci_tests.hud.data.reader import content

DAY = date(2026, 11, 27)


def incident(name: str, state: Any, tests: list[str], now: list[str]) -> Incident:
    keys, still = (frozenset(("py311", "unit", test) for test in some) for some in (tests, now))
    return Incident(name, "backend", "title", "sentence", 0.9, "nightly-1", "nightly-2", state, keys, still, frozenset())


def flaky(tests: int) -> Flakiness:
    found = tuple(FlakyTest("py311", "unit", f"t::{n}", 100, 1, 0.01, 0.0018, 0.0545, None) for n in range(tests))
    return Flakiness(30, tests, found)


def read(site: Path, test: str, buckets: int) -> Any:
    facts = json.loads(content(site, f"facts/{zlib.crc32(f'unit/{test}'.encode()) % buckets:03x}"))
    return facts["tests"].get(f"unit/{test}"), facts["incidents"]


def test_a_test_has_its_rate_quarantine_and_incidents(tmp_path: Path) -> None:
    entry = Entry("unit", "t::0", "py311", "muted", "flaky", "rule", DAY, DAY, "me")
    incidents = [incident("a", "open", ["t::0", "t::1"], ["t::0"]), incident("b", "fixed", ["t::0"], ["t::0"])]
    assert write_facts(tmp_path, flaky(1), [entry], incidents) == 1
    facts, known = read(tmp_path, "t::0", 1)
    assert facts == {
        "flaky": [["py311", 0.01, 0.0018, 0.0545, 1, 100]],
        "quarantine": [["py311", "muted", "rule", "2026-11-27", "2026-11-27", "flaky", "me"]],
        "incidents": [["a", True], ["b", False]],
    }
    assert known["b"] == ["backend", "fixed", "title", "nightly-1", "nightly-2"]
    assert read(tmp_path, "t::1", 1)[0] == {"incidents": [["a", False]]}
    assert read(tmp_path, "t::2", 1)[0] is None


def test_the_buckets_grow_and_shrink_with_the_tests(tmp_path: Path) -> None:
    for tests in (1000, 3, 0):
        buckets = write_facts(tmp_path, flaky(tests), (), ())
        assert len(list((tmp_path / "data" / "facts").iterdir())) == buckets == (16 if tests == 1000 else 1)
        assert all(read(tmp_path, f"t::{n}", buckets)[0] for n in range(tests))
