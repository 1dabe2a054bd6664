"""A project's incidents reach a chat on loopback: once each, whatever is killed or away meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.notify.current import NOTIFIED, Notified, current_troubles, notify
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.chat_server import Chat
from accel_ci_tests.fixtures.finished_nights import BROKEN, FLAKES, NIGHTS, RACE, TODAY, fails, write_night

ROUTES = {
    "watch": {"urls_from": "CHAT_WATCH", "causes": ["upstream"]},
    "team": {"urls_from": "CHAT_TEAM", "causes": ["backend", "unknown", "flaky"]},
    "on-call": {"urls_from": "CHAT_ON_CALL", "causes": ["infra", "run", "silence"]},
}

_PASS = """
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from accel_ci.config.loading import load_project
from accel_ci.notify.current import current_troubles, notify
from accel_ci.notify.deliver import send
from accel_ci.workspace import Workspace
workspace = Workspace(load_project(Path(sys.argv[1])))
now = datetime.fromisoformat(sys.argv[2])

def deliver(url, post):
    if sys.argv[3] == "before it is sent":
        os.kill(os.getpid(), signal.SIGKILL)
    return send(url, post)

notify(workspace, current_troubles(workspace, now), now, deliver)
"""


@pytest.fixture
def workspace(make_project: Callable[..., Project], chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project with three routes to rooms of the chat."""
    for room in ("watch", "team", "on_call"):
        monkeypatch.setenv(f"CHAT_{room.upper()}", chat.address(room))
    return Workspace(make_project(notify={"routes": ROUTES}))


def break_add(workspace: Workspace, nights: int = NIGHTS, until: int = NIGHTS) -> None:
    """Lay nights on disk whose last ones have a broken op; the backend changed when it broke."""
    for night in range(nights - 5, nights):
        broken = nights - 2 <= night < until
        told = {test: fails() for test in BROKEN} if broken else {}
        write_night(workspace, night, told, backend=2 if night >= nights - 2 else 1)


def tell(workspace: Workspace, now: datetime) -> list[str]:
    """Judge, and tell; return the titles of the new messages."""
    judge_new_builds(workspace, now)
    return [message.title for message in notify(workspace, current_troubles(workspace, now), now).messages]


def test_an_incident_of_many_tests_is_one_message_to_the_team(workspace: Workspace, chat: Chat) -> None:
    break_add(workspace)
    assert len(tell(workspace, TODAY)) == 1
    [(room, post)] = chat.posts
    assert room == "team"
    assert post["title"] == "[backend] ‹path›::test_add is wrong (4 tests)"
    assert "A change of backend broke it" in post["message"]
    assert f"accel-ci reproduce nightly-{TODAY - timedelta(days=1):%Y%m%d}~py3 '{BROKEN[0]}' --run" in post["message"]
    assert post["type"] == "failure"


def test_nothing_is_told_twice(workspace: Workspace, chat: Chat) -> None:
    break_add(workspace)
    assert [len(tell(workspace, TODAY)), len(tell(workspace, TODAY))] == [1, 0]
    assert len(chat.posts) == 1


def test_the_end_is_told(workspace: Workspace, chat: Chat) -> None:
    break_add(workspace, NIGHTS - 1, NIGHTS - 1)
    tell(workspace, TODAY)
    write_night(workspace, NIGHTS - 1, {}, backend=3)
    tell(workspace, TODAY)
    assert [title.split("] ")[1].partition(":")[0] for title in chat.titles("team")] == ["‹path›", "over"]
    assert chat.posts[-1][1]["type"] == "success"


def test_a_flaky_test_that_fails_now_and_then_is_one_trouble(workspace: Workspace, chat: Chat) -> None:
    for night in range(NIGHTS - 7, NIGHTS):
        write_night(workspace, night, {RACE: FLAKES} if night % 3 == 0 else {}, backend=night)
        tell(workspace, TODAY)
    assert len(chat.titles("team")) == 1


def test_what_a_chat_does_not_take_is_sent_later_in_one_post(workspace: Workspace, chat: Chat) -> None:
    break_add(workspace)
    chat.fails = 1
    judge_new_builds(workspace, TODAY)
    first = notify(workspace, current_troubles(workspace, TODAY), TODAY)
    assert not first.sent
    assert first.faults
    assert chat.posts == []
    later = TODAY + timedelta(minutes=2)
    second = notify(workspace, current_troubles(workspace, later), later)
    assert (len(second.messages), len(second.sent), len(chat.posts)) == (0, 1, 1)
    assert "another try" in chat.posts[0][1]["message"]


