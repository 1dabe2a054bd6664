"""The decisions of each kind of pool for the project: worker specs, locks, reproduction, and what is imported for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.model import ContainerImage, RuntimeImage
from accel_ci.pool.choose_pool import pool_for, worker_spec_for

MakeProject = Callable[..., Project]

IMAGE = RuntimeImage("venv", "/images/1/bin/python", "", "3.11", "2", None, (), True, 0.0)
LOCAL = {"card_environment": "TOY_CARD"}
DOCKER = {"kind": "docker", "card_environment": "TOY_CARD", "image": "example.org/tests:1"}
KUBERNETES = {
    "kind": "kubernetes", "image": "example.org/tests:1", "resource": "example.com/card", "bucket": {"bucket": "rounds"},
}  # fmt: skip


@pytest.mark.parametrize("pool", [LOCAL, {**DOCKER, "devices": ["/dev/accel{card}"], "gpus": "card"}, KUBERNETES])
def test_workers_without_a_card_see_none(make_project: MakeProject, pool: dict[str, Any], tmp_path: Path) -> None:
    settings = make_project(pool={**pool, "health_probe": ["probe"], "environment": {"TOY_CARD": "7"}}).settings
    spec = worker_spec_for(settings, IMAGE, Path("/sources"), with_cards=False)
    assert (spec.card_environment, spec.probe) == ("", ())
    if pool != KUBERNETES:
        assert spec.environment["TOY_CARD"] == ""
    without = pool_for(settings, with_cards=False)
    assert not {"--gpus", "--device"} & set(without.docker_options("0") or ())
    lock, _ = without.run_lock(tmp_path / "deviceless", tmp_path / "cards.lock")
    assert lock == tmp_path / ".deviceless.lock"


@pytest.mark.parametrize(
    ("pool", "python", "card_environment"),
    [
        (LOCAL, "/images/1/bin/python", "TOY_CARD"),
        (DOCKER, "python3", "TOY_CARD"),
        ({**DOCKER, "python": "/opt/bin/python"}, "/opt/bin/python", "TOY_CARD"),
        (KUBERNETES, "python3", ""),
    ],
)
def test_how_workers_start(make_project: MakeProject, pool: dict[str, Any], python: str, card_environment: str) -> None:
    settings = make_project(pool={**pool, "health_probe": ["probe"]}).settings
    spec = worker_spec_for(settings, IMAGE, Path("/sources"))
    assert (spec.python, spec.root, spec.card_environment) == (python, "/sources", card_environment)
    assert spec.probe == ("probe",)
    assert {session.pytest_args for session in spec.sessions.values()} == {settings.backend.pytest_args}


@pytest.mark.parametrize("pool", [DOCKER, KUBERNETES])
def test_a_container_gets_only_what_is_passed(
    make_project: MakeProject, pool: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PASSED", "SECRET", "HOME", "PATH"):
        monkeypatch.setenv(name, f"of the driver: {name}")
    given = {**pool, "environment": {"OWN": "value", "CI": None}, "pass_environment": ["PASSED", "ABSENT"]}
    spec = worker_spec_for(make_project(pool=given).settings, IMAGE, Path("/sources"))
    home = {"HOME": "/tmp"} if pool is DOCKER else {}
    own = {"ACCEL_CI_WHEELS": "toy-backend=toy_backend"}
    assert spec.environment == {"PASSED": "of the driver: PASSED", "OWN": "value", **own, **home}


def test_the_image_of_the_build_is_used_where_the_pool_has_none(make_project: MakeProject) -> None:
    reference = f"example.org/base@sha256:{'0' * 64}"
    made = replace(IMAGE, containers=(ContainerImage("runtime", "sha256:1", "example.org/built:1", 1, ()),))
    for pool in (DOCKER, KUBERNETES):
        assert worker_spec_for(make_project(pool=pool).settings, made, Path("/sources")).image == "example.org/tests:1"
        own = {key: value for key, value in pool.items() if key != "image"}
        settings = make_project(pool=own, image={"base": reference, "registry": "example.org/built"}).settings
        spec = worker_spec_for(settings, made, Path("/sources"))
        assert (spec.image, spec.python) == ("example.org/built:1", "/images/1/bin/python")


def test_runs_wait_for_the_cards_unless_a_cluster_shares_them(make_project: MakeProject) -> None:
    run_dir, cards = Path("/home/runs/r/v/device"), Path("/home/cards.lock")
    for pool in (LOCAL, DOCKER):
        assert pool_for(make_project(pool=pool).settings).run_lock(run_dir, cards) == (cards, "the cards")
        shared = make_project(pool={**pool, "cards_lock": "/run/lock/cards.lock"}).settings
        assert pool_for(shared).run_lock(run_dir, cards) == (Path("/run/lock/cards.lock"), "the cards")
    lock, what = pool_for(make_project(pool=KUBERNETES).settings).run_lock(run_dir, cards)
    assert (lock, what) == (run_dir.with_name(".device.lock"), str(run_dir))


def test_tests_are_reproduced_in_a_container_where_workers_are_containers(make_project: MakeProject) -> None:
    assert pool_for(make_project(pool=LOCAL).settings).docker_options("0") is None
    assert pool_for(make_project(pool=KUBERNETES).settings).docker_options("0") is None
    given = {**DOCKER, "devices": ["/dev/card{card}", "/dev/all"], "gpus": "card", "memory": "2g"}
    words = " ".join(pool_for(make_project(pool=given).settings).docker_options("0,1") or ())
    for expected in (
        '--gpus "device=0,1" --device /dev/card0 --device /dev/all --device /dev/card1',
        "--cap-drop ALL --security-opt no-new-privileges",
        "--memory 2g --memory-swap 2g",
        "--env HOME=/tmp",
    ):
        assert expected in words


def test_a_local_pool_imports_no_sdk() -> None:
    script = """
import sys
import accel_ci.pool.choose_pool, accel_ci.pool.local, accel_ci.pool.docker.pool, accel_ci.rounds.driver
unwanted = ("boto3", "botocore", "docker", "kubernetes", "accel_ci.storage.s3", "accel_ci.rounds.bucket_round")
print([name for name in unwanted if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
