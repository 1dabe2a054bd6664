"""What every pool holds to, whatever its engine: one list of scenarios, run on each pool that there is here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_ci.errors import PoolError
from accel_ci.model import Limits
from accel_ci.source.checkout import MARK
from accel_ci_tests.fixtures.checkout import git
from accel_ci_tests.fixtures.ground import Ground, Kind, outcomes
from accel_ci_tests.fixtures.processes import is_running, wait_for
from accel_ci_tests.fixtures.suite import Write, batch, numbered_batches


@pytest.fixture(params=["local", "docker"])
def ground(request: pytest.FixtureRequest, open_ground: Callable[[Kind], Ground]) -> Ground:
    """The pools whose workers share the driver's folder."""
    return open_ground(request.param)


@pytest.fixture(params=["local", "docker", "kubernetes"])
def any_ground(request: pytest.FixtureRequest, open_ground: Callable[[Kind], Ground]) -> Ground:
    """Every pool. Pods share no folder with the driver, and a device plugin gives them cards."""
    return open_ground(request.param)


def slow(write: Write, count: int, free: int | None = None) -> list[str]:
    """Tests that take a moment; all but the first `free` ones do not end until there is a file `go` beside them."""
    write("test_a.py", f"""
        import pathlib, pytest, time
        @pytest.mark.parametrize("n", range({count}))
        def test_n(n):
            time.sleep(0.1)
            while n >= {count if free is None else free} and not pathlib.Path(__file__).with_name("go").exists():
                time.sleep(0.05)
        """)  # fmt: skip
    return [f"test_a.py::test_n[{n}]" for n in range(count)]


def test_all_pass_on_all_cards(any_ground: Ground, write: Write) -> None:
    shared = any_ground.run_dir / "round-1"
    for own, other in ("ab", "ba"):
        write(
            f"test_{own}.py",
            f"""
            import pathlib, time
            def test_1():
                if {any_ground.kind != "local"}:
                    time.sleep(5)  # containers share no folder to meet in
                    return
                pathlib.Path({str(shared / own)!r}).touch()
                while not pathlib.Path({str(shared / other)!r}).exists():
                    time.sleep(0.05)
            """,
        )
    result = any_ground.run([batch("b0", "test_a.py::test_1"), batch("b1", "test_b.py::test_1")])
    assert outcomes(result) == {"test_a.py::test_1": "passed", "test_b.py::test_1": "passed"}
    assert {attempt.card for attempt in result.attempts} == {"0", "1"}
    assert len(result.rounds) == 1


def test_a_test_that_passes_on_another_card(ground: Ground, write: Write) -> None:
    write("test_a.py", "import os\ndef test_1(): assert os.environ['CARD'] == '1'\ndef test_2(): pass\n")
    result = ground.run([batch("b0", "test_a.py::test_1", avoid=("1",)), batch("b1", "test_a.py::test_2")])
    assert outcomes(result) == {"test_a.py::test_1": "failed", "test_a.py::test_2": "passed"}
    assert outcomes(result, 2) == {"test_a.py::test_1": "passed"}
    hosts = {attempt.host for attempt in result.attempts}
    assert hosts == {os.uname().nodename}, "that of the cards, whatever a container is called"


def test_crashes_hangs_and_floods_cost_one_test_each(any_ground: Ground, write: Write) -> None:
    write(
        "test_a.py",
        """
        import os, signal, time
        def test_exit(): os._exit(3)
        def test_segv(): os.kill(os.getpid(), signal.SIGSEGV)
        def test_hang(): time.sleep(1000)
        def test_flood():
            for _ in range(300):
                os.write(1, b"x" * 65536)
            assert False, "after the flood"
        def test_good(): pass
        """,
    )
    tests = [f"test_a.py::test_{name}" for name in ("exit", "segv", "hang", "flood", "good")]
    result = any_ground.run([batch("b0", *tests)], ["0"], max_rounds=1, limits=Limits(test_timeout_s=10))
    assert list(outcomes(result).values()) == ["crashed", "crashed", "timeout", "failed", "passed"]
    said = {attempt.test: attempt for attempt in result.attempts}
    assert "exit code 3" in (said[tests[0]].message or "")
    assert "SIGSEGV" in (said[tests[1]].message or "")
    assert len(said[tests[3]].output_tail or "") <= 16 * 1024


def test_leftovers_of_a_test_are_ended(any_ground: Ground, write: Write, tmp_path: Path) -> None:
    word = f"leftover-{os.getpid()}-{any_ground.kind}"
    write(
        "test_a.py",
        f"""
        import os, subprocess, sys
        def test_left():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", {word!r}])
                os._exit(0)
            os.wait()
        def test_after(): pass
        """,
    )
    result = any_ground.run([batch("b0", "test_a.py::test_left", "test_a.py::test_after")], ["0"])
    assert set(outcomes(result).values()) == {"passed"}
    assert not is_running(word)


