"""The Job of a Kubernetes pool as a document: pure functions from settings to a manifest.

A `batch/v1` Job with a `parallelism` and no `completions`: the work-queue pattern, in which a pod that fails is replaced and
one that succeeds means that the work is done. Kubernetes 1.20 has all that is used here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_ci.config.pod_template import SOURCES, WORKER, overlay
from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.pods import QUEUE_LABEL

MANAGED_BY = {"app.kubernetes.io/managed-by": "accel-ci"}
"""The label of everything that the pool creates, by which the janitor finds leftovers."""

RUN_LABEL = "accel-ci/run"  # the id of the Dagster run, or another name of the caller
ROUND_LABEL = "accel-ci/round"  # the name of the round's first Job, also on Jobs that were added later
PROJECT_LABEL = "accel-ci/project"  # the project, where several share a namespace
BUILD_ANNOTATION = "accel-ci/build"
PLAN_ANNOTATION = "accel-ci/plan"

OWN_FOLDER = "/accel-ci"  # the pod's own folder: the runner, the worker's scratch files, HOME and TMPDIR
GRACE_S = 30  # the time in which an ending pod may still send its events, in seconds
_ENTRY = Path(__file__).with_name("pod_entry.py")


@dataclass(frozen=True)
class JobRequest:
    """A Job to create.

    The folder `sources` and `folders` are mounted at their own paths, so that the driver's paths are valid in pods. They are
    empty; `sources` is filled before the worker starts, which can only read it. `cards` is how many each pod asks for.
    `errand_url` is a signed URL: whoever may read the Job's pods may use it.
    """

    name: str
    project: str
    round: str
    pods: int
    cards: int
    errand_url: str
    sources: str
    folders: tuple[str, ...]
    environment: Mapping[str, str]
    run: str = ""
    build: str = ""
    plan: str = ""


def job_name(project: str, run: str, round_name: str) -> str:
    """The name of a round's Job: the same for the same (project, run, round), so that a retried step finds it."""
    digest = hashlib.sha256("\n".join((project, run, round_name)).encode()).hexdigest()[:16]
    return f"accel-ci-{label(round_name).lower().replace('_', '-').replace('.', '-')[:24].strip('-')}-{digest}"


def label(text: str) -> str:
    """A text as a label value: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-_.")


def job_manifest(settings: KubernetesPoolSettings, request: JobRequest) -> dict[str, Any]:
    """The Job's manifest for the cluster."""
    run = {RUN_LABEL: label(request.run)} if request.run else {}
    labels = {**MANAGED_BY, PROJECT_LABEL: label(request.project), ROUND_LABEL: request.round, **run}
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    annotations = {BUILD_ANNOTATION: request.build, PLAN_ANNOTATION: request.plan}
    template = {"metadata": {"labels": {**labels}, "annotations": annotations}, "spec": _pod_spec(settings, request)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": request.name, "labels": {**labels, **queue}, "annotations": annotations},
        "spec": {
            "parallelism": request.pods,
            "backoffLimit": 6 + 4 * request.pods,
            "activeDeadlineSeconds": int(settings.queue_seconds + settings.round_seconds),
            "ttlSecondsAfterFinished": settings.keep_seconds,
            "template": _with_sources(overlay(template, settings.pod_template), settings, request),
        },
    }


def _pod_spec(settings: KubernetesPoolSettings, request: JobRequest) -> dict[str, Any]:
    folders = (OWN_FOLDER, *_by_depth(request.sources, *request.folders))
    optional = {
        "runtimeClassName": settings.runtime_class,
        "priorityClassName": settings.priority_class,
        "serviceAccountName": settings.service_account,
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in settings.tolerations],
        "imagePullSecrets": [{"name": settings.image_pull_secret}] if settings.image_pull_secret else [],
        "hostNetwork": settings.host_network,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "runAsGroup": settings.run_as_user,
            "fsGroup": settings.run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": WORKER,
                "image": settings.image,
                "command": [settings.python, "-u", "-c", _ENTRY.read_text("utf-8")],
                "env": _environment(request),
                "resources": _resources(settings, request.cards),
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    *(
                        {"name": f"folder-{index}", "mountPath": path, "readOnly": path == request.sources}
                        for index, path in enumerate(folders)
                    ),
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
                ],
            }
        ],
        "volumes": [
            *({"name": f"folder-{index}", "emptyDir": {}} for index, _ in enumerate(folders)),
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}},
        ],
        **{key: value for key, value in optional.items() if value},
    }


def _with_sources(template: dict[str, Any], settings: KubernetesPoolSettings, request: JobRequest) -> dict[str, Any]:
    """Add the container that unpacks the sources: it is the worker's, but may write them, and asks for no card."""
    spec = template["spec"]
    [worker] = spec["containers"]
    unpacks = {
        **worker,
        "name": SOURCES,
        "env": [*worker["env"], {"name": "ACCEL_CI_PART", "value": "sources"}],
        "resources": _resources(settings, 0),
        "volumeMounts": [{**mount, "readOnly": False} if mount["mountPath"] == request.sources else mount
                         for mount in worker["volumeMounts"]],
    }  # fmt: skip
    return {**template, "spec": {**spec, "initContainers": [*spec.get("initContainers", ()), unpacks]}}


def _environment(request: JobRequest) -> list[dict[str, Any]]:
    own = {"HOME": OWN_FOLDER, "TMPDIR": OWN_FOLDER, **request.environment, "ACCEL_CI_ERRAND_URL": request.errand_url}
    fields = {"ACCEL_CI_POD": "metadata.name", "ACCEL_CI_NODE": "spec.nodeName"}
    return [
        *({"name": name, "value": value.replace("$", "$$")} for name, value in own.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _resources(settings: KubernetesPoolSettings, cards: int) -> dict[str, Any]:
    card = {settings.resource: str(cards)} if cards else {}
    memory = {"memory": settings.memory} if settings.memory else {}
    cpu = {"cpu": settings.cpu} if settings.cpu else {}
    return {"limits": {**card, **memory}, "requests": {**card, **memory, **cpu}}


def _by_depth(*folders: str) -> list[str]:
    """Folders without doubles, outer ones first."""
    return sorted(set(folders))
