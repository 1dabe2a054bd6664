from __future__ import annotations

import random
import resource
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Attempt, Build, Outcome
from accel_ci.quality.flakiness import Flakiness, measure
from accel_ci.results.history import known_durations, median_durations
from accel_ci.results.questions import history
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import flakiness_of, histories, root_of, write_attempts

TODAY = date(2026, 11, 27)
BUILD = Build("nightly-20261127", "py3")


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results")


def test_nothing_stored_is_no_error(store: ResultsStore) -> None:
    assert median_durations(store, "py3", TODAY) == {}
    assert histories(store, TODAY, 30) == []


def test_durations_are_medians_of_attempts_that_ended_by_themselves(
    store: ResultsStore, attempt: Callable[..., Attempt]
) -> None:
    for day, seconds in ((25, 1.0), (26, 2.0), (27, 30.0)):
        build = Build(f"nightly-202611{day}", "py3")
        rows = [
            attempt("a", "passed", seconds=seconds),
            attempt("b", "timeout", seconds=60.0),
            attempt("c", "failed", seconds=9.0, infra="bad card"),
            attempt("d", "skipped", seconds=None),
        ]
        write_attempts(store, build, date(2026, 11, day), rows)
    assert median_durations(store, "py3", TODAY) == {("unit", "a"): 2.0}
    assert median_durations(store, "other", TODAY) == {}
    assert median_durations(store, "py3", TODAY, window_days=1) == {("unit", "a"): 16.0}


