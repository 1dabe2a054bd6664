"""A store that is away, loses answers or refuses: nothing is lost, and no message contains a URL."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.errors import PoolError
from accel_ci.model import Limits, WorkerSpec
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.round_bucket import RoundBucket, RoundStore
from accel_ci.rounds.signing import Signer
from accel_ci.runner.signed_round import create, form_body
from accel_ci.runner.signed_store import SignedStore, StoreError
from accel_ci.storage.s3 import s3_client, s3_session
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.ground import Ground, outcomes
from accel_ci_tests.fixtures.suite import Write, batch, numbered_batches

from .flaky_server import FlakyServer, flaky_server


@pytest.fixture
def server() -> Iterator[FlakyServer]:
    store = round_store()
    assert store.endpoint is not None
    with flaky_server(store.endpoint) as server:
        yield server


@pytest.fixture
def objects(server: FlakyServer) -> Iterator[RoundBucket]:
    found = round_store(server.url).of_round("run/round-1")
    yield found
    server.away.clear()
    found.clear()


def test_a_store_that_is_away_for_a_while_loses_nothing(
    server: FlakyServer, write: Write, root: Path, tmp_path: Path
) -> None:
    log = tmp_path / "executions"
    write(
        "test_a.py",
        f"""
        import pytest, time
        @pytest.mark.parametrize("n", range(40))
        def test_n(n):
            with open({str(log)!r}, "a") as file:
                file.write(f"{{n}}\\n")
            time.sleep(0.2)
        """,
    )
    tests = [f"test_a.py::test_n[{n}]" for n in range(40)]

    def go_away() -> None:
        while not log.exists() or log.read_text().count("\n") < 8:
            time.sleep(0.02)
        server.away.set()
        time.sleep(6)
        server.away.clear()

    thread = threading.Thread(target=go_away, daemon=True)
    thread.start()
    ground = Ground("bucket", root, tmp_path / "run", store=round_store(server.url))
    try:
        result = ground.run(numbered_batches(40, size=2))
        thread.join()
    finally:
        server.away.clear()
        ground.clear()
    assert server.refused > 10
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(log.read_text().splitlines()) == 40  # and nothing was run twice


def test_retries_are_logged(server: FlakyServer, objects: RoundBucket, caplog: pytest.LogCaptureFixture) -> None:
    def go_away_for(requests: int) -> None:
        server.away.set()
        enough = server.refused + requests

        def come_back() -> None:
            while server.refused < enough:
                time.sleep(0.01)
            server.away.clear()

        threading.Thread(target=come_back, daemon=True).start()

    caplog.set_level(logging.INFO, "accel_ci.rounds")
    objects.put("a", b"content")
    go_away_for(2)
    assert objects.get("a") == b"content"
    assert "run/round-1/a was read at try " in caplog.text
    go_away_for(6)  # one more than boto3 itself tries
    objects.put("b", b"content")
    assert "run/round-1/b: retry in " in caplog.text


def test_a_claim_whose_answer_was_lost_is_still_ones_own(server: FlakyServer, objects: RoundBucket) -> None:
    urls = objects.signer().claim("claims/b0")
    server.lose_answers = 1
    assert create(SignedStore(), urls, b"w0-0", "a claim")
    assert not create(SignedStore(), urls, b"w0-1", "a claim")
    assert objects.get("claims/b0") == b"w0-0"
    assert not objects.create("claims/b0", b"driver")
    assert objects.create("claims/b0", b"w0-0")


def test_objects_that_the_store_does_not_delete_are_an_error(server: FlakyServer, objects: RoundBucket) -> None:
    objects.put("a", b"content")
    server.refuse_deletes = True
    with pytest.raises(PoolError, match="is not deleted: AccessDenied: not yours; look at the pool's bucket"):
        objects.clear()
    server.refuse_deletes = False
    objects.clear()
    assert objects.listed("") == {}


def test_one_of_many_racing_workers_wins(objects: RoundBucket) -> None:
    urls = objects.signer().claim("claims/b0")
    won: list[int] = []

    def race(number: int) -> None:
        if create(SignedStore(), urls, f"w0-{number}".encode(), "a claim"):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert objects.get("claims/b0") == f"w0-{won[0]}".encode()


def test_signed_urls_allow_only_their_own_request(objects: RoundBucket) -> None:
    signer = objects.signer()
    put, get = signer.claim("claims/b0")
    store = SignedStore()
    with pytest.raises(StoreError, match="403"):
        store.ask("PUT", put, "a claim", b"x")  # without the condition
    with pytest.raises(StoreError, match="403"):
        store.ask("PUT", get, "a claim", b"x", {"If-None-Match": "*"})
    form = objects.form("workers/")
    content_type, body = form_body({**form["fields"], "key": form["prefix"] + "w0-0/events/0"}, b"a\r\n--b")
    assert store.ask("POST", form["url"], "events", body, {"Content-Type": content_type}).status == 204
    assert objects.get("workers/w0-0/events/0") == b"a\r\n--b"
    elsewhere = form["prefix"].replace("workers/", "claims/") + "b0"
    content_type, body = form_body({**form["fields"], "key": elsewhere}, b"w0-9")
    with pytest.raises(StoreError, match="403"):
        store.ask("POST", form["url"], "events", body, {"Content-Type": content_type})


def test_objects_of_a_hostile_worker_are_ignored(objects: RoundBucket, tmp_path: Path) -> None:
    record = BucketRound(tmp_path / "round-1", objects)
    plan = ([batch("b0", "a.py::t")], WorkerSpec("python3", "/sources", {}, ""), Limits(), 0)
    record.prepare(1, *plan)
    [digest] = {name.partition("/")[0] for name in objects.listed("")}
    for name in ("workers/.w0-0/events/000000000000", "workers/w0-0/events/x", "workers/events", "slots/w0-0"):
        objects.put(f"{digest}/{name}", b"{}\n")
    objects.put(f"{digest}/workers/w0-0/events/000000000000", b'{"event":"waiting","at":"2026-11-27T00:00:00+00:00"}\n')
    record = BucketRound(tmp_path / "again", objects)
    record.prepare(1, *plan)
    assert record.workers() == ["w0-0"]
    assert [event.event for event in record.events("w0-0")] == ["waiting"]


def test_a_store_that_stays_away_is_an_error_without_its_urls(server: FlakyServer, objects: RoundBucket) -> None:
    url = objects.signer().get("plan")
    server.away.set()
    with pytest.raises(StoreError, match=r"has not let us GET the plan for 0.5 s; last: status 503") as caught:
        SignedStore(patience_s=0.5).ask("GET", url, "the plan")
    assert "http" not in str(caught.value)
    objects.hurry(0.1)
    with pytest.raises(PoolError, match="look at the pool's bucket"):
        objects.get("plan")


def test_an_expired_signature_is_reported(objects: RoundBucket) -> None:
    store = round_store()
    short = RoundStore(
        store.bucket, store.prefix, store.endpoint, None, store.access_key, store.secret_key, signed_for_s=1.0
    ).of_round("run/round-1")
    url = short.signer().get("plan")
    time.sleep(2)
    with pytest.raises(StoreError, match="403; the signed URL may have expired"):
        SignedStore().ask("GET", url, "the plan")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "https://s3.example.com:8443", None])
def test_urls_are_signed_as_boto3_signs_them(endpoint: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = s3_session("key", "secret/+", "eu-west-1")
    client = s3_client(session, endpoint)
    moment = datetime(2026, 11, 27, 12, 0, tzinfo=timezone.utc)
    signer = Signer(session, client, "bucket", "", 3600, moment)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: moment.replace(tzinfo=None))
    for key in ("rounds/a b/claims/b0~1", "x+y/ü%2F", "plain"):
        named = {"Bucket": "bucket", "Key": key}
        assert signer.get(key) == client.generate_presigned_url("get_object", named, 3600)
        conditional = {**named, "IfNoneMatch": "*"}
        assert signer.claim(key)[0] == client.generate_presigned_url("put_object", conditional, 3600)
