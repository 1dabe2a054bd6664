"""Forty nights with faults cause two messages on each trouble: one at its begin, and one at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.notify_story import ROUTES, Story, tell_story


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with pytest.MonkeyPatch.context() as patch:
        for route in ROUTES.values():
            patch.setenv(str(route["urls_from"]), "")  # the story sets it; afterwards, it is as it was
        return tell_story(Path(tmp_path_factory.mktemp("story")))


def test_a_trouble_causes_two_messages_each_time_that_it_occurs(story: Story) -> None:
    for titles in story.of_each().values():
        returned = sum(" again: " in title for title in titles)
        assert len(titles) <= 2 * (1 + returned), titles
        assert [" over: " in title for title in titles] == ([False, True] * (1 + returned))[: len(titles)]
    assert sum(" again: " in each.title for each in story.told) == 1, "the fault that returns"


def test_each_fault_is_told_to_those_who_can_act(story: Story) -> None:
    begun = [(each.night, each.route, each.title) for each in story.told if " over: " not in each.title]
    for expected in (
        (7, "backend-team", "[unknown] a race (2 tests)"),  # all attempts of its first night fail
        (9, "on-call", "[infra] card h1:2 (16 tests)"),
        (14, "upstream-watch", "[upstream] op 3 is wrong (9 tests)"),
        (19, "backend-team", "[backend] op 11 is wrong (12 tests)"),
        (24, "backend-team", "[backend] op 20 is wrong (20 tests)"),
        (28, "on-call", "[silence] the nightly did not start"),
        (30, "on-call", "[silence] upstream_main_sensor fails"),
        (33, "backend-team", "[backend] again: op 20 is wrong (20 tests)"),
        (37, "on-call", "[run] the job nightly fails"),
    ):
        assert expected in begun


def test_each_message_reaches_the_chat_and_there_are_far_fewer_than_failures(story: Story) -> None:
    assert story.posts == len({(each.night, each.route) for each in story.told})
    assert len(story.told) * 10 < story.failures