def test_a_killed_worker_loses_nothing(any_ground: Ground, write: Write) -> None:
    tests = slow(write, 24)
    seen, killed = 0, False

    def on_progress(more: int, _: object) -> None:
        nonlocal seen, killed
        seen += more
        if seen >= 4 and not killed:
            killed = True
            any_ground.kill_worker("w0-0")

    result = any_ground.run([batch(f"b{n}", *tests[4 * n : 4 * n + 4]) for n in range(6)], on_progress=on_progress)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(result.rounds) == 1


def test_a_killed_driver_leaves_nothing_running_and_is_resumed(ground: Ground, write: Write) -> None:
    tests = slow(write, 40, free=26)
    driver = ground.start_driver(40)
    wait_for(lambda: len(ground.streamed()) >= 6)
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(container.status == "running" for container in ground.containers()))
    before = ground.streamed()
    (ground.root / "go").touch()
    result = ground.run(numbered_batches(40))
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(ground.streamed()) == Counter(tests)
    assert set(before) < set(tests)


def test_a_driver_that_is_killed_among_tests_of_several_cards_is_resumed(
    open_ground: Callable[[Kind], Ground], write: Write
) -> None:
    ground = open_ground("local")
    tests = slow(write, 24)
    driver = ground.start_driver(24, wide=2)
    wait_for(lambda: len(ground.streamed()) >= 12 + 3)
    driver.kill()
    driver.wait()
    result = ground.run(numbered_batches(24, wide=2))
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(ground.streamed()) == Counter(tests)
    assert [attempt.card for attempt in result.attempts[12:]] == ["0,1"] * 12


def test_an_unhealthy_card_is_left_out(ground: Ground, write: Write) -> None:
    tests = slow(write, 6)
    probe = ("python", "-c", "import os, sys; sys.exit(os.environ['CARD'] == '1')")
    result = ground.run([batch(f"b{n}", test) for n, test in enumerate(tests)], probe=probe)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert [card.healthy for card in result.cards] == [True, False]
    assert {attempt.card for attempt in result.attempts} == {"0"}