def test_a_route_with_two_addresses_does_not_send_twice_to_the_one_that_took_it(
    workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_TEAM", f"{chat.address('one')} {chat.address('two')}")
    break_add(workspace)
    judge_new_builds(workspace, TODAY)
    chat.fails = 1
    for minutes in (0, 2):
        now = TODAY + timedelta(minutes=minutes)
        notify(workspace, current_troubles(workspace, now), now)
    assert sorted(room for room, _ in chat.posts) == ["one", "two"]


@pytest.mark.parametrize("moment", ["after the chat took it", "before it is sent"])
def test_a_kill_loses_nothing_and_doubles_nothing_silently(workspace: Workspace, chat: Chat, moment: str) -> None:
    break_add(workspace)
    judge_new_builds(workspace, TODAY)
    process: list[subprocess.Popen[bytes]] = []
    chat.after_taking = lambda: process[0].kill()
    command = [sys.executable, "-c", _PASS, str(workspace.project.config_path), TODAY.isoformat(), moment]
    process.append(subprocess.Popen(command))
    assert process[0].wait(60) == -signal.SIGKILL
    chat.after_taking = None
    assert len(chat.posts) == (1 if moment == "after the chat took it" else 0)
    later = TODAY + timedelta(minutes=2)
    for _ in range(2):
        notify(workspace, current_troubles(workspace, later), later)
    ids = [post["message"].rpartition("Message ")[2] for _, post in chat.posts]
    assert len({words[:12] for words in ids}) == 1
    assert len(ids) == (2 if moment == "after the chat took it" else 1)
    assert "may have arrived" in ids[-1]
    state = workspace.manifests.read(workspace.manifests.path(NOTIFIED), Notified)
    assert state.waiting == ()


def test_addresses_are_in_no_file_and_no_message(workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TEAM", "json://127.0.0.1:1/T0KENINTHEPATH")
    break_add(workspace)
    judge_new_builds(workspace, TODAY)
    done = notify(workspace, current_troubles(workspace, TODAY), TODAY)
    kept = b"".join(path.read_bytes() for path in workspace.project.home.rglob("*.json"))
    assert b"T0KENINTHEPATH" not in kept
    assert "T0KENINTHEPATH" not in repr(done)
    assert done.faults


def test_a_route_without_an_address_holds_up_no_other(
    workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAT_WATCH")
    break_add(workspace)
    tell(workspace, TODAY)
    assert len(chat.titles("team")) == 1


def test_a_damaged_memory_is_an_error_and_tells_nothing(workspace: Workspace, chat: Chat) -> None:
    break_add(workspace)
    judge_new_builds(workspace, TODAY)
    workspace.manifests.path(NOTIFIED).write_text("{")
    with pytest.raises(AccelCiError, match="notified"):
        notify(workspace, current_troubles(workspace, TODAY), TODAY)
    assert chat.posts == []


class TestCommand:
    def run(self, workspace: Workspace, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["--config", str(workspace.project.config_path), "notify", *arguments])
        return result.exit_code, result.output

    def test_test_reaches_each_address(self, workspace: Workspace, chat: Chat) -> None:
        code, output = self.run(workspace, "--test")
        assert code == 0
        assert "team: 1 of 1 addresses took the message" in output
        assert len(chat.posts) == 3

    def test_test_fails_where_an_address_does_not_answer(
        self, workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHAT_TEAM", "json://127.0.0.1:1/")
        code, output = self.run(workspace, "--test")
        assert code == 1
        assert "team: 0 of 1 addresses took the message" in output

    def test_test_names_no_address_that_nobody_knows(
        self, workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHAT_TEAM", "nosuchservice://SECRETTOKEN123")
        code, output = self.run(workspace, "--test")
        assert code == 1
        assert "SECRETTOKEN123" not in output
        assert "team: address 1 (nosuchservice://…): it is no URL that apprise knows" in output

    def test_test_tells_of_several_addresses_which_are_wrong(
        self, workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        urls = (
            chat.address("one"),
            "nosuchservice://SECRETTOKEN123",
            "json://127.0.0.1:1/SECRETTOKEN456",
            chat.address("two"),
        )
        monkeypatch.setenv("CHAT_TEAM", " ".join(urls))
        code, output = self.run(workspace, "--test", "--dry-run")
        assert (code, chat.posts) == (1, [])
        assert "team: 3 of 4 addresses would get the message" in output
        code, output = self.run(workspace, "--test")
        assert code == 1
        assert "team: address 2 (nosuchservice://…): it is no URL that apprise knows" in output
        assert "team: address 3 (json://…): it did not take the message" in output
        assert "team: 2 of 4 addresses took the message" in output
        assert "on-call: 1 of 1 addresses took the message" in output
        assert sorted(room for room, _ in chat.posts) == ["on_call", "one", "two", "watch"]
        assert "SECRETTOKEN" not in output

    def test_a_message_that_not_all_took_is_told_as_one_that_waits(
        self, workspace: Workspace, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHAT_TEAM", f"{chat.address('one')} json://127.0.0.1:1/SECRETTOKEN123")
        break_add(workspace)
        judge_new_builds(workspace, datetime.now(timezone.utc))
        code, output = self.run(workspace)
        assert code == 1, "as the sensor fails its tick"
        assert "the route team: 1 of 2 addresses did not take post" in output
        assert ": address 2 (json://…)" in output
        assert "new messages: 1; posts sent: 0; messages that wait: 1" in output
        assert "SECRETTOKEN" not in output
        code, output = self.run(workspace)
        assert (code, len(chat.titles("one"))) == (0, 1), "it waits a minute"
        assert "new messages: 0; posts sent: 0; messages that wait: 1" in output

    def test_dry_run_sends_and_keeps_nothing(self, workspace: Workspace, chat: Chat) -> None:
        break_add(workspace)
        judge_new_builds(workspace, datetime.now(timezone.utc))
        code, output = self.run(workspace, "--dry-run")
        assert code == 0
        assert "team: [backend] ‹path›::test_add is wrong (4 tests)" in output
        assert chat.posts == []
        assert not workspace.manifests.path(NOTIFIED).exists()

    def test_without_the_section_it_is_a_clear_error(self, make_project: Callable[..., Project]) -> None:
        code, output = self.run(Workspace(make_project()))
        assert code != 0
        assert "notify" in output
