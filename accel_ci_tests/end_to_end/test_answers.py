"""Pull requests of the toy project and their answers at a stand-in for GitHub: new, broken base, flaky, and a stranger's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.loading import load_project
from accel_ci.defs.assembly import build_definitions
from accel_ci.github.client import TOKEN as TOKEN_NAME
from accel_ci.pull_requests.publish import publish_answers
from accel_ci.pull_requests.watched import read_watched
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

LABEL = "ciflow/toy"
SMOKE = TESTS["backend/tests/smoke/test_smoke.py"]
UNIT = "backend/tests/unit/test_unit.py"
BROKEN = "def test_good():\n    pass\n\n\ndef test_broken():\n    raise AssertionError('since ever')\n"
HOSTILE = "raise AssertionError('</pre> @everyone [x](http://evil) | <img src=x>')"
NEW = BROKEN.replace("def test_good():\n    pass", f"def test_good():\n    {HOSTILE}")
FLAKY = f"""{BROKEN}

def test_flaky():
    from pathlib import Path

    mark = Path("MARK")
    if not mark.exists():
        mark.write_text("x")
        raise AssertionError("this time")
"""
ANSWER = """
import sys
from datetime import datetime, timezone
from pathlib import Path
from accel_ci.config.loading import load_project
from accel_ci.pull_requests.publish import publish_answers
from accel_ci.workspace import Workspace

print(publish_answers(Workspace(load_project(Path(sys.argv[1]))), datetime.now(timezone.utc)))
"""


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with github_server() as server:
        yield server


@pytest.fixture
def night(tmp_path: Path, github: GitHubServer, monkeypatch: pytest.MonkeyPatch) -> ToyNight:
    """The toy's project with a nightly in which a test fails."""
    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    made = make_toy_night(
        tmp_path,
        {"backend/tests/smoke/test_smoke.py": SMOKE, UNIT: BROKEN},
        github={"repository": "org/backend", "api": github.url},
        pull_requests={"labels": [LABEL], "blocking": True},
    )
    made.accel_ci("run", "nightly")
    return made


class Host:
    """The project with its sensors, and the stand-in for GitHub."""

    def __init__(self, night: ToyNight, github: GitHubServer, instance: dg.DagsterInstance) -> None:
        self.night, self.github, self.instance = night, github, instance
        self.project = load_project(night.project.config_path)
        self.workspace = Workspace(self.project)

    def propose(self, number: int, files: dict[str, str], **pull: Any) -> str:
        """Open a pull request with these files."""
        repository = self.night.folder / "repository"
        main = git(repository, "rev-parse", "HEAD")
        sha = commit(repository, files)
        git(repository, "update-ref", f"refs/pull/{number}/head", sha)
        git(repository, "reset", "--quiet", "--hard", main)
        self.github.pulls.open(number, sha, **pull)
        return sha

    def tick(self) -> Any:
        """Evaluate the sensor that starts builds."""
        repository = build_definitions(self.project).get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, instance_ref=self.instance.get_ref(), repository_def=repository
        )
        context._log_key = ["a", "pull_requests_sensor", "1"]
        return repository.get_sensor_def("pull_requests_sensor").evaluate_tick(context)

    def requested(self, number: str) -> list[Any]:
        """Return the runs that a tick asks for, of one pull request."""
        return [one for one in self.tick().run_requests or () if one.tags["accel_ci/pull_request"] == number]

    def build(self) -> list[str]:
        """Have all builds run that a tick asks for, as the daemon does, and return their revisions."""
        keys = [request.partition_key.split("|")[0] for request in self.tick().run_requests or ()]
        for key in keys:
            self.night.accel_ci("run", "pr", "--revision", key)
        return keys

    def answer(self) -> list[str]:
        return publish_answers(self.workspace, datetime.now(timezone.utc))

    def answer_and_die_at(self, path: str) -> int:
        """Answer in a process that is killed after GitHub has done what it asked for at a path. Return its status."""
        child: list[subprocess.Popen[bytes]] = []

        def kill(method: str, asked: str) -> int | None:
            if (method, asked) == ("POST", path):
                child[0].kill()
                child[0].wait()
            return None

        self.github.pulls.fault = kill
        child.append(subprocess.Popen([sys.executable, "-c", ANSWER, str(self.project.config_path)]))
        child[0].wait(timeout=120)
        self.github.pulls.fault = lambda method, asked: None
        return child[0].returncode

    def summary(self, sha: str) -> tuple[str | None, str]:
        """Return the conclusion and the title of the only check run of a commit."""
        run = self.check(sha)
        return run.get("conclusion"), run["output"]["title"]

    def check(self, sha: str) -> dict[str, Any]:
        [found] = [run for run in self.github.check_runs.runs.values() if run["head_sha"] == sha]
        return found

    def comment(self, number: int) -> str:
        [found] = [one for one in self.github.pulls.comments.values() if one["issue"] == number]
        return str(found["body"])


@pytest.fixture
def host(night: ToyNight, github: GitHubServer, tmp_path: Path) -> Iterator[Host]:
    home = tmp_path / "instance"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield Host(night, github, instance)


def test_the_answers_to_four_pull_requests(host: Host, tmp_path: Path) -> None:
    pulls = host.github.pulls
    new = host.propose(1, {UNIT: NEW})
    broken = host.propose(2, {"NOTES.md": "A note that changes nothing.\n"})
    flaky = host.propose(3, {UNIT: FLAKY.replace("MARK", str(tmp_path / "flaked"))})
    stranger = host.propose(4, {"backend/README.md": "# A stranger\n"}, fork="stranger/backend", author="stranger")
    pulls.label(4, LABEL, by="stranger")
    keys = host.build()
    assert sorted(keys) == [f"pr-{number}-{sha[:12]}" for number, sha in ((1, new), (2, broken), (3, flaky))]

    killed = host.answer_and_die_at(f"/repos/{pulls.repository}/issues/1/comments")
    assert killed == -signal.SIGKILL
    host.answer()
    assert len(pulls.comments) == 4, "the comment of the killed process was found, though it was not recorded"
    assert host.summary(new) == ("failure", "1 new, 1 broken in the base, too")
    assert host.summary(broken) == ("neutral", "1 broken in the base, too")
    assert host.summary(flaky) == ("neutral", "1 broken in the base, too, 1 flaky")
    assert host.summary(stranger) == (None, "waits for a maintainer")
    text = host.comment(1)
    assert f"accel-ci reproduce &#x27;{keys[0]}~py3&#x27; tests/unit/test_unit.py::test_good" in text
    assert "test_good: tests/unit/test_unit.py:2: AssertionError: &lt;/pre&gt; @everyone" in text
    assert "<img" not in text
    assert "the merge base" in text
    assert str(tmp_path) not in text, "the folders of our machine are nobody's business"
    assert f"setting {LABEL} now" in host.comment(4)

    sent = len(pulls.requests)
    host.answer()
    assert len(pulls.requests) == sent, "nothing has changed"
    assert len(host.github.check_runs.runs) == 4

    pulls.label(4, LABEL)
    newer = host.propose(4, {"backend/README.md": "# Another stranger\n"}, fork="stranger/backend", author="stranger")
    pulls.label(4, "bug")
    assert host.requested("4") == [], "the label is older than the commit"
    pulls.label(4, LABEL)
    [request] = host.requested("4")
    assert request.partition_key == f"pr-4-{newer[:12]}|py3"
    assert read_watched(host.workspace).heads[4].reason == f"{LABEL} set by maintainer"
    host.answer()
    assert host.summary(newer) == (None, "pending: queued")
    assert len(pulls.comments) == 4
