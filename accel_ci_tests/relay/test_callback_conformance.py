"""The contract of callbacks, over real HTTP: status, body, the order of the checks, and the limits.

The list follows the public relay; comments name the differences.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import httpx
import pytest

from accel_ci.relay.downstream.jobs import other_commit_verdict
from accel_ci.relay.downstream.sender import Answer as SenderAnswer
from accel_ci.relay.downstream.sender import Sender
from accel_ci.relay.messages import CountedTests, FailedTest, Workflow, callback_body
from accel_ci_tests.fixtures.github_server import GitHubServer, github_server
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer, oidc_issuer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import UPSTREAM, RelayServer, callback, pull_request, report

ALLOWLIST = """
L1: [a/plain]
L2: [a/reporting, a/counted, {a/days: {events: [pull_request, push]}}]
L3: {emu: {a/labelled: []}}
L4: [a/critical]
"""
PUSH = {"ref": "refs/heads/main", "after": "c" * 40, "repository": {"full_name": UPSTREAM}}
LABELLED = pull_request()
LABELLED["pull_request"]["labels"] = [{"name": "bug"}, {"name": "ciflow/crcr/emu"}]
DELIVERIES: dict[str, tuple[dict[str, Any], str]] = {
    "pr": (pull_request(), "pull_request"),
    "labelled": (LABELLED, "pull_request"),
    "other-label": (pull_request("labeled", label={"name": "ciflow/crcr/other"}), "pull_request"),
    "label-event": (pull_request("labeled", label={"name": "ciflow/crcr/emu"}), "pull_request"),
    "push": (PUSH, "push"),
}
IGNORED = (200, {"ok": True, "status": "ignored"})
LIMIT = 2 << 20


@dataclass(frozen=True)
class Servers:
    """The server, and the stand-ins for GitHub and for the issuer of tokens."""

    relay: RelayServer
    github: GitHubServer
    issuer: OidcIssuer

    def call(self, body: object, repository: str = "a/reporting") -> tuple[int, dict[str, Any]]:
        """Send a callback with a good token; return the status and the answer."""
        answer = self.relay.call_back(body, self.issuer.token(repository))
        return answer.status_code, answer.json()

    def forwards(self, job_name: str) -> list[tuple[str, str, dict[str, Any]]]:
        """The forwards of the jobs of a name: step, destination and row."""
        with contextlib.closing(sqlite3.connect(self.relay.folder / "relay.sqlite")) as database:
            found = database.execute("SELECT status, destination, row FROM relay_forwards ORDER BY queued_at, destination")
            rows = [(step, destination, json.loads(row)) for step, destination, row in found]
        return [one for one in rows if one[2]["job_name"] == job_name]

    def stored(self) -> int:
        """Count the jobs."""
        with contextlib.closing(sqlite3.connect(self.relay.folder / "relay.sqlite")) as database:
            return int(database.execute("SELECT count(*) FROM relay_jobs").fetchone()[0])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers, with some events dispatched."""
    with github_server() as github, oidc_issuer() as issuer:
        relay = RelayServer(
            tmp_path_factory.mktemp("relay"),
            github.url,
            ALLOWLIST,
            issuers=[{"issuer": issuer.url}],
            callback={"request_s": 1.0, "per_minute": 1000},
            forwards={"poll_s": 3600},  # what was forwarded loses its failed tests
        )
        relay.start()
        for delivery, (payload, event) in DELIVERIES.items():
            assert relay.deliver(payload, event, delivery).status_code == 202
        wait_for(lambda: len(github.taken()) == 3 * 6 + 1)
        yield Servers(relay, github, issuer)
        relay.stop()


def _body(**changes: Any) -> dict[str, Any]:
    """A callback that would be taken, but for the changes of its `workflow`; None leaves a key out."""
    return callback("pr", **{"job_name": "never taken", "run_id": "77", **changes})


def _outside(**changes: Any) -> dict[str, Any]:
    """A callback that would be taken, but for the changes outside of `workflow`; None leaves a key out."""
    return {key: value for key, value in {**_body(), **changes}.items() if value is not None}


