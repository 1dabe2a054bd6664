"""Reports of builds that are laid on disk, to a relay on loopback that checks each callback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, Build, Ledger, Revision, RuntimeImage, Source
from accel_ci.pipelines import INTEGRATION, LEDGER, RUNTIME_IMAGE
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.relay.downstream.deliveries import CallingWorkflow, deliveries_of, read_dispatch
from accel_ci.relay.downstream.report import new_sender, report_all, report_deliveries
from accel_ci.relay.downstream.rows import own_rows
from accel_ci.relay.downstream.sender import Answer, Sender
from accel_ci.relay.downstream.tokens import TokenError
from accel_ci.relay.messages import AUDIENCE
from accel_ci.relay.results_store import ResultsStore
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import attempts_of, fails
from accel_ci_tests.fixtures.loopback_server import LoopbackServer, QuietHandler
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.relay import (
    REPOSITORY,
    TOKEN,
    StandInRelay,
    client_payload,
    event,
    pull_request,
    stand_in_relay,
)
from accel_ci_tests.fixtures.stored_attempts import real_s3, write_attempts

SHA = "a" * 40
NOW = datetime(2026, 11, 30, 9, tzinfo=timezone.utc)
BUILD = Build(f"pr-7-{SHA[:12]}", "py3")
JOBS = ["py3~smoke", "py3~unit"]


@pytest.fixture
def relay() -> Iterator[StandInRelay]:
    with stand_in_relay() as relay:
        relay.dispatched.add("d-1")
        yield relay


class Downstream:
    """A project with a delivery whose build is under way, and the relay that it reports to."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.deliveries = deliveries_of(workspace)

    def deliver(self, caller: CallingWorkflow | None = None, delivery: str = "d-1") -> None:
        """Take a dispatch and have its build begin."""
        self.deliveries.add(read_dispatch(event(pull_request(SHA), delivery), REPOSITORY, NOW, caller))
        kept = self.deliveries.find(delivery)
        assert kept is not None
        self.deliveries.note(kept, state="started", asked_at=NOW, revision=BUILD.revision, variants=(BUILD.variant,))
        self.add_revision(Revision(BUILD.revision, "pr", NOW, Source("b", "main", "b" * 40),
                                   Source("u", "refs/pull/7/head", SHA)))  # fmt: skip
        self.run(None)

    def add_revision(self, revision: Revision) -> None:
        self.workspace.manifests.add_revision(revision)
        self.workspace.manifests.begin(INTEGRATION.stages[0], Build(revision.key, BUILD.variant))

    def run(self, ending: str | None, run: str = "run-1", build: Build = BUILD, **fields: Any) -> None:
        """Lay the record of a run: `ending` is None while it is at work."""
        manifests = self.workspace.manifests
        ended = NOW + timedelta(minutes=5) if ending is not None else None
        record = PipelineRun(run, NOW, ended, "ledger", reported=ending == "well", began=(), started_at=NOW)
        if ending in ("failed", "interrupted"):
            record = replace(record, ending=ending)  # type: ignore[arg-type]
        manifests.write(manifests.run_file(INTEGRATION, build), replace(record, **fields))

    def finish(self, build: Build = BUILD, *, torch: str | None = SHA, run: str = "run-1", **changes: Any) -> None:
        """Lay a finished build: one smoke test that passes, and two tests of which one fails."""
        manifests, results = self.workspace.manifests, self.workspace.results
        told = attempts_of({"test_a": [("passed", "0", None)], "test_b": fails()}, NOW, {"test_b": "b is 1, not 2"})
        write_attempts(results, build, NOW.date(), told)
        write_attempts(results, build, NOW.date(), [replace(told[0], suite="smoke")])
        none = dict.fromkeys(VERDICTS, 0)
        suites = {"smoke": none | {"passed": 1}, "unit": none | {"passed": 1, "failed": 1}}
        counts = none | {"passed": 2, "failed": 1}
        ledger = Ledger(build, 3, counts, suites, (), (), 0, 1.0, 1.0, digest="1")
        image = RuntimeImage("venv", "python", "0" * 64, "3.11", "2.13.0", torch, (), False, 1.0)
        manifests.write(manifests.path(RUNTIME_IMAGE, build.revision, build.variant), image)
        manifests.write(manifests.path(LEDGER, build.revision, build.variant), replace(ledger, **changes))
        self.run("well", run, build)

    def report(self) -> tuple[str, ...]:
        return report_deliveries(self.workspace, new_sender(self.workspace), NOW + timedelta(minutes=6)).lines

    @property
    def state(self) -> str:
        kept = self.deliveries.find("d-1")
        assert kept is not None
        return kept.outcome.state


