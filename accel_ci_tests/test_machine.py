"""This machine's cards, disk and clock, with real probes and a server whose clock is off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from accel_ci import machine
from accel_ci.config.settings import Project
from accel_ci.machine import check_cards, check_clock, check_disk, seconds_ahead
from accel_ci.model import Revision, RuntimeImage, Source
from accel_ci.workspace import Workspace
from accel_ci_tests.hud.samples import lay_revision

Make = Callable[..., Project]


def cards(make_project: Make, *probe: str, seconds: float = 60) -> tuple[bool, str]:
    pool = {"cards": 2, "card_environment": "TOY_CARD", "health_probe": list(probe)}
    return check_cards(Workspace(make_project(pool=pool, limits={"probe_seconds": seconds})))


def test_the_probe_runs_on_each_card(make_project: Make) -> None:
    assert cards(make_project, sys.executable, "-c", "pass") == (True, "2 card(s), the probe succeeds on each")
    program = "import os; card = os.environ['TOY_CARD']; print('cold'); print('bad sum'); raise SystemExit(card == '1')"
    assert cards(make_project, sys.executable, "-c", program) == (False, "card 1: bad sum")
    assert cards(make_project, sys.executable, "-c", "raise SystemExit(3)") == (
        False, "card 0: the probe ended with 3; card 1: the probe ended with 3",
    )  # fmt: skip


def test_a_probe_that_cannot_run_is_explained(make_project: Make) -> None:
    usable, state = cards(make_project, "python", "-m", "toy.health")
    assert (usable, state) == (False, "2 card(s); the probe needs the environment of a build, and there is none yet")
    assert cards(make_project)[0]
    assert "set pool.health_probe" in cards(make_project)[1]


def test_the_probe_runs_in_no_environment_of_a_pull_request(make_project: Make) -> None:
    pool = {"card_environment": "TOY_CARD", "health_probe": ["python", "-c", "pass"]}
    workspace = Workspace(make_project(pool=pool))
    image = RuntimeImage("venv", sys.executable, "0" * 64, "3.11", "2.13.0", None, (), False, 1.0)
    for key, trigger, is_used in (("pr-7-a", "pr", False), ("nightly-1", "nightly", True)):
        source = Source("repository", "main", "a" * 40)
        workspace.manifests.add_revision(Revision(key, trigger, datetime.now(timezone.utc), source, source))  # type: ignore[arg-type]
        workspace.manifests.write(workspace.manifests.path("runtime_image", key, "py3"), image)
        assert check_cards(workspace)[0] == is_used


def test_cards_that_a_run_uses_are_left_alone(make_project: Make) -> None:
    project = make_project(
        pool={"card_environment": "TOY_CARD", "health_probe": [sys.executable, "-c", "raise SystemExit(1)"]}
    )
    workspace = Workspace(project)
    workspace.cards_lock.parent.mkdir(parents=True)
    with FileLock(workspace.cards_lock):
        assert check_cards(workspace) == (True, "1 card(s), in use by a run, which runs the probe")
    assert not check_cards(workspace)[0]


def test_the_space_is_that_of_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(tmp_path) in check_disk(tmp_path / "not" / "there")[1]
    monkeypatch.setattr(machine, "FREE_BYTES", 1 << 60)
    assert not check_disk(tmp_path)[0]


@contextmanager
def server_with_clock(ahead: timedelta | None, status: int = 200) -> Iterator[str]:
    """Serve over HTTP with a clock that is off, or without one."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(status)
            if ahead is not None:
                self.send_header("Date", format_datetime(datetime.now(timezone.utc) + ahead, usegmt=True))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/a/repository.git"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [200, 403, 500])
@pytest.mark.parametrize(("hours", "usable", "words"), [(0, True, "as at"), (1, False, "behind"), (-1, False, "ahead of")])
def test_the_clock_is_compared_with_a_servers(make_project: Make, hours: int, usable: bool, words: str, status: int) -> None:
    with server_with_clock(timedelta(hours=hours), status) as address:
        workspace = Workspace(make_project(upstream={"repository": address}))
        found, state = check_clock(workspace.project.settings, workspace.manifests)
    assert found is usable
    assert words in state


def test_a_clock_with_nothing_to_compare_is_not_blamed(make_project: Make) -> None:
    with server_with_clock(None) as address:
        assert seconds_ahead(address) is None
    assert seconds_ahead("http://127.0.0.1:9") is None
    assert seconds_ahead("git@example.org:a/b.git") is None
    assert seconds_ahead("http://[") is None
    workspace = Workspace(make_project())
    assert check_clock(workspace.project.settings, workspace.manifests) == (True, "no server to compare it with")


def test_a_clock_before_the_newest_revision_is_wrong(make_project: Make) -> None:
    workspace = Workspace(make_project())
    days = (datetime.now(timezone.utc) - datetime(2026, 11, 27, tzinfo=timezone.utc)).days
    lay_revision(workspace.project.home, -days - 400)
    lay_revision(workspace.project.home, days + 400)
    usable, state = check_clock(workspace.project.settings, workspace.manifests)
    assert not usable
    assert "the newest revision is of" in state
