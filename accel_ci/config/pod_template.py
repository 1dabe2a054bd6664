"""What a person may add to the pods of a Kubernetes pool: the check of it, and laying it over what the pool makes itself.

Pure functions on plain documents. What the pool makes itself is in `accel_ci.pool.kubernetes.job`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WORKER = "worker"
"""The name of the one container that runs tests."""

_OURS = {
    "restartPolicy": "a pod that ends is replaced by its Job, so it must be Never",
    "activeDeadlineSeconds": "use pool.round_seconds",
    "automountServiceAccountToken": "tests must not have the cluster's credentials",
    "ephemeralContainers": "a pod cannot be made with them",
}
_OURS_OF_WORKER = {
    "command": "the pool starts the runner",
    "args": "the pool starts the runner",
    "image": "use pool.image",
}
_MERGED_BY_NAME = frozenset({"containers", "env", "volumes", "imagePullSecrets"})
_MERGED_BY_PATH = frozenset({"volumeMounts"})
_REPLACED = frozenset({"env", "volumes"})


def template_mistakes(template: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The places of a raw pod template that the pool cannot work with, each with what is wrong."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield (key,), "a pod template has the keys 'metadata' and 'spec'"
    metadata = template.get("metadata", {})
    spec = template.get("spec", {})
    for name, value in (("metadata", metadata), ("spec", spec)):
        if not isinstance(value, dict):
            yield (name,), "must be a mapping"
            return
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield ("metadata", key), "only 'labels' and 'annotations' can be added"
        elif not isinstance(value, dict) or not all(isinstance(part, str) for part in (*value, *value.values())):
            yield ("metadata", key), "must be a mapping of text to text"
        else:
            for name in value:
                if name.startswith("accel-ci/") or name in ("job-name", "controller-uid"):
                    yield ("metadata", key, name), "is the pool's own"
    for key, why in _OURS.items():
        if key in spec:
            yield ("spec", key), f"cannot be set here: {why}"
    for key in ("volumes", "imagePullSecrets"):
        yield from _list_mistakes(spec, key, "name", ("spec", key))
    if not isinstance(spec.get("tolerations", []), list):
        yield ("spec", "tolerations"), "must be a list"
    containers = spec.get("containers", [])
    if not isinstance(containers, list):
        yield ("spec", "containers"), "must be a list"
        return
    for index, container in enumerate(containers):
        if not isinstance(container, dict) or container.get("name") != WORKER:
            yield (
                ("spec", "containers", index),
                f"only the container named {WORKER!r} can be changed: a pod with another would never end",
            )
            continue
        for key, why in _OURS_OF_WORKER.items():
            if key in container:
                yield ("spec", "containers", index, key), f"cannot be set here: {why}"
        yield from _list_mistakes(container, "volumeMounts", "mountPath", ("spec", "containers", index, "volumeMounts"))
        env = ("spec", "containers", index, "env")
        yield from _list_mistakes(container, "env", "name", env)
        for place, entry in enumerate(container["env"] if isinstance(container.get("env"), list) else []):
            if isinstance(entry, dict) and str(entry.get("name")).startswith("ACCEL_CI_"):
                yield (*env, place), "is the pool's own"


def _list_mistakes(
    mapping: Mapping[str, Any], key: str, by: str, where: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    entries = mapping.get(key, [])
    if not isinstance(entries, list):
        yield where, "must be a list"
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get(by), str):
            yield (*where, index), f"must be a mapping with the key {by!r}"


def lay_over(base: Any, over: Any, key: str = "") -> Any:
    """`over` laid over `base`: mappings key by key, lists of named things by name, all else replaced.

    A variable or a volume is replaced whole: it has one source, and a second beside it would be refused.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        merged = dict(base)
        for name, value in over.items():
            merged[name] = lay_over(base[name], value, name) if name in base else value
        return merged
    if isinstance(base, list) and isinstance(over, list):
        if key == "tolerations":
            return [*base, *over]
        by = "name" if key in _MERGED_BY_NAME else "mountPath" if key in _MERGED_BY_PATH else None
        if by is not None:
            mine = {entry[by]: entry for entry in base}
            for entry in over:
                mine[entry.get(by)] = entry if key in _REPLACED else lay_over(mine.get(entry.get(by), {}), entry)
            return list(mine.values())
    return over
