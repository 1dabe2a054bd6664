"""The answer to a job of another CI system, and the exit status that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci.bridges.build_answer import (
    BuildAnswer,
    answer_of,
    answer_of_reports,
    exit_status,
    overall,
    read_document,
    to_document,
)
from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, Build, Ledger, Verdict
from accel_ci.pull_requests.answer import Failure, Kind, Tested, untested
from accel_ci.results.ingest import FileOutcome, IngestReport

PULL, MAIN = Build("pr-7-abc", "py3"), Build("main-abc", "py3")


def ended(
    build: Build, verdicts: tuple[Verdict, ...], kinds: tuple[Kind, ...] = (), missing: tuple[str, ...] = ()
) -> Tested:
    counts: dict[Verdict, int] = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    ledger = Ledger(build, len(verdicts), counts, {"unit": counts}, missing, (), 0, 1.0, 1.0)
    failures = tuple(Failure("unit", f"test_{number}", kind, "it is wrong") for number, kind in enumerate(kinds))
    return Tested("integration", "py3", "ended", build, "", ledger, failures, untested(ledger))


@pytest.mark.parametrize(
    ("build", "verdicts", "kinds", "status", "strict_status"),
    [
        (MAIN, ("passed",), (), 0, 0),
        (MAIN, ("passed", "failed"), ("new",), 1, 1),
        (MAIN, ("passed", "failed"), ("unknown",), 1, 1),
        (MAIN, ("passed", "failed"), ("broken base",), 1, 1),  # the branch itself is broken
        (PULL, ("passed", "failed"), ("broken base",), 0, 1),
        (PULL, ("passed", "failed", "failed"), ("broken base", "new"), 1, 1),
        (MAIN, ("passed", "failed"), ("upstream",), 0, 1),
        (MAIN, ("passed", "infra"), ("infra",), 0, 1),
        (MAIN, ("passed", "flaky"), ("flaky",), 0, 0),
        (MAIN, ("infra",), ("infra",), 1, 1),  # nothing was tested
        (PULL, ("failed",), ("upstream",), 1, 1),
        (MAIN, ("skipped",), (), 1, 1),
        (MAIN, (), (), 1, 1),
    ],
)
def test_the_exit_status_is_that_of_the_causes(
    build: Build, verdicts: tuple[Verdict, ...], kinds: tuple[Kind, ...], status: int, strict_status: int
) -> None:
    answers = [answer_of(ended(build, verdicts, kinds))]
    assert (exit_status(answers), exit_status(answers, strict=True)) == (status, strict_status)
    assert overall(answers, strict=True) == ("failure" if strict_status else "success")


def test_a_missing_suite_a_problem_and_no_account_are_failures() -> None:
    green = ended(MAIN, ("passed",))
    for answer in (
        answer_of(ended(MAIN, ("passed",), missing=("pytorch",))),
        answer_of(green, ["hud: the disk is full"]),
        answer_of(Tested("integration", "py3", "stopped", MAIN, "stopped after wheel failed")),
        answer_of(Tested("integration", "py3", "cancelled", MAIN)),
    ):
        assert (answer.conclusion, exit_status([answer_of(green), answer])) == ("failure", 1), answer.title


def test_no_build_at_all_is_no_pass() -> None:
    assert exit_status([]) == 1


def test_a_document_is_read_as_it_was() -> None:
    answer = answer_of(ended(MAIN, ("passed", "failed"), ("new",)))
    assert read_document(to_document(answer)) == answer
    assert "it is wrong" in answer.summary
    with pytest.raises(AccelCiError, match="install the same release"):
        read_document('{"build": "main-abc~py3"}')


@pytest.mark.parametrize(
    ("status", "counts", "conclusion"),
    [
        ("complete", {"passed": 3}, "success"),
        ("complete", {"passed": 3, "failed": 1}, "failure"),
        ("complete", {"skipped": 3}, "failure"),
        ("complete", {}, "failure"),
        ("salvaged", {"passed": 3}, "failure"),
        ("rejected", {"passed": 3}, "failure"),
    ],
)
def test_reports_of_the_job_count_as_they_are(status: str, counts: dict[Verdict, int], conclusion: str) -> None:
    rows = sum(counts.values())
    report = IngestReport((FileOutcome(Path("junit.xml"), status, rows, ()),), rows, counts, None)  # type: ignore[arg-type]
    answer: BuildAnswer = answer_of_reports(MAIN, "own", report, [])
    assert answer.conclusion == conclusion
    assert exit_status([answer]) == (0 if conclusion == "success" else 1)
