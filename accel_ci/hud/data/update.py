"""Bring the data of the pages on tests up to date: what each test did in each build of the last 90 days.

Sized for 200,000 tests x 24 variants x 270 revisions: 1.3 billion results, of which nearly all are plain passes. So

* time is cut into weeks and tests into buckets (about 128 each, by the CRC-32 of their address): a page on a test loads one
  small script per week, the newest first, and a new build changes only scripts of its week;
* a build tells of its tests only what differs from one of a few *bases* that builds share: hardly anything;
* durations are a character each, of one build a day in each variant (of all builds where there are few);
* everything is compressed, and in base64.

The scripts (`scripts.py`) below `data/`, and their content:

    index                  JSON, an object: `variants`, `suites`; `revisions`, newest first: key, trigger, time, numbers of
                           the variants whose build has a section on the page of builds; `weeks`, newest first: name, number
                           of buckets, stamp, and builds: id, revision, variant, suite, day of the week, base; `facts`, the
                           number of buckets; `window`, the days of the flake rates
    tests/<week>/<bucket>  JSON, a list of records, in this order for each build that has any:
                           ["tests", suite, names]                   further tests of the bucket, which get the next places
                           ["base", suite, number, letters, reasons] letters by place; reasons of skips and expected failures
                           ["build", id, exceptions, characters]     exceptions: place, letter, attempts if they are told;
                                                                     characters of durations by place, if they are told
                           An attempt: round, outcome, seconds, card, host, the message's beginning, number of the signature,
                           reason if the infrastructure lost it. Tests behind the end of the letters are absent.
    failures/<week>/<id>   JSON, a list: signature, number of tests, the first of them, a message
    facts/<bucket>         JSON, an object: `tests` by address with `flaky`, `quarantine`, `incidents`; `incidents` by id
    names/<n>              text: addresses, `<suite>/<test>`, in order, a line each
    states                 JSON: the stamp of the names, and a letter for each

Letters are those of `letters.py`. A record of a build that the index does not name does not count: pages that are read
while the data are written show the state before. The index is written last.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.errors import DamagedError
from accel_ci.hud.data.facts import write_facts
from accel_ci.hud.data.names import known_names, update_names, update_states
from accel_ci.hud.data.scripts import write_script
from accel_ci.hud.data.week import DAMAGED, Week, WeekState, monday_of, week_of
from accel_ci.hud.text import in_utc
from accel_ci.model import Build, trigger_of_key
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.incidents import Incident
from accel_ci.quality.quarantine import Entry
from accel_ci.redaction import redact_bytes
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.revision_index import list_folders

_LOG = logging.getLogger(__name__)

HISTORY_DAYS = 90
"""The days that are told; the week of the first of them is told whole."""


@dataclass(frozen=True)
class TestData:
    """The facts that pages need to load the data. The stamps are part of addresses, so that nothing old is shown."""

    __test__ = False

    stamp: str
    tests: int
    names: int
    names_stamp: str


def state_folder(site: Path) -> Path:
    """The folder beside the HUD's that keeps what the next writing needs."""
    return site.with_name(f"{site.name}.state")


def update_test_data(
    store: ResultsStore,
    manifests: ManifestStore,
    site: Path,
    flakiness: Flakiness,
    entries: Sequence[Entry],
    incidents: Sequence[Incident],
    shown: Collection[Build],
    now: datetime,
) -> TestData:
    """Write what has changed since the last time below `data/`.

    The state that makes that possible is in a folder beside the site: `<site>.state`. `shown` are the builds that have a
    page. Builds whose results are damaged are left out, which is logged. Raises `AttemptsReplacedError`
    when results are stored again all the time.
    """
    state = state_folder(site)
    try:
        return _update(store, manifests, site, state, flakiness, entries, incidents, shown, now)
    except DamagedError as error:
        _LOG.warning("the data of the tests are made anew: %s", error)
        shutil.rmtree(state)
        return _update(store, manifests, site, state, flakiness, entries, incidents, shown, now)


