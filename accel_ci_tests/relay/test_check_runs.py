"""Check runs: what they show, whatever a backend sends."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from accel_ci.github.markdown import LONGEST_TEXT
from accel_ci.relay.server.check_runs import check_run, check_run_name
from accel_ci.relay.server.outbox import job_key
from accel_ci_tests.fixtures.relay_rows import begun, ended

HOSTILE = "</pre><img src=x onerror=alert(1)> @team #1 **b** [x](javascript:alert(1)) `c` \u202eabc\x00\ud800\n\n# title"


def summary(**fields: Any) -> str:
    return str(check_run(ended(**fields))["output"]["summary"])


def test_a_job_that_has_begun() -> None:
    assert check_run(begun()) == {
        "name": "crcr/org/backend/accel/py311~smoke",
        "head_sha": "a" * 40,
        "external_id": job_key(begun()),
        "status": "in_progress",
        "details_url": "https://ci.example/runs/100",
        "started_at": "2027-01-15T08:00:00Z",
        "output": {
            "title": "In progress",
            "summary": "The backend <code>org/backend</code> reports from level L4.\n\n"
            'See <a href="https://ci.example/runs/100">the job</a>.',
        },
    }


@pytest.mark.parametrize(
    ("fields", "conclusion", "title"),
    [
        ({}, "success", "0 failed, 3 passed, 1 skipped"),
        ({"conclusion": "failure", "failed": 2}, "failure", "2 failed, 3 passed, 1 skipped"),
        ({"conclusion": "failure", "is_infrastructure": True}, "neutral", "The infrastructure failed"),
        ({"conclusion": "timed_out", "is_infrastructure": True}, "neutral", "The infrastructure failed"),
        ({"conclusion": "cancelled", "passed": None, "failed": None, "skipped": None}, "cancelled", "Cancelled"),
        ({"conclusion": "timed_out", "passed": None, "failed": None, "skipped": None}, "timed_out", "Timed out"),
        ({"conclusion": None}, "neutral", "0 failed, 3 passed, 1 skipped"),
    ],
)
def test_conclusions(fields: dict[str, Any], conclusion: str, title: str) -> None:
    shown = check_run(ended(**fields))
    assert (shown["conclusion"], shown["output"]["title"]) == (conclusion, title)
    assert shown["completed_at"] == "2027-01-15T08:00:30Z"


def test_an_infrastructure_failure_names_the_reported_conclusion() -> None:
    assert "Reported as <code>failure</code>" in summary(conclusion="failure", is_infrastructure=True)


def test_counts_verdict_and_failed_tests() -> None:
    verdict = {"category": "upstream", "confidence": "high", "summary": "a < b\nsecond line"}
    tests = [{"name": "test_a[<x>]", "message": "no"}, {"name": "test_b"}, {"no": "name"}, "junk"]
    text = summary(failed=2, triage_verdict=json.dumps(verdict), failed_tests=json.dumps(tests))
    assert "| 3 | 2 | 1 |" in text
    assert "<pre>\nupstream, with confidence high\na &lt; b\nsecond line\n</pre>" in text
    assert text.endswith("<pre>\ntest_a[&lt;x&gt;]\ntest_b\n</pre>")


@pytest.mark.parametrize("junk", ["", "[", "null", "[1]", '{"summary": 3}', "[" * 5000])
def test_columns_that_are_no_such_json(junk: str) -> None:
    assert "<pre>" not in summary(triage_verdict=junk, failed_tests=junk)


def test_hostile_texts_stay_texts() -> None:
    row = ended(
        conclusion="failure",
        job_name=HOSTILE,
        level=HOSTILE,
        url="javascript:alert(1)",
        artifact_url='https://x.example/"><script>',
        triage_verdict=json.dumps({"category": HOSTILE, "confidence": HOSTILE, "summary": HOSTILE}),
        failed_tests=json.dumps([{"name": HOSTILE}] * 3),
    )
    shown = check_run(row)
    text = shown["output"]["summary"]
    assert "details_url" not in shown
    assert set(re.findall(r"</?\w+[^>]*>", text)) <= {
        "<code>", "</code>", "<pre>", "</pre>", '<a href="https://x.example/&quot;&gt;&lt;script&gt;">', "</a>",
    }  # fmt: skip
    outside = re.sub(r"<pre>\n.*?\n</pre>", "", text, flags=re.DOTALL)
    assert "onerror" not in outside.split("See")[1]
    assert not re.search("[\u202e\x00\ud800]", text + shown["name"])
    assert "\n" not in shown["name"]
    json.dumps(shown).encode()


def test_limits() -> None:
    many = json.dumps([{"name": f"test_{number}_" + "<" * 400} for number in range(1000)])
    verdict = json.dumps({"category": "backend", "confidence": "low", "summary": "<&>" * 5000})
    text = summary(failed=1000, failed_tests=many, triage_verdict=verdict)
    assert len(text.encode()) <= LONGEST_TEXT
    shown = text.count("test_")
    assert shown > 10
    assert text.endswith(f"\n\n{1000 - shown} more failed tests are not shown.")
    assert len(check_run_name(begun(job_name="ü" * 1000)).encode()) <= 250
