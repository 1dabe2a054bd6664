"""Dispatches: which are understood, which are refused, and that each is kept once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.config.settings import Project
from accel_ci.relay.downstream.deliveries import (
    KEPT,
    CallingWorkflow,
    Deliveries,
    Delivery,
    DispatchError,
    KeptDelivery,
    Outcome,
    deliveries_of,
    obsolete_since,
    read_dispatch,
)
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.shared_folder import SharedFolder
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.relay import REPOSITORY, client_payload, event, pull_request, push
from accel_ci_tests.fixtures.stored_attempts import real_s3

NOW = datetime(2026, 11, 30, 9, tzinfo=timezone.utc)
SHA, OTHER = "a" * 40, "b" * 40


def read(document: bytes) -> Delivery:
    return read_dispatch(document, REPOSITORY, NOW)


def test_an_event_of_github_and_its_client_payload_are_the_same_dispatch() -> None:
    payload = pull_request(SHA)
    found = read(event(payload))
    assert found == read(json.dumps(client_payload(payload)).encode())
    assert (found.id, found.change.sha, found.change.ref, found.change.pull_request) == ("d-1", SHA, "refs/pull/7/head", 7)
    assert found.client_payload == client_payload(payload), "a callback repeats it whole"
    commit = read(event(push(SHA), "72d3162e-cc78-11e3-81ab-4c9367dc0958"))
    assert (commit.change.ref, commit.change.pull_request, commit.change.closes) == ("refs/heads/main", None, False)
    assert read(event(pull_request(SHA, action="closed"))).change.closes


def hostile_documents() -> dict[str, bytes]:
    """Dispatches that must be refused, by what is wrong with them."""

    def changed(**fields: Any) -> bytes:
        return json.dumps({**client_payload(pull_request(SHA)), **fields}).encode()

    def of(number: Any = 7, sha: Any = SHA, **fields: Any) -> bytes:
        payload = pull_request(SHA)
        payload["pull_request"] |= {"number": number, "head": {"sha": sha}}
        return changed(payload={**payload, **fields})

    return {
        "nothing": b"",
        "no JSON": b"{",
        "a list": b"[]",
        "bytes that are no text": b"\xff\xfe\x00",
        "deep": b"[" * 100_000,
        "deeper than any file can hold": changed(x="deep").replace(b'"deep"', b"[" * 300 + b"]" * 300),
        "a key twice": changed().replace(b'"event_type"', b'"event_type": "push", "event_type"'),
        "not a number": changed(x=float("nan")),
        "a form": b"payload=%7B%7D",
        "UTF-16": changed().decode().encode("utf-16"),
        "deep in the payload": b'{"client_payload":' + b'{"a":' * 50_000,
        "huge": b'"' + b"a" * (1 << 20) + b'"',
        "a path as id": changed(delivery_id="../../etc/cron.d/x"),
        "an absolute path as id": changed(delivery_id="/etc/passwd"),
        "a hidden file as id": changed(delivery_id=".ssh"),
        "an id with a new line": changed(delivery_id="d-1\n"),
        "an id with a command": changed(delivery_id="d;reboot"),
        "an id with a null byte": changed(delivery_id="d\0"),
        "a number as id": changed(delivery_id=7),
        "a long id": changed(delivery_id="d" * 129),
        "another event": changed(event_type="workflow_run"),
        "a payload that is text": changed(payload="x"),
        "another repository": of(repository={"full_name": "evil/pytorch"}),
        "no repository": of(repository=None),
        "an action that starts nothing": of(action="assigned"),
        "an action of another type": of(action=["opened"]),
        "a branch as commit": of(sha="main"),
        "an option as commit": of(sha="--upload-pack=touch x"),
        "a short commit": of(sha="a" * 12),
        "a commit with a new line": of(sha=SHA + "\n"),
        "no commit": of(sha="0" * 40),
        "text as number": of(number="7/../../x"),
        "true as number": of(number=True),
        "a negative number": of(number=-7),
        "a fraction as number": of(number=7.5),
        "a huge number": of(number=1 << 80),
        "a push without a ref": json.dumps(client_payload({**push(SHA), "ref": None})).encode(),
        "a push that deletes": event(push("0" * 40)),
    }


@pytest.mark.parametrize("name", hostile_documents())
def test_a_hostile_dispatch_is_refused_with_a_short_message(name: str) -> None:
    with pytest.raises(DispatchError) as caught:
        read(hostile_documents()[name])
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


KEYS = st.sampled_from(["payload", "repository", "pull_request", "head", "full_name", "event_type"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(KEYS, each)
)


@given(DOCUMENTS)
def test_any_json_is_a_dispatch_or_refused(document: Any) -> None:
    for body in (document, {**client_payload({}), "payload": document}):
        with pytest.raises(DispatchError):
            read(json.dumps(body).encode())


def test_a_delivery_is_kept_once_however_often_it_comes(make_project: Callable[..., Project]) -> None:
    deliveries = deliveries_of(Workspace(make_project()))
    caller = CallingWorkflow("123", "1", "https://github.com/o/r/actions/runs/123")
    first = read_dispatch(event(pull_request(SHA)), REPOSITORY, NOW, caller)
    assert deliveries.add(first)
    assert not deliveries.add(read_dispatch(event(pull_request(OTHER)), REPOSITORY, NOW + timedelta(hours=1)))
    assert deliveries.add(read(event(push(OTHER), "d-1.json")))
    [kept, other] = deliveries.all()
    assert kept.delivery == first, "what came is what is repeated"
    assert other.delivery.id == "d-1.json"
    deliveries.note(kept, state="refused", reason="why")
    [noted, _] = deliveries.all()
    assert (noted.outcome.state, noted.outcome.reason, noted.delivery) == ("refused", "why", first)
    deliveries.forget_old(deliveries.all(), NOW + KEPT)
    assert len(deliveries.all()) == 2
    deliveries.forget_old(deliveries.all(), NOW + KEPT + timedelta(seconds=1))
    assert deliveries.all() == []


def test_halves_of_characters_are_kept_as_question_marks(make_project: Callable[..., Project]) -> None:
    """GitHub's JSON may spell them, and no file holds them."""
    deliveries = deliveries_of(Workspace(make_project(relay={})))
    assert deliveries.add(read(event({**pull_request(SHA), "title": "half"}).replace(b"half", rb"a\ud800b \ud83d\ude00")))
    [kept] = deliveries.all()
    assert kept.delivery.client_payload["payload"]["title"] == "a?b \U0001f600"


