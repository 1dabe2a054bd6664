"""Rounds: who runs what, what is run again and where, and what unhealthy cards cost."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.errors import PoolError
from accel_ci.model import Attempt, Limits, Outcome, WorkerSpec
from accel_ci.process.environment import clean_environment
from accel_ci.rounds.driver import run_rounds
from accel_ci.rounds.events import Event
from accel_ci.rounds.retries import retries
from accel_ci.rounds.tally import Tally, TestKey
from accel_ci_tests.fixtures.ground import LOCAL_POOL, Ground, Run, outcomes
from accel_ci_tests.fixtures.suite import Write, batch

PROBE = """
import os, sys
print("checked")
sys.exit(os.path.exists({folder!r} + "/bad-" + os.environ["CARD"]))
"""


def test_all_pass_in_one_round(run: Run, write: Write) -> None:
    write("test_a.py", "import time\ndef test_1(): time.sleep(1)\ndef test_2(): time.sleep(1)\n")
    result = run([batch("b0", "test_a.py::test_1"), batch("b1", "test_a.py::test_2")])
    assert outcomes(result) == {"test_a.py::test_1": "passed", "test_a.py::test_2": "passed"}
    [report] = result.rounds
    assert (report.round, report.tests) == (1, 2)
    assert report.makespan_s >= report.lower_bound_s == result.lower_bound_s
    assert [card.card for card in result.cards] == ["0", "1"]
    assert sum(card.attempts for card in result.cards) == 2
    assert all(card.healthy for card in result.cards)


def test_the_same_test_in_two_suites_has_an_attempt_in_each(run: Run, write: Write) -> None:
    write("test_a.py", "def test_1(): pass\n")
    result = run([batch("b0", "test_a.py::test_1"), batch("b1", "test_a.py::test_1", suite="other")], ["0"])
    assert [(attempt.suite, attempt.outcome) for attempt in result.attempts] == [("suite", "passed"), ("other", "passed")]


def test_a_failing_test_is_run_again_on_another_card(run: Run, write: Write) -> None:
    write("test_a.py", "import os\ndef test_bad(): assert False\ndef test_picky(): assert os.environ['CARD'] == 'none'\n")
    result = run([batch("b0", "test_a.py::test_bad"), batch("b1", "test_a.py::test_picky")])
    assert len(result.rounds) == 2
    for test in ("test_a.py::test_bad", "test_a.py::test_picky"):
        first, second = (attempt for attempt in result.attempts if attempt.test == test)
        assert (first.outcome, second.outcome) == ("failed", "failed")
        assert {first.card, second.card} == {"0", "1"}
        assert first.worker != second.worker or first.round != second.round


def test_each_failure_is_told_at_once(run: Run, write: Write) -> None:
    write("test_a.py", "def test_bad(): assert False\ndef test_good(): pass\n")
    told: list[TestKey] = []
    run([batch("b0", "test_a.py::test_bad", "test_a.py::test_good")], ["0"], on_failure=told.append)
    assert set(told) == {("suite", "test_a.py::test_bad")}


def test_a_flaky_test_passes_in_the_second_round(run: Run, write: Write, tmp_path: Path) -> None:
    marker = tmp_path / "was-here"
    write("test_a.py", f"import pathlib\ndef test_1():\n    p = pathlib.Path({str(marker)!r})\n    "
          "was = p.exists(); p.touch(); assert was\ndef test_2(): pass\n")  # fmt: skip
    result = run([batch("b0", "test_a.py::test_1", "test_a.py::test_2")], ["only"])
    assert outcomes(result) == {"test_a.py::test_1": "failed", "test_a.py::test_2": "passed"}
    assert outcomes(result, 2) == {"test_a.py::test_1": "passed"}
    assert outcomes(result, 4) == {"test_a.py::test_1": "passed"}, "a third try confirms the flake"


@pytest.mark.parametrize("group", [None, "ordered"])
def test_a_flake_is_confirmed_by_a_third_try_in_a_fresh_process(
    run: Run, write: Write, tmp_path: Path, group: str | None
) -> None:
    tries = tmp_path / "tries"
    write("test_a.py", f"""
        import os, pathlib
        def test_1():
            with pathlib.Path({str(tries)!r}).open("a") as file:
                file.write(f"{{os.getppid()}} {{os.getpid()}}\\n")
            assert len(pathlib.Path({str(tries)!r}).read_text().splitlines()) == 2
        def test_2(): pass
    """)  # fmt: skip
    result = run([replace(batch("b0", "test_a.py::test_1", "test_a.py::test_2"), group=group)], ["only"])
    mine = [attempt.outcome for attempt in result.attempts if attempt.test == "test_a.py::test_1"]
    assert mine == ["failed", "passed", "failed"]
    assert len(set(tries.read_text().splitlines())) == 3, "each try is in a process of its own"


DEPENDENT = """
import pathlib, pytest
opened = []
def test_open(): opened.append(1)
def test_use():
    if not opened:
        pytest.skip("test_open has not run")
    reached = pathlib.Path("reached")
    if {flaky} and reached.exists():
        return
    reached.touch()
    assert False
