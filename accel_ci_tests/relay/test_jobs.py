"""The conclusion of a job from the ledger of its build: what may be called a success, and what never is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from accel_ci.model import VERDICTS, Build, Ledger, TestVerdict, Verdict
from accel_ci.relay.downstream.jobs import conclude, count_tests, failed_tests, job_name
from accel_ci.relay.messages import LARGEST_CALLBACK, LARGEST_DISPATCH, Dispatch, Workflow, callback_body, cut
from accel_ci_tests.fixtures.relay import client_payload, pull_request


def ledger(missing: tuple[str, ...] = (), **suites: dict[Verdict, int]) -> Ledger:
    counts = {verdict: sum(suite.get(verdict, 0) for suite in suites.values()) for verdict in VERDICTS}
    whole = {name: dict.fromkeys(VERDICTS, 0) | own for name, own in suites.items()}
    return Ledger(Build("pr-7-a", "py3"), sum(counts.values()), counts, whole, missing, (), 0, 1.0, 1.0)


PASSED = ledger(unit={"passed": 3}, smoke={"passed": 1})


def test_a_suite_succeeds_if_tests_passed_and_none_failed() -> None:
    assert conclude(PASSED, "unit") == "success"
    assert conclude(ledger(unit={"passed": 1, "flaky": 1, "skipped": 1, "xfailed": 1, "xpassed": 1}), "unit") == "success"
    one_fails = ledger(unit={"passed": 3}, smoke={"passed": 1, "failed": 1})
    assert [conclude(one_fails, suite) for suite in ("unit", "smoke")] == ["success", "failure"]


@pytest.mark.parametrize(
    "bad",
    [
        ledger(unit={}),
        ledger(smoke={"passed": 1}),
        ledger(("unit",), unit={"passed": 3}),
        ledger(unit={"skipped": 3}),
        ledger(unit={"skipped": 1, "xfailed": 1}),
        ledger(unit={"passed": 3, "infra": 1}),
        ledger(unit={"passed": 3, "not_run": 1}),
        replace(PASSED, incomplete=("unit: 90 % were skipped",)),
        replace(PASSED, vanished_reasons=("unit: 7 tests are gone",)),
        replace(PASSED, unexpected_failures=("unit: (session)",)),
        replace(PASSED, informative=True, suites={"unit": dict.fromkeys(VERDICTS, 0) | {"failed": 1}}),
    ],
    ids=["no tests", "no such suite", "missing", "all skipped", "none passed", "infra", "not run", "incomplete", "vanished",
         "session failed", "informative"],
)  # fmt: skip
def test_what_cannot_be_trusted_is_a_failure(bad: Ledger) -> None:
    assert conclude(bad, "unit") == "failure"


@pytest.mark.parametrize("bad", [replace(PASSED, missing_suites=("bazel",)), replace(PASSED, expected=5)])
def test_a_build_that_is_not_whole_lets_no_suite_succeed(bad: Ledger) -> None:
    assert conclude(bad, "unit") == "neutral"


def test_quarantined_failures_alone_do_not_fail_a_suite() -> None:
    fails = ledger(unit={"passed": 3, "failed": 1})
    assert conclude(fails, "unit") == "failure"
    assert conclude(replace(fails, muted=("unit: test_a",)), "unit") == "success"
    assert conclude(replace(fails, muted=("unit2: test_a",)), "unit") == "failure"


def test_each_verdict_is_counted_once() -> None:
    for number, verdict in enumerate(VERDICTS, 1):
        counts = count_tests({verdict: number})
        assert counts.total == number == counts.passed + counts.failed + counts.skipped
    counts = count_tests(dict(zip(VERDICTS, range(1, 9), strict=True)))
    assert counts.total == 36


def test_names_of_jobs_are_not_ambiguous() -> None:
    assert job_name("a-b", "c") != job_name("a", "b-c")


def verdict_of(test: str, message: str | None, verdict: Verdict = "failed") -> TestVerdict:
    return TestVerdict("unit", test, verdict, ("failed",), 1.0, (), message)


def test_failed_tests_stay_within_the_limits() -> None:
    some = [verdict_of(f"test_{n}", "é" * 2000) for n in range(1500)]
    found = failed_tests([verdict_of("flaky", "x", "flaky"), *some], "unit")
    assert len(found) == 1000
    assert {test.classname for test in found} == {"unit"}
    assert max(len(test.message.encode()) for test in found) == 1024
    assert (
        failed_tests([verdict_of("lost\ud800" + "n" * 900, None, "not_run")], "unit")[0].message == "the verdict is not_run"
    )
    assert failed_tests(some, "smoke") == ()
    assert cut("aé", 2) == "a"
    assert cut("\ud800", 10) == "?"


def test_what_is_sent_can_be_read_with_the_same_types() -> None:
    payload = {**client_payload(pull_request("a" * 40)), "a_key_of_a_later_relay": [1, {"x": None}]}
    assert Dispatch.model_validate(payload).model_dump() == payload
    flow = Workflow(
        status="completed", conclusion="failure", name="accel-ci", url="", run_id="1", run_attempt="1", job_name="py3~unit",
        check_run_id="2", started_at=None, completed_at=datetime(2026, 11, 30, tzinfo=timezone.utc),
        test_results=count_tests({"passed": 1, "failed": 1}),
        failed_tests_detail=failed_tests([verdict_of("é\ud800", "x")], "unit"),
        artifact_url="https://hud.example.org/", triage_verdict={"schema_version": 1},
    )  # fmt: skip
    body = json.loads(callback_body(payload, flow))
    assert Workflow.model_validate(body.pop("workflow")) == flow
    assert body == payload


@pytest.mark.parametrize("fields", [{"run_id": "x"}, {"run_attempt": ""}, {"job_name": ""}, {"conclusion": "green"}])
def test_a_callback_that_the_relay_would_refuse_cannot_be_made(fields: dict[str, Any]) -> None:
    good = {
        "status": "in_progress", "conclusion": None, "name": "accel-ci", "url": "", "run_id": "1", "run_attempt": "1",
        "job_name": "py3~unit", "check_run_id": "2", "started_at": None, "completed_at": None,
    }  # fmt: skip
    assert Workflow.model_validate(good)
    with pytest.raises(ValidationError):
        Workflow.model_validate({**good, **fields})


def test_a_callback_stays_within_two_megabytes() -> None:
    flow = Workflow(
        status="completed", conclusion="failure", name="accel-ci", url="", run_id="1", run_attempt="1", job_name="py3~unit",
        check_run_id="2", started_at=None, completed_at=None,
        failed_tests_detail=failed_tests([verdict_of("t" * 500, "\x00" * 1024)] * 1000, "unit"),
    )  # fmt: skip
    payload = client_payload(pull_request("a" * 40))
    body = callback_body(payload, flow)
    assert len(body) <= LARGEST_CALLBACK < 1000 * 1024 * len("\\u0000")
    document = json.loads(body)
    assert {key: document[key] for key in payload} == payload
    assert 0 < len(document["workflow"]["failed_tests_detail"]) < 1000
    with pytest.raises(ValueError, match="so large"):
        callback_body({**payload, "payload": {"x": "y" * LARGEST_CALLBACK}}, flow)


def test_a_dispatch_in_another_alphabet_fits_into_its_callback() -> None:
    flow = Workflow(
        status="in_progress", conclusion=None, name="accel-ci", url="", run_id="1", run_attempt="1", job_name="py3~unit",
        check_run_id="2", started_at=None, completed_at=None,
    )  # fmt: skip
    payload = client_payload({**pull_request("a" * 40), "title": "\u0436" * (LARGEST_DISPATCH // 2)})
    assert json.loads(callback_body(payload, flow))["payload"] == payload["payload"]
