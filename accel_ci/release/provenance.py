"""The provenance of a build's wheels and image: an in-toto statement with a SLSA provenance, version 1.

https://in-toto.io/Statement/v1 and https://slsa.dev/spec/v1.0/provenance. It states what the manifests have, and is not
signed: who trusts the store that it comes from trusts it.
"""

from __future__ import annotations

import json
from datetime import datetime
from importlib.metadata import version
from typing import Any

from accel_ci.model import Build, Revision, RuntimeImage, Source, Wheel

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
MEDIA_TYPE = "application/vnd.in-toto+json"


def provenance(
    build: Build, revision: Revision, wheel: Wheel, image: RuntimeImage | None, builder: str, ended: datetime | None
) -> bytes:
    """Return the statement on a build's wheels, and on its image where that is in a registry; `builder` is its address."""
    subjects = [{"name": each.name, "digest": {"sha256": each.sha256}} for each in wheel.wheels]
    if image is not None and (container := image.container("runtime")) is not None and "@sha256:" in container.reference:
        name, _, digest = container.reference.partition("@sha256:")
        subjects.append({"name": name, "digest": {"sha256": digest}})
    sources = [_dependency(each) for each in (revision.backend, revision.upstream, *revision.stack.values())]
    dependencies = [each for each in sources if each is not None]
    if wheel.built_in != "host":
        name, _, digest = wheel.built_in.partition("@sha256:")
        dependencies.append({"name": "builder", "uri": f"docker://{name}", "digest": {"sha256": digest}})
    metadata = {"invocationId": build.name, "startedOn": _time(revision.created_at)}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PROVENANCE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:accel-ci:build:1",
                "externalParameters": {
                    "revision": revision.key, "variant": build.variant, "trigger": revision.trigger,
                    "backend": {"ref": revision.backend.ref, "subdirectory": revision.backend.subdirectory},
                },
                "internalParameters": {"patches": list(wheel.patches), "torch": wheel.torch},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"accel-ci": version("accel-ci")}},
                "metadata": metadata | ({"finishedOn": _time(ended)} if ended is not None else {}),
            },
        },
    }  # fmt: skip
    return json.dumps(statement, indent=1, sort_keys=True).encode()


def _dependency(source: Source) -> dict[str, Any] | None:
    if source.sha is None:
        return None
    return {"uri": f"git+{source.repository}@{source.ref}", "digest": {"gitCommit": source.sha}}


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
