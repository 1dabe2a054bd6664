"""Kills at random moments of whole builds: after resuming, no attempt is lost or doubled, and no complete stage is repeated.

`ACCEL_CI_BUILD_KILLS` says how many builds are killed: 2 by default, 300 in `make test-nightly`. Each is drawn from its own
seed: the stage, the signal, whether it is for the command or its whole group, what is changed before the build is resumed,
and how it is resumed. One in four has new sources, so that a wheel and an image are built.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest
import yaml

from accel_ci.ledger.status import read_status
from accel_ci.model import Build, Revision
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.command_server import CommandServer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.suite import StreamedAttempt, streamed
from accel_ci_tests.fixtures.toy_night import LOADS, ToyNight, make_toy_night

KILLS = int(os.environ.get("ACCEL_CI_BUILD_KILLS", "2"))
COUNT = 12
STAGES = (
    "wheel", "runtime_image", "smoke_results", "test_selection", "test_plan", "device_test_results", "ledger", "flakiness",
    "hud",
)  # fmt: skip
LONGEST_S = {"wheel": 4.0, "runtime_image": 4.0, "smoke_results": 3.0, "test_selection": 3.0, "device_test_results": 5.0}
TESTS = {
    "backend/tests/smoke/test_smoke.py": "def test_smoke():\n    pass\n",
    "backend/tests/unit/test_unit.py": f"""
import pytest, time
@pytest.mark.parametrize("n", range({COUNT}))
def test_n(n):
    time.sleep(0.15)
    assert n % 6
""",
}
"""Two of twelve tests fail in both rounds."""


@dataclass
class Trial:
    """A project, and the server that starts commands on it. `builds` counts those so far."""

    night: ToyNight
    server: CommandServer
    builds: int = 0

    def start(self, *arguments: str, output: Path) -> int:
        """Start a command on the project."""
        own = ("--config", str(self.night.project.config_path), *arguments)
        return self.server.start(own, self.night.folder, self.night.environment, output)

    def configure(self, cards: int, timeout_s: int) -> None:
        """Write the configuration with this number of cards and this limit for tests."""
        path = self.night.project.config_path
        document = yaml.safe_load(path.read_text())
        document["pool"]["cards"] = cards
        document["limits"] = {"test_timeout_seconds": timeout_s, "silence_seconds": 240}
        path.write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with CommandServer() as started:
        yield started


@pytest.fixture(scope="module")
def trials(server: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """The trials' projects; the last one is in use."""
    return [new_trial(server, tmp_path_factory.mktemp("kills"))]


def new_trial(server: CommandServer, folder: Path) -> Trial:
    night = make_toy_night(folder, TESTS)
    (folder / "scratch").mkdir()
    night.environment["TMPDIR"] = str(folder / "scratch")
    return Trial(night, server)


def attempts_streamed(folder: Path) -> list[StreamedAttempt]:
    """Return the attempts in all rounds of a build's folder, those of earlier plans and finished ones included."""
    return [attempt for place in (folder, *folder.glob("earlier-*")) for attempt in streamed(place)]


def complete(manifests: ManifestStore, build: Build) -> set[str]:
    """Return the stages that are complete; a plan may be made again."""
    folder = manifests.folder(build)
    found = {stage for stage in STAGES if (folder / f".complete-{stage}.json").exists()}
    runs = manifests.last_runs(build).values()
    return (found | ({"ledger"} if any(run.reported for run in runs) else set())) - {"test_plan"}


def begun(text: str) -> set[str]:
    """Return the stages that a command has begun, by what it has printed."""
    return {stage for stage in STAGES if re.search(rf"^{stage} …$", text, re.MULTILINE)}


def interrupted(text: str) -> set[str]:
    """Return the stages that a command has told to be interrupted: the ledger may be there before its step is over."""
    return set(re.findall(r"^stopped: (\w+): interrupted", text, re.MULTILINE))


