"""Jobs whose end nobody tells: GitHub is asked, and those that are lost are ended."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from accel_ci.github.answers import Answer, Failed, Limited, Sent
from accel_ci.relay.server.settings import CallbackSettings
from accel_ci.relay.server.sweep import AGAIN_S, GRACE_S, Look, meaning, next_look
from accel_ci_tests.fixtures.github_server import GitHubServer
from accel_ci_tests.fixtures.oidc_issuer import oidc_issuer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer, callback, pull_request

BEGAN, HOUR = 1_800_000_000.0, 3600.0


@pytest.mark.parametrize(
    ("answer", "run", "expected"),
    [
        (Sent(), {"status": "completed"}, "ended"),
        (Sent(), {"status": "in_progress"}, "goes on"),
        (Sent(), {"status": "queued"}, "goes on"),
        (Sent(), [], "unknown"),
        (Failed("HTTP 404: Not Found"), None, "unknown"),
        (Failed("HTTP 502"), None, "unknown"),
        (Limited(60, "HTTP 429"), None, "unknown"),
    ],
)
def test_the_meaning_of_an_answer(answer: Answer, run: object, expected: Look) -> None:
    assert meaning(answer, run) == expected


@pytest.mark.parametrize(
    ("look", "after", "then"),
    [
        ("ended", 6 * HOUR, None),
        ("goes on", 6 * HOUR, 12 * HOUR),
        ("goes on", 20 * HOUR, 24 * HOUR),
        ("goes on", 24 * HOUR, None),
        ("unknown", 6 * HOUR, 6 * HOUR + AGAIN_S),
        ("unknown", 6 * HOUR + GRACE_S, None),
        ("unknown", 12 * HOUR, None),
    ],
)
def test_the_next_look(look: Look, after: float, then: float | None) -> None:
    found = next_look(look, BEGAN, BEGAN + after, CallbackSettings())
    assert found == (None if then is None else BEGAN + then)


def test_lost_jobs_of_a_server(tmp_path: Path, github: GitHubServer) -> None:
    path = "/repos/a/b/actions/runs/{}/attempts/1"
    github.runs |= {path.format(1): "completed", path.format(2): "in_progress"}
    with oidc_issuer() as issuer:
        relay = RelayServer(
            tmp_path,
            github.url,
            "L2: [a/b]\n",
            issuers=[{"issuer": issuer.url}],
            callback={"zombie_s": 1, "sweep_s": 0.1},
        )

        def rows(job: str) -> list[dict[str, Any]]:
            with contextlib.closing(sqlite3.connect(tmp_path / "relay.sqlite", timeout=30)) as database:
                found = [json.loads(row) for (row,) in database.execute("SELECT row FROM relay_forwards ORDER BY queued_at")]
            return [row for row in found if row["job_name"] == job]

        def is_lost(job: str) -> bool:
            return bool(rows(job)[-1]["conclusion"] == "timed_out")

        relay.start()
        try:
            relay.deliver(pull_request(), delivery="pr")
            wait_for(lambda: github.taken())
            for run, job in ((1, "ended"), (2, "goes on"), (3, "unknown")):
                answer = relay.call_back(callback("pr", run_id=run, job_name=job), issuer.token("a/b"))
                assert answer.status_code == 200
            wait_for(lambda: is_lost("ended"))
            wait_for(lambda: "goes on is overdue; its run: goes on" in relay.log)
            wait_for(lambda: "unknown is overdue; its run: unknown" in relay.log)
            assert [is_lost("goes on"), is_lost("unknown")] == [False, False]
            assert rows("ended")[-1]["is_infrastructure"] is True
            assert "ended is lost: no callback has told its end; its run: ended" in relay.log
            metrics = httpx.get(relay.url.replace("/github/webhook", "/metrics"), timeout=30).text
            assert 'accel_ci_relay_jobs_lost_total{downstream="a/b"} 1.0' in metrics

            late = callback("pr", "completed", run_id=1, job_name="ended", conclusion="failure")
            for status in ("completed", "known"):
                answer = relay.call_back(late, issuer.token("a/b"))
                assert (answer.status_code, answer.json()) == (200, {"ok": True, "status": status})
            assert [row["conclusion"] for row in rows("ended")] == [None, "failure"]
            github.runs[path.format(2)] = "completed"
            wait_for(lambda: is_lost("goes on"))
            assert relay.terminate() == 0
        finally:
            relay.stop()