def test_summaries_follow_every_change(make_project: Callable[..., Project]) -> None:
    project = make_project()
    deliveries = deliveries_of(Workspace(project))
    deliveries.add(first := read(event(pull_request(SHA))))
    deliveries.add(read(event(push(OTHER), "d-2")))
    light = replace(first, client_payload={})
    assert deliveries.summaries()[0] == KeptDelivery(light, Outcome())
    deliveries.note(deliveries.all()[0], state="refused", reason="why")
    again = deliveries_of(Workspace(project))
    assert again.summaries()[0] == KeptDelivery(light, Outcome("refused", reason="why"))
    assert again.find("d-1") == again.all()[0], "whole, with what callbacks repeat"
    again.forget_old(again.summaries()[:1], NOW + 2 * KEPT)
    assert [kept.delivery.id for kept in deliveries.summaries()] == ["d-2"]
    assert deliveries.find("d-1") is None


def test_a_summary_is_read_once(make_project: Callable[..., Project]) -> None:
    """A file that is made unreadable without another size or time is not looked at again."""
    project = make_project()
    deliveries = deliveries_of(Workspace(project))
    deliveries.add(read(event(push(SHA))))
    [before] = deliveries.summaries()
    path = Path(project.home, "relay", "deliveries", "d-1.json")
    times = path.stat()
    with path.open("r+b") as file:
        file.write(b"{{")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert deliveries.all() == []
    assert deliveries.summaries() == [before]


def test_a_damaged_file_is_passed_over(make_project: Callable[..., Project]) -> None:
    project = make_project()
    deliveries = deliveries_of(Workspace(project))
    deliveries.add(read(event(push(SHA))))
    Path(project.home, "relay", "deliveries", "torn.json").write_text('{"id": ')
    assert [kept.delivery.id for kept in deliveries.all()] == ["d-1"]


def of_pull_request(sha: str, minute: int, action: str = "synchronize", number: int = 7) -> Delivery:
    at = f"2026-11-30T08:{minute:02d}:00Z"
    return read(event(pull_request(sha, number, action, at), f"{action}-{minute}-{number}"))


def test_a_newer_commit_or_the_end_of_a_pull_request_makes_a_delivery_obsolete() -> None:
    older, newer, closed = of_pull_request(SHA, 1), of_pull_request(OTHER, 2), of_pull_request(OTHER, 3, "closed")
    assert "newer commit" in (obsolete_since(older, [older, newer], supersede=True) or "")
    assert obsolete_since(newer, [newer, older], supersede=True) is None, "the order in which they came does not count"
    assert obsolete_since(older, [older, newer], supersede=False) is None
    assert "was closed" in (obsolete_since(newer, [closed, newer], supersede=False) or "")
    again = of_pull_request(OTHER, 4, "reopened")
    assert obsolete_since(again, [older, newer, closed, again], supersede=True) is None
    label = of_pull_request(SHA, 2, "labeled")
    assert obsolete_since(older, [older, label], supersede=True) is None, "it has the same commit"
    assert obsolete_since(older, [of_pull_request(OTHER, 2, number=8)], supersede=True) is None
    commits = [read(event(push(SHA), "a")), read(event(push(OTHER), "b"))]
    assert [obsolete_since(each, commits, supersede=True) for each in commits] == [None, None]


@real_s3
def test_machines_that_share_a_project_keep_a_delivery_once(
    tmp_path: Path, open_bucket_store: Callable[..., BucketStore]
) -> None:
    one, other = (
        Deliveries(tmp_path / name, SharedFolder(tmp_path / name, open_bucket_store(f"{name}-cache")))
        for name in ("one", "other")
    )
    first, second = read(event(pull_request(SHA))), read(event(pull_request(OTHER)))
    assert one.add(first)
    assert not other.add(second)
    [kept] = other.all()
    assert kept.delivery == first
    other.note(kept, state="refused", reason="why")
    assert [each.outcome.reason for each in one.all()] == ["why"]
    one.forget_old(one.all(), NOW + 2 * KEPT)
    assert (one.all(), other.all()) == ([], [])
