"""The instance of the command line, on PostgreSQL and on a `dagster.yaml` with mistakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pytest
import yaml

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.errors import ConfigError
from accel_ci_tests.fixtures.postgres import real_postgres
from accel_ci_tests.fixtures.project import Run


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the user's own `dagster.yaml`."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))

    def write(text: str) -> None:
        (tmp_path / "dagster").mkdir()
        (tmp_path / "dagster" / "dagster.yaml").write_text(text)

    return write


@real_postgres
@pytest.mark.parametrize("key", ["postgres_url", "postgres_db"])
def test_an_instance_on_postgres_keeps_a_run(
    key: str, postgres: str, configure: Callable[[str], None], make_project: Callable[..., Project],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Both spellings of Dagster's documentation work with the pinned packages."""
    url = urlsplit(postgres)
    monkeypatch.setenv("URL_OF_THE_TEST", postgres)
    database: dict[str, Any] = {
        "postgres_url": {"env": "URL_OF_THE_TEST"},
        "postgres_db": {
            "username": url.username,
            "password": url.password or "not needed",
            "hostname": url.hostname,
            "port": url.port,
            "db_name": url.path.removeprefix("/"),
            "params": {name: values[0] for name, values in parse_qs(url.query).items()},
        },
    }
    configure(yaml.safe_dump({"storage": {"postgres": {key: database[key]}}}))

    @dg.op
    def work() -> None:
        pass

    @dg.job
    def kept() -> None:
        work()

    project = make_project()
    with open_instance(project) as instance:
        run_id = kept.execute_in_process(instance=instance).run_id
    with open_instance(project) as instance:
        assert [(run.run_id, run.status) for run in instance.get_runs()] == [(run_id, dg.DagsterRunStatus.SUCCESS)]


@pytest.mark.parametrize("command", ["janitor", "dev"])
def test_commands_report_an_unset_variable_of_the_file(
    command: str, accel_ci: Run, make_project: Callable[..., Project]
) -> None:
    project = make_project()
    (project.root / "dagster.yaml").write_text(_URL % "{env: NO_SUCH_URL}")
    done = accel_ci(command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "/dagster.yaml: it names NO_SUCH_URL, which the environment does not have; set it" in done.stderr


_URL = "storage: {postgres: {postgres_url: %s}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (_URL % "{env: NO_SUCH_URL}", "it names NO_SUCH_URL, which the environment does not have; set it"),
        ("storage: {postgres: {postgres_db: {username: a, hostname: b, db_name: c, password: {env: NO_PASSWORD}}}}",
         "it names NO_PASSWORD, which the environment does not have; set it"),
        ("telemetry: {enabled: maybe}", 'Invalid scalar at path root:telemetry:enabled. Value "maybe"'),
        ("telemetry: [", "while parsing a flow node"),
        (_URL % "postgresql://nobody@127.0.0.1:9/x", "Connection refused"),
        ("run_storage: {module: no_such_module, class: Storage, config: {}}", "no_such_module"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line(
    text: str, problem: str, configure: Callable[[str], None], make_project: Callable[..., Project]
) -> None:
    configure(text)
    with pytest.raises(ConfigError) as raised:
        open_instance(make_project())
    assert problem in str(raised.value)
    assert str(raised.value).startswith("/")
    assert "/dagster/dagster.yaml: " in str(raised.value)
    assert "\n" not in str(raised.value)


OPENS = """
import sys, time
from pathlib import Path
from accel_ci.config.loading import load_project
from accel_ci.defs.instance import open_instance
folder = Path(sys.argv[1])
project = load_project(folder / "accel_ci.yaml")
print("ready", flush=True)
while not (folder / "go").exists():
    time.sleep(0.001)
with open_instance(project) as instance:
    assert instance.get_runs() == []
"""


def test_two_that_begin_at_once_in_a_fresh_folder_share_the_instance(
    make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DAGSTER_HOME", "ACCEL_CI_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = make_project().root
    command = [sys.executable, "-c", OPENS, str(folder)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    (folder / "go").touch()
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
    assert [code for _, code in ended] == [0] * len(started), ended