def test_close(): pass
"""


@pytest.mark.parametrize(("flaky", "last"), [(False, "failed"), (True, "passed")])
def test_a_test_that_is_skipped_alone_runs_once_more_with_those_before_it(
    run: Run, write: Write, flaky: bool, last: str
) -> None:
    write("test_a.py", DEPENDENT.format(flaky=flaky))
    tests = [f"test_a.py::test_{name}" for name in ("open", "use", "close")]
    found = run([batch("b0", *tests)])
    assert outcomes(found) == dict(zip(tests, ("passed", "failed", "passed"), strict=True))
    assert outcomes(found, 2) == {tests[1]: "skipped"}
    assert outcomes(found, 3) == {tests[0]: "passed", tests[1]: last}
    assert outcomes(found, 4) == ({tests[0]: "passed", tests[1]: last} if flaky else {})


def test_a_group_is_run_again_in_order_and_on_one_card(run: Run, write: Write) -> None:
    write("test_a.py", DEPENDENT.format(flaky=False))
    tests = [f"test_a.py::test_{name}" for name in ("open", "use", "close")]
    found = run([replace(batch("b0", *tests), group="ordered"), batch("b1", "test_a.py::test_close", suite="other")])
    assert outcomes(found, 2) == dict(zip(tests, ("passed", "failed", "passed"), strict=True))
    assert len(found.rounds) == 2
    for number in (1, 2):
        ran = [attempt for attempt in found.attempts if (attempt.round, attempt.suite) == (number, "suite")]
        assert len({attempt.worker for attempt in ran}) == 1
        assert [attempt.test for attempt in ran] == tests


def test_tests_with_numbers_of_times_run_so_often_whatever_comes_of_it(run: Run, write: Write) -> None:
    write("test_a.py", "def test_good(): pass\ndef test_bad(): assert False\ndef test_once(): assert False\n")
    good, bad, once = (f"test_a.py::test_{name}" for name in ("good", "bad", "once"))
    batches = [batch("b0", good), replace(batch("b1", bad), avoid_cards=("0",)), batch("b2", once)]
    times = {("suite", good): 3, ("suite", bad): 2, ("suite", once): 1}
    found = run(batches, max_rounds=3, times=times)
    assert [outcomes(found, number) for number in (1, 2, 3, 4)] == [
        {good: "passed", bad: "failed", once: "failed"}, {good: "passed", bad: "failed"}, {good: "passed"}, {},
    ]  # fmt: skip
    first, _ = (attempt.card for attempt in found.attempts if attempt.test == bad)
    assert first == "1", "it has failed on the other card"
    assert len({(attempt.round, attempt.worker) for attempt in found.attempts if attempt.test == good}) == 3


def test_one_round_is_one_round(run: Run, write: Write) -> None:
    write("test_a.py", "def test_1(): assert False\n")
    assert len(run([batch("b0", "test_a.py::test_1")], max_rounds=1).attempts) == 1


def test_a_bad_card_is_left_out_and_its_failures_are_infra(run: Run, write: Write, tmp_path: Path) -> None:
    write(
        "test_a.py",
        f"""
        import os, pytest, time
        @pytest.mark.parametrize("n", range(12))
        def test_n(n):
            bad = {str(tmp_path)!r} + "/bad-1"
            if os.environ["CARD"] == "1":
                open(bad, "w")
                assert False, "the card is broken"
            while not os.path.exists(bad):
                time.sleep(0.05)
        """,
    )
    tests = [f"test_a.py::test_n[{n}]" for n in range(12)]
    probe = ("python", "-c", PROBE.format(folder=str(tmp_path)))
    result = run([batch(f"b{n}", test) for n, test in enumerate(tests)], probe=probe)
    reports = {report.card: report for report in result.cards}
    assert (reports["0"].healthy, reports["1"].healthy) == (True, False)
    assert reports["1"].reason == "checked"
    failed = [attempt for attempt in result.attempts if attempt.outcome == "failed"]
    assert failed
    assert all(attempt.card == "1" and "unhealthy" in (attempt.infra or "") for attempt in failed)
    assert {attempt.test for attempt in result.attempts if attempt.outcome == "passed"} == set(tests)
    assert all(attempt.infra is None for attempt in result.attempts if attempt.outcome == "passed")


def test_all_cards_bad_from_the_start(run: Run, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "def test_1(): pass\n")
    for card in ("0", "1"):
        (tmp_path / f"bad-{card}").touch()
    result = run([batch("b0", "test_a.py::test_1")], probe=("python", "-c", PROBE.format(folder=str(tmp_path))))
    assert result.attempts == ()
    assert [card.healthy for card in result.cards] == [False, False]


def test_the_last_healthy_card_runs_what_was_to_avoid_it(run: Run, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "def test_1(): pass\n")
    (tmp_path / "bad-1").touch()
    probe = ("python", "-c", PROBE.format(folder=str(tmp_path)))
    result = run([batch("b0", "test_a.py::test_1", avoid=("0",))], probe=probe)
    assert [(attempt.outcome, attempt.card) for attempt in result.attempts] == [("passed", "0")]


def test_secrets_do_not_reach_a_test(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "hunter2-" + name)
    write(
        "test_a.py",
        """
        import os
        def test_1():
            assert not [name for name, value in os.environ.items() if "hunter2" in value]
            assert (os.environ["CARD"], os.environ["WANTED"]) == ("0", "yes")
            assert "PATH" in os.environ
        """,
    )
    assert outcomes(run([batch("b0", "test_a.py::test_1")], ["0"], environment={"WANTED": "yes"})) == {
        "test_a.py::test_1": "passed"
    }


def test_clean_environment() -> None:
    inherited = {"PATH": "/bin", "LC_ALL": "C", "TOKEN": "s", "CI": "1", "HOME": "/h", "HTTPS_PROXY": "http://u:p@x"}
    expected = {"PATH": "/bin", "LC_ALL": "C", "HOME": "/own", "CI": "1", "A": "b"}
    assert clean_environment({"HOME": "/own", "A": "b"}, inherited=inherited, keep=("CI",)) == expected
    assert clean_environment({"CI": None, "PATH": None}, inherited={"CI": "1", "PATH": "/bin"}, keep=("CI",)) == {}


def test_an_interpreter_that_cannot_be_started(root: Path, tmp_path: Path) -> None:
    spec = WorkerSpec(str(tmp_path / "no-python"), str(root), {}, "CARD")
    with pytest.raises(PoolError, match="cannot be started"):
        run_rounds(LOCAL_POOL, [batch("b0", "a.py::t")], ["0"], spec, Limits(), tmp_path / "run", lambda *_: None)


def test_workers_that_cannot_work_are_an_error_with_their_words(root: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this is no python; exit 5\n")
    python.chmod(0o755)
    spec = WorkerSpec(str(python), str(root), dict(os.environ), "CARD")
    with pytest.raises(PoolError, match="this is no python"):
        run_rounds(LOCAL_POOL, [batch("b0", "a.py::t")], ["0"], spec, Limits(), tmp_path / "run", lambda *_: None)


def test_ids_of_batches_are_checked(root: Path, tmp_path: Path) -> None:
    spec = WorkerSpec(sys.executable, str(root), {}, "CARD")
    for batches in ([batch("../b", "a.py::t")], [batch("b", "a.py::t")] * 2):
        with pytest.raises(PoolError, match="batch ids"):
            run_rounds(LOCAL_POOL, batches, ["0"], spec, Limits(), tmp_path / "run", lambda *_: None)


def attempt(test: str, outcome: Outcome, round_number: int = 1, card: str = "0") -> Attempt:
    return Attempt("suite", f"a.py::{test}", round_number, outcome, None, 1.0, None, None, card, "host", "w0-0")


@pytest.mark.parametrize(
    ("attempts", "cards", "expected"),
    [
        ([attempt("t", "passed")], ["0", "1"], []),
        ([attempt("t", "not_run")], ["0", "1"], [("0",)]),
        ([], ["0", "1"], [()]),
        ([attempt("t", "failed")], ["0", "1"], [("0",)]),
        ([attempt("t", "crashed")], ["0"], [()]),
        ([attempt("t", "failed")], ["1", "2"], [()]),
        ([attempt("t", "failed"), attempt("t", "passed", 2, "1")], ["0", "1"], []),
        ([attempt("t", "error"), attempt("t", "timeout", 2, "1")], ["0", "1", "2"], [("0", "1")]),
        ([attempt("t", "failed"), attempt("t", "failed", 2, "1")], ["0", "1"], [()]),
    ],
)
def test_retries(attempts: list[Attempt], cards: list[str], expected: list[tuple[str, ...]]) -> None:
    batches = [batch("b", "a.py::t")]
    tally = Tally(cards, batches, lambda *_: None)
    for number, one in enumerate(attempts, 1):
        event = Event("attempt", datetime.now(timezone.utc), one.suite, one.test, one.outcome)
        tally.take(number, "w0-0", one.card, [event])
    assert [again.avoid_cards for again in retries(batches, tally, 3)] == expected


def test_tests_of_several_cards_hold_groups_of_them(run: Run, write: Write) -> None:
    write("test_one.py", "import os\ndef test_1(): assert ',' not in os.environ['CARD']\n")
    write(
        "test_two.py",
        """
        import os, time
        def test_1(): time.sleep(1)
        def test_2(): time.sleep(1)
        def test_picky(): assert os.environ["CARD"] == "2,3"
        """,
    )
    tests = [f"test_two.py::test_{name}" for name in ("1", "2", "picky")]
    batches = [batch(f"b{n}", test, suite="wide", cards=2) for n, test in enumerate(tests[:2])]
    picky = batch("b3", tests[2], suite="wide", cards=2, avoid=("2,3",))
    result = run([*batches, picky, batch("b4", "test_one.py::test_1")], ["0", "1", "2", "3", "4"])
    assert outcomes(result) == {"test_one.py::test_1": "passed", **dict.fromkeys(tests[:2], "passed"), tests[2]: "failed"}
    assert outcomes(result, 2) == {tests[2]: "passed"}
    assert {attempt.card for attempt in result.attempts if attempt.suite == "wide"} == {"0,1", "2,3"}
    assert result.attempts[0].test == "test_one.py::test_1"
    assert result.rounds[0].makespan_s >= result.lower_bound_s > 1
    assert sum(card.attempts for card in result.cards) == 1 + 2 * 5  # the failure, and two passes that make it a flake


def test_a_group_that_probes_unhealthy_and_too_few_cards(ground: Ground, write: Write) -> None:
    write("test_a.py", "".join(f"def test_{number}(): pass\n" for number in range(1, 5)))
    bad = "import os, sys; cards = os.environ['CARD'].split(','); sys.exit('1' in cards)"
    batches = [batch("b0", "test_a.py::test_1", cards=2), batch("b1", "test_a.py::test_2")]
    result = ground.run(batches, ["0", "1", "2"], probe=("python", "-c", bad))
    assert [card.healthy for card in result.cards] == [True, False, True]
    assert {attempt.test: attempt.card for attempt in result.attempts}["test_a.py::test_1"] == "0,2"
    others = [batch("c0", "test_a.py::test_3", cards=2), batch("c1", "test_a.py::test_4")]
    result = replace(ground, run_dir=ground.run_dir.with_name("others")).run(others, ["0", "1"], probe=("python", "-c", bad))
    assert outcomes(result) == {"test_a.py::test_4": "passed"}
