"""A real process as the machine: it runs during the tests and is paused however they end."""

from __future__ import annotations

import signal
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from accel_ci.errors import PoolError
from accel_ci.instance.command_provider import CommandProvider
from accel_ci_tests.fixtures.machine import Machine
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.project import Run, minimal_config


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("how", "by", "status"),
    [("end", None, 0), ("fail", None, 1), ("sleep", signal.SIGINT, -signal.SIGINT)],
    ids=["success", "failure", "interrupt"],
)
def test_it_runs_in_the_context_and_is_paused_after(
    machine: Machine, how: str, by: signal.Signals | None, status: int
) -> None:
    user = machine.use(how)
    if by is not None:
        assert machine.runs()
        user.send_signal(by)
    assert user.wait(30) == status
    assert not machine.runs()
    assert not list(machine.leases.glob("*.json"))
    asked = (machine.folder / "asked").read_text().split()
    assert (asked[0], asked[-1]) == ("start", "pause")


def test_the_janitor_pauses_what_a_killed_user_left_and_nothing_before(machine: Machine) -> None:
    user = machine.use("sleep", lease_s=15)
    before = machine.expires_at()
    wait_for(lambda: machine.expires_at() != before)
    assert machine.enforce() == []
    assert machine.runs()
    user.kill()
    user.wait()
    assert machine.runs()
    assert machine.enforce(dry_run=True) == [None], "long before its lease expires"
    assert machine.runs()
    assert machine.enforce() == [None]
    assert not machine.runs()
    assert machine.enforce() == []
    assert [path.name for path in machine.leases.iterdir()] == ["guard.lock"]


def test_the_janitor_waits_for_the_expiry_where_it_cannot_see_the_user(machine: Machine) -> None:
    user = machine.use("sleep")
    user.kill()
    user.wait()
    machine.lease().with_suffix(".lock").unlink()  # as where the user has another file system
    assert machine.enforce() == []
    assert machine.runs()
    machine.let_expire(machine.lease())
    assert machine.enforce() == [None]
    assert not machine.runs()


def test_the_next_user_pauses_for_one_that_was_killed(machine: Machine) -> None:
    user = machine.use("sleep")
    user.kill()
    user.wait()
    assert machine.use("end").wait(30) == 0
    assert not machine.runs()
    assert not list(machine.leases.glob("*.json"))


def test_the_last_user_pauses_it(machine: Machine) -> None:
    notes: list[str] = []
    with machine.used():
        with machine.used(note=notes.append):
            assert len(list(machine.leases.glob("*.json"))) == 2
        assert machine.runs()
        assert machine.lease().exists()
        assert "another run uses it" in notes[-1]
    assert not machine.runs()
    assert not list(machine.leases.glob("*.json"))


def test_a_user_of_another_machine_does_not_count(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with machine.used(Machine(tmp_path / "other").provider()):
        with machine.used():
            assert machine.runs()
        assert not machine.runs()


def test_the_janitor_pauses_nothing_that_is_used(machine: Machine) -> None:
    killed = machine.use("sleep")
    killed.kill()
    killed.wait()
    with machine.used():
        assert machine.enforce() == []
        assert machine.runs()
    assert not machine.runs()
    assert not list(machine.leases.glob("*.json"))


def test_a_lease_that_cannot_be_renewed_for_a_while_is_renewed_after_it(machine: Machine, tmp_path: Path) -> None:
    with machine.used(lease_s=1.5):
        machine.leases.rename(tmp_path / "away")
        time.sleep(1)  # a renewal comes every half second
        machine.leases.mkdir()
        wait_for(lambda: list(machine.leases.glob("*.json")))
    assert not machine.runs()


def test_a_pause_that_fails_is_tried_again(machine: Machine) -> None:
    notes: list[str] = []
    (machine.folder / "stuck").touch()
    with machine.used(note=notes.append):
        pass
    assert "the cloud is down" in notes[-1]
    (machine.leases / "instance-of-a-killed-user.json").write_text(machine.lease().read_text())
    assert machine.enforce(dry_run=True) == [None]
    assert machine.runs()
    [problem] = machine.enforce()  # once, though there are two leases of it
    assert machine.runs()
    assert "the cloud is down" in (problem or "")
    (machine.folder / "stuck").unlink()
    assert machine.enforce() == [None]
    assert not machine.runs()
    assert not list(machine.leases.glob("*.json"))


def test_a_machine_that_does_not_start_or_get_ready_is_paused(machine: Machine) -> None:
    for provider, message in (
        (CommandProvider(["false"], [*machine.command, "pause"], (), None, 60), "pool.instance.start failed"),
        (CommandProvider(["no-such-cloud"], [*machine.command, "pause"], (), None, 60), "no-such-cloud"),
        (CommandProvider([*machine.command, "start"], [*machine.command, "pause"], ["false"], None, 60), "not ready within"),
        (machine.provider("http://127.0.0.1:9/"), "not ready within"),
    ):
        with pytest.raises(PoolError, match=message), machine.used(provider, timeout_s=1):
            pytest.fail("it became ready")
        assert not machine.runs()
        assert not list(machine.leases.glob("*.json"))


def test_an_address_tells_when_the_machine_is_ready(machine: Machine) -> None:
    class Answer(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            Answer.asked += 1
            self.send_response(503 if Answer.asked < 3 else 200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    with machine.used(machine.provider(url)):
        assert Answer.asked == 3
    server.shutdown()


def test_a_lease_that_cannot_be_read_is_reported(machine: Machine) -> None:
    machine.leases.mkdir()
    (machine.leases / "instance.json").write_text("{")
    [problem] = machine.enforce()
    assert "cannot be read" in (problem or "")


def test_the_command_of_the_janitor(machine: Machine, accel_ci: Run, tmp_path: Path) -> None:
    (tmp_path / "accel_ci.yaml").write_text(yaml.safe_dump(minimal_config()))
    home = tmp_path / ".accel_ci"
    machine.leases = home / "leases"
    user = machine.use("sleep")
    user.kill()
    user.wait()
    assert machine.lease().stat().st_mode & 0o077 == 0
    done = accel_ci("janitor", "--dry-run")
    assert (done.returncode, "would be paused" in done.stdout) == (0, True)
    assert machine.runs()
    done = accel_ci("janitor")
    assert (done.returncode, ": paused" in done.stdout) == (0, True), done.stderr
    assert not machine.runs()
    assert accel_ci("janitor").stdout == ""
