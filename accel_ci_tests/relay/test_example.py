"""The example workflow: it has few rights, and nothing of a dispatch gets into a command."""

from __future__ import annotations

import re
import shlex

import yaml
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci_tests.fixtures.checkout import ROOT

TEXT = (ROOT / "examples" / "github_actions" / "upstream.yaml").read_text()
WORKFLOW = yaml.load(TEXT, Loader=yaml.BaseLoader)


def test_the_workflow_starts_on_dispatches_alone_and_may_only_have_a_token() -> None:
    assert WORKFLOW["on"] == {"repository_dispatch": {"types": ["pull_request", "push"]}}
    assert WORKFLOW["permissions"] == {}
    assert [job["permissions"] for job in WORKFLOW["jobs"].values()] == [{"id-token": "write"}]
    assert all(int(job["timeout-minutes"]) for job in WORKFLOW["jobs"].values())


def test_its_commands_exist_and_hold_no_expression() -> None:
    assert "${{" not in TEXT
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    assert not [step for step in steps if "uses" in step], "an action would have to be pinned by its commit"
    for step in steps:
        [line] = step["run"].splitlines()
        program, *arguments = shlex.split(re.sub(r"<.*", "", line))
        assert program == "accel-ci"
        path = [each for each in arguments if not each.startswith("-")][:2]
        shown = CliRunner().invoke(main, [*path, "--help"]).output
        assert path == ["relay", "dispatch"]
        assert all(option in shown for option in arguments if option.startswith("-"))
