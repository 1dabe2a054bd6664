"""What recorded runs of Bazel amount to in the ledger, in the store and in the flakiness."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from accel_ci.config.settings import Rbe
from accel_ci.errors import BuildError
from accel_ci.ledger.close import close_ledger
from accel_ci.model import BazelTestResults, Build, Ledger
from accel_ci.quality.flakiness import measure
from accel_ci.rbe.bazel import BazelPass, BazelRun
from accel_ci.rbe.results import read_targets, store_results, with_earlier
from accel_ci.results.columns import conform
from accel_ci.results.rows import ATTEMPTS
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci_tests.fixtures.stored_attempts import all_verdicts, histories
from accel_ci_tests.recorded import RECORDED, STATUS

BUILD = Build("nightly-20261128", "py3")
DAY = date(2026, 11, 28)
RBE = Rbe.model_validate({"targets": ["//...", "-//other"], "executor": "grpc://127.0.0.1:50999"})

Read = Callable[..., BazelTestResults]


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results")


@pytest.fixture
def read(artifacts: ArtifactStore, store: ResultsStore, tmp_path: Path) -> Read:
    """Reads a recorded run, or a folder, as that of a build."""

    def _read(case: str | Path, status: int | None = 0, build: Build = BUILD, day: date = DAY) -> BazelTestResults:
        folder = RECORDED / case
        ended = BazelPass("tests", folder, STATUS.get(str(case), status) if isinstance(case, str) else status)
        run = BazelRun((ended,), tmp_path / "bazel.log", datetime(2026, 11, 28, 3, tzinfo=timezone.utc), 12.5)
        return store_results(run, build, day, RBE, artifacts, store, 13.0)

    return _read


@pytest.fixture
def close(store: ResultsStore, artifacts: ArtifactStore) -> Callable[..., Ledger]:
    """Closes the ledger of a build that has Bazel's suite alone."""

    def _close(results: BazelTestResults, build: Build = BUILD) -> Ledger:
        return close_ledger(build, [], results, ["smoke", "bazel"], artifacts, store)

    return _close


def verdicts(store: ResultsStore) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {v.test.rpartition("::")[2]: (v.verdict, v.attempts) for v in all_verdicts(store, BUILD)}


def rows(store: ResultsStore, build: Build = BUILD) -> pa.Table:
    [stored] = store.suites(build=build)
    return store.read(stored)


def test_every_test_has_its_verdict(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, store: ResultsStore
) -> None:
    results = read("faults")
    ledger = close(results)
    assert verdicts(store) == {
        "shim/visible_cards_test": ("passed", ("passed",)),
        "shim/parity_test": ("passed", ("passed",)),
        "shim/symbols_test": ("passed", ("passed",)),
        "shim/all_reduce_test": ("passed", ("passed",)),
        **{f"axpy_{length}": ("passed", ("passed",)) for length in (0, 1, 7, 64, 1023)},
        "shim/every_other_test": ("flaky", ("error", "passed")),
        "shim/hanging_test": ("failed", ("timeout", "timeout")),
        "shim/failing_test": ("failed", ("error", "error")),
    }
    assert (ledger.expected, ledger.missing_suites, ledger.unexpected) == (12, ("smoke",), ())
    assert results.infra is None
    assert results.statuses == {"PASSED": 5, "FLAKY": 1, "TIMEOUT": 1, "FAILED": 1}


def test_logs_are_kept_with_their_targets(read: Read, artifacts: ArtifactStore) -> None:
    targets = {target.label: target for target in read_targets(read("faults"), artifacts)}
    last, first = targets["//shim:failing_test"].logs
    assert (last.name, first.name) == ("shim.failing_test.test.log", "shim.failing_test.attempt_1.log")
    assert "AssertionError: 3 is not 4" in artifacts.path(last).read_text()


def test_a_build_failure_is_a_row_for_each_target_with_the_compilers_message(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, store: ResultsStore
) -> None:
    close(read("broken"))
    found = all_verdicts(store, BUILD)
    assert sorted(v.test.partition("::")[0] for v in found) == [
        "//shim:all_reduce_test", "//shim:kernels_test", "//shim:parity_test", "//shim:symbols_test",
        "//shim:visible_cards_test",
    ]  # fmt: skip
    assert all(v.verdict == "failed" and "error: expected ';' before '}' token" in (v.message or "") for v in found)


