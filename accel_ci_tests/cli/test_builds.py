"""The command line as a person uses it: real processes, their output and their exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.model import Build
from accel_ci_tests.fixtures.project import Run
from accel_ci_tests.hud.samples import lay_build, lay_revision

HEAVY = {"boto3", "dagster", "jinja2", "numpy", "pyarrow", "sqlalchemy"}
"""Packages that take long to import."""


def test_the_starter_file_is_valid_and_never_overwritten(accel_ci: Run, tmp_path: Path) -> None:
    assert accel_ci("init").returncode == 0
    assert accel_ci("validate").returncode == 0
    starter = (tmp_path / "accel_ci.yaml").read_text()
    (tmp_path / "accel_ci.yaml").write_text(
        starter.replace("name: py311-torch2.13", 'name: "py{python}"').replace('python: "3.11"', 'python: ["3.11", "3.12"]')
    )
    assert "variants: py3.11, py3.12\n" in accel_ci("validate").stdout
    (tmp_path / "accel_ci.yaml").write_text("mine")
    again = accel_ci("init")
    assert (again.returncode, (tmp_path / "accel_ci.yaml").read_text()) == (2, "mine")
    assert "already exists" in again.stderr


def test_a_wrong_configuration_has_one_line_for_each_mistake(accel_ci: Run, tmp_path: Path) -> None:
    accel_ci("init")
    file = tmp_path / "accel_ci.yaml"
    text = file.read_text().replace("suites: [smoke, pytorch]", "suites: [smoke, pytroch]", 1)
    file.write_text(text.replace("cards: 2", "cards: 0"))
    for command in (["validate"], ["run", "nightly"], ["status"], ["dev"]):
        done = accel_ci(*command)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 2, done.stderr
        assert "there is no suite 'pytroch'; did you mean 'pytorch'?" in done.stderr
        assert "pool.cards" in done.stderr


@pytest.mark.parametrize("command", [[], ["init"], ["validate"], ["run"], ["status"], ["dev"], ["doctor"]])
def test_every_command_explains_itself(accel_ci: Run, command: list[str]) -> None:
    done = accel_ci(*command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


@pytest.mark.parametrize("command", [["--help"], ["status", "--help"], ["status"], ["status", "--json"]], ids=" ".join)
def test_quick_commands_import_nothing_heavy(make_project: Callable[..., Project], command: list[str]) -> None:
    project = make_project()
    lay_build(project.home, Build(lay_revision(project.home, 0).key, "py3"), {"passed": 3})
    words = ["--config", str(project.config_path), *command]
    program = f"""
import atexit, sys
atexit.register(lambda: print({HEAVY} & sys.modules.keys(), file=sys.stderr))
sys.argv[1:] = {words}
from accel_ci.cli import main
main()"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert ("Usage:" if "--help" in command else "nightly-20261127~py3") in done.stdout


def test_a_dry_run_shows_what_would_run_and_makes_nothing(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project()
    done = accel_ci("run", "nightly", "--dry-run")
    assert done.stdout.strip() == "nightly on py3: smoke [smoke], then [unit] on 2 card(s)"
    assert not project.home.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "weekly"], "Invalid value for '{nightly|manual|intraday|main|pr|sweep|confirm|nightly_rbe}'"),
        (["run", "pr"], "a pull request needs --number"),
        (["run", "nightly", "nightly-20261127"], "only `run confirm` takes a build"),
        (["run", "confirm"], "no build of nightly, intraday or main has finished yet"),
        (["run", "confirm", "nightly-20261127", "--dry-run"], "nothing has been built yet"),
        (["run", "nightly", "--variant", "py9"], "there is no variant 'py9'; known: py3"),
        (["run", "nightly"], "repository: there is no such folder"),
        (["status"], "nothing has been built yet; `accel-ci run nightly` makes the first build"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    accel_ci: Run, make_project: Callable[..., Project], arguments: list[str], message: str
) -> None:
    make_project()
    done = accel_ci(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_shows_what_each_missing_piece_would_enable(
    accel_ci: Run, make_project: Callable[..., Project], repository: Path
) -> None:
    make_project()
    done = accel_ci("doctor", "--json")
    pieces = {piece["name"]: piece for piece in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert all(pieces[name]["usable"] for name in ("Python", "git", "uv", "configuration", "backend", "clock"))
    assert not pieces["upstream"]["usable"]
    assert all(piece["enables"] and piece["how"] for piece in pieces.values())


def test_doctor_fails_when_the_sources_are_not_there(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    make_project(pool={"card_environment": "TOY_CARD", "health_probe": ["false"]})
    done = accel_ci("doctor", "--json")
    pieces = {piece["name"]: piece for piece in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "there is no such folder" in pieces["backend"]["state"]
    assert pieces["cards"]["state"] == "card 0: the probe ended with 1"


def test_doctor_fails_when_nothing_can_work(accel_ci: Run) -> None:
    done = accel_ci("doctor")
    assert done.returncode == 1
    assert "accel-ci init" in done.stdout