MakeDownstream = Callable[..., Downstream]


@pytest.fixture
def make_downstream(tmp_path: Path, relay: StandInRelay, make_project: Callable[..., Project]) -> MakeDownstream:
    (tmp_path / "token").write_text(f"{TOKEN}\n")

    def make(store: dict[str, str] | None = None, **changes: Any) -> Downstream:
        section = {"callbacks": [relay.url], "token_file": "token", **changes}
        shared = {"store": store} if store is not None else {}
        variant = minimal_config()["variants"][0]  # type: ignore[index]
        addresses = {"ui": "https://ui.example.org", "hud": "https://hud.example.org/"}
        project = make_project(relay=section, variants=[{**variant, "torch_source": "main"}], addresses=addresses, **shared)
        return Downstream(Workspace(project))

    return make


@pytest.fixture
def downstream(make_downstream: MakeDownstream) -> Downstream:
    made = make_downstream()
    made.deliver()
    return made


def test_a_build_is_reported_in_progress_and_then_completed_each_once(
    downstream: Downstream, relay: StandInRelay, at_work_lock: Callable[[], Any]
) -> None:
    with at_work_lock():
        assert len(downstream.report()) == 2
        assert downstream.report() == ()
    assert sorted(relay.jobs("in_progress")) == JOBS
    assert relay.jobs("completed") == {}
    downstream.finish()
    judge_new_builds(downstream.workspace, NOW)
    assert len(downstream.report()) == 2
    assert downstream.report() == ()
    assert (relay.refused, relay.requests, downstream.state) == ([], 4, "reported")
    smoke, unit = (relay.jobs("completed")[job] for job in JOBS)
    assert (smoke["conclusion"], unit["conclusion"]) == ("success", "failure")
    assert unit["test_results"] == {"passed": 1, "failed": 1, "skipped": 0, "total": 2}
    [failed] = unit["failed_tests_detail"]
    assert (failed["name"], failed["classname"], failed["message"]) == ("test_b", "unit", "b is 1, not 2")
    assert unit["triage_verdict"]["category"] == "unknown"
    assert "triage_verdict" not in smoke
    assert unit["artifact_url"] == f"https://hud.example.org/builds/{BUILD.name}.html"
    assert unit["url"] == "https://ui.example.org/runs/run-1"
    assert (unit["started_at"], unit["completed_at"]) == (None, "2026-11-30T09:05:00Z")
    assert all({key: body[key] for key in client_payload(pull_request(SHA))} == client_payload(pull_request(SHA))
               for body in relay.taken)  # fmt: skip


@pytest.fixture
def at_work_lock(downstream: Downstream) -> Callable[[], Any]:
    """Hold the lock that a run of the build holds while it is at work."""
    from filelock import FileLock

    return lambda: FileLock(downstream.workspace.manifests.pipeline_lock_file(INTEGRATION, BUILD))


