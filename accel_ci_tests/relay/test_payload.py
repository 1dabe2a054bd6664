"""The body of a dispatch: whole where it fits, and cut in a fixed order where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.relay.server.payload import LARGEST, dispatch_body
from accel_ci_tests.fixtures.relay_server import pull_request

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
STEPS = [
    "texts over 1000 characters",
    "addresses of the API",
    "changed files of commits",
    "all but the newest 20 commits",
    "all but the essentials",
]


def sent(event: str, payload: dict[str, Any], raw: bytes | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    body, left_out = dispatch_body(event, "one", payload, raw or json.dumps(payload).encode())
    request = json.loads(body)
    assert set(request) == {"event_type", "client_payload"}
    assert set(request["client_payload"]) == {"event_type", "delivery_id", "payload"}
    assert len(json.dumps(request["client_payload"], separators=(",", ":"))) <= LARGEST
    return request["client_payload"]["payload"], left_out


@given(payload=st.dictionaries(st.text(max_size=10), JSON, max_size=5))
def test_what_fits_is_sent_as_it_is(payload: dict[str, Any]) -> None:
    assert sent("push", payload) == (payload, ())


def test_exactly_at_the_limit() -> None:
    frame = len(json.dumps({"event_type": "push", "delivery_id": "one", "payload": {"x": ""}}, separators=(",", ":")))
    fits = {"x": "a" * (LARGEST - frame)}
    assert sent("push", fits) == (fits, ())
    assert sent("push", {"x": fits["x"] + "a"})[1] == tuple(STEPS[:1])


@pytest.mark.parametrize(
    "raw", [b'{"x": 1e400}', b'{ "x" :\r\n 0.10000000000000000001 }', '{"x":"\u00e9\U0001f600"}'.encode()]
)
def test_what_fits_is_sent_as_it_was_written(raw: bytes) -> None:
    body, left_out = dispatch_body("push", "one", json.loads(raw), raw)
    assert left_out == ()
    assert body == b'{"event_type":"push","client_payload":{"event_type":"push","delivery_id":"one","payload":' + raw + b"}}"


@pytest.mark.parametrize("letter", ["\u00e9", "\u20ac", "\U0001f600"])
def test_letters_beyond_ascii_count_as_they_are_escaped(letter: str) -> None:
    """A text that would fit as it is, and not in escaped form, is cut."""
    payload = {"x": letter * (LARGEST // len(json.dumps(letter)[1:-1]))}
    raw = json.dumps(payload, ensure_ascii=False).encode()
    assert len(raw) < LARGEST - 200
    assert sent("push", payload, raw)[1] == tuple(STEPS[:1])


def test_white_space_does_not_count() -> None:
    payload = pull_request()
    assert sent("push", payload, json.dumps(payload, indent=9).encode() + b" " * LARGEST) == (payload, ())


@pytest.mark.parametrize("left_out", [(), tuple(STEPS[:1])])
def test_a_number_that_is_read_as_infinite_does_not_make_the_dispatch_invalid(left_out: tuple[str, ...]) -> None:
    text = "x" * LARGEST if left_out else ""
    raw = b'{"text": "%b", "far": [1e400, -1e400, 1.5]%b}' % (text.encode(), b" " * LARGEST)
    found, steps = sent("push", json.loads(raw), raw)
    assert (found["far"], steps) == ([None, None, 1.5], left_out)


def commits(count: int, files: int) -> list[dict[str, Any]]:
    names = [f"folder/file{number}" for number in range(files)]
    return [{"id": f"{number:040}", "message": "m" * 300, "modified": names} for number in range(count)]


@pytest.mark.parametrize(
    ("payload", "steps"),
    [
        ({**pull_request(), "text": "x" * LARGEST}, 1),
        ({**pull_request(), "repository": {"full_name": "u/p", **{f"a{n}_url": "u" * 900 for n in range(90)}}}, 2),
        ({"ref": "refs/heads/main", "commits": commits(10, 1000)}, 3),
        ({"ref": "refs/heads/main", "commits": commits(500, 1)}, 4),
        ({**pull_request(), "rest": [{"k": "v" * 500}] * 200}, 5),
    ],
)
def test_as_little_as_possible_is_left_out(payload: dict[str, Any], steps: int) -> None:
    before = json.dumps(payload)
    found, left_out = sent("push", payload)
    assert list(left_out) == STEPS[:steps]
    assert found["relay"] == {"left_out": STEPS[:steps]}
    assert json.dumps(payload) == before, "the given payload is not changed"
    for key in ("ref", "action", "number"):
        assert found.get(key) == payload.get(key)
    if "pull_request" in payload:
        assert found["pull_request"]["head"] == payload["pull_request"]["head"]
    if steps == 4:
        assert [one["id"] for one in found["commits"]] == [f"{number:040}" for number in range(480, 500)]


def test_the_label_that_asks_for_a_backend_stays() -> None:
    payload = {**pull_request(), "rest": ["x" * 900] * 100}
    payload["pull_request"]["labels"] = [{"name": "bug"}, {"name": "ciflow/crcr/emu", "color": "red"}]
    found, left_out = sent("pull_request", payload)
    assert len(left_out) == 5
    assert found["pull_request"]["labels"] == [{"name": "ciflow/crcr/emu"}]


def test_hostile_values_cannot_make_the_essentials_too_large() -> None:
    huge = "\U0001f600" * 50_000
    repository = {"full_name": huge, "clone_url": huge}
    end = {"sha": huge, "ref": huge, "repo": repository}
    described: dict[str, Any] = dict.fromkeys(("state", "title", "html_url", "merge_commit_sha"), huge)
    labels = [{"name": f"ciflow/crcr/{huge}"}] * 1000
    texts: dict[str, Any] = dict.fromkeys(("action", "ref", "before", "after", "base_ref", "number"), huge)
    payload = {
        **texts,
        "pull_request": {**described, "head": end, "base": end, "labels": labels, "number": 10**4000},
        "repository": {**repository, "default_branch": huge},
        "commits": "no list",
        "padding": [["x" * 900] * 10] * 10,
    }
    _, left_out = sent("pull_request", payload)
    assert len(left_out) == 5