def test_tests_see_the_given_environment_alone(ground: Ground, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_SECRET", "hunter2")
    write("test_a.py", "import os\ndef test_1():\n    print(dict(os.environ))\n    assert False\n")
    result = ground.run([batch("b0", "test_a.py::test_1")], ["0"], environment={"GIVEN": "yes"}, max_rounds=1)
    [attempt] = result.attempts
    assert "'GIVEN': 'yes'" in (attempt.output_tail or "")
    assert "'CARD': '0'" in (attempt.output_tail or "")
    assert "hunter2" not in (attempt.output_tail or "")


# --- what Docker alone has ------------------------------------------------------------------------------------------


def test_memory_that_a_container_may_not_have(docker_ground: Ground, write: Write) -> None:
    docker_ground.options = {"memory": "100m"}
    write("test_a.py", "def test_1(): assert len(b'x' * 2**30)\ndef test_2(): pass\n")
    result = docker_ground.run([batch("b0", "test_a.py::test_1", "test_a.py::test_2")], ["0"], max_rounds=1)
    assert outcomes(result) == {"test_a.py::test_1": "crashed", "test_a.py::test_2": "passed"}
    assert "out of memory" in (result.attempts[0].message or "")


def test_a_container_is_closed_in(docker_ground: Ground, write: Write) -> None:
    """Sources cannot be written, nothing outside is reached, files are the caller's, a variable can be taken away."""
    docker_ground.options = {
        "environment": {"CI": None}, "shm_size": "8m", "pids_limit": 64, "devices": ("/dev/null:/dev/accel{card}",),
    }  # fmt: skip
    write(
        "test_a.py",
        f"""
        import os, pathlib, pytest, socket
        def test_sources():
            with pytest.raises(OSError):
                pathlib.Path("written").touch()
        def test_network():
            with pytest.raises(OSError):
                socket.create_connection(("192.0.2.1", 80), timeout=5)
        def test_environment():
            assert "CI" not in os.environ and os.environ["IMAGE_OWN"] == "1"
        def test_user():
            assert (os.getuid(), os.getgid()) == ({os.getuid()}, {os.getgid()})
            assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
        def test_sizes():
            shm = os.statvfs("/dev/shm")
            assert shm.f_blocks * shm.f_frsize == 8 << 20
            children = []
            with pytest.raises(OSError):
                for _ in range(100):
                    child = os.fork()
                    if child == 0:
                        import time
                        time.sleep(1000)
                    children.append(child)
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)
        def test_devices():
            assert sorted(name for name in os.listdir("/dev") if name.startswith("accel")) == ["accel0", "accel1"]
        """,
    )
    tests = [f"test_a.py::test_{name}" for name in ("sources", "network", "environment", "user", "sizes", "devices")]
    result = docker_ground.run([batch("b0", *tests, cards=2)], max_rounds=1)
    assert {attempt.test: attempt.message for attempt in result.attempts} == dict.fromkeys(tests)


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can give folders to another user")
def test_containers_of_another_user(docker_ground: Ground, write: Write, tmp_path: Path) -> None:
    docker_ground.options = {"user": "65534:65533"}
    write("test_a.py", "import os\ndef test_1(): assert (os.getuid(), os.getgid()) == (65534, 65533)\ndef test_2(): pass\n")
    result = docker_ground.run([batch("b0", "test_a.py::test_1"), batch("b1", "test_a.py::test_2")])
    assert outcomes(result) == {"test_a.py::test_1": "passed", "test_a.py::test_2": "passed"}
    round_dir = docker_ground.run_dir / "round-1"
    assert {path.stat().st_uid for path in round_dir.glob("rooms/*")} == {65534}
    assert {path.stat().st_uid for path in round_dir.glob("workers/*/events.jsonl")} == {os.getuid()}, "the driver's"
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    assert docker_ground.pool.execute(["touch", str(scratch / "out")], docker_ground.spec(), scratch, 60).status == 0
    assert (scratch / "out").stat().st_uid == 65534


def test_abandoned_containers_are_found_and_removed(docker_ground: Ground, write: Write) -> None:
    def leftovers(**options: Any) -> set[str]:
        found = docker_ground.project_pool.remove_leftovers(lambda run: None, **options)
        return {leftover.what.removeprefix("container ") for leftover in found}

    slow(write, 100)
    driver = docker_ground.start_driver(100)
    wait_for(docker_ground.streamed)
    names = {container.name for container in docker_ground.containers()}
    assert len(names) == 2
    assert not names & leftovers()
    driver.kill()
    driver.wait()
    assert names <= leftovers(dry_run=True)
    assert docker_ground.containers()
    assert names <= leftovers()
    assert not docker_ground.containers()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": "accel-ci.example/none:1"}, "no image 'accel-ci.example/none:1'; `docker pull`"),
        ({"devices": ("/dev/no-such-card",)}, "no-such-card"),
        ({"gpus": "card"}, "could not start a container"),
        ({"network": "no-such-network"}, "no-such-network"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_is_said(docker_ground: Ground, write: Write, options: dict[str, Any], said: str) -> None:
    image = options.pop("image", docker_ground.image)
    docker_ground = replace(docker_ground, image=image, options=options)
    write("test_a.py", "def test_1(): pass\n")
    with pytest.raises(PoolError, match=said):
        docker_ground.run([batch("b0", "test_a.py::test_1")])
    assert not docker_ground.containers()


def test_no_engine_is_said(root: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    write("test_a.py", "def test_1(): pass\n")
    with pytest.raises(PoolError, match=r"no Docker engine answers at unix://.*none.sock .*set DOCKER_HOST"):
        Ground("docker", root, tmp_path / "run", image="any").run([batch("b0", "test_a.py::test_1")])


def test_a_command_runs_where_workers_run(any_ground: Ground, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    spec = any_ground.spec()
    out = scratch / "out"
    code = f"import os; open({str(out)!r}, 'w').write(str(os.listdir({spec.root!r}))); print('done'); exit(3)"
    finished = any_ground.pool.execute([spec.python, "-c", code], spec, scratch, 60)
    assert (finished.status, finished.output.strip()) == (3, "done")
    assert out.read_text() == "['test_a.py']"


def test_all_of_the_checkout_is_there(any_ground: Ground, write: Write) -> None:
    """Tests read files beside the backend's folder, and ask git."""
    write("data/x.txt", "beside\n")
    write(".gitignore", "__pycache__\n")
    write(
        "backend/test_a.py",
        """
        import pathlib
        top = pathlib.Path(__file__).parents[1]
        def test_1(): assert (top / "data" / "x.txt").read_text() == "beside\\n"
        def test_2(): assert (top / ".git" / "HEAD").is_file() and (top / ".gitignore").is_file()
        """,
    )
    git(any_ground.root, "init", "--quiet")
    (any_ground.root / ".git" / MARK).write_text("backend")
    result = replace(any_ground, root=any_ground.root / "backend").run(
        [batch("b1", "test_a.py::test_1", "test_a.py::test_2")]
    )
    assert outcomes(result) == dict.fromkeys(["test_a.py::test_1", "test_a.py::test_2"], "passed")