def test_cached_results_are_marked_and_do_not_count_in_the_flakiness(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, tmp_path: Path, store: ResultsStore
) -> None:
    tomorrow, next_day = Build("nightly-20261129", "py3"), date(2026, 11, 29)
    read("faults")
    second = read("cached", 0, tomorrow, next_day)
    assert (second.cached, second.actions.executed, second.actions.remote_cache_hits) == (9, 0, 16)
    assert all(rows(store, tomorrow)["cached"].to_pylist())
    found = {h.test.rpartition("::")[2]: h for h in histories(store, date(2026, 11, 29), 30)}
    assert found["shim/parity_test"].builds == 1, "the cached result of the second build says nothing"
    flaky = measure(store, date(2026, 11, 29), 30).flaky
    assert [(f.test.rpartition("::")[2], f.builds, f.flaky_builds) for f in flaky] == [("shim/every_other_test", 1, 1)]


def test_a_cached_result_does_not_hide_what_the_same_build_attempted_before(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, tmp_path: Path, store: ResultsStore
) -> None:
    read("faults")
    ledger = close(read("cached"))
    assert ledger.counts["passed"] == ledger.expected == 9
    found = {h.test.rpartition("::")[2]: h for h in histories(store, DAY, 30)}
    assert found["shim/parity_test"].builds == 1, "it ran in the first run of this build"
    assert "shim/every_other_test" not in found, "the second run did not expect it"


def test_remote_execution_that_is_down_is_infra_with_one_message(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, store: ResultsStore
) -> None:
    results = read("down")
    ledger = close(results)
    assert ledger.counts["infra"] == ledger.expected == 5
    assert {v.message for v in all_verdicts(store, BUILD)} == {results.infra}
    assert results.infra == (
        "Bazel could not work on grpc://127.0.0.1:50999: Failed to query remote execution capabilities: UNAVAILABLE: io "
        "exception; see that remote execution answers and takes the credentials, then run the build again"
    )


def test_when_bazel_named_no_test_the_ones_known_before_are_lost(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, tmp_path: Path, store: ResultsStore
) -> None:
    (tmp_path / "bep.ndjson").write_text(
        '{"id":{"progress":{}},"progress":{"stderr":"ERROR: Failed to query capabilities: UNAVAILABLE\\n"}}\n'
        '{"id":{"buildFinished":{}},"finished":{"exitCode":{"name":"REMOTE_ERROR","code":34}}}\n'
    )
    without = close(read(tmp_path, 34, Build("alone", "other variant")), Build("alone", "other variant"))
    read("faults", 0, Build("nightly-20261127", "py3"), date(2026, 11, 27))
    results = read(tmp_path, 34)
    assert rows(store)["test"].to_pylist() == rows(store, Build("nightly-20261127", "py3"))["test"].unique().to_pylist()
    assert close(results).counts["infra"] == 12
    assert (without.expected, without.counts["infra"]) == (2, 2), "one for each pattern of targets"


def test_lost_targets_have_the_tests_of_the_last_build_in_which_they_were_not_lost(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, store: ResultsStore
) -> None:
    """A target with several tests is more than one expected test, however often it was lost since."""
    read("cached", 0, Build("nightly-20261126", "py3"), date(2026, 11, 26))
    expected = sorted(map(str, rows(store, Build("nightly-20261126", "py3"))["test"].to_pylist()))
    assert len(expected) == 9
    for number in (27, 28):
        build = Build(f"nightly-202611{number}", "py3")
        results = read("down", 34, build, date(2026, 11, number))
        ledger = close(results, build)
        assert (ledger.expected, ledger.counts["infra"]) == (9, 9)
        table = rows(store, build)
        assert sorted(map(str, table["test"].to_pylist())) == expected
        assert set(table["message"].to_pylist()) == set(table["infra"].to_pylist()) == {results.infra}
        assert len(set(table["classname"].to_pylist())) > 1, "a report's own words are kept"
        assert all(target.message for target in read_targets(results, artifacts))
    other = Build("nightly-20261128", "another variant")
    assert close(read("down", 34, other), other).expected == 5


@pytest.mark.parametrize(
    ("events", "status", "said"),
    [
        ("", 2, r"Bazel tested nothing \(tests: exit status 2\)"),
        ('{"id":{"buildFinished":{}},"finished":{"exitCode":{"name":"NO_TESTS_FOUND","code":4}}}\n', 4,
         "no test target is among rbe.targets with rbe.test_tag_filters"),
        ('{"id":{"progress":{}},"progress":{"stderr":"ERROR: /w/BUILD:3:1: name \'x\' is not defined\\n"}}\n', 1,
         "/w/BUILD:3:1: name 'x' is not defined"),
    ],
)  # fmt: skip
def test_a_run_without_tests_is_an_error_and_never_a_pass(
    read: Read, tmp_path: Path, events: str, status: int, said: str
) -> None:
    (tmp_path / "bep.ndjson").write_text(events)
    with pytest.raises(BuildError, match=said):
        read(tmp_path, status)


