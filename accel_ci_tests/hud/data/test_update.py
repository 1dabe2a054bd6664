"""The data of the pages on tests: the same numbers as in the store, and the same whether written step by step or at once."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.hud.data import week
from accel_ci.hud.data.details import SHOWN_TESTS
from accel_ci.hud.data.letters import LETTERS, STEPS_PER_DOUBLING
from accel_ci.hud.data.suite_week import bucket_of
from accel_ci.hud.data.update import HISTORY_DAYS, TestData, update_test_data
from accel_ci.model import VERDICTS, Attempt, Build, Outcome
from accel_ci.quality.flakiness import Flakiness
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.results.store import ResultsStore
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.stored_attempts import real_s3, root_of, write_attempts
from accel_ci_tests.hud.data.reader import Key, Told, content, read_all, read_names, read_states

DAY = date(2026, 11, 25)  # a Wednesday
VARIANTS = ("py311", "py312 <b>")
TESTS = [f"tests/test_{n % 7}.py::TestÄ::test_{n}[\u2028'\"<\\x]" for n in range(300)]
OUTCOMES: tuple[Outcome, ...] = ("failed", "error", "skipped", "xfailed", "xpassed", "crashed", "timeout", "not_run")
LINES = {False: "manual", True: "nightly"}


@dataclass
class Site:
    """A results store and the data that are made of it."""

    home: Path
    now: datetime = datetime(2026, 11, 27, 8, tzinfo=timezone.utc)
    store: ResultsStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = ResultsStore(self.home / "results")

    @property
    def folder(self) -> Path:
        return self.home / "site"

    def update(self, folder: Path | None = None) -> TestData:
        manifests = ManifestStore(self.home)
        none = Flakiness(30, 0, ())
        return update_test_data(self.store, manifests, folder or self.folder, none, (), (), (), self.now)

    def from_nothing(self) -> Path:
        """The same data, written at once."""
        other = self.home / "other"
        for each in (other, self.home / "other.state"):
            shutil.rmtree(each, ignore_errors=True)
        self.update(other)
        return other


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


Make = Callable[..., Attempt]


def draw(rng: random.Random, make: Make, tests: list[str], share: float) -> list[Attempt]:
    """Attempts of a build: of a share of the tests, something else than a plain pass."""
    found = []
    for number, test in enumerate(tests):
        suite = "unit" if number % 4 else "<i>other"
        seconds = None if rng.random() < 0.05 else rng.lognormvariate(0, 2)
        outcomes: list[Outcome] = ["passed"]
        if test.endswith("7[\u2028'\"<\\x]"):
            outcomes = ["skipped"]
        if rng.random() < share:
            outcomes = rng.choices(OUTCOMES, k=rng.choice([1, 2])) + rng.choices([["passed"], []])[0]  # type: ignore[operator]
        for round_number, outcome in enumerate(outcomes, 1):
            message = f"{outcome}: </script> {number % 5} \u2029" * 9 if outcome not in ("passed", "not_run") else None
            infra = "card 3 is broken" if outcome == "crashed" and number % 3 == 0 else None
            found.append(make(test, outcome, round=round_number, suite=suite, seconds=seconds, message=message, infra=infra))
    return found


def stored_letters(store: ResultsStore, since: date) -> dict[Key, tuple[str, float | None, int]]:
    """The letter, seconds and attempts of every stored result."""
    found = {}
    for stored in store.suites(since=since):
        for row in store.judged(stored).to_pylist():
            letter = LETTERS[VERDICTS[row["verdict"]]]
            key = stored.suite, row["test"], stored.build.revision, stored.build.variant
            found[key] = letter.upper() if row["cached"] else letter, row["duration_s"], row["attempts"]
    return found


def without_seconds(found: dict[Key, Told]) -> dict[Key, Told]:
    """Drop what depends on the order of builds: the builds of a day that have durations, and shared reasons."""
    return {key: replace(told, seconds=" ", reason=None) for key, told in found.items()}


def check(site: Site) -> None:
    """The data tell what is stored, and the same as if they were written at once."""
    first = site.now.date() - timedelta(days=HISTORY_DAYS)
    stored = stored_letters(site.store, first - timedelta(days=first.weekday()))
    found = read_all(site.folder)
    assert {key: told.letter for key, told in found.items()} == {key: letter for key, (letter, *_) in stored.items()}
    for key, told in found.items():
        letter, seconds, attempts = stored[key]
        if letter in "fkin" or attempts > 1:
            assert len(told.attempts) == attempts
        if told.seconds != " ":
            assert seconds is not None
            level = ord(told.seconds) - 35 - (told.seconds > "\\")
            assert abs(level - STEPS_PER_DOUBLING * math.log2(max(seconds, 0.001) / 0.001)) <= 0.51 or level == 90
    other = site.from_nothing()
    assert without_seconds(found) == without_seconds(read_all(other))
    addresses = sorted({f"{suite}/{test}" for suite, test, *_ in found})
    assert read_names(site.folder) == addresses == read_names(other)
    assert read_states(site.folder) == read_states(other)


def test_every_result_of_the_store_is_told(site: Site, attempt: Make) -> None:
    rng = random.Random(1)
    for number, variant in enumerate(VARIANTS):
        write_attempts(site.store, Build("nightly-1", variant), DAY, draw(rng, attempt, TESTS[number * 20 :], 0.05))
    data = site.update()
    check(site)
    assert data.tests == 300
    counts = Counter(told.letter for told in read_all(site.folder).values())
    stored = Counter[str]()
    for one in site.store.suites():
        [rollup] = site.store.rollups([one])
        stored.update({LETTERS[verdict]: count for verdict, count in rollup.origin.counts.items()})
    assert counts == +stored


@real_s3
def test_results_in_a_bucket_are_told_as_well(site: Site, attempt: Make, bucket_store: BucketStore) -> None:
    site.store = ResultsStore(bucket_store)
    for key in ("nightly-1", "nightly-2"):
        write_attempts(site.store, Build(key, VARIANTS[0]), DAY, draw(random.Random(key), attempt, TESTS, 0.05))
        site.update()
    check(site)


@pytest.mark.parametrize("seed", range(6))
def test_data_written_step_by_step_are_those_written_at_once(
    site: Site, attempt: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(week, "TIMED_A_DAY", rng.choice([0, 700, 1_000_000]))
    for _ in range(14):
        root = root_of(site.store)
        stored = sorted(root.glob("day=*/*.parquet"))
        action = rng.choice(["build", "build", "build", "again", "remove", "later", "damage", "nothing"])
        if action == "again" and stored:
            one = rng.choice(site.store.suites())
            tests = draw(rng, attempt, TESTS, 0.1)
            write_attempts(site.store, one.build, one.day, [each for each in tests if each.suite == one.suite])
        elif action == "remove" and stored:
            rng.choice(stored).unlink()
        elif action == "later":
            site.now += timedelta(days=rng.choice([1, 6, 40]))
        elif action == "damage" and site.folder.is_dir():
            damage(rng, site)
        else:
            day = site.now.date() - timedelta(days=rng.choice([0, 0, 1, 3, 9, 30]))
            key = f"{LINES[rng.random() < 0.8]}-{day:%Y%m%d}-{rng.randrange(3)}"
            begin, step = rng.choice([(0, 1), (rng.randrange(100), 1), (0, 20)])
            tests = draw(rng, attempt, TESTS[begin::step], rng.choice([0, 0.01, 0.9]))
            write_attempts(site.store, Build(key, rng.choice(VARIANTS)), day, tests)
        site.update()
        check(site)


def damage(rng: random.Random, site: Site) -> None:
    """Damage a file of the data or of its state."""
    files = sorted(
        path for folder in (site.folder / "data", site.home / "site.state") for path in folder.rglob("*") if path.is_file()
    )
    chosen = rng.choice(files)
    match rng.choice(["remove", "empty", "cut", "folder"]):
        case "remove":
            chosen.unlink()
        case "empty":
            chosen.write_bytes(b"")
        case "cut":
            chosen.write_bytes(chosen.read_bytes()[:-7])
        case "folder":
            shutil.rmtree(chosen.parent)


def test_a_script_that_is_damaged_without_a_trace_is_made_anew_when_it_is_needed(site: Site, attempt: Make) -> None:
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, [attempt(test, "passed") for test in TESTS])
    site.update()
    script = sorted((site.folder / "data" / "tests").rglob("*.js"))[0]
    script.write_bytes(b"x" * script.stat().st_size)
    write_attempts(site.store, Build("nightly-2", VARIANTS[0]), DAY, [attempt(test, "passed") for test in TESTS])
    site.update()
    check(site)


def test_one_more_build_changes_only_what_it_has_something_to_tell_of(
    site: Site, attempt: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(week, "TIMED_A_DAY", 0)
    passes = [attempt(test, "passed") for test in TESTS]
    for days in (0, 14):
        for variant in VARIANTS:
            write_attempts(site.store, Build(f"nightly-{days}", variant), DAY - timedelta(days=days), passes)
    site.update()

    def scripts() -> dict[str, bytes]:
        return {str(path.relative_to(site.folder / "data")): path.read_bytes() for path in site.folder.rglob("*.js")}

    before = scripts()
    fails = [attempt(TESTS[5], "failed", message="broken"), *(one for one in passes if one.test != TESTS[5])]
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, fails)
    site.update()
    changed = {name for name, script in scripts().items() if script != before.get(name)}
    bucket = bucket_of("unit", TESTS[5], 4)
    [failures] = [name for name in changed if name.startswith("failures/")]
    assert changed == {"index.js", "states.js", failures, f"tests/2026-W48/{bucket:03x}.js"}
    assert site.update() == site.update()
    check(site)


def test_one_build_a_day_tells_its_durations_where_there_are_many(
    site: Site, attempt: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(week, "TIMED_A_DAY", 0)
    for trigger in ("pr", "intraday", "nightly"):
        build = Build(f"{trigger}-1", VARIANTS[0])
        write_attempts(site.store, build, DAY, [attempt(test, "passed") for test in TESTS[:9]])
        site.update()
    told = {key[2] for key, one in read_all(site.folder).items() if one.seconds != " "}
    assert told == {"intraday-1"}


def test_a_test_that_is_usually_skipped_has_its_reason_and_takes_no_room(site: Site, attempt: Make) -> None:
    skips = [attempt(test, "skipped", message=f"no float64 on this card: {test}", seconds=None) for test in TESTS]
    for number in range(8):
        write_attempts(site.store, Build(f"nightly-{number}", VARIANTS[0]), DAY, skips)
    site.update()
    found = read_all(site.folder)
    assert {told.letter for told in found.values()} == {"s"}
    assert {told.reason for told in found.values()} == {f"no float64 on this card: {test}" for test in TESTS}
    assert not any(told.attempts for told in found.values())


def test_attempts_have_their_outcome_card_and_message(site: Site, attempt: Make) -> None:
    attempts = [
        attempt(TESTS[0], "failed", message="E" * 500, card="3", seconds=1.23456),
        attempt(TESTS[0], "passed", round=2, card="4"),
        attempt(TESTS[1], "crashed", infra="the card is broken", message="gone"),
    ]
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, attempts)
    site.update()
    told = {key[1]: one.attempts for key, one in read_all(site.folder).items()}
    assert told[TESTS[0]] == [[1, "failed", 1.235, "3", "host", "E" * 199 + "…", 0], [2, "passed", 1.0, "4", "host"]]
    assert told[TESTS[1]] == [[1, "crashed", 1.0, "0", "host", "gone", None, "the card is broken"]]


def test_failures_are_told_by_signature(site: Site, attempt: Make) -> None:
    fails = [attempt(test, "failed", message=f"E  not close: {number}") for number, test in enumerate(TESTS[:30])]
    fails.append(attempt(TESTS[30], "failed", message="segmentation fault"))
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, fails)
    site.update()
    [script] = (site.folder / "data" / "failures").rglob("*.js")
    name = str(script.relative_to(site.folder / "data").with_suffix(""))
    [first, second] = json.loads(content(site.folder, name))
    assert first[1:3] == [30, sorted(TESTS[:30])[:SHOWN_TESTS]]
    assert second == ["segmentation fault", 1, [TESTS[30]], "segmentation fault"]
    numbers = {key[1]: one.attempts[0][6] for key, one in read_all(site.folder).items()}
    assert numbers == {**dict.fromkeys(TESTS[:30], 0), TESTS[30]: 1}


def test_the_newest_state_is_the_worst_of_the_newest_builds_of_the_line(site: Site, attempt: Make) -> None:
    def store(key: str, variant: str, days: int, outcomes: dict[str, Outcome]) -> None:
        attempts = [attempt(test, outcome) for test, outcome in outcomes.items()]
        write_attempts(site.store, Build(key, variant), DAY - timedelta(days=days), attempts)

    store("nightly-1", "a", 3, {"t::1": "failed", "t::2": "failed", "t::gone": "passed"})
    store("nightly-2", "a", 1, {"t::1": "passed", "t::2": "passed"})
    store("nightly-2", "b", 1, {"t::1": "skipped", "t::2": "failed"})
    store("pr-1", "b", 0, {"t::1": "failed", "t::2": "passed", "t::new": "passed"})
    site.update()
    assert read_states(site.folder) == {"unit/t::1": "s", "unit/t::2": "f", "unit/t::gone": "-", "unit/t::new": "-"}


def test_results_that_cannot_be_read_are_left_out(site: Site, attempt: Make, caplog: pytest.LogCaptureFixture) -> None:
    for key in ("nightly-1", "nightly-2"):
        write_attempts(site.store, Build(key, VARIANTS[0]), DAY, [attempt(test, "passed") for test in TESTS])
    [broken] = root_of(site.store).glob("day=*/nightly-1~*.parquet")
    broken.write_bytes(b"PAR1")
    site.update()
    assert {key[2] for key in read_all(site.folder)} == {"nightly-2"}
    assert "nightly-1" in caplog.text
    caplog.clear()
    site.update()
    assert "passed over" not in caplog.text


def test_results_that_are_damaged_unseen_are_left_out(site: Site, attempt: Make, caplog: pytest.LogCaptureFixture) -> None:
    for key in ("nightly-1", "nightly-2"):
        write_attempts(site.store, Build(key, VARIANTS[0]), DAY, [attempt(test, "failed") for test in TESTS])
    [broken] = root_of(site.store).glob("day=*/nightly-1~*.parquet")
    status = broken.stat()
    with broken.open("r+b") as file:
        file.write(b"x" * status.st_size)
    os.utime(broken, ns=(status.st_atime_ns, status.st_mtime_ns))
    site.update()
    assert {key[2] for key in read_all(site.folder)} == {"nightly-2"}
    assert "passed over" in caplog.text


def test_state_that_is_damaged_unseen_is_made_anew(site: Site, attempt: Make) -> None:
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, [attempt(test, "passed") for test in TESTS])
    site.update()
    before = read_all(site.folder)
    [table] = site.home.glob("site.state/*/*.arrow")
    table.write_bytes(b"x" * table.stat().st_size)
    site.update()
    assert read_all(site.folder) == before
    assert b"ARROW" in table.read_bytes()


def test_secrets_are_taken_out(site: Site, attempt: Make, learned: None) -> None:
    attempts = [attempt(f"t::test[{SECRET}]", "failed", message=f"password {SECRET}"), attempt("t::plain", "passed")]
    write_attempts(site.store, Build("nightly-1", VARIANTS[0]), DAY, attempts)
    OF_THIS_PROCESS.learn([SECRET])
    site.update()
    for script in (site.folder / "data").rglob("*.js"):
        text = content(site.folder, str(script.relative_to(site.folder / "data").with_suffix("")))
        assert SECRET not in text
    assert {key[1] for key in read_all(site.folder)} == {"t::test[***]", "t::plain"}


SECRET = "hunter2-hunter2"


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process forget what it learns of secrets."""
    for name, value in vars(OF_THIS_PROCESS).items():
        monkeypatch.setattr(OF_THIS_PROCESS, name, value)


def test_weeks_that_have_left_the_window_go(site: Site, attempt: Make) -> None:
    for days in (0, 60):
        build = Build(f"nightly-{days}", VARIANTS[0])
        write_attempts(site.store, build, DAY - timedelta(days=days), [attempt("t::1", "failed", message="x")])
    site.update()

    def folders() -> list[Any]:
        return sorted(path.relative_to(site.home).as_posix() for path in site.home.glob("site*/**/2026-W*"))

    assert len(folders()) == 6
    site.now += timedelta(days=60)
    site.update()
    assert folders() == ["site.state/2026-W48", "site/data/failures/2026-W48", "site/data/tests/2026-W48"]
