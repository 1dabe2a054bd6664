"""Suites without a card: commands and tests, what they see, and how their results are stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from accel_ci.config.settings import Project
from accel_ci.errors import SelectionError
from accel_ci.ledger.close import account_of_stage
from accel_ci.ledger.status import deviceless_shortcoming
from accel_ci.model import DeviceTestResults
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.progress import LineProgress
from accel_ci.steps.device_tests import StageContext
from accel_ci.steps.deviceless_tests import run_deviceless_stage
from accel_ci_tests.fixtures.ground import Ground, Kind
from accel_ci_tests.fixtures.stages import IMAGE
from accel_ci_tests.fixtures.suite import Write

MakeProject = Callable[..., Project]
Run = Callable[..., DeviceTestResults]


@pytest.fixture
def run(make_project: MakeProject, root: Path, context: StageContext) -> Run:
    """Run suites of the stage, on a pool whose cards somebody else has."""

    def run_suites(pool: dict[str, Any], **suites: dict[str, Any]) -> DeviceTestResults:
        own = {name: {"stage": "deviceless", **suite} for name, suite in suites.items()}
        device = {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, "unit": {"paths": ["tests/unit"]}}
        card = {} if pool.get("kind") == "kubernetes" else {"card_environment": "TOY_CARD"}
        pool = {"cards": 2, "health_probe": ["false"], **card, **pool}
        settings = make_project(pool=pool, suites={**device, **own}).settings
        spec = worker_spec_for(settings, IMAGE, root, with_cards=False)
        place = replace(context, with_cards=False)
        with FileLock(context.cards_lock), LineProgress().step("deviceless") as step:
            return run_deviceless_stage(settings, {name: settings.suites[name] for name in own}, spec, root, place, step)

    return run_suites


def rows(context: StageContext) -> dict[str, tuple[str, str | None]]:
    stored = [context.results.read(each, ["test", "outcome", "message"]).to_pylist() for each in context.results.suites()]
    return {row["test"]: (row["outcome"], row["message"]) for of_suite in stored for row in of_suite}


def assert_one_test_and_one_command_failed(results: DeviceTestResults, context: StageContext) -> None:
    assert results.cards == ()
    assert results.counts == {"passed": 2, "failed": 3}, "a test that fails runs once more"
    found = {test: (outcome, message) for test, (outcome, message) in rows(context).items() if outcome != "passed"}
    assert sorted(test.partition(" ")[0] for test in found) == ["command", "tests/emulated/test_a.py::test_b"]
    assert "the exit status is 4" in [(message or "").strip() for _, message in found.values()]


def test_commands_are_tests_that_run_in_a_copy_of_the_sources(
    run: Run, write: Write, root: Path, context: StageContext
) -> None:
    write("pyproject.toml", "")
    there = "import os, sys; sys.exit(not os.path.exists('pyproject.toml') or os.environ['TOY_CARD'] != '')"
    commands = [
        ["python", "-c", there],
        ["python", "-c", "open('made', 'x').close()"],
        ["python", "-c", "open('made', 'x').close()"],
        ["python", "-c", "print('line 7: too long'); raise SystemExit(3)"],
        ["no-such-linter", "."],
        ["python", "-c", "import time; time.sleep(60)"],
        ["python", "-c", "import sys; sys.exit('$(touch /tmp/x); *' not in sys.argv)", "$(touch /tmp/x); *"],
    ]
    results = run({}, lint={"commands": commands, "test_timeout_seconds": 10})
    found = list(rows(context).values())
    assert [outcome for outcome, _ in found] == ["passed", "passed", "passed", "failed", "failed", "failed", "passed"]
    messages = [message or "" for _, message in found]
    assert messages[3] == "the exit status is 3\nline 7: too long"
    assert "no-such-linter cannot be started: No such file or directory" in messages[4]
    assert "it did not end within 10.0 s" in messages[5]
    assert not (root / "made").exists()
    assert results.counts == {"passed": 4, "failed": 3}
    account = account_of_stage(context.build, results, context.artifacts, context.results)
    assert account.suites["lint"]["failed"] == 3
    assert deviceless_shortcoming(account) == "3 failed"


def test_tests_run_in_processes_without_a_card_and_flaky_ones_hold_nothing_up(
    run: Run, write: Write, root: Path, context: StageContext
) -> None:
    write(
        "tests/emulated/test_a.py",
        f"""
        import os, pathlib, pytest

        @pytest.mark.parametrize("n", range(8))
        def test_no_card(n):
            assert (os.environ["TOY_CARD"], os.environ["EMULATE"]) == ("", "1")

        def test_flaky():
            mark = pathlib.Path({str(root.parent / "mark")!r})
            seen = mark.exists()
            mark.touch()
            assert seen
        """,
    )
    suite = {"paths": ["tests/emulated"], "environment": {"EMULATE": "1"}}
    results = run({"processes": 3}, emulated=suite, lint={"commands": [["python", "-V"]]})
    assert results.suites == ("emulated", "lint")
    assert results.cards == ()
    stored = {
        each.suite: context.results.read(each, ["card"]).column("card").to_pylist() for each in context.results.suites()
    }
    assert {card for cards in stored.values() for card in cards} == {None}
    account = account_of_stage(context.build, results, context.artifacts, context.results)
    assert (account.expected, account.counts["passed"], account.counts["flaky"]) == (10, 9, 1)
    assert deviceless_shortcoming(account) is None


def test_on_an_engine_they_run_in_containers_without_devices_beside_those_that_hold_the_cards(
    run: Run, write: Write, context: StageContext, docker_image: str
) -> None:
    """The engine has no GPU, so that it would refuse a container that asks for one."""
    seen = "assert os.path.exists('/.dockerenv') and not glob.glob('/dev/accel*') and os.environ['TOY_CARD'] == ''"
    write("tests/emulated/test_a.py", f"import glob, os\ndef test_a(): {seen}\ndef test_b(): assert False, os.getcwd()\n")
    pool = {
        "kind": "docker",
        "image": docker_image,
        "devices": ["/dev/null:/dev/accel{card}"],
        "gpus": "card",
        "processes": 2,
        **({"user": "65534:65533"} if os.getuid() == 0 else {}),
    }
    write("pyproject.toml", "")
    writes = "open('pyproject.toml', 'a').close(); open('made', 'x').close()"
    lint = {"commands": [["python", "-c", f"import glob, os\n{seen}\n{writes}"], ["python", "-c", "raise SystemExit(4)"]]}
    results = run(pool, emulated={"paths": ["tests/emulated"]}, lint=lint)
    assert_one_test_and_one_command_failed(results, context)


def test_on_a_cluster_they_run_in_pods_that_ask_for_no_card(
    run: Run, write: Write, root: Path, context: StageContext, open_ground: Callable[[Kind], Ground]
) -> None:
    """No node has the resource, so that a pod which asks for it would wait. What a command leaves stays in its pod."""
    ground = open_ground("kubernetes")
    seen = "assert os.environ['PLACE'] == 'a pod' and os.environ['HOME'] == '/accel-ci'"
    write("tests/emulated/test_a.py", f"import os\ndef test_a(): {seen}\ndef test_b(): assert False, os.getcwd()\n")
    write("pyproject.toml", "")
    (root / "link").symlink_to("/etc/hostname")
    (root / "pyproject.toml").chmod(0o444)
    leaves = "import os; os.remove('pyproject.toml'); os.symlink('/', 'top'); os.mkfifo('pipe'); os.unlink('link')"
    settings = ground.cluster_settings
    pool = {
        "kind": "kubernetes", "image": settings.image, "resource": "example.com/none", "host_network": True,
        "queue_seconds": 60, "processes": 2, "environment": {"PLACE": "a pod"},
        "bucket": {"bucket": ground.bucket.bucket, "prefix": ground.bucket.prefix, "endpoint": ground.bucket.endpoint},
    }  # fmt: skip
    lint = {"commands": [["python", "-c", f"{leaves}; {seen}"], ["python", "-c", f"{leaves}; raise SystemExit(4)"]]}
    results = run(pool, emulated={"paths": ["tests/emulated"]}, lint=lint)
    assert_one_test_and_one_command_failed(results, context)
    assert (root / "pyproject.toml").exists()


def test_without_suites_nothing_is_closed(run: Run, context: StageContext) -> None:
    results = run({})
    account = account_of_stage(context.build, results, context.artifacts, context.results)
    assert (results.counts, deviceless_shortcoming(account)) == ({}, None)


def test_a_suite_without_tests_is_never_passed(run: Run, write: Write) -> None:
    write("tests/emulated/test_a.py", "")
    with pytest.raises(SelectionError, match="collected no tests"):
        run({}, emulated={"paths": ["tests/emulated"]})


def test_tests_that_are_all_skipped_close_the_gate(run: Run, write: Write, context: StageContext) -> None:
    write("tests/emulated/test_a.py", "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n")
    results = run({}, emulated={"paths": ["tests/emulated"]})
    account = account_of_stage(context.build, results, context.artifacts, context.results)
    assert deviceless_shortcoming(account) == "all skipped"
