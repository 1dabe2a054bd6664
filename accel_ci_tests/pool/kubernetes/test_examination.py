"""A look at a cluster before the first run: the judgements on documents, and all of it on a real cluster."""

from __future__ import annotations

import os
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.examination import examine_cluster, quota_problem, skew_s
from accel_ci_tests.fixtures.cluster_pool import cluster_settings

ASKS = KubernetesPoolSettings(kind="kubernetes", resource="example.com/accel", cpu="1", memory="1Gi")
ASKS_FOR_NONE = KubernetesPoolSettings(kind="kubernetes", resource="example.com/accel")


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "status": {"hard": hard, "used": dict(hard)}}


def limit_range(**defaults: str) -> dict[str, Any]:
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "defaultRequest": defaults}]}}


@pytest.mark.parametrize(
    ("hard", "settings", "defaults", "problem"),
    [
        ({"pods": "1"}, ASKS_FOR_NONE, {}, None),
        ({"requests.cpu": "8"}, ASKS_FOR_NONE, {}, "the quota q counts cpu, and pods ask for none: each would be refused"),
        ({"memory": "8Gi"}, ASKS_FOR_NONE, {"cpu": "1"}, "the quota q counts memory, and pods ask for none"),
        ({"requests.cpu": "8", "memory": "8Gi"}, ASKS, {}, None),
        ({"requests.cpu": "8"}, ASKS_FOR_NONE, {"cpu": "50m"}, None),
        ({"count/jobs.batch": "20"}, ASKS, {}, "the quota q allows no further Job: 20 are there"),
    ],
)
def test_a_quota_that_refuses_pods(
    hard: dict[str, str], settings: KubernetesPoolSettings, defaults: dict[str, str], problem: str | None
) -> None:
    found = quota_problem([quota(**hard)], [limit_range(**defaults)] if defaults else [], settings)
    assert (found is None) if problem is None else (found is not None and found.startswith(problem))


def test_another_clock() -> None:
    epoch = 784_111_777  # of the example in RFC 9110
    assert skew_s("Sun, 06 Nov 1994 08:49:37 GMT", epoch, epoch + 1) == 0
    assert skew_s("Sun, 06 Nov 1994 08:49:37 GMT", epoch - 100, epoch - 100) == 100.5
    assert skew_s("yesterday", 0, 0) is None
    assert skew_s(None, 0, 0) is None


def test_a_cluster_that_will_do() -> None:
    settings = cluster_settings(cards=4)
    found = {one.name: one for one in examine_cluster(settings, settings.image)}
    assert [name for name, one in found.items() if not one.usable] == [], found
    assert f"{settings.image}, in " in found["image pull"].state
    assert found["cards"].state.startswith(f"8 {settings.resource}") or "may not list nodes" in found["cards"].state
    assert found["rights"].state.startswith("all that the pool needs")


def test_a_cluster_that_will_not() -> None:
    settings = cluster_settings(namespace="default")
    found = {one.name: one for one in examine_cluster(settings, "127.0.0.1:5000/no-such-image:1")}
    if os.environ["KUBECONFIG"] != os.environ.get("ACCEL_CI_CLUSTER_ADMIN"):
        assert "may not get jobs, list jobs, create jobs" in found["rights"].state
        assert not found["rights"].usable
        assert not found["image pull"].usable
    own = {one.name: one for one in examine_cluster(cluster_settings(), "127.0.0.1:5000/no-such-image:1")}
    assert not own["image pull"].usable
    assert "no-such-image" in own["image pull"].state