def test_durations_that_no_test_can_have_are_left_out(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    for day, seconds in ((25, 1.9e9), (26, 2.0), (27, -1e9)):
        rows = [attempt("a", "passed", seconds=seconds), attempt("b", "passed", seconds=1.9e9)]
        write_attempts(store, Build(f"nightly-202611{day}", "py3"), date(2026, 11, day), rows)
    assert median_durations(store, "py3", TODAY, limit_s=60) == {("unit", "a"): 2.0}


def test_a_plan_of_trusted_code_takes_its_times_from_trusted_builds(
    store: ResultsStore, attempt: Callable[..., Attempt]
) -> None:
    nightly, pull = Build("nightly-20261127", "py3"), Build("pr-7-aaaaaaaaaaaa", "py3")
    write_attempts(store, nightly, TODAY, [attempt("a", "passed", seconds=2.0)])
    slow = [attempt("a", "passed", seconds=900.0), attempt("new", "passed", seconds=5.0)]
    write_attempts(store, pull, TODAY, slow)

    def is_trusted(build: Build) -> bool:
        return not build.revision.startswith("pr-")

    assert known_durations(store, is_trusted, nightly, TODAY) == {("unit", "a"): 2.0}
    assert known_durations(store, is_trusted, pull, TODAY) == {("unit", "a"): 2.0, ("unit", "new"): 5.0}


def test_a_build_that_is_stored_again_replaces_its_rows(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    write_attempts(store, BUILD, TODAY, [attempt("a", "failed"), attempt("a", "passed", suite="other")])
    write_attempts(store, BUILD, TODAY, [attempt("a", "passed")])
    found = histories(store, TODAY, 30)
    assert [(h.suite, h.builds, h.failed_builds) for h in found] == [("other", 1, 0), ("unit", 1, 0)]
    assert not [path for path in root_of(store).rglob("*") if path.name.startswith(".")]


def test_flaky_is_decided_within_a_build_never_across_builds(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    nights = {
        25: [attempt("fixed", "failed"), attempt("flaky", "passed"), attempt("card", "passed")],
        26: [attempt("fixed", "passed"), attempt("flaky", "failed", message="1e-3 off"),
             attempt("flaky", "passed", round=2, card="1"), attempt("card", "failed", infra="bad card"),
             attempt("card", "passed", round=2)],
    }  # fmt: skip
    for day, rows in nights.items():
        write_attempts(store, Build(f"nightly-202611{day}", "py3"), date(2026, 11, day), rows)
    flakiness = flakiness_of(histories(store, TODAY, 30), 30)
    assert flakiness.tests == 3
    [test] = flakiness.flaky
    assert (test.test, test.builds, test.flaky_builds, test.rate, test.last_failure) == ("flaky", 2, 1, 0.5, "1e-3 off")


def test_hostile_names_are_stored_as_they_are(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    names = ["'; DROP VIEW attempts; --", "<script>", "a\x00b", "naïve [ü]", "\u202egnp"]
    write_attempts(store, BUILD, TODAY, [attempt(name, "passed") for name in names])
    assert sorted(test for _, test in median_durations(store, "py3", TODAY)) == sorted(names)


def test_the_same_attempts_leave_the_files_alone(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    rows = [attempt("a", "failed", message="no"), attempt("a", "passed", round=2)]
    write_attempts(store, BUILD, TODAY, rows)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in files(store)}
    write_attempts(store, BUILD, TODAY, list(rows))
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in files(store)} == before
    assert len(before) == 2
    write_attempts(store, BUILD, TODAY, rows[:1])
    assert all(path.read_bytes() != content for path, (_, content) in before.items())


def test_a_build_that_is_stored_for_another_day_moves(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    write_attempts(store, BUILD, date(2026, 11, 26), [attempt("a", "failed")])
    write_attempts(store, BUILD, TODAY, [attempt("a", "passed")])
    assert [(h.builds, h.failed_builds) for h in histories(store, TODAY, 30)] == [(1, 0)]
    assert {path.parent.name for path in files(store)} == {"day=2026-11-27"}


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "of another version"])
def test_sums_are_made_anew_from_the_rollups(store: ResultsStore, attempt: Callable[..., Attempt], damage: str) -> None:
    write_attempts(store, BUILD, TODAY, [attempt("a", "passed"), attempt("b", "failed"), attempt("b", "passed", round=2)])
    expected = measure(store, TODAY, 30)
    [kept] = root_of(store).glob("windows/30/*.arrow")
    if damage == "missing":
        kept.unlink()
    elif damage == "of another version":
        kept.write_bytes(kept.read_bytes().replace(b"accel_ci.covers.", b"accel_ci.covers_"))
    else:
        kept.write_bytes(kept.read_bytes()[:100] if damage == "cut" else b"no sums")
    assert measure(store, TODAY, 30) == expected


@pytest.mark.parametrize("damage", ["missing", "stale", "cut", "garbage"])
def test_rollups_are_made_anew_from_the_attempts(
    store: ResultsStore, attempt: Callable[..., Attempt], damage: str, tmp_path: Path
) -> None:
    write_attempts(store, BUILD, TODAY, [attempt("a", "passed"), attempt("b", "failed")])
    expected = histories(store, TODAY, 30)
    [rollup] = root_of(store).glob("rollups/*/*.arrow")
    if damage == "missing":
        rollup.unlink()
    elif damage == "stale":  # as after a kill between the attempts and their rollup
        kept = rollup.read_bytes()
        other = ResultsStore(tmp_path / "other")
        write_attempts(other, BUILD, TODAY, [attempt("a", "failed")])
        rollup.write_bytes(next(root_of(other).glob("rollups/*/*.arrow")).read_bytes())
        assert rollup.read_bytes() != kept
    else:
        rollup.write_bytes(rollup.read_bytes()[:100] if damage == "cut" else b"no rollup")
    assert histories(store, TODAY, 30) == expected
    [stored] = store.suites()
    assert [r.source for r in store.rollups([stored])] == [stored.entry.version]


def test_attempts_of_earlier_versions_are_read(store: ResultsStore) -> None:
    folder = root_of(store) / "day=2026-11-27"
    folder.mkdir(parents=True)
    old = {"revision": "r", "variant": "v", "suite": "s", "test": "t", "round": 1, "outcome": "passed", "duration_s": 2.0}
    pq.write_table(pa.Table.from_pylist([old]), folder / "r~v~s.parquet")
    assert median_durations(store, "v", TODAY) == {("s", "t"): 2.0}
    assert store.query("SELECT test, day FROM attempts WHERE outcome = ?", ["passed"]) == [("t", TODAY)]


def test_a_damaged_file_of_attempts_is_named(store: ResultsStore) -> None:
    folder = root_of(store) / "day=2026-11-27"
    folder.mkdir(parents=True)
    (folder / "r~v~s.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(AccelCiError, match=r"day=2026-11-27/r~v~s\.parquet.*ingest r~v again"):
        histories(store, TODAY, 30)


def test_what_is_not_ours_is_left_alone(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    folder = root_of(store) / "day=2026-11-27"
    folder.mkdir(parents=True)
    for name in ("notes.txt", "a~b.parquet", ".r~v~s.parquet.17"):
        (folder / name).write_text("?")
    (root_of(store) / "day=soon").mkdir()
    (root_of(store) / "day=2026-13-01").mkdir()
    (root_of(store) / "day=2026-13-01" / "r~v~s.parquet").write_text("?")
    write_attempts(store, BUILD, TODAY, [attempt("a", "passed")])
    assert [stored.suite for stored in store.suites()] == ["unit"]
    assert (folder / "notes.txt").exists()


def test_names_that_are_too_long_for_a_file_are_an_error(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    with pytest.raises(AccelCiError, match="too long"):
        write_attempts(store, Build("r" * 300, "v"), TODAY, [attempt("a", "passed")])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, attempt: Callable[..., Attempt]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccelCiError, match=r"file/day=2026-11-27.* cannot be written"):
        write_attempts(ResultsStore(tmp_path / "file"), BUILD, TODAY, [attempt("a", "passed")])


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_are_kept_are_those_of_the_window(store: ResultsStore, attempt: Callable[..., Attempt], seed: int) -> None:
    """Days go by, builds come late, are replaced and deleted: the kept sums always tell what the rollups do."""
    rng = random.Random(seed)
    for step in range(14):
        today = TODAY + timedelta(days=step // 2)
        day = today - timedelta(days=rng.choice([0, 0, 0, 1, 3]))
        outcomes: tuple[Outcome, ...] = ("passed", "passed", "failed", "not_run")
        rows = [
            attempt(f"t{number}", rng.choice(outcomes), round=round, message=f"{step} {number}")
            for number in rng.sample(range(12), 8)
            for round in range(1, rng.randint(2, 4))
        ]
        write_attempts(store, Build(f"nightly-{rng.randint(0, 9)}", rng.choice(["py3", "py4"])), day, rows)
        if rng.random() < 0.2:
            store.objects.delete(rng.choice(store.suites()).entry.name)
        found = measure(store, today, 4)
        # The last failure of a day with several builds is that which began last; here all began at the same minutes.
        assert strip(found) == strip(flakiness_of(histories(store, today, 4), 4))


def test_flakiness_of_the_past_does_not_know_the_future(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    for day in (26, 27):
        rows = [attempt("t", "failed", message=f"of day {day}"), attempt("t", "passed", round=2)]
        write_attempts(store, Build(f"nightly-{day}", "py3"), date(2026, 11, day), rows)
    for day, builds in ((27, 2), (26, 1), (27, 2)):
        [found] = measure(store, date(2026, 11, day), 30).flaky
        assert (found.builds, found.last_failure) == (builds, f"of day {day}")


def test_a_window_of_more_builds_than_a_process_may_open_files(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = [attempt("t", "failed"), attempt("t", "passed", round=2)]
    for number in range(70):
        write_attempts(store, Build(f"pr-{number}", "py3"), TODAY, rows)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 45, hard))
    try:
        assert measure(store, TODAY, 30).flaky[0].builds == 70
        assert [h.builds for h in histories(store, TODAY, 30)] == [70]
        assert len(history(store, "t", TODAY)) == 70
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def strip(flakiness: Flakiness) -> tuple[int, list[tuple[str, str, int, int]]]:
    return flakiness.tests, [(t.variant, t.test, t.builds, t.flaky_builds) for t in flakiness.flaky]


def files(store: ResultsStore) -> list[Path]:
    return [path for path in root_of(store).rglob("*") if path.is_file()]