@ask_again
def _update(
    store: ResultsStore,
    manifests: ManifestStore,
    site: Path,
    state: Path,
    flakiness: Flakiness,
    entries: Sequence[Entry],
    incidents: Sequence[Incident],
    shown: Collection[Build],
    now: datetime,
) -> TestData:
    state.mkdir(parents=True, exist_ok=True)
    first = monday_of(week_of(now.date() - timedelta(days=HISTORY_DAYS)))
    of_week: dict[str, list[StoredSuite]] = {}
    for stored in store.suites(since=first):
        of_week.setdefault(week_of(stored.day), []).append(stored)
    weeks = [Week(name, site, state) for name in sorted(of_week)]
    known = known_names(state)
    covered = {week: week.update(store, of_week[week.name], known) for week in weeks}
    names = update_names(weeks, site, state)
    living = {
        week: [stored for stored in of_week[week.name] if covered[week].builds[stored.entry.name].base != DAMAGED]
        for week in weeks
    }
    builds = [stored for of_one in living.values() for stored in of_one]
    revisions = _revisions(manifests, builds)
    order = {key: -number for number, (key, *_) in enumerate(revisions)}
    update_states(names, store, builds, order, site)
    facts = write_facts(site, flakiness, entries, incidents)
    index = _index(covered, living, revisions, set(shown), facts, flakiness.window_days)
    content = redact_bytes(msgspec.json.encode(index))
    _remove_others(site, state, {week.name for week in weeks})
    write_script(site / "data", "index", content)
    return TestData(hashlib.sha256(content).hexdigest()[:10], len(names.table), len(names.sizes), names.stamp)


def _revisions(manifests: ManifestStore, builds: Sequence[StoredSuite]) -> list[tuple[str, str | None, str]]:
    """The key, trigger and time of each revision, newest first. Of one whose manifest is gone, the day is known."""
    known = {one.key: one for one in manifests.revisions()}
    times: dict[str, datetime] = {}
    for stored in builds:
        key = stored.build.revision
        midnight = datetime.combine(stored.day, time(), timezone.utc)
        times[key] = in_utc(known[key].seen_at) if key in known and known[key].trigger else midnight
    ordered = sorted(times, key=lambda key: (times[key], key), reverse=True)
    triggers = {key: known[key].trigger if key in known else None for key in ordered}
    return [(key, triggers[key] or trigger_of_key(key), f"{times[key]:%Y-%m-%dT%H:%MZ}") for key in ordered]


def _index(
    covered: Mapping[Week, WeekState],
    living: Mapping[Week, Sequence[StoredSuite]],
    revisions: Sequence[tuple[str, str | None, str]],
    shown: Collection[Build],
    facts: int,
    window_days: int,
) -> dict[str, Any]:
    builds = [stored for of_one in living.values() for stored in of_one]
    variants = {name: number for number, name in enumerate(sorted({stored.build.variant for stored in builds}))}
    suites = {name: number for number, name in enumerate(sorted({stored.suite for stored in builds}))}
    numbers = {key: number for number, (key, *_) in enumerate(revisions)}
    weeks = []
    for week, state in reversed(list(covered.items())):
        told = []
        for stored in living[week]:
            build, own = stored.build, state.builds[stored.entry.name]
            place = numbers[build.revision], variants[build.variant], suites[stored.suite]
            told.append([own.id, *place, stored.day.weekday(), own.base])
        weeks.append([week.name, state.buckets, state.stamp, told])
    return {
        "variants": list(variants),
        "suites": list(suites),
        "revisions": [
            [*one, [number for variant, number in variants.items() if Build(one[0], variant) in shown]] for one in revisions
        ],
        "weeks": weeks,
        "facts": facts,
        "window": window_days,
    }


def _remove_others(site: Path, state: Path, weeks: Collection[str]) -> None:
    """Remove weeks that have left the window."""
    for folder in (state, site / "data" / "tests", site / "data" / "failures"):
        for name in list_folders(folder):
            if name not in weeks:
                Week(name, site, state).remove()
