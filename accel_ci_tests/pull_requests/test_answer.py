"""The answer to a pull request: whose a failure is, what a check concludes, and hostile text in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from accel_ci.github.markdown import LONGEST_TEXT
from accel_ci.model import VERDICTS, Build, Ledger, TestVerdict, Verdict
from accel_ci.pull_requests.answer import (
    Base,
    Conclusion,
    Failure,
    Kind,
    Tested,
    check_run,
    comment,
    conclude,
    sort_failures,
    untested,
)
from accel_ci.quality.causes import Blame
from accel_ci.quality.versions import Cause

BUILD, NIGHTLY = Build("pr-7-abc", "py3"), Build("nightly-20261130", "py3")
HEAD = "a" * 40


def ledger(*verdicts: Verdict, missing: tuple[str, ...] = (), muted: tuple[str, ...] = ()) -> Ledger:
    own: dict[Verdict, int] = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    return Ledger(BUILD, sum(own.values()), own, {"unit": own}, missing, (), 0, 1.0, 1.0, muted=muted)


def ended(found: Ledger | None, *kinds: Kind) -> Tested:
    failures = tuple(Failure("unit", f"test_{number}", kind) for number, kind in enumerate(kinds))
    reasons = untested(found) if found is not None else ()
    return Tested("integration", "py3", "ended" if found else "stopped", BUILD, "", found, failures, reasons)


def blame(cause: Cause, since: Build | None = None) -> Blame:
    return Blame("unit", "test_a", BUILD, cause, 0.99, 0.9, 1.0, "words", since=since)


@pytest.mark.parametrize(
    ("verdict", "blames", "base", "kind"),
    [
        ("failed", [], {}, "new"),
        ("failed", [], None, "unknown"),
        ("failed", [blame("unknown")], {}, "new"),
        ("failed", [blame("unknown")], None, "unknown"),
        ("failed", [blame("backend", BUILD)], None, "new"),
        ("failed", [blame("backend", NIGHTLY)], None, "broken base"),
        ("failed", [], {("unit", "test_a"): "failed"}, "broken base"),
        ("failed", [], {("unit", "test_a"): "flaky"}, "flaky"),
        ("failed", [], {("unit", "test_a"): "infra"}, "new"),
        ("failed", [], {("other", "test_a"): "failed"}, "new"),
        ("failed", [blame("upstream", BUILD)], {}, "upstream"),
        ("failed", [blame("flaky")], {}, "flaky"),
        ("failed", [blame("infra")], {}, "infra"),
        ("flaky", [], {}, "flaky"),
        ("infra", [], {}, "infra"),
        ("not_run", [], {}, "infra"),
    ],
)
def test_whose_a_failure_is(
    verdict: Verdict, blames: list[Blame], base: Mapping[tuple[str, str], Verdict] | None, kind: Kind
) -> None:
    bad = [TestVerdict("unit", "test_a", verdict, (), None, (), None)]
    [failure] = sort_failures(ledger("passed", verdict), bad, blames, base)
    assert failure.kind == kind
    [muted] = sort_failures(ledger("passed", verdict, muted=("unit: test_a",)), bad, blames, base)
    assert muted.kind == "muted"


@pytest.mark.parametrize(
    ("tested", "conclusion"),
    [
        (ended(ledger("passed", "passed", "passed")), "success"),
        (ended(ledger("passed", "passed", "flaky"), "flaky"), "success"),
        (ended(ledger("passed", "passed", "failed", muted=("unit: test_0",)), "muted"), "success"),
        (ended(ledger("passed", "passed", "failed"), "new"), "failure"),
        (ended(ledger("passed", "passed", "failed"), "unknown"), "failure"),
        (ended(ledger("passed", "passed", "failed", "failed"), "new", "broken base"), "failure"),
        (ended(ledger("passed", "passed", "failed"), "broken base"), "neutral"),
        (ended(ledger("passed", "passed", "failed"), "upstream"), "neutral"),
        (ended(ledger("passed", "passed", "failed"), "flaky"), "neutral"),
        (ended(ledger("passed", "passed", "infra"), "infra"), "neutral"),
        (ended(ledger("infra", "infra"), "infra", "infra"), "neutral"),
        (ended(ledger()), "failure"),
        (ended(ledger("skipped", "skipped", "skipped")), "failure"),
        (ended(ledger("skipped", "skipped", "xfailed")), "failure"),
        (ended(ledger("passed", "passed", "passed", missing=("device",))), "failure"),
        (ended(ledger("passed", "passed", "passed", "infra", missing=("device",)), "infra"), "failure"),
        (ended(replace(ledger("passed", "passed", "passed"), expected=4)), "failure"),
        (ended(replace(ledger("passed", "passed", "passed"), vanished_reasons=("unit: 4 tests are gone",))), "failure"),
        (ended(replace(ledger("passed", "passed", "passed"), unexpected_failures=("unit: (session)",))), "failure"),
        (ended(None), "failure"),
        (replace(ended(None), progress="cancelled"), "cancelled"),
        (replace(ended(None, "new"), deviceless=ledger("failed")), "failure"),
        (replace(ended(None, "unknown"), deviceless=ledger("failed")), "failure"),
        (replace(ended(None, "broken base"), deviceless=ledger("failed")), "neutral"),
        (replace(ended(None), deviceless=ledger("passed")), "failure"),
        (replace(ended(None), deviceless=ledger("skipped")), "failure"),
    ],
)
def test_what_a_check_concludes(tested: Tested, conclusion: Conclusion) -> None:
    assert conclude(tested, blocking=True) == conclusion
    assert conclude(tested, blocking=False) == ("neutral" if conclusion == "failure" else conclusion)


def test_a_check_is_completed_only_when_its_run_has_ended() -> None:
    states = [
        check_run(Tested("integration", "py3", progress), HEAD, "key", blocking=True)["status"]
        for progress in ("waiting", "queued", "running")
    ]
    assert states == ["queued", "queued", "in_progress"]
    done = check_run(ended(ledger("passed")), HEAD, "key", blocking=True)
    assert (done["status"], done["conclusion"], done["output"]["title"]) == (
        "completed", "success", "1 tests passed or were excused",
    )  # fmt: skip


def test_a_stranger_s_deviceless_tests_are_no_success() -> None:
    waits = replace(ended(None), progress="waiting", deviceless=ledger("passed", "passed", "skipped"))
    reason = "a maintainer has it built by setting ciflow/toy"
    body = check_run(waits, HEAD, "key", blocking=True, reason=reason)
    assert (body["status"], body["output"]["title"]) == (
        "queued",
        "2 deviceless tests passed; the others wait for a maintainer",
    )
    assert "conclusion" not in body
    assert body["output"]["summary"] == reason
    text = comment(HEAD, [waits], "", waiting=reason)
    assert f"No card tests this yet: {reason}." in text
    assert "| 2 deviceless tests passed; the others wait for a maintainer |" in text


def test_a_closed_gate_names_its_failures_and_no_command_that_needs_a_ledger() -> None:
    closed = replace(ended(None, "new"), deviceless=ledger("passed", "failed"))
    body = check_run(closed, HEAD, "key", blocking=True)
    assert body["output"]["title"] == "1 new; no card was taken"
    assert "unit: test_0" in body["output"]["summary"]
    assert "reproduce" not in body["output"]["summary"]


def test_hostile_text_is_shown_as_it_is() -> None:
    name = "tests/test_a.py::test[</pre>@all|\u202e<img src=x>]\n# title"
    failure = Failure("unit|x", name, "new", "/srv/ci/secret place/x tests/test_a.py:1: `</details>` [a](javascript:b)")
    tested = replace(ended(ledger("passed", "failed")), failures=(failure,), page="javascript:alert(1)")
    tested = replace(tested, variant="py3</code>|<b>", base=Base("c" * 40, replace(NIGHTLY, revision="nightly|<i>")))
    text = comment(HEAD, [tested], "<!-- marker -->")
    for word in ("<img", "<b>", "<i>", "javascript:alert", "\u202e", "</pre>@all", "\n# title"):
        assert word not in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.count("|") for line in table] == [4, 4, 4]
    assert text.count("</pre>") == text.count("<pre>") == 2
    body = check_run(tested, HEAD, "key", blocking=True)
    assert "details_url" not in body
    assert "<img" not in body["output"]["summary"]


def test_ten_thousand_failures_fit() -> None:
    failures = tuple(Failure("unit", f"test_{'x' * 3000}_{number}", "new", "m" * 9000) for number in range(10_000))
    builds = [replace(ended(ledger("passed", "failed")), failures=failures, variant=f"py{n}") for n in range(30)]
    assert len(comment(HEAD, builds, "<!-- marker -->").encode()) <= LONGEST_TEXT
    body = check_run(builds[0], HEAD, "key", blocking=True)
    assert len(body["output"]["summary"].encode()) <= LONGEST_TEXT
    assert "more are not shown" in body["output"]["summary"]


def test_a_machine_s_folders_are_not_shown() -> None:
    failure = Failure(
        "unit", "tests/a.py::test", "new", "/home/ci/.accel_ci/sources/g12/backend/tests/a.py:3: AssertionError"
    )
    text = comment(HEAD, [replace(ended(ledger("passed", "failed")), failures=(failure,))], "")
    assert "unit: tests/a.py::test: tests/a.py:3: AssertionError" in text
