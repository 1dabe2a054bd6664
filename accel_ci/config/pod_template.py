"""The pod template of a Kubernetes pool: check what a user adds to the pods, and overlay it on the pool's own template.

Pure functions on plain documents. The pool's own template is in `accel_ci.pool.kubernetes.job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accel_ci.config.section import Mistake, as_mapping, as_sequence

WORKER = "worker"
"""The name of the container that runs tests."""

SOURCES = "accel-ci-sources"
"""The name of the container that unpacks the sources before, which the worker can only read."""

_RESERVED = {
    "restartPolicy": "it must be Never, because the Job replaces pods that end",
    "activeDeadlineSeconds": "use pool.round_seconds",
    "automountServiceAccountToken": "tests must not have the cluster's credentials",
    "ephemeralContainers": "a pod cannot be created with them",
}
_RESERVED_OF_WORKER = {
    "command": "the pool starts the runner",
    "args": "the pool starts the runner",
    "image": "use pool.image",
}
_HARMLESS = (
    "affinity", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "nodeSelector", "priorityClassName",
    "runtimeClassName", "schedulerName", "tolerations", "topologySpreadConstraints",
)  # fmt: skip
_HARMLESS_OF_WORKER = ("name", "imagePullPolicy")
_COMMON_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_MERGED_BY = {**dict.fromkeys(("containers", "env", "volumes", "imagePullSecrets"), "name"), "volumeMounts": "mountPath"}
_REPLACED = frozenset({"env", "volumes"})


def template_mistakes(template: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find the mistakes in a raw pod template; yields each place with a description."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield (key,), "a pod template has the keys 'metadata' and 'spec'"
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
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
                    yield ("metadata", key, name), "is reserved for the pool"
    for key, why in _RESERVED.items():
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
        where = ("spec", "containers", index)
        if not isinstance(container, dict) or container.get("name") != WORKER:
            yield where, f"only the container named {WORKER!r} can be changed: a pod with a second one would never end"
            continue
        for key, why in _RESERVED_OF_WORKER.items():
            if key in container:
                yield (*where, key), f"cannot be set here: {why}"
        yield from _list_mistakes(container, "volumeMounts", "mountPath", (*where, "volumeMounts"))
        yield from _list_mistakes(container, "env", "name", (*where, "env"))
        for place, entry in enumerate(as_sequence(container.get("env"))):
            if str(as_mapping(entry).get("name")).startswith("ACCEL_CI_"):
                yield (*where, "env", place), "is reserved for the pool"


def _list_mistakes(mapping: Mapping[str, Any], key: str, by: str, where: tuple[str | int, ...]) -> Iterator[Mistake]:
    entries = mapping.get(key, [])
    if not isinstance(entries, list):
        yield where, "must be a list"
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get(by), str):
            yield (*where, index), f"must be a mapping with the key {by!r}"


def harmless_part(template: Mapping[str, Any], is_harmless: Callable[[str, str], bool]) -> dict[str, Any]:
    """Return what code that nobody has reviewed may have of a template: where its pods run, not what they get or may do.

    Left out are volumes, rights, annotations (some clusters give roles by them), the node's namespaces, other containers and
    special resources. Of the worker's variables, those with a value stay that `is_harmless` by name and value.
    """
    spec = as_mapping(template.get("spec"))
    part = {key: spec[key] for key in _HARMLESS if key in spec}
    workers = []
    for worker in as_sequence(spec.get("containers")):
        own = {key: worker[key] for key in _HARMLESS_OF_WORKER if key in worker}
        resources = {
            kind: {name: amount for name, amount in as_mapping(amounts).items() if name in _COMMON_RESOURCES}
            for kind, amounts in as_mapping(worker.get("resources")).items()
            if kind in ("limits", "requests")
        }
        variables = [entry for entry in worker.get("env", ()) if is_harmless(entry["name"], str(entry.get("value", "")))]
        env = [entry for entry in variables if entry.keys() <= {"name", "value"}]
        workers.append({**own, "resources": resources, "env": env})
    labels = as_mapping(as_mapping(template.get("metadata")).get("labels"))  # network policies select pods by them
    return {"metadata": {"labels": labels}, "spec": {**part, "containers": workers}}


def overlay(base: Any, over: Any, key: str = "") -> Any:
    """Overlay `over` on `base`: mappings key by key, lists of named entries by name; everything else is replaced.

    A variable or a volume is replaced as a whole: it has one source, and Kubernetes refuses a second one.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        merged = dict(base)
        for name, value in over.items():
            merged[name] = overlay(base[name], value, name) if name in base else value
        return merged
    if isinstance(base, list) and isinstance(over, list):
        if key == "tolerations":
            return [*base, *over]
        if (by := _MERGED_BY.get(key)) is not None:
            mine = {entry[by]: entry for entry in base}
            for entry in over:
                mine[entry.get(by)] = entry if key in _REPLACED else overlay(mine.get(entry.get(by), {}), entry)
            return list(mine.values())
    return over
