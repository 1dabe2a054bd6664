"""Find and take everything that no kept build refers to: images, sources, cached wheels and artifacts.

Every SHA-256 digest in the text of a manifest counts as a reference, so manifests of any version, and damaged ones, keep
what they need. Things without a reference go once nobody has used them for a day: a running build may be about to refer
to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from accel_ci.docker.client import ask_docker
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, RuntimeImage
from accel_ci.retention.disk import Pruned, Remover
from accel_ci.retention.rules import Extent
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

_DIGEST = re.compile(r"[0-9a-f]{64}")
_IMAGE = re.compile(r"(docker-)?([0-9a-f]{16})(?(1)\.json|(\.changed)?)")
_HEAVY = ("wheel.json", "runtime_image.json", "source_build.json")
"""The manifests of large things, which go earlier than the results of their build."""

_INDEX_ARTIFACT = "bazel-targets.json"
"""An artifact that refers to further artifacts."""


def take_unreferenced(workspace: Workspace, remover: Remover, extents: Mapping[Build, Extent | None]) -> None:
    """Take everything that no kept build refers to. `extents` is how much of each build is kept; other builds are new.

    Raises `AccelCiError` when a manifest cannot be read, because its references are unknown then.
    """
    results, whole = _mentioned_by_builds(workspace.manifests, extents)
    _take_images(remover, workspace.manifests, whole)
    _take_sources(remover, workspace.manifests, extents)
    for entry in remover.entries("cache", "wheels"):
        path = Path(entry.path)
        if path.suffix == ".json" and remover.unused(path) and not whole & _digests(path):
            remover.take("cached wheel", path)
    for name in remover.folders("cache", "stack"):
        path = remover.home / "cache" / "stack" / name
        if name not in {digest[:16] for digest in whole}:
            remover.take_unused("component of the stack", path, path / "component.json", path.with_suffix(".lock"))
    gone = {remover.home / item.name for item in remover.account}
    caches = ("quality/*.json", "images/*.json", "images/[!.]*/*.json", "cache/wheels/*.json", "cache/stack/*/archive.json")
    files = (file for pattern in caches for file in remover.home.glob(pattern))
    results |= _digests(*(file for file in files if gone.isdisjoint((file, file.parent))))
    _take_artifacts(remover, workspace.artifacts, results | whole)


def _mentioned_by_builds(manifests: ManifestStore, extents: Mapping[Build, Extent | None]) -> tuple[set[str], set[str]]:
    """The digests that the manifests of kept builds mention: for their results, and for builds that are kept whole."""
    results = _digests(*manifests.builds.glob("*/*.json"))
    whole: set[str] = set()
    for file in manifests.builds.glob("*/*/*.json"):
        revision, variant = file.parts[-3:-1]
        hidden = revision.startswith(".") or variant.startswith(".")
        extent = None if hidden else extents.get(Build(revision, variant), "whole")
        if extent == "whole":
            whole |= _digests(file)
        elif extent == "results" and file.name not in _HEAVY:
            results |= _digests(file)
    return results, whole


def _digests(*files: Path) -> set[str]:
    """Every SHA-256 digest in the text of files; a file that is gone has none."""
    found: set[str] = set()
    for file in files:
        try:
            found.update(_DIGEST.findall(file.read_bytes().decode("latin-1")))
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown = f"so it is not known what it refers to: {error.strerror}; nothing more is pruned"
            raise AccelCiError(f"{file} cannot be read, {unknown}") from error
    return found


def _take_images(remover: Remover, manifests: ManifestStore, whole: set[str]) -> None:
    """Take virtual environments, and Docker images with the records of them."""
    mentioned = {digest[:16] for digest in whole}
    for entry in remover.entries("images"):
        match, path = _IMAGE.fullmatch(entry.name), Path(entry.path)
        if match is None or match[2] in mentioned:
            continue
        if not match[1]:
            remover.take_unused("image", path, path / "image.json", path.with_suffix(".lock"))
            continue
        with remover.free([path.with_suffix(".lock")]) as free:
            if free and remover.unused(path) and _take_docker_images(remover, manifests, path):
                remover.take("image", path)


def _take_docker_images(remover: Remover, manifests: ManifestStore, record: Path) -> bool:
    """Remove the images of a record that the engine has with our label. Returns False if one is left."""
    try:
        image = manifests.read(record, RuntimeImage)
    except AccelCiError:
        return True
    ours = ["image", "ls", "--no-trunc", "--quiet", "--filter", f"label=accel-ci.content={image.digest}"]
    gone = True
    for container in image.containers:
        name, size = container.reference, container.size_bytes
        try:
            if container.id not in ask_docker(ours, "list images").split():
                continue
            if not remover.dry_run:
                ask_docker(["image", "rm", container.id], f"remove {name}")
            remover.record(Pruned("Docker image", name, size))
        except (AccelCiError, OSError) as error:  # no client, no answer, or an image in use
            remover.record(Pruned("Docker image", name, 0, str(error)))
            gone = False
    return gone


def _take_sources(remover: Remover, manifests: ManifestStore, extents: Mapping[Build, Extent | None]) -> None:
    """Take checkouts, and their patched copies, of source states that no build kept whole has."""
    labels = []
    for key in (revision.key for revision in manifests.revisions()):
        builds = manifests.builds_of(key)
        if not builds or any(extents.get(build, "whole") == "whole" for build in builds):
            try:
                revision = manifests.revision(key)
            except AccelCiError:
                return  # it is not known which sources it has
            sources = (revision.backend, revision.upstream, *revision.stack.values()) if revision else ()
            labels += [f"{source.label}-" for source in sources]
    for parts in (("sources",), ("rbe", "sources")):
        for name in remover.folders(*parts):
            path = remover.home.joinpath(*parts, name)
            record = path.with_name(f"{name}.json")
            unnamed = not name.startswith(tuple(labels))
            if unnamed and remover.take_unused("sources", path, record, path.with_name(f".{name}.lock")):
                remover.take("sources", record)


def _take_artifacts(remover: Remover, artifacts: ArtifactStore, mentioned: set[str]) -> None:
    """Take the artifacts that nothing mentions, by mark and sweep."""
    named = ((digest, artifacts.root / digest[:2] / digest / _INDEX_ARTIFACT) for digest in mentioned)
    marked = mentioned | _digests(*(index for _, index in named if index.is_file()))
    for shard in remover.folders("artifacts"):
        for digest in remover.folders("artifacts", shard):
            folder = artifacts.root / shard / digest
            if digest in marked or not _DIGEST.fullmatch(digest):
                continue
            with artifacts.lock():
                if all(remover.unused(file) for file in folder.iterdir()):
                    remover.take("artifact", folder)