REFUSED: dict[str, tuple[object, str]] = {
    # The dispatch that it answers.
    "no event": (_outside(event_type=None), "event_type"),
    "another event": (_outside(event_type="check_run"), "event_type"),
    "event is a list": (_outside(event_type=["nightly"]), "event_type"),
    "no delivery": (_outside(delivery_id=None), "delivery_id"),
    "delivery with a path": (_outside(delivery_id="../pr"), "delivery_id"),
    "delivery is a number": (_outside(delivery_id=5), "delivery_id"),
    "no payload": (_outside(payload=None), "payload"),
    "payload is a text": (_outside(payload="x"), "payload"),
    "no workflow": (_outside(workflow=None), "workflow"),
    "workflow is a list": (_outside(workflow=[]), "workflow"),
    "a delivery that is not known": (_outside(delivery_id="unknown"), "delivery_id: no dispatch of it to a/reporting"),
    "a delivery to others alone": (_outside(delivery_id="label-event"), "delivery_id: no dispatch of it to a/reporting"),
    "another event than the delivery's": (_outside(event_type="push"), "event_type: the delivery is a pull_request"),
    # The state of the job.
    "other version": (_body(schema_version="2"), "workflow.schema_version"),
    "no status": (_body(status=None), "workflow.status"),
    "another status": (_body(status="queued"), "workflow.status"),
    "no name": (_body(name=None), "workflow.name"),
    "no job": ({**_body(), "workflow": {**_body()["workflow"], "job_name": ""}}, "workflow.job_name"),
    "job of spaces": (_body(job_name="   "), "workflow.job_name"),
    "job with a line break": (_body(job_name="a\nb"), "workflow.job_name"),
    "job with half a character": (_body(job_name="a\ud800"), "workflow.job_name"),
    "job with a zero byte": (_body(job_name="a\x00"), "workflow.job_name"),
    "job that reverses text": (_body(job_name="a\u202eb"), "workflow.job_name"),
    "job too long": (_body(job_name="x" * 301), "workflow.job_name"),
    "job is a list": (_body(job_name=["a"]), "workflow.job_name"),
    "no check run": (_body(check_run_id=""), "workflow.check_run_id"),
    "run is a word": (_body(run_id="abc"), "workflow.run_id: must be a number"),
    "run is negative": (_body(run_id=-1), "workflow.run_id: must be a number"),
    "run is a fraction": (_body(run_id=1.5), "workflow.run_id: must be a number"),
    "run is true": (_body(run_id=True), "workflow.run_id: must be a number"),
    "run is empty": (_body(run_id=""), "workflow.run_id: must be a number"),
    "run in other digits": (_body(run_id="\u0661"), "workflow.run_id: must be a number"),
    "run too long": (_body(run_id="1" * 20), "workflow.run_id: must be a number"),
    "run with a statement": (_body(run_id="1; DROP TABLE relay_jobs"), "workflow.run_id: must be a number"),
    "no run": (_body(run_id=None), "workflow.run_id"),
    "attempt is a word": (_body(run_attempt="first"), "workflow.run_attempt: must be a number"),
    "no attempt": (_body(run_attempt=None), "workflow.run_attempt"),
    "end without conclusion": (_body(status="completed", conclusion=None), "workflow.conclusion"),
    "another conclusion": (_body(status="completed", conclusion="great"), "workflow.conclusion"),
    "counts are negative": (_body(test_results={"passed": -1, "failed": 0, "skipped": 0}), "workflow.test_results.passed"),
    "counts are texts": (_body(test_results={"passed": "1", "failed": 0, "skipped": 0}), "workflow.test_results.passed"),
    "counts lack one": (_body(test_results={"passed": 1, "failed": 0}), "workflow.test_results.skipped"),
    # Transitions.
    "end before the beginning": (_body(status="completed"), "bad transition: DISPATCHED to COMPLETED"),
    # Reports without a dispatch.
    "nightly in progress": (
        {**report(job_name="never taken"), "workflow": _body()["workflow"]},
        "bad transition: a nightly job has one callback, completed",
    ),
    "nightly of no commit": (report("main"), "delivery_id: of a nightly report, it is a commit"),
    "nightly of a short commit": (report("d" * 39), "delivery_id: of a nightly report, it is a commit"),
    "nightly of another repository": (
        {**report(), "payload": {"repository": {"full_name": "x/y"}, "head_sha": "d" * 40}},
        f"payload.repository.full_name: must be {UPSTREAM}",
    ),
    "nightly without a repository": ({**report(), "payload": {"head_sha": "d" * 40}}, "payload.repository.full_name"),
    "nightly of two commits": (
        {**report(), "payload": {"repository": {"full_name": UPSTREAM}, "head_sha": "e" * 40}},
        "payload.head_sha: must be the same as delivery_id",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(servers: Servers, name: str) -> None:
    body, detail = REFUSED[name]
    before = servers.stored()
    status, answer = servers.call(body)
    assert (status, answer["detail"].removeprefix("the body is refused: ")[: len(detail)]) == (400, detail)
    assert servers.stored() == before


def _nested(depth: int) -> bytes:
    return json.dumps(_body())[:-1].encode() + b',"x":' + b"[" * depth + b"]" * depth + b"}"


HOSTILE: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "not JSON in UTF-8"),
    "empty": (b"", "not JSON in UTF-8"),
    "not UTF-8": (b'{"a":"\xff"}', "not JSON in UTF-8"),
    "a list": (b"[]", "not an object"),
    "NaN": (b'{"a":NaN}', "NaN is not JSON"),
    "Infinity": (b'{"a":-Infinity}', "-Infinity is not JSON"),
    "a number without end": (b'{"a":' + b"9" * 5000 + b"}", "not JSON in UTF-8"),
    "two keys": (b'{"workflow":{},"workflow":{}}', "a key appears twice in one object"),
    "two keys below": (
        json.dumps(_body()).replace('"run_id": "77"', '"run_id": "77", "run_id": "78"').encode(),
        "a key appears twice in one object",
    ),
    "nested": (_nested(72), "nested too deeply"),
    "nested beyond any stack": (_nested(500_000), "nested too deeply"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies(servers: Servers, name: str) -> None:
    body, detail = HOSTILE[name]
    before = servers.stored()
    token = {"Authorization": f"Bearer {servers.issuer.token('a/reporting')}"}
    answer = servers.relay.post(body, token, "/github/callback")
    assert (answer.status_code, answer.json()) == (400, {"detail": f"the body is refused: {detail}"})
    assert servers.stored() == before


def _signed(**claims: Any) -> Callable[[OidcIssuer], str | None]:
    return lambda issuer: f"Bearer {issuer.token('a/reporting', **claims)}"


TOKENS: dict[str, tuple[Callable[[OidcIssuer], str | None], int]] = {
    "none": (lambda issuer: None, 401),
    "empty": (lambda issuer: "", 401),
    "no scheme": (lambda issuer: issuer.token("a/reporting"), 401),
    "another scheme": (lambda issuer: f"Basic {issuer.token('a/reporting')}", 401),
    "junk": (lambda issuer: "Bearer x.y.z", 401),
    "forged": (lambda issuer: f"Bearer {issuer.token('a/reporting')[:-8]}AAAAAAAA", 401),
    "expired": (_signed(exp=1_000_000_000), 401),
    "not yet good": (_signed(nbf=5_000_000_000), 401),
    "another audience": (_signed(aud="sts.example.org"), 401),
    "another issuer": (_signed(iss="https://issuer.example.org"), 401),
    "without a repository": (lambda issuer: f"Bearer {issuer.token(None)}", 403),
}


@pytest.mark.parametrize("body", [json.dumps(_body()).encode(), b"{", b" " * (LIMIT + 1)], ids=["good", "bad", "large"])
@pytest.mark.parametrize("name", TOKENS)
def test_the_token_comes_before_the_body(servers: Servers, name: str, body: bytes) -> None:
    make, status = TOKENS[name]
    token = make(servers.issuer)
    before = servers.stored()
    answer = servers.relay.post(body, {} if token is None else {"Authorization": token}, "/github/callback")
    assert answer.status_code == status
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert servers.stored() == before
    assert token is None or len(token) < 20 or token[-20:] not in servers.relay.log + answer.text


@pytest.mark.parametrize(
    ("repository", "body"),
    [
        ("a/plain", callback("pr")),
        ("a/plain", {"event_type": "nightly"}),
        ("a/plain", {}),
        ("a/unknown", callback("pr")),
        ("a/unknown", callback("pr", run_id="abc")),
        ("upstream/project", callback("pr")),
        ("a/days", report()),
        ("a/days", report(event="periodic")),
    ],
)
def test_ignored_below_l2_and_events_that_are_not_wanted(servers: Servers, repository: str, body: object) -> None:
    before = servers.stored()
    assert servers.call(body, repository) == IGNORED
    assert servers.stored() == before


@pytest.mark.parametrize("repository", ["a/plain", "anybody/at-github"])
def test_the_level_comes_before_the_body(servers: Servers, repository: str) -> None:
    """Every repository of GitHub has tokens with this audience: for theirs, no body is waited for, read or parsed."""
    token = servers.issuer.token(repository)
    head = f"POST /github/callback HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 2000000\r\n\r\n"
    url = httpx.URL(servers.relay.url)
    assert url.port is not None
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(head.encode() + b'{"a":' * 1000)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert servers.relay.post(b"{", {"Authorization": f"Bearer {token}"}, "/github/callback").json() == IGNORED[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", path, 404) for path in ("/github/callback/", "/github/Callback", "/callback", "/github/callback/x")),
        *((method, "/github/callback", 405) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")),
    ],
)
def test_paths_and_methods(servers: Servers, method: str, path: str, status: int) -> None:
    url = servers.relay.url.removesuffix("/github/webhook") + path
    assert httpx.request(method, url, timeout=30).status_code == status


def test_a_job_goes_through_its_states(servers: Servers) -> None:
    name = {"job_name": "whole"}
    begin, end = callback("pr", **name), callback("pr", "completed", conclusion="failure", **name)
    steps = [
        (begin, "in_progress"),
        (callback("pr", **name, started_at="2026-11-30T08:00:00Z"), "known"),
        (end, "completed"),
        (end, "known"),
        (begin, "known"),
    ]
    for body, status in steps:
        assert servers.call(body) == (200, {"ok": True, "status": status})
    for other in (callback("pr", url="https://x.example.org", **name), callback("pr", "completed", **name)):
        refused, answer = servers.call(other)
        assert (refused, answer["detail"][:14]) == (400, "bad transition")
    assert [(step, destination) for step, destination, _ in servers.forwards("whole")] == [
        ("in_progress", "results"),
        ("completed", "results"),
    ]
    row = servers.forwards("whole")[1][2]
    assert (row["pull_request"], row["head_sha"], row["upstream"]) == (7, "a" * 40, UPSTREAM)
    assert (row["repository"], row["level"], row["conclusion"]) == ("a/reporting", "L2", "failure")
    assert row["queue_s"] == pytest.approx(row["started_at"] - row["dispatched_at"])
    assert row["execution_s"] == pytest.approx(row["completed_at"] - row["started_at"])


def test_another_beginning_is_refused(servers: Servers) -> None:
    assert servers.call(callback("pr", job_name="begins"))[0] == 200
    status, answer = servers.call(callback("pr", job_name="begins", url="https://other.example.org"))
    assert (status, answer["detail"]) == (400, "bad transition: IN_PROGRESS to IN_PROGRESS with other content")


@pytest.mark.parametrize(
    "changes",
    [{"run_id": "2"}, {"run_attempt": "2"}, {"job_name": "parts 2"}, {"run_id": 3}],
    ids=["run", "attempt", "job", "run as a number"],
)
def test_each_part_of_its_identity_makes_another_job(servers: Servers, changes: dict[str, Any]) -> None:
    first = callback("pr", job_name="parts")
    servers.call(first)
    assert servers.call(callback("pr", **{"job_name": "parts", **changes})) == (200, {"ok": True, "status": "in_progress"})
    assert servers.call(first) == (200, {"ok": True, "status": "known"})


def test_the_same_job_of_another_repository_and_delivery(servers: Servers) -> None:
    for repository in ("a/reporting", "a/critical", "A/Labelled"):
        for delivery in ("pr", "labelled"):
            body = callback(delivery, job_name="shared")
            assert servers.call(body, repository) == (200, {"ok": True, "status": "in_progress"})
    assert {row["repository"] for _, _, row in servers.forwards("shared")} == {"a/reporting", "a/critical", "a/labelled"}


def test_the_echoed_payload_is_not_believed(servers: Servers) -> None:
    body = callback("pr", job_name="lies")
    body["payload"] = {**pull_request(), "number": 8, "pull_request": {"number": 8, "head": {"sha": "f" * 40}}}
    assert servers.call(body)[0] == 200
    ((_, _, row),) = servers.forwards("lies")
    assert (row["pull_request"], row["head_sha"]) == (7, "a" * 40)


@pytest.mark.parametrize(
    ("repository", "delivery", "event", "destinations"),
    [
        ("a/reporting", "pr", "pull_request", ["results"]),
        ("a/reporting", "labelled", "pull_request", ["results"]),
        ("a/labelled", "pr", "pull_request", ["results"]),
        ("a/labelled", "labelled", "pull_request", ["check_run", "results"]),
        ("a/labelled", "label-event", "pull_request", ["check_run", "results"]),
        ("a/labelled", "push", "push", ["results"]),
        ("a/critical", "pr", "pull_request", ["check_run", "results"]),
        ("a/critical", "push", "push", ["results"]),
    ],
)
def test_destinations(servers: Servers, repository: str, delivery: str, event: str, destinations: list[str]) -> None:
    name = f"to {repository} {delivery}"
    for status in ("in_progress", "completed"):
        assert servers.call(callback(delivery, status, event, job_name=name), repository)[0] == 200
    found = [(step, destination) for step, destination, _ in servers.forwards(name)]
    assert found == [(step, one) for step in ("in_progress", "completed") for one in destinations]


@pytest.mark.parametrize("event", ["nightly", "periodic"])
def test_a_report_is_one_callback(servers: Servers, event: str) -> None:
    body = report("d" * 40, event, job_name=f"report {event}")
    assert servers.call(body, "a/critical") == (200, {"ok": True, "status": "completed"})
    assert servers.call(body, "a/critical") == (200, {"ok": True, "status": "known"})
    ((step, destination, row),) = servers.forwards(f"report {event}")
    assert (step, destination, row["event"], row["head_sha"]) == ("completed", "results", event, "d" * 40)
    assert (row["pull_request"], row["dispatched_at"], row["queue_s"], row["execution_s"]) == (None, None, None, None)
    other = report("d" * 40, event, job_name=f"report {event}", conclusion="failure")
    assert servers.call(other, "a/critical")[0] == 400


def _ended(servers: Servers, name: str, **changes: Any) -> dict[str, Any]:
    """Take a job to its end; return the row."""
    assert servers.call(callback("pr", job_name=name))[0] == 200
    assert servers.call(callback("pr", "completed", **{"conclusion": "failure", **changes}, job_name=name))[0] == 200
    return servers.forwards(name)[-1][2]


def test_failed_tests_are_cut(servers: Servers) -> None:
    one = {"name": "t", "classname": "C", "message": "é" * 2000, "stack": "s" * 9000, "duration": 1.5, "unknown": 1}
    odd: list[Any] = [5, {"name": ""}, {"classname": "x"}, {"name": "\ud800\x00n", "message": 5, "duration": "x"}]
    row = _ended(servers, "cut", failed_tests_detail=[one, *odd, *({"name": f"t{i}"} for i in range(1100))])
    found = json.loads(row["failed_tests"])
    assert len(found) == 1000 - 3
    assert found[0] == {"name": "t", "classname": "C", "message": "é" * 512, "stack": "s" * 4096, "duration": 1.5}
    assert found[1] == {"name": "? n", "classname": "", "message": "", "duration": None}


@pytest.mark.parametrize("odd", ["text", 5, {"a": 1}, True])
def test_failed_tests_of_another_shape(servers: Servers, odd: object) -> None:
    assert _ended(servers, f"odd {odd!r}"[:20], failed_tests_detail=odd)["failed_tests"] == "[]"


VERDICT: dict[str, Any] = {"category": "infra", "confidence": "high", "summary": "the card fell off the bus"}
VERDICTS: dict[str, tuple[Any, bool]] = {
    "whole": (
        {
            **VERDICT,
            "schema_version": 1,
            "suspected_upstream": {"pr": 5, "commit": "a" * 40, "reason": "it broke"},
            "evidence": [{"job": "ops", "test": "t", "excerpt": "x", "url": "https://ci.example.org/log"}],
            "reproduced_on_retry": True,
            "analyzer": {"name": "accel-ci"},
            "analyzed_at": "2026-11-30T08:00:00+00:00",
        },
        True,
    ),
    "least": (VERDICT, True),
    "unknown keys": ({**VERDICT, "x": {"y": [1]}}, True),
    "no category": ({**VERDICT, "category": None}, False),
    "another category": ({**VERDICT, "category": "cosmic"}, False),
    "another confidence": ({**VERDICT, "confidence": 1.0}, False),
    "no summary": ({**VERDICT, "summary": ""}, False),
    "evidence is a text": ({**VERDICT, "evidence": "x"}, False),
    "evidence with a script": ({**VERDICT, "evidence": [{"url": "javascript:alert(1)"}]}, False),
    "suspect is a text": ({**VERDICT, "suspected_upstream": "x"}, False),
    "retry is a text": ({**VERDICT, "reproduced_on_retry": "yes"}, False),
    "a text": ("infra", False),
    "a list": ([VERDICT], False),
    "too large": ({**VERDICT, "evidence": [{"excerpt": "x" * (16 << 10)}]}, False),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_taken_whole_or_dropped(servers: Servers, name: str) -> None:
    verdict, is_taken = VERDICTS[name]
    row = _ended(servers, f"verdict {name}", triage_verdict=verdict)
    found = json.loads(row["triage_verdict"]) if row["triage_verdict"] else None
    assert (found is not None) is is_taken
    assert row["is_infrastructure"] is is_taken
    if name == "whole":
        assert found == verdict


def test_numbers_beyond_all_bounds_are_left_out(servers: Servers) -> None:
    """JSON has them, and Python reads them as infinite, which nobody can write again."""
    assert servers.call(callback("pr", job_name="bounds"))[0] == 200
    end = callback("pr", "completed", job_name="bounds", failed_tests_detail=[{"name": "t", "duration": "long"}],
                   triage_verdict={**VERDICT, "evidence": [{"x": "long"}]})  # fmt: skip
    body = json.dumps(end).replace('"long"', "1e400").encode()
    token = {"Authorization": f"Bearer {servers.issuer.token('a/reporting')}"}
    assert servers.relay.post(body, token, "/github/callback").status_code == 200
    row = servers.forwards("bounds")[-1][2]
    assert row["triage_verdict"] == ""
    assert json.loads(row["failed_tests"])[0]["duration"] is None


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://ci.example.org/a?b=c#d", True),
        ("http://10.0.0.1:8080/x", True),
        *(
            (url, False)
            for url in (
                "javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "//x.example.org", "https://", "", "/",
                "https://x.example.org/\"onmouseover=alert(1)", "https://x.example.org/<b>", "https://x.example.org/a b",
                "https://x.example.org/\n", "https://[x/", "https://x.example.org/" + "x" * 2048, "ftp://x.example.org/", 5,
            )
        ),
    ],
)  # fmt: skip
def test_addresses(servers: Servers, url: object, kept: bool) -> None:
    name = f"at {url!r}"[:300]
    assert servers.call(callback("pr", job_name=name, url=url, artifact_url=url))[0] == 200
    ((_, _, row),) = servers.forwards(name)
    assert (row["url"], row["artifact_url"]) == ((url, url) if kept else ("", ""))


def test_what_the_public_relay_takes_is_taken(servers: Servers) -> None:
    body = callback("pr", job_name="build (3.11, <b>emu</b>) é", run_id=18446744073709, run_attempt=1, check_run_id=123)
    body["unknown"] = body["workflow"]["unknown"] = {"deep": [1]}
    assert servers.call(body)[0] == 200
    end = callback("pr", "completed", job_name="build (3.11, <b>emu</b>) é", run_id="18446744073709", conclusion="skipped")
    end["workflow"]["test_results"] = {"passed": 5, "failed": 0, "skipped": 1, "total": 6}
    assert servers.call(end)[0] == 200
    row = servers.forwards("build (3.11, <b>emu</b>) é")[-1][2]
    assert (row["passed"], row["failed"], row["skipped"], row["conclusion"]) == (5, 0, 1, "neutral")


def test_the_backends_sender_and_this_server(servers: Servers) -> None:
    """The callbacks of `accel-ci relay report` are taken, and it understands the answers."""
    url = servers.relay.url.replace("/github/webhook", "/github/callback")
    sender = Sender(lambda: servers.issuer.token("a/reporting"))
    dispatch = {"event_type": "pull_request", "delivery_id": "pr", "payload": pull_request()}
    begun = Workflow(
        status="in_progress", conclusion=None, name="CI", url="", run_id="1", run_attempt="1", job_name="py311~ops",
        check_run_id="1", started_at=datetime(2026, 11, 30, tzinfo=timezone.utc), completed_at=None,
    )  # fmt: skip
    failed = tuple(FailedTest(name=f"t{number}", classname="ops", message="m" * 1024) for number in range(1000))
    changes = {
        "status": "completed", "conclusion": "failure", "failed_tests_detail": failed, "started_at": None,
        "test_results": CountedTests(passed=1, failed=1000, skipped=0, total=1001),
        "triage_verdict": other_commit_verdict(None, "c" * 40, datetime(2026, 11, 30, tzinfo=timezone.utc)),
    }  # fmt: skip
    ended = begun.model_copy(update=changes)
    answers = [sender.send(url, callback_body(dispatch, flow)) for flow in (begun, begun, ended, ended)]
    assert [answer for answer, _ in answers] == [SenderAnswer.TAKEN] * 4
    assert [json.loads(reason.removeprefix("200 "))["status"] for _, reason in answers] == [
        "in_progress", "known", "completed", "known",
    ]  # fmt: skip
    row = servers.forwards("py311~ops")[-1][2]
    assert (row["failed"], len(json.loads(row["failed_tests"])), row["is_infrastructure"]) == (1000, 1000, True)
    unknown = callback_body({**dispatch, "delivery_id": "unknown"}, begun)
    assert sender.send(url, unknown)[0] is SenderAnswer.REPEATED
    assert sender.send(url, callback_body(dispatch, begun) + b" " * LIMIT)[0] is SenderAnswer.REFUSED


def test_large_bodies(servers: Servers) -> None:
    token = {"Authorization": f"Bearer {servers.issuer.token('a/reporting')}"}
    start = json.dumps(callback("pr", job_name="large")).encode()
    fits = start + b" " * (LIMIT - len(start))
    assert servers.relay.post(fits, token, "/github/callback").status_code == 200
    for large in (fits + b" ", fits * 2):
        answer = servers.relay.post(large, token, "/github/callback")
        assert (answer.status_code, answer.json()) == (413, {"detail": f"the body has more than {LIMIT} bytes"})


def test_a_slow_body_is_ended(servers: Servers) -> None:
    before = servers.stored()
    token = servers.issuer.token("a/reporting")
    head = f"POST /github/callback HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 500\r\n\r\n"
    url = httpx.URL(servers.relay.url)
    assert url.port is not None
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(head.encode())
        connection.settimeout(0.1)
        received = b""
        for _ in range(200):
            try:
                connection.sendall(b"{")
                if not (part := connection.recv(1000)):
                    break
                received += part
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection was not closed")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert servers.stored() == before


def test_metrics(servers: Servers) -> None:
    assert servers.call(callback("pr", job_name="counted"))[0] == 200
    servers.call(_body(run_id="abc"))
    servers.call(callback("pr"), "a/plain")
    text = httpx.get(servers.relay.url.replace("/github/webhook", "/metrics"), timeout=30).text
    for name in (
        *(f'callbacks_total{{end="{end}"}}' for end in ("in_progress", "400", "ignored")),
        *(f'{what}{{downstream="a/reporting"}}' for what in ("jobs_in_progress", "job_queue_seconds_count")),
    ):
        assert f"accel_ci_relay_{name}" in text


def test_status_shows_jobs_and_forwards(servers: Servers) -> None:
    assert servers.call(callback("pr", job_name="shown"), "a/critical")[0] == 200
    shown = json.loads(servers.relay.command("status", "--json").stdout)["jobs"]
    (one,) = [one for one in shown if one["repository"] == "a/critical"]
    assert one["in_progress"] >= 1
    assert one["forwards_dead"] == 0
    assert "a/critical: jobs: " in servers.relay.command("status").stdout


def test_nothing_went_wrong_in_the_server(servers: Servers) -> None:
    assert "Traceback" not in servers.relay.log
