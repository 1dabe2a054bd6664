"""Changes of troubles become messages: once each, to those who can act."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.config.notify_settings import Route, TroubleCause
from accel_ci.notify.messages import Message, Told, plain, recognise, route_of, tell
from accel_ci.notify.troubles import Trouble

NOW = datetime(2026, 11, 27, 8, tzinfo=timezone.utc)
ROUTES = {
    "watch": Route(urls_from="A", causes=("upstream",)),
    "on-call": Route(urls_from="B", causes=("infra", "run", "silence"), least_severity="failure"),
    "team": Route(urls_from="C", causes=("backend", "unknown", "flaky"), least_tests=2),
}
BROKEN = Trouble(
    "incident-1", True, "backend", "add is wrong", "A change of backend broke it.", "nightly-1", "nightly-2", 4,
    "team:ops", "http://hud/incidents.html#i-1", "accel-ci reproduce nightly-2~py3 a.py::b --run", frozenset({"m1", "m2"}),
)  # fmt: skip


def play(*nights: list[Trouble]) -> list[list[Message]]:
    """Tell the troubles of some nights, one after the other."""
    memory: dict[str, Told] = {}
    found = []
    for night, troubles in enumerate(nights):
        messages, memory = tell(recognise(troubles, memory), memory, ROUTES, NOW + timedelta(days=night))
        found.append(messages)
    return found


def over(trouble: Trouble) -> Trouble:
    """The trouble when it is over."""
    return replace(trouble, is_open=False)


class TestChanges:
    def test_an_incident_is_told_when_it_begins_and_when_it_ends_and_not_between(self) -> None:
        told = play([BROKEN], [replace(BROKEN, tests=9)], [BROKEN], [over(BROKEN)], [over(BROKEN)])
        assert [[message.change for message in night] for night in told] == [["new"], [], [], ["over"], []]

    def test_one_that_returns_is_told_again(self) -> None:
        told = play([BROKEN], [over(BROKEN)], [BROKEN], [over(BROKEN)])
        assert [message.change for night in told for message in night] == ["new", "over", "returned", "over"]
        assert len({message.id for night in told for message in night}) == 4

    def test_another_cause_is_told_to_those_who_have_it_now_and_those_who_had_it(self) -> None:
        told = play([BROKEN], [replace(BROKEN, cause="upstream")], [over(replace(BROKEN, cause="upstream"))])
        assert [(message.change, message.route) for night in told for message in night] == [
            ("new", "team"), ("other cause", "watch"), ("other cause", "team"), ("over", "watch"),
        ]  # fmt: skip

    def test_another_cause_with_the_same_owners_is_no_news(self) -> None:
        told = play([replace(BROKEN, cause="unknown")], [BROKEN], [over(BROKEN)])
        assert [message.title for night in told for message in night] == [
            "[unknown] add is wrong (4 tests)", "[backend] over: add is wrong",
        ]  # fmt: skip

    def test_an_incident_that_a_new_judgement_names_otherwise_is_the_same(self) -> None:
        renamed = replace(BROKEN, id="incident-2", marks=frozenset({"m2"}))
        told = play([BROKEN], [renamed], [over(renamed)])
        assert [message.change for night in told for message in night] == ["new", "over"]
        assert {message.name for night in told for message in night} == {"incident-1"}

    def test_an_incident_that_is_joined_to_another_is_over(self) -> None:
        other = replace(BROKEN, id="incident-2", marks=frozenset({"m3"}))
        told = play([BROKEN, other], [replace(BROKEN, marks=frozenset({"m1", "m3"}))])
        assert [(message.name, message.change) for message in told[1]] == [("incident-2", "over")]

    def test_without_any_judgement_nothing_is_over(self) -> None:
        assert play([BROKEN], [])[1] == []

    def test_what_was_over_before_is_not_told(self) -> None:
        assert play([over(BROKEN)], [over(BROKEN)]) == [[], []]

    def test_one_that_grows_over_the_threshold_is_told_then(self) -> None:
        told = play([replace(BROKEN, tests=1)], [BROKEN])
        assert [[message.change for message in night] for night in told] == [[], ["new"]]


@pytest.mark.parametrize(
    ("cause", "tests", "expected"),
    [
        ("upstream", 1, "watch"),
        ("infra", 1, "on-call"),
        ("silence", 0, "on-call"),
        ("backend", 2, "team"),
        ("backend", 1, None),
        ("flaky", 2, "team"),
    ],
)
def test_a_message_goes_to_the_owner_of_the_cause(cause: TroubleCause, tests: int, expected: str | None) -> None:
    assert route_of(replace(BROKEN, cause=cause, tests=tests), ROUTES) == expected


def test_a_route_with_owners_takes_their_failures_alone() -> None:
    routes = {"ops": Route(urls_from="A", owners=("team:op*",)), "rest": Route(urls_from="B")}
    assert route_of(BROKEN, routes) == "ops"
    assert route_of(replace(BROKEN, owner="robin"), routes) == "rest"
    assert route_of(replace(BROKEN, owner=None), routes) == "rest"


def test_a_message_has_the_link_the_owner_and_the_command() -> None:
    [[message]] = play([BROKEN])
    assert message.title == "[backend] add is wrong (4 tests)"
    assert message.text.splitlines() == [
        "A change of backend broke it.",
        "Since nightly-1, seen in nightly-2.",
        "Owner: team:ops",
        "http://hud/incidents.html#i-1",
        "Reproduce: accel-ci reproduce nightly-2~py3 a.py::b --run",
    ]


@pytest.mark.parametrize("text", ["<!channel> x", "@everyone x", "a\u202eb", "[x](http://e)", "a\nb\x1b[31m", "`x`"])
def test_hostile_text_calls_nobody(text: str) -> None:
    found = plain(text)
    assert not any(part in found for part in ("<", "@e", "\u202e", "](", "\n", "\x1b", "`"))
