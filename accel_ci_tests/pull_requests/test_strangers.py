"""The settings of a stranger's build, and the places where it may not run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.config.settings import Project
from accel_ci.errors import BuildError
from accel_ci.pipelines import DEVICELESS_RESULTS, INTEGRATION, RUNTIME_IMAGE, WHEEL
from accel_ci.pull_requests.strangers import (
    refuse_fetches,
    require_isolation,
    settings_for_strangers,
    stages_for_strangers,
)
from accel_ci.source.checkout import MARK

NAMES = ["lint", "smoke", "unit"]


@pytest.fixture
def make(make_project: Callable[..., Project]) -> Callable[..., Project]:
    job = {"cron": "0 2 * * *", "suites": NAMES}
    suites = {
        "lint": {"stage": "deviceless", "commands": [["true"]], "environment": {"LINT_TOKEN": "abc", "LINT": "1"}},
        "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
        "unit": {"paths": ["tests/unit"]},
    }
    jobs = {"nightly": job, "intraday": job, "main": {"suites": NAMES}, "pr": {"suites": NAMES}}

    def make_it(user: str = "23457:23457", **sections: Any) -> Project:
        pulls = {"strangers": "deviceless", "strangers_user": user}
        given = {"suites": suites, "jobs": jobs, "github": {"repository": "org/backend"}, "pull_requests": pulls}
        return make_project(**{**given, **sections})

    return make_it


def test_a_stranger_gets_no_passed_variable_no_secret_and_no_shared_cache(make: Callable[..., Project]) -> None:
    rules = {"pass_environment": ["HOME", "INDEX"], "compiler_cache": "ccache"}
    variant = {"name": "py3", "python": "3.11", "torch": "torch", "runtime": "none", "wheels": rules}
    environment = {"OMP_NUM_THREADS": "1", "HUB_TOKEN": "abc", "MIRROR": "https://me:secret@host/", "GONE": None}
    pool = {"card_environment": "TOY_CARD", "environment": environment, "pass_environment": ["A"], "user": "1:1"}
    settings = make(pool=pool, wheels=rules, variants=[variant]).settings
    found = settings_for_strangers(settings)
    assert found.pool.environment == {"OMP_NUM_THREADS": "1", "GONE": None}
    assert (found.pool.pass_environment, found.code_user) == ((), "23457:23457")
    for wheels in (found.wheels, found.wheels_of(found.variants[0])):
        assert (wheels.pass_environment, wheels.compiler_cache, wheels.only_wheels) == ((), None, True)
    assert found.suites["lint"].environment == {"LINT": "1"}
    assert settings.pool.pass_environment == ("A",), "those of other builds stay as they are"


def test_only_stages_without_a_card_are_for_strangers(make: Callable[..., Project]) -> None:
    pipeline = INTEGRATION.as_configured(make().settings)
    assert stages_for_strangers(pipeline) == (WHEEL, RUNTIME_IMAGE, DEVICELESS_RESULTS)


def test_the_user_of_accel_ci_is_no_isolation(make: Callable[..., Project]) -> None:
    own = f"{os.getuid() or 1}:{os.getgid() or 1}"
    settings = settings_for_strangers(make(own).settings)
    if os.getuid() == 0:
        require_isolation(settings, settings.variants[0])
        settings = settings.model_copy(update={"pool": settings.pool.model_copy(update={"user": "0:0"})})
    with pytest.raises(BuildError, match="would run as the user of accel-ci"):
        require_isolation(settings, settings.variants[0])


def test_a_wheel_is_built_in_a_container_or_not_at_all(
    make: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "@sha256:" + "0" * 64
    containers = {
        "pool": {"kind": "docker", "card_environment": "TOY_CARD", "cards": 2},
        "wheels": {"builder": f"builder{digest}"},
        "image": {"base": f"base{digest}"},
    }
    settings = make(**containers).settings
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(BuildError, match="a Docker engine that answers"):
        require_isolation(settings, settings.variants[0])


def test_a_stranger_s_pods_get_nothing_of_their_template_but_where_they_run(make: Callable[..., Project]) -> None:
    digest, secret = "@sha256:" + "0" * 64, {"secretKeyRef": {"name": "hub", "key": "token"}}
    env = [
        {"name": "HUB", "valueFrom": secret}, {"name": "HUB_TOKEN", "value": "abc"}, {"name": "LEVEL", "value": "1"},
    ]  # fmt: skip
    worker = {
        "name": "worker", "env": env, "envFrom": [{"secretRef": {"name": "hub"}}], "securityContext": {"privileged": True},
        "resources": {"limits": {"memory": "2Gi", "example.com/nic": "1"}, "claims": [{"name": "x"}]},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
    }  # fmt: skip
    spec = {
        "nodeSelector": {"zone": "a"}, "hostNetwork": True, "hostPID": True, "serviceAccountName": "with-rights",
        "securityContext": {"runAsUser": 0}, "initContainers": [{"name": "x", "image": "y"}], "containers": [worker],
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
    }  # fmt: skip
    metadata = {"labels": {"team": "a"}, "annotations": {"iam.example.com/role": "writer"}}
    pool = {
        "kind": "kubernetes", "resource": "example.com/accel", "bucket": {"bucket": "rounds"}, "cards": 2,
        "service_account": "tests", "pod_template": {"metadata": metadata, "spec": spec},
    }  # fmt: skip
    image = {"base": f"base{digest}", "registry": "r/backend", "registry_of_pulls": "r/pulls"}
    settings = make(pool=pool, image=image, wheels={"builder": f"builder{digest}"}).settings
    found = settings_for_strangers(settings).pool
    assert isinstance(found, KubernetesPoolSettings)
    left = {"name": "worker", "resources": {"limits": {"memory": "2Gi"}}, "env": [{"name": "LEVEL", "value": "1"}]}
    assert found.pod_template == {
        "metadata": {"labels": {"team": "a"}}, "spec": {"nodeSelector": {"zone": "a"}, "containers": [left]},
    }  # fmt: skip
    assert found.service_account is None
    on_nodes = settings.model_copy(update={"pool": settings.pool.model_copy(update={"host_network": True})})
    with pytest.raises(BuildError, match="the network of a node"):
        require_isolation(settings_for_strangers(on_nodes), settings.variants[0])


def test_an_image_is_pushed_nowhere_but_where_pods_must_pull_it(make: Callable[..., Project]) -> None:
    digest = "@sha256:" + "0" * 64
    image = {"base": f"base{digest}", "registry": "r/backend", "registry_of_pulls": "r/pulls"}
    variant = {"name": "py3", "python": "3.11", "torch": "torch", "runtime": "none", "image": image}
    sections = {"wheels": {"builder": f"builder{digest}"}, "image": image, "variants": [variant]}
    cluster = {
        "kind": "kubernetes", "resource": "example.org/card", "cards": 2, "bucket": {"bucket": "rounds"},
    }  # fmt: skip
    for pool, registry in (({"kind": "docker", "card_environment": "X", "cards": 2}, None), (cluster, "r/pulls")):
        settings = settings_for_strangers(make(pool=pool, **sections).settings)
        assert {one.registry for one in (settings.image, settings.variants[0].image) if one is not None} == {registry}


@pytest.mark.parametrize("name", [".gitmodules", ".lfsconfig"])
def test_places_to_fetch_from_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / MARK).touch()
    (tmp_path / "backend").mkdir()
    refuse_fetches(tmp_path / "backend")
    (tmp_path / name).touch()
    with pytest.raises(BuildError, match=name):
        refuse_fetches(tmp_path / "backend")
