"""Builds that stop, and the command that takes them up: complete stages stay as they are, and so do attempts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from accel_ci.model import Build
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.command_server import CommandServer
from accel_ci_tests.fixtures.processes import is_gone, wait_for
from accel_ci_tests.fixtures.suite import streamed
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

SMOKE = {"backend/tests/smoke/test_smoke.py": "def test_smoke():\n    pass\n"}


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with CommandServer() as started:
        yield started


class Project:
    """A project that tests share, each with a build of its own.

    Its device tests leave a line each in `ran`. All but the first three wait for a file `go`.
    """

    def __init__(self, folder: Path, server: CommandServer) -> None:
        self.server, self.ran, self.go = server, folder / "ran", folder / "go"
        unit = f"""
import pathlib, pytest, time
@pytest.mark.parametrize("n", range(6))
def test_n(n):
    with open({str(self.ran)!r}, "a") as file:
        file.write(str(n))
    while n > 2 and not pathlib.Path({str(self.go)!r}).exists():
        time.sleep(0.05)
"""
        self.night: ToyNight = make_toy_night(folder, {**SMOKE, "backend/tests/unit/test_unit.py": unit})
        (folder / "scratch").mkdir()
        self.night.environment["TMPDIR"] = str(folder / "scratch")
        self.outputs = 0
        self.text = self.night.project.config_path.read_text()
        self.home = self.night.project.home
        self.manifests = ManifestStore(self.home)
        self.names = iter("abcdefghijklmnopqrstuvwxyz")
        self.begin()

    def begin(self) -> None:
        """Begin with the first configuration, another build, and no trace of the tests that have run."""
        self.night.project.config_path.write_text(self.text)
        for file in (self.ran, self.go):
            file.unlink(missing_ok=True)
        name = next(self.names)
        self.command, self.build = ("run", "manual", "--name", name), Build(f"manual-{name}", "py3")
        self.rounds = self.home / "runs" / self.build.revision / self.build.variant / "device"

    def start(self, *arguments: str) -> tuple[int, Path]:
        """Start a command; return its process and the file of its output."""
        self.outputs += 1
        output = self.night.folder / f"output-{self.outputs}"
        output.touch()
        own = ("--config", str(self.night.project.config_path), *arguments)
        return self.server.start(own, self.night.folder, self.night.environment, output), output

    def finish(self, *arguments: str, status: int = 0) -> str:
        """Run a command; return its output."""
        process, output = self.start(*arguments)
        assert (self.server.wait(process), output.read_text()) == (status, output.read_text())
        return output.read_text()

    def stop(self, when: Callable[[], object], how: signal.Signals, *arguments: str) -> str:
        """Run a command and end it at some moment; return its output."""
        process, output = self.start(*arguments)
        wait_for(lambda: when() or self.server.poll(process) is not None, 300)
        assert self.server.poll(process) is None, output.read_text()
        os.kill(process, how)
        assert self.server.wait(process) == (-how if how == signal.SIGKILL else 130)
        return output.read_text()

    def has_streamed(self, count: int) -> bool:
        """Return whether so many attempts of device tests are in the records of workers."""
        return len(streamed(self.rounds)) >= count

    def configure(self, **sections: dict[str, object]) -> None:
        """Change some settings."""
        path = self.night.project.config_path
        document = yaml.safe_load(path.read_text())
        for name, section in sections.items():
            document[name] = {**document.get(name, {}), **section}
        path.write_text(yaml.safe_dump(document))

    def attempts(self) -> list[tuple[int, str]]:
        """Return round and test of the stored attempts of device tests."""
        results = ResultsStore(self.home / "results")
        [stored] = [each for each in results.suites(build=self.build) if each.suite == "unit"]
        return sorted((row["round"], row["test"]) for row in results.read(stored, ["round", "test"]).to_pylist())


ALL = [(1, f"tests/unit/test_unit.py::test_n[{n}]") for n in range(6)]


def begun(text: str) -> list[str]:
    """Return the stages that a command has begun."""
    return re.findall(r"^([a-z_]+) …$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: CommandServer) -> Project:
    return Project(tmp_path_factory.mktemp("resume"), server)


@pytest.fixture
def project(shared: Project) -> Project:
    shared.begin()
    return shared


def test_a_kill_after_the_device_tests_repeats_no_complete_stage(project: Project) -> None:
    project.go.touch()
    asked = "device_test_results …"

    def is_at(stage: str) -> bool:
        return f"{stage} …" in (project.night.folder / f"output-{project.outputs}").read_text()

    with project.manifests.ledger_lock(project.build):
        assert asked in project.stop(partial(is_at, "ledger"), signal.SIGKILL, *project.command)
    project.configure(limits={"test_timeout_seconds": 200}, pool={"cards": 3})
    with FileLock(project.home / "hud.lock"):
        output = project.stop(partial(is_at, "hud"), signal.SIGKILL, *project.command)
    *_, ledger, one, two, three, four, five, hud = begun(output)
    assert {one, two, three, four, five} == {"flakiness", "coverage", "incidents", "quarantine", "quality_report"}
    assert (ledger, hud) == ("ledger", "hud")
    assert asked not in output
    assert "this one takes the build up at ledger" in output
    output = project.finish("resume")
    assert "ledger …" not in output
    assert f"{project.build.name}: passed\n" in output
    assert project.ran.read_text() == "".join(sorted(project.ran.read_text()))
    assert project.attempts() == ALL
    assert f"nothing of {project.build.name} is left to do" in project.finish("resume", project.build.name, status=2)
    output = project.finish("run", "manual", "--revision", project.build.revision)
    assert asked in output, "of a finished build, all is made again"
    assert sorted(project.ran.read_text()) == sorted("012345" * 2)


@pytest.mark.parametrize("change", ["nothing", "cards and timeout", "scope", "again"])
def test_an_interrupted_build_is_named_and_taken_up(project: Project, change: str) -> None:
    output = project.stop(partial(project.has_streamed, 3), signal.SIGHUP, *project.command)
    assert f"`accel-ci resume {project.build.name}` takes the run up where it stopped" in output
    project.go.touch()
    if change == "nothing":
        commit(project.night.folder / "repository", {"README.md": "pushed meanwhile\n"})
    if change == "cards and timeout":
        project.configure(limits={"test_timeout_seconds": 200}, pool={"cards": 3})
    if change == "scope":
        rule = {"tests": ["*test_n[0]"], "reason": "out"}
        project.configure(suites={"unit": {"paths": ["tests/unit"], "scope": {"exclude": [rule]}}})
    again = change == "again"
    command = ("run", "manual", "--revision", project.build.revision, "--again") if again else ("resume",)
    output = project.finish(*command)
    assert ("3 attempts were carried over" in output) == (change in ("nothing", "cards and timeout"))
    assert ("2 attempts were carried over" in output) == (change == "scope")
    assert ("1 of tests that are not selected any more were left out" in output) == (change == "scope")
    assert ("wheel …" in output) == again
    assert project.attempts() == (ALL[1:] if change == "scope" else ALL)
    ran = project.ran.read_text()
    assert [ran.count(n) for n in "012"] == ([2] * 3 if again else [1] * 3)


def test_another_environment_takes_no_attempts_over(project: Project) -> None:
    project.stop(partial(project.has_streamed, 3), signal.SIGTERM, *project.command)
    project.go.touch()
    project.configure(pool={"environment": {"OTHER": "1"}})
    output = project.finish(*project.command)
    assert "another environment: its attempts are not taken up" in output
    assert project.attempts() == ALL
    assert project.ran.read_text().count("0") == 2


def test_two_runs_at_once_each_report_their_own(project: Project) -> None:
    project.go.touch()
    started = [project.start(*project.command) for _ in range(2)]
    for process, output in started:
        status = project.server.wait(process)
        assert status == 0, output.read_text()
        assert f"{project.build.name}: passed\n" in output.read_text()
    assert sum(f"waiting for {project.build.name}" in output.read_text() for _, output in started) == 1


WAITS = """
import os, pathlib, time
pathlib.Path({pid!r}).write_text(str(os.getpid()))
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("backend/setup.py", signal.SIGKILL),
        ("backend/tests/unit/test_unit.py", signal.SIGKILL),
        ("backend/tests/unit/test_unit.py", signal.SIGHUP),
    ],
)
def test_nothing_is_left_of_a_killed_build_or_collection(project: Project, where: str, how: signal.Signals) -> None:
    pid = project.night.folder / "pid"
    pid.unlink(missing_ok=True)
    repository = project.night.folder / "repository"
    before = (repository / where).read_text()
    commit(repository, {where: WAITS.format(pid=str(pid)) + before}, "waits")
    project.stop(lambda: pid.exists() and pid.read_text(), how, *project.command)
    wait_for(lambda: is_gone(int(pid.read_text())), 30)
    commit(repository, {where: before}, "does not wait")
    project.begin()
    project.go.touch()
    output = project.finish(*project.command)
    assert not list((project.night.folder / "scratch").glob("*accel-ci-*"))
    assert ("the process that made it is gone: removed" in output) == (how == signal.SIGKILL)
