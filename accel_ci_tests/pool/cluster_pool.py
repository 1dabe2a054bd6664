"""The settings of a pool on the cluster that the environment names."""

from __future__ import annotations

import os
from typing import Any

import pytest

from accel_ci.config import KubernetesPoolSettings


def cluster_settings(**options: Any) -> KubernetesPoolSettings:
    """A pool of pods that use their node's network; skips the test where no cluster is named."""
    for name in ("KUBECONFIG", "ACCEL_CI_CLUSTER_IMAGE", "ACCEL_CI_CLUSTER_RESOURCE"):
        if not os.environ.get(name):
            pytest.skip(f"{name} is not set: the tests of the Kubernetes pool need a cluster")
    given = {
        "image": os.environ["ACCEL_CI_CLUSTER_IMAGE"],
        "resource": os.environ["ACCEL_CI_CLUSTER_RESOURCE"],
        "host_network": True,
    }
    return KubernetesPoolSettings(kind="kubernetes", **{**given, **options})