def kill(process: int, how: signal.Signals, *, group: bool) -> None:
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process, how)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the living processes that name the folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line)
    return found


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_build_that_is_killed_loses_nothing(
    seed: int, trials: list[Trial], server: CommandServer, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    if trials[-1].builds >= 25:
        trials.append(new_trial(server, tmp_path_factory.mktemp("kills")))
    trial = trials[-1]
    trial.builds += 1
    night, manifests = trial.night, ManifestStore(trial.night.project.home)
    if rng.random() < 0.25:
        commit(night.folder / "repository", {"backend/toy_backend/__init__.py": f"{LOADS}\nNUMBER = {seed}\n"})
    trial.configure(cards=2, timeout_s=300)
    first = ["run", "manual", "--name", f"k{seed}"]
    build = Build(f"manual-k{seed}", "py3")
    output = tmp_path / "output"
    output.touch()
    told: list[str] = []
    seen: set[tuple[int, str]] = set()
    done: set[str] = set()

    def run(command: list[str], stage: str | None) -> int:
        """Run a command, or kill it some time after a stage has begun, and note what is there then."""
        before = len(output.read_bytes())
        process = trial.start(*command, output=output)
        if stage is not None:
            wait_for(lambda: stage in begun(since(before)) or server.poll(process) is not None, 600)
            time.sleep(rng.uniform(0, LONGEST_S.get(stage, 0.6)))
            how, group = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]), rng.random() < 0.5
            kill(process, how, group=group)
            told.append(f"{how.name} {'of the group ' if group else ''}in {stage}")
        status = server.wait(process)
        again = begun(since(before)) & done
        assert not again, f"{again} had been complete: {told}\n{output.read_text()}"
        wait_for(lambda: not [line for line in processes_of(night.folder) if "accel_ci.process.tree" not in line], 120)
        seen.update((attempt.round, attempt.test) for attempt in attempts_streamed(folder))
        seen.update((attempt.round, attempt.test) for attempt in attempts_streamed(folder.with_name("device.last")))
        done.update(complete(manifests, build) - interrupted(since(before)))
        return status

    def since(before: int) -> str:
        return output.read_bytes()[before:].decode()

    others = [key for each in manifests.revisions() if (key := each.key).startswith("manual-")]
    if rng.random() < 0.25 and others:  # a build of another day, which no command without its key can name
        made, yesterday = manifests.revision(others[0]), datetime.now(timezone.utc) - timedelta(days=1)
        assert made is not None
        build = Build(f"nightly-{yesterday:%Y%m%d}-k{seed}", "py3")
        manifests.add_revision(Revision(build.revision, "nightly", yesterday, made.backend, made.upstream))
        first = ["run", "nightly", "--revision", build.revision]
        told.append("another day")
    folder = night.project.home / "runs" / build.revision / build.variant / "device"
    stages = rng.sample(STAGES[:6], 1) + [rng.choice(STAGES)] * rng.randint(0, 1)
    if rng.random() < 0.5:
        stages = [rng.choice(STAGES)]
    command = first
    for stage in stages:
        run(command, stage)
        change = rng.choice(["nothing", "nothing", "another build", "timeout", "cards", "cards and timeout"])
        told.append(change)
        if change == "another build":
            other = trial.start("run", "manual", "--name", f"other{seed}", output=tmp_path / "other")
            assert server.wait(other) == 0, (tmp_path / "other").read_text()
        elif change != "nothing":
            trial.configure(rng.choice([1, 3]) if "cards" in change else 2, 299 if "timeout" in change else 300)
        known = manifests.revision(build.revision) is not None
        ways = [first] if not known else [first, ["run", first[1], "--revision", build.revision]]
        if known and manifests.last_runs(build):
            ways.append(["resume", build.name])
        if known and any(
            not run.reported or run.ended_at is None or run.ending for run in manifests.last_runs(build).values()
        ):
            command = rng.choice(ways)
        elif known and manifests.last_runs(build):
            break  # it had ended before the kill
        else:
            command = first
    else:
        status = run(command, None)
        assert status == 0, f"{told}\n{output.read_text()}"
    found = read_status(manifests, build)
    assert (found.expected, found.counts["failed"], found.counts["passed"]) == (COUNT + 1, 2, COUNT - 1), told
    results = ResultsStore(night.project.home / "results")
    [stored] = [each for each in results.suites(build=build) if each.suite == "unit"]
    rows = results.read(stored, ["test", "round", "started_at"]).to_pylist()
    kept = Counter((row["round"], row["test"]) for row in rows)
    assert seen <= kept.keys(), f"lost: {seen - kept.keys()}; {told}\n{output.read_text()}"
    assert set(kept.values()) == {1}, f"doubled: {told}"
    assert not list((night.folder / "scratch").glob("*accel-ci-*")), "the last command has removed what was left"
