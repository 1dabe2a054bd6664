"""Build images with Buildah, which needs neither an engine nor privileges: in a pod, say.

Images leave it through the registry, and are read there. Its layers are kept in the storage of its user, and in a repository
if one is given for them, since a pod begins with an empty storage.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_ci.errors import BuildError
from accel_ci.images.builder import Built
from accel_ci.images.contents import ImageContents
from accel_ci.images.registry import find_image, is_there, read_image
from accel_ci.model import ImageLayer
from accel_ci.process.run import Finished, run_tool
from accel_ci.storage.scratch_folder import scratch_folder

_CALL_LIMIT_S = 300.0
_PUSH_LIMIT_S = 3600.0


class BuildahBuilder:
    """The program `buildah` on PATH, with the storage of this process's user."""

    def __init__(self, cache: str | None = None) -> None:
        """`cache` is a repository for layers."""
        self._cache = ["--cache-from", cache, "--cache-to", cache] if cache else []

    def has(self, references: Sequence[str]) -> bool:
        """See `ImageBuilder`. Who runs the images takes them from the registry."""
        return all(map(is_there, references))

    def build(self, context: Path, target: str, labels: Mapping[str, str], secrets: Sequence[str], limit_s: float) -> Built:
        """See `ImageBuilder`. Labels are a step apart, since Buildah has no eye for them where all steps are cached."""
        options = ["--layers", *self._cache, "--target", target, *secrets]
        built = _build(context, context / "Dockerfile", options, target, limit_s)
        if not labels:
            return built
        words = " ".join(f"{_quoted(name)}={_quoted(value)}" for name, value in labels.items())
        file = context.with_name(f"{target}.labels")
        file.write_text(f"FROM {built.id}\nLABEL {words}\n")
        labelled = _build(context, file, ["--layers", "--pull-never"], target, limit_s)
        return Built(labelled.id, built.steps)

    def run(self, image: str, command: Sequence[str], limit_s: float) -> Finished:
        """See `ImageBuilder`. The network is that of this process."""
        container = _ask(["from", "--pull-never", image], f"make a container of {image}")
        try:
            return run_buildah(["run", container, "--", *command], timeout_s=limit_s)
        finally:
            run_buildah(["rm", container], timeout_s=_CALL_LIMIT_S)

    def push(self, image: str, name: str) -> str:
        """See `ImageBuilder`."""
        return f"{name.rpartition(':')[0]}@{_push(image, name)}"

    def remove(self, images: Sequence[str]) -> None:
        """See `ImageBuilder`."""
        for image in images:
            run_buildah(["rmi", "--force", image], timeout_s=_CALL_LIMIT_S)

    def measure(self, image: str, reference: str) -> tuple[int, tuple[ImageLayer, ...]]:
        """See `ImageBuilder`."""
        layers = read_image(find_image(reference)).layers
        return sum(layer.size_bytes for layer in layers), tuple(layer for layer in layers if layer.size_bytes)

    def read(self, image: str, reference: str) -> ImageContents:
        """See `ImageBuilder`."""
        return read_image(find_image(reference))


def run_buildah(arguments: Sequence[str], *, timeout_s: float) -> Finished:
    """Run Buildah; the caller judges the status. Raises `BuildError` if it is not installed, or at the limit.

    Without other wishes in the environment, it isolates by chroot and stores by overlay: both need no privilege.
    """
    program = shutil.which("buildah")
    if program is None:
        raise BuildError("there is no `buildah` on PATH; install it, or set image.builder.kind to docker")
    environment = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay", **os.environ}
    return run_tool([program, *arguments], timeout_s=timeout_s, environment=environment)


def buildah_version() -> str:
    """Check that Buildah can work here, and return its version. Raises `BuildError`."""
    report = _ask(["info"], "look at its storage")
    driver = json.loads(report[report.index("{") :])["store"]["GraphDriverName"]
    version = _ask(["--version"], "tell its version").split()[2]
    return f"Buildah {version}, storage by {driver}"


def _build(context: Path, file: Path, options: Sequence[str], target: str, limit_s: float) -> Built:
    identity = context.with_name(f"{target}.id")
    command = ["build", "--file", str(file), "--iidfile", str(identity), *options, str(context)]
    done = run_buildah(command, timeout_s=limit_s)
    if done.status != 0:
        raise BuildError(f"the target {target} of the image cannot be built by Buildah:\n{done.tail}{_advice(done)}")
    return Built(identity.read_text().strip(), steps_of(done.output))


def _advice(done: Finished) -> str:
    denied = r"(?i)(newuidmap|user namespace|unshare|clone).*(not permitted|denied|invalid)|insufficient UIDs"
    advice = "let this user make user namespaces, with a range in /etc/subuid and /etc/subgid; see docs/deployment.md"
    return f"\n{advice}" if re.search(denied, done.output) else ""


def steps_of(progress: str) -> dict[str, bool]:
    """Map each step that Buildah reports to whether it was cached; base images are not steps.

    A step that copies from a stage is reported before the steps of that stage, and its cache after them.
    """
    found: dict[str, bool] = {}
    begun: list[str] = []
    for line in progress.splitlines():
        if match := re.match(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (?!FROM )(.*)", line):
            begun.append(match[1])
            found.setdefault(match[1], False)
        elif line.startswith(("--> Using cache", "--> Cache pulled")) and begun:
            found[begun.pop()] = True
    return found


def _push(image: str, name: str) -> str:
    """Push an image, and return the digest of its manifest. Raises `BuildError`."""
    with scratch_folder("push") as scratch:
        file = scratch / "digest"
        _ask(["push", "--quiet", "--digestfile", str(file), image, f"docker://{name}"], f"push {name}", _PUSH_LIMIT_S)
        return file.read_text().strip()


def _ask(arguments: Sequence[str], what: str, limit_s: float = _CALL_LIMIT_S) -> str:
    """Return what Buildah prints. Raises `BuildError` that it could not do `what`, with the reason."""
    done = run_buildah(arguments, timeout_s=limit_s)
    if done.status != 0:
        raise BuildError(f"Buildah could not {what}: {done.tail}{_advice(done)}")
    return done.output.strip()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("$", "\\$")