def test_a_build_that_ended_between_two_reports_is_begun_first(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    downstream.report()
    states = [(body["workflow"]["job_name"], body["workflow"]["status"]) for body in relay.taken]
    assert states == [(job, status) for job in JOBS for status in ("in_progress", "completed")]


@pytest.mark.parametrize(
    ("changes", "conclusions"),
    [
        ({"missing_suites": ("smoke",)}, ["failure", "failure"]),
        ({"missing_suites": ("bazel",)}, ["neutral", "failure"]),
        ({"suites": {}, "counts": dict.fromkeys(VERDICTS, 0), "expected": 0}, ["failure", "failure"]),
        ({"incomplete": ("too few tests passed",)}, ["failure", "failure"]),
        ({"expected": 4}, ["neutral", "failure"]),
    ],
    ids=["a missing suite", "a missing suite of another pipeline", "no tests", "incomplete", "does not balance"],
)
def test_a_build_that_is_not_whole_never_reports_success(
    downstream: Downstream, relay: StandInRelay, changes: dict[str, Any], conclusions: list[str]
) -> None:
    downstream.finish(**changes)
    downstream.report()
    assert [relay.jobs("completed")[job]["conclusion"] for job in JOBS] == conclusions
    assert relay.refused == []


@pytest.mark.parametrize(("ending", "conclusion"), [("failed", "failure"), ("interrupted", "cancelled"), (None, "failure")])
def test_a_run_that_stopped_reports_no_results_of_an_earlier_one(
    downstream: Downstream, relay: StandInRelay, ending: str | None, conclusion: str
) -> None:
    downstream.finish()
    downstream.run(ending, "run-2")
    downstream.report()
    assert {flow["conclusion"] for flow in relay.jobs("completed").values()} == {conclusion}
    assert not any("test_results" in flow for flow in relay.jobs("completed").values())


@pytest.mark.parametrize(("torch", "words"), [("b" * 40, "bbbbbbbbbbbb"), (None, "of an unknown commit")])
def test_a_build_with_another_pytorch_than_the_pull_requests_says_nothing_of_it(
    downstream: Downstream, relay: StandInRelay, torch: str | None, words: str
) -> None:
    downstream.finish(torch=torch)
    downstream.report()
    for flow in relay.jobs("completed").values():
        assert (flow["conclusion"], flow["triage_verdict"]["category"]) == ("neutral", "infra")
        assert f"PyTorch {words} was tested instead of aaaaaaaaaaaa" in flow["triage_verdict"]["summary"]


def test_a_second_run_is_a_second_attempt(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.run("failed")
    downstream.report()
    kept = downstream.deliveries.find("d-1")
    assert kept is not None
    downstream.deliveries.note(kept, state="started")
    downstream.finish(run="run-2")
    downstream.report()
    attempts = [(body["workflow"]["run_attempt"], body["workflow"]["conclusion"]) for body in relay.taken
                if body["workflow"]["job_name"] == "py3~smoke"]  # fmt: skip
    assert attempts == [("1", None), ("1", "failure"), ("2", None), ("2", "success")]
    assert len({body["workflow"]["run_id"] for body in relay.taken}) == 1
    assert relay.refused == []


def test_a_build_that_waits_in_the_queue_gets_no_folder(downstream: Downstream, relay: StandInRelay) -> None:
    shutil.rmtree(downstream.workspace.manifests.folder(BUILD))
    assert downstream.report() == ()
    assert (relay.requests, downstream.state) == (0, "started")
    assert downstream.workspace.manifests.builds_of(BUILD.revision) == []
    kept = downstream.deliveries.find("d-1")
    assert kept is not None
    downstream.deliveries.note(kept, state="obsolete")
    assert downstream.report() == ()
    assert (relay.requests, downstream.state) == (0, "reported"), "nothing was in progress, so nothing is cancelled"


def test_a_build_that_is_ended_at_work_is_cancelled(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.run("interrupted")
    kept = downstream.deliveries.find("d-1")
    assert kept is not None
    downstream.deliveries.note(kept, state="obsolete")
    downstream.report()
    assert [relay.jobs("completed")[job]["conclusion"] for job in JOBS] == ["cancelled"] * 2
    assert downstream.state == "reported"


def test_a_run_before_the_delivery_does_not_count(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.run("well", asked_at=NOW - timedelta(hours=1))
    assert downstream.report() == ()
    assert downstream.state == "started"
    assert relay.requests == 0


@pytest.mark.parametrize("answer", [500, 503, 408, 429, -1])
def test_a_relay_that_is_away_gets_it_later_and_each_only_once(
    downstream: Downstream, relay: StandInRelay, answer: int
) -> None:
    """A lost answer (-1) is one to a callback that was taken: its repetition is refused, which counts as taken."""
    downstream.finish()
    relay.answers[:] = [answer] * 3
    for _ in range(3):
        downstream.report()
    assert sorted(relay.jobs("completed")) == JOBS
    assert (len(relay.taken), downstream.state) == (4, "reported")
    [record] = downstream.workspace.manifests.folder(BUILD).glob(".relay-*.json")
    assert set(json.loads(record.read_text())["answers"].values()) == {"taken"}
    assert downstream.report() == ()


def test_what_a_relay_refuses_is_not_sent_again(downstream: Downstream, relay: StandInRelay) -> None:
    relay.dispatched.clear()
    downstream.finish()
    lines = downstream.report()
    assert all("no matching dispatch record" in line for line in lines)
    assert (relay.requests, downstream.state) == (4, "reported")


def test_a_wrong_token_is_no_refusal(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    token = downstream.workspace.project.root / "token"
    token.write_text("a-stale-token")
    [line] = downstream.report()
    assert "401" in line
    token.write_text(TOKEN)
    downstream.report()
    assert (len(relay.taken), downstream.state) == (4, "reported")


def test_without_a_token_nothing_is_sent_or_noted_as_sent(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    token = downstream.workspace.project.root / "token"
    for content in (None, "", "two words", "ü" * 20, "a" * 20_000):
        if content is None:
            token.unlink()
        else:
            token.write_text(content)
        with pytest.raises(TokenError):
            downstream.report()
    assert relay.requests == 0
    token.write_text(TOKEN)
    downstream.report()
    assert len(relay.taken) == 4


def test_one_place_that_is_away_keeps_nothing_from_the_others(make_downstream: MakeDownstream, relay: StandInRelay) -> None:
    downstream = make_downstream(callbacks=["http://127.0.0.1:9/github/callback", relay.url])
    downstream.deliver()
    downstream.finish()
    downstream.report()
    assert (len(relay.taken), downstream.state) == (4, "started")
    downstream.report()
    assert relay.requests == 4


def test_a_report_ends_when_its_time_is_over(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    sender = Sender(lambda: TOKEN, seconds=0)
    assert not report_deliveries(downstream.workspace, sender, NOW).is_complete
    assert relay.requests == 0


@pytest.mark.parametrize("what", ["headers", "body"])
def test_a_relay_that_never_ends_its_answer_is_left(make_downstream: MakeDownstream, what: str) -> None:
    class Dripping(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if what == "body" else b"X-A: "))
            while True:  # until the other end has gone
                self.wfile.write(b"a")
                time.sleep(0.1)

    server = LoopbackServer(Dripping)
    downstream = make_downstream(callbacks=[server.url + "/github/callback"])
    downstream.deliver()
    downstream.finish()
    sender = Sender(lambda: TOKEN, seconds=1)
    progress = report_deliveries(downstream.workspace, sender, NOW)
    server.close()
    assert not progress.is_complete
    assert sender.away == {server.url + "/github/callback"}
    assert "no answer within" in progress.lines[0]


def test_what_a_relay_answers_is_shown_briefly_on_one_line() -> None:
    class Chatty(QuietHandler):
        def do_POST(self) -> None:
            self.send_content(404, b"gone\x1b[2J\r\n" + b"x" * (32 << 20), {})

    server = LoopbackServer(Chatty)
    answer, reason = Sender(lambda: TOKEN).send(server.url, b"{}")
    server.close()
    assert answer is Answer.REFUSED
    assert reason == "404 gone [2J  " + "x" * 186


def test_reporters_at_the_same_time_send_each_callback_once(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(downstream.report) for _ in range(4)]
    assert sorted(len(each.result()) for each in done) == [0, 0, 0, 4]
    assert (relay.requests, relay.refused) == (4, [])


@real_s3
def test_machines_that_share_a_project_send_each_callback_once(
    make_downstream: MakeDownstream, relay: StandInRelay, tmp_path: Path
) -> None:
    endpoint, bucket = os.environ["ACCEL_CI_S3_ENDPOINT"], os.environ["ACCEL_CI_S3_BUCKET"]
    downstream = make_downstream({"bucket": bucket, "endpoint": endpoint, "prefix": f"test-{uuid.uuid4().hex}"})
    downstream.deliver()
    downstream.finish()
    project = downstream.workspace.project
    machines = [downstream, *(Downstream(Workspace(replace(project, home=tmp_path / name))) for name in ("two", "three"))]
    with ThreadPoolExecutor(3) as threads:
        lines = [line for each in threads.map(Downstream.report, machines) for line in each]
    assert (len(lines), relay.requests, relay.refused) == (4, 4, [])
    assert [each.state for each in machines] == ["reported"] * 3


@pytest.mark.parametrize("number", range(1, 5))
def test_a_reporter_that_is_killed_loses_and_repeats_nothing(
    downstream: Downstream, relay: StandInRelay, number: int
) -> None:
    downstream.finish()
    project = downstream.workspace.project
    command = [sys.executable, "-m", "accel_ci.cli", "--config", str(project.config_path), "relay", "report", BUILD.name]
    process = subprocess.Popen(command, cwd=project.root, env={**os.environ, "ACCEL_CI_HOME": str(project.home)})
    relay.before_answer = lambda count: process.kill() if count == number else None
    assert process.wait(60) == -signal.SIGKILL
    assert len(relay.taken) == number
    downstream.report()
    states = [(body["workflow"]["job_name"], body["workflow"]["status"]) for body in relay.taken]
    assert states == [(job, status) for job in JOBS for status in ("in_progress", "completed")]
    assert relay.requests == 5, "the callback whose answer did not come was repeated, and refused"
    assert downstream.state == "reported"


def test_a_damaged_record_is_reported_and_nothing_is_sent_twice(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    [record] = [*_reported(downstream)]
    record.write_text("{")
    kept = downstream.deliveries.find("d-1")
    assert kept is not None
    downstream.deliveries.note(kept, state="started")
    [line] = downstream.report()
    assert "remove it to report all again" in line
    assert relay.requests == 4


def _reported(downstream: Downstream) -> Iterator[Path]:
    downstream.report()
    yield from downstream.workspace.manifests.folder(BUILD).glob(".relay-*.json")


def test_the_token_and_the_address_are_in_no_file(downstream: Downstream, relay: StandInRelay) -> None:
    downstream.finish()
    downstream.report()
    files = [path for path in downstream.workspace.project.home.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_the_workflow_that_passed_the_dispatch_on_is_named(make_downstream: MakeDownstream, relay: StandInRelay) -> None:
    downstream = make_downstream()
    downstream.deliver(CallingWorkflow("12345678901", "2", "https://github.com/o/r/actions/runs/12345678901"))
    downstream.finish()
    downstream.report()
    flow = relay.jobs("completed")["py3~unit"]
    assert (flow["run_id"], flow["run_attempt"], flow["url"]) == (
        "12345678901", "2", "https://github.com/o/r/actions/runs/12345678901",
    )  # fmt: skip
    assert len({each["check_run_id"] for each in relay.jobs("completed").values()}) == 2


@pytest.mark.parametrize("trigger", ["nightly", "intraday"])
def test_nightly_builds_are_reported_once_when_they_end(
    make_downstream: MakeDownstream, relay: StandInRelay, trigger: Any
) -> None:
    downstream, build = make_downstream(nightly=True), Build(f"{trigger}-20261130", "py3")
    downstream.add_revision(Revision(build.revision, trigger, NOW, Source("b", "main", "b" * 40), Source("u", "main", SHA)))
    report_all(downstream.workspace, NOW)
    assert relay.requests == 0
    downstream.finish(build, torch="c" * 40)
    report_all(downstream.workspace, NOW)
    report_all(downstream.workspace, NOW)
    assert [body["workflow"]["job_name"] for body in relay.taken] == JOBS
    assert relay.requests == 2
    for body in relay.taken:
        assert body["event_type"] == {"nightly": "nightly", "intraday": "periodic"}[trigger]
        assert body["delivery_id"] == "c" * 40, "the commit of the PyTorch that was tested"
        assert body["payload"] == {"repository": {"full_name": REPOSITORY}, "head_sha": "c" * 40}


def test_what_polling_has_found_is_reported_to_nobody(make_downstream: MakeDownstream, relay: StandInRelay) -> None:
    downstream = make_downstream()
    downstream.deliver(delivery="poll-7-aaaaaaaaaaaa")
    downstream.finish()
    downstream.report()
    command = ["--config", str(downstream.workspace.project.config_path), "relay", "report", BUILD.name]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, relay.requests) == (2, 0)
    assert "came from no dispatch of a relay" in done.output
    rows = own_rows(downstream.workspace, "o/r", NOW - timedelta(days=1), NOW)
    downstream.deliver()
    both = own_rows(downstream.workspace, "o/r", NOW - timedelta(days=1), NOW)
    assert {row.delivery_id for row in rows} == {"poll-7-aaaaaaaaaaaa"}
    assert {row.delivery_id for row in both} == {"d-1"}, "the run that stands for both is that of the dispatch"


def test_own_builds_are_rows_of_the_relays_store(make_downstream: MakeDownstream, tmp_path: Path) -> None:
    downstream = make_downstream()
    downstream.deliver()
    downstream.finish()
    nightly = Build("nightly-20261130", "py3")
    sources = Source("b", "main", "b" * 40), Source("u", "main", SHA)
    downstream.add_revision(Revision(nightly.revision, "nightly", NOW, *sources))
    downstream.finish(nightly, run="run-2")
    project = downstream.workspace.project
    command = [sys.executable, "-m", "accel_ci.cli", "--config", str(project.config_path), "relay", "rows", "--days", "1000"]
    store = tmp_path / "rows"
    for _ in range(2):
        done = subprocess.run([*command, "--folder", str(store)], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout == f"8 rows are in {store}\n"
    found = ResultsStore(store).rows(NOW.timestamp() - 1, NOW.timestamp() + 600)
    described = {(row.event, row.delivery_id, row.pull_request, row.head_sha, row.job_name, row.conclusion) for row in found}
    assert described == {
        ("pull_request", "d-1", 7, SHA, "py3~smoke", "success"),
        ("pull_request", "d-1", 7, SHA, "py3~unit", "failure"),
        ("nightly", SHA, None, SHA, "py3~smoke", "success"),
        ("nightly", SHA, None, SHA, "py3~unit", "failure"),
    }
    assert {(row.repository, row.upstream, row.execution_s) for row in found} == {("local/toy", REPOSITORY, 300.0)}
    [unit] = [row for row in found if (row.event, row.job_name) == ("nightly", "py3~unit")]
    assert (unit.passed, unit.failed, unit.skipped, json.loads(unit.failed_tests)[0]["classname"]) == (1, 1, 0, "unit")
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert len({json.loads(line)["job_name"] for line in printed.splitlines()}) == 2


def test_github_is_asked_for_a_token_with_the_audience(
    make_downstream: MakeDownstream, relay: StandInRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    downstream = make_downstream(identity="github")
    downstream.deliver()
    downstream.finish()
    with pytest.raises(TokenError, match="id-token: write"):
        downstream.report()
    asked: list[tuple[str, str | None]] = []
    with token_server(asked) as url:
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{url}?api-version=2.0")
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-runner")
        downstream.report()
    assert asked == [(f"/token?api-version=2.0&audience={AUDIENCE}", "Bearer of-the-runner")], "one token for all callbacks"
    assert len(relay.taken) == 4


def token_server(asked: list[tuple[str, str | None]]) -> Any:
    """Serve tokens as a runner of GitHub Actions does."""
    import threading
    from contextlib import contextmanager
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            content = json.dumps({"count": 1, "value": TOKEN}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    @contextmanager
    def serve() -> Iterator[str]:
        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/token"
            server.shutdown()

    return serve()


def test_buildkites_agent_is_asked_for_a_token(
    make_downstream: MakeDownstream, relay: StandInRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "bin" / "buildkite-agent"
    agent.parent.mkdir()
    arguments = f"oidc request-token --audience {AUDIENCE} --claim organization_id --claim pipeline_id"
    agent.write_text(f'#!/bin/sh\ntest "$*" = "{arguments}" && echo {TOKEN}\n')
    agent.chmod(0o755)
    downstream = make_downstream(identity="buildkite")
    downstream.deliver()
    downstream.finish()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TokenError, match="buildkite-agent"):
        downstream.report()
    monkeypatch.setenv("PATH", f"{agent.parent}:/usr/bin:/bin")
    downstream.report()
    assert len(relay.taken) == 4


@pytest.mark.parametrize(
    "address", ["http://relay.example.org/x", "https://user:pass@relay.example.org/x", "ftp://h/x", "x"]
)
def test_a_token_goes_nowhere_in_the_clear(make_downstream: MakeDownstream, address: str) -> None:
    with pytest.raises(AccelCiError, match=r"relay\.callbacks\[0\]"):
        make_downstream(callbacks=[address])
