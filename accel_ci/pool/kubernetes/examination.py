"""Look at a cluster as a person would before the first run: rights, cards, quotas, the clock, and whether nodes can pull.

Each finding says what to do about it. When a run begins, the pool checks less, in seconds (`KubernetesPool.check`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import ROUND_LABEL, JobRequest, job_manifest
from accel_ci.pool.kubernetes.pods import cards_of_nodes, pod_state

RIGHTS = (
    ("batch", "jobs", ("get", "list", "create", "patch", "delete")),
    ("", "pods", ("list", "delete")),
    ("", "pods/log", ("get",)),
    ("", "events", ("list",)),
)
"""The rights that the pool needs in its namespace, by API group and resource."""

MOST_SKEW_S = 60.0
"""A signed URL is refused when the clocks of its maker and of the store differ by 15 minutes; certificates earlier."""

_PULL_LIMIT_S = 180.0


@dataclass(frozen=True)
class Finding:
    """A part of the cluster, whether it will do, its state, and what to do if it will not."""

    name: str
    usable: bool
    state: str
    how: str


def examine_cluster(settings: KubernetesPoolSettings, image: str | None) -> Iterator[Finding]:
    """Look at the parts one by one. `image` is one that the nodes are to pull; without one, that is not tried."""
    cluster = Cluster(settings, patience_s=10)
    parts: Sequence[tuple[str, str, Callable[[], str]]] = (
        ("rights", "kubectl apply -f deploy/kubernetes/pool.yaml", lambda: _rights(cluster)),
        (
            "cards",
            "install the device plugin, or correct pool.resource and pool.node_selector",
            lambda: _cards(cluster, settings),
        ),
        ("quotas", "raise the quota, or set pool.cpu and pool.memory", lambda: _quotas(cluster, settings)),
        ("cluster's clock", "set the clocks of the nodes and of this machine, by NTP for instance", lambda: _clock(cluster)),
        (
            "image pull",
            "correct pool.image, image.registry or pool.image_pull_secret",
            lambda: _pull(cluster, settings, image),
        ),
    )
    for name, how, look in parts:
        try:
            yield Finding(name, True, look(), how)
        except PoolError as error:
            yield Finding(name, False, str(error), how)


def skew_s(date: str | None, asked_at: float, answered_at: float) -> float | None:
    """Return how many seconds another clock is ahead, by the `Date` of its answer; None without one (RFC 9110, 6.6.1)."""
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    return there + 0.5 - (asked_at + answered_at) / 2  # the header has whole seconds


def quota_problem(
    quotas: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]], settings: KubernetesPoolSettings
) -> str | None:
    """Return why the quotas of a namespace would refuse the pool's pods; None if they would not."""
    defaults = [one.get("defaultRequest") or {} for limit in limits for one in (limit["spec"].get("limits") or ())]
    for quota in quotas:
        hard, used = (quota.get("status") or {}).get("hard") or {}, (quota.get("status") or {}).get("used") or {}
        name = quota["metadata"]["name"]
        for resource, asked in (("cpu", settings.cpu), ("memory", settings.memory)):
            counts = {f"requests.{resource}", resource} & set(hard)
            if counts and asked is None and not any(resource in each for each in defaults):
                return f"the quota {name} counts {resource}, and pods ask for none: each would be refused"
        if "count/jobs.batch" in hard and used.get("count/jobs.batch") == hard["count/jobs.batch"]:
            return f"the quota {name} allows no further Job: {hard['count/jobs.batch']} are there"
    return None


def _rights(cluster: Cluster) -> str:
    missing = [
        f"{verb} {resource}" for group, resource, verbs in RIGHTS for verb in verbs if not cluster.may(verb, group, resource)
    ]
    if missing:
        raise PoolError(f"in the namespace {cluster.namespace}, this account may not {', '.join(missing)}")
    return f"all that the pool needs in the namespace {cluster.namespace}"


def _cards(cluster: Cluster, settings: KubernetesPoolSettings) -> str:
    nodes = cluster.nodes()
    if nodes is None:
        return "this account may not list nodes, so nobody knows their cards"
    cards = sum(cards_of_nodes(nodes, settings))
    if not cards:
        raise PoolError(f"no node that pool.node_selector matches has the resource {settings.resource}")
    taken = sum(_asked_for(pod, settings.resource) for pod in cluster.pods("") if pod_state(pod).end is None)
    return f"{cards} {settings.resource}; pods of this namespace have {taken} of them, and a build asks for {settings.cards}"


def _asked_for(pod: Mapping[str, Any], resource: str) -> int:
    containers = pod["spec"].get("containers") or ()
    return sum(int(((one.get("resources") or {}).get("limits") or {}).get(resource, 0)) for one in containers)


def _quotas(cluster: Cluster, settings: KubernetesPoolSettings) -> str:
    found = cluster.quotas_and_limits()
    if found is None:
        return "this account may not read them"
    quotas, limits = found
    if (problem := quota_problem(quotas, limits, settings)) is not None:
        raise PoolError(problem)
    shown = [
        f"{quota['metadata']['name']}: "
        + ", ".join(
            f"{((quota.get('status') or {}).get('used') or {}).get(what, '0')} of {most} {what}"
            for what, most in hard.items()
        )
        for quota in quotas
        if (hard := (quota.get("status") or {}).get("hard") or {})
    ]
    return "; ".join(shown) or "none"


def _clock(cluster: Cluster) -> str:
    asked_at = time.time()
    ahead = skew_s(cluster.date(), asked_at, time.time())
    if ahead is None:
        return "the API server does not tell its time"
    if abs(ahead) > MOST_SKEW_S:
        raise PoolError(f"the API server's is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}")
    return f"within {max(1.0, abs(ahead)):.0f} s of this machine's"


def _pull(cluster: Cluster, settings: KubernetesPoolSettings, image: str | None) -> str:
    """Start a pod that does nothing, without a card, and delete it."""
    if image is None:
        return "no build has made an image yet, and pool.image is not set"
    name = f"accel-ci-pull-{uuid.uuid4().hex[:12]}"
    request = JobRequest(name, "doctor", name, 1, 0, "", "/sources", (), {})
    manifest = job_manifest(settings.model_copy(update={"image": image, "python": "python3"}), request)
    spec = manifest["spec"]["template"]["spec"]
    spec["initContainers"], spec["containers"][0]["command"] = [], ["true"]
    began = time.monotonic()
    cluster.create_job(manifest)
    try:
        while time.monotonic() - began < _PULL_LIMIT_S:
            for state in map(pod_state, cluster.pods(f"{ROUND_LABEL}={name}")):
                if state.end is not None:
                    return f"{image}, in {time.monotonic() - began:.0f} s"
                if state.reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
                    raise PoolError(f"{image}: {state.waits}")
            if (why := cluster.refusal_of_pods(name)) is not None:
                raise PoolError(why)
            time.sleep(1)
    finally:
        cluster.delete_job(name)
    raise PoolError(f"a pod of {image} did not begin within {_PULL_LIMIT_S:.0f} s")