def test_tests_without_a_result_when_the_time_was_over_did_not_run(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, tmp_path: Path, store: ResultsStore
) -> None:
    whole = (RECORDED / "faults" / "bep.ndjson").read_text().splitlines(keepends=True)
    until = next(place for place, line in enumerate(whole) if '"testSummary"' in line.partition(":{")[2][:20])
    (tmp_path / "bep.ndjson").write_text("".join(whole[: until + 1]))
    ledger = close(read(tmp_path, None))
    assert ledger.counts["not_run"] > 5
    assert ledger.counts["infra"] == 0
    messages = {v.message for v in all_verdicts(store, BUILD) if v.verdict == "not_run"}
    assert messages == {"Bazel was ended after 7200 s (rbe.timeout_seconds)"}


def changed(case: str, folder: Path, label: str, attempt: int, status: str) -> Path:
    """A recorded run in which an attempt of a test had another status."""
    shutil.copytree(RECORDED / case, folder)
    lines = []
    for line in (folder / "bep.ndjson").read_text().splitlines():
        event = json.loads(line)
        of = event["id"].get("testResult", {})
        if (of.get("label"), of.get("attempt")) == (label, attempt):
            event["testResult"]["status"] = status
        lines.append(json.dumps(event) + "\n")
    (folder / "bep.ndjson").write_text("".join(lines))
    return folder


def test_what_was_lost_on_the_way_hides_no_result_of_another_test_or_attempt(
    read: Read, close: Callable[..., Ledger], artifacts: ArtifactStore, tmp_path: Path, store: ResultsStore
) -> None:
    folder = changed("faults", tmp_path / "run", "//shim:every_other_test", 1, "REMOTE_FAILURE")
    read(folder, 3)
    found = verdicts(store)
    assert found["shim/every_other_test"] == ("passed", ("error", "passed"))
    assert found["shim/failing_test"] == ("failed", ("error", "error"))
    assert found["shim/hanging_test"] == ("failed", ("timeout", "timeout"))
    lost = [row for row in rows(store).to_pylist() if row["infra"]]
    assert [row["test"].rpartition("::")[2] for row in lost] == ["shim/every_other_test"]


def test_a_result_of_now_is_not_replaced_where_nothing_is_said_of_a_cache() -> None:
    def rows(outcome: str, cached: bool | None) -> pa.Table:
        row = {"test": "//lib:x", "round": 1, "attempt": 0, "outcome": outcome, "cached": cached}
        return conform(pa.Table.from_pylist([row], schema=pa.schema([ATTEMPTS.field(name) for name in row])), ATTEMPTS)

    earlier = rows("not_run", None)
    assert with_earlier(rows("error", None), earlier)["outcome"].to_pylist() == ["error"]
    assert with_earlier(rows("passed", True), earlier)["outcome"].to_pylist() == ["not_run"]


@pytest.mark.parametrize(
    ("status", "outcome", "said"),
    [
        (2, "error", "Bazel named no test and ended with exit status 2"),
        (None, "not_run", "Bazel was ended after 7200 s (rbe.timeout_seconds)"),
        (4, None, None),
    ],
)
def test_a_pass_that_says_nothing_beside_one_that_ran_is_no_pass(
    close: Callable[..., Ledger],
    artifacts: ArtifactStore,
    tmp_path: Path,
    status: int | None,
    outcome: str | None,
    said: str,
    store: ResultsStore,
) -> None:
    passes = (BazelPass("tests", RECORDED / "cached", 0), BazelPass("multi-card", tmp_path / "nothing", status))
    run = BazelRun(passes, tmp_path / "bazel.log", datetime(2026, 11, 28, 3, tzinfo=timezone.utc), 12.5)
    ledger = close(store_results(run, BUILD, DAY, RBE, artifacts, store, 13.0))
    silent = [v for v in all_verdicts(store, BUILD) if v.test == "(pass multi-card)"]
    assert [(v.attempts, v.message) for v in silent] == ([((outcome,), said)] if outcome else [])
    assert ledger.expected == 9 + len(silent)


def test_no_file_beside_the_logs_is_kept(read: Read, artifacts: ArtifactStore, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RECORDED / "faults", folder)
    (tmp_path / "secret").write_text("a secret")
    events = (folder / "bep.ndjson").read_text()
    for place in (f"/testlogs/{tmp_path}/secret", "/testlogs/../../secret"):
        (folder / "bep.ndjson").write_text(events.replace("/testlogs/shim/failing_test/test.log", place))
        targets = {target.label: target for target in read_targets(read(folder), artifacts)}
        assert [log.name for log in targets["//shim:failing_test"].logs] == ["shim.failing_test.attempt_1.log"]
