"""Build the components of the software stack in order, and keep what they install as one archive.

A component is built in its folder below the cache: `sources/` is its built tree, in which its tests run, and
`prefix/` has what it and the components before it have installed. The folder is named after everything that the build
depends on, so that the same sources after the same components are built once. Testing is in `accel_ci.stack.unit_tests`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import shlex
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.settings import Project
from accel_ci.config.stack_settings import Component, Stack
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.model import Artifact, SoftwareStack, Source, StackComponent
from accel_ci.process.own_user import OwnUser
from accel_ci.process.run import Finished
from accel_ci.progress import Step
from accel_ci.source.checkout import checkout_root
from accel_ci.source.revision import checkout_component, is_trusted_ref
from accel_ci.storage.archive import TarError, unpack
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.sealed_folder import changes, in_short, seal
from accel_ci.wheels.uv_environment import PackageSource, run_code

_LOG = logging.getLogger(__name__)
_ARTIFACT = TypeAdapter(Artifact)
_RECORD, _ARCHIVE, _SEAL = "component.json", "archive.json", ".seal"
_NOT_SEALED = ("sources", _RECORD, _ARCHIVE)
_UNPACKED_LIMIT = 1 << 36
_NO_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""For commands, whose byte code would change what other components have installed."""


@dataclass(frozen=True)
class BuiltComponent:
    """The folder of a component's build, which `lock_file` guards. `packages` say what code of the sources sees."""

    component: Component
    folder: Path
    packages: PackageSource

    @property
    def sources(self) -> Path:
        """The built tree."""
        return self.folder / "sources"

    @property
    def prefix(self) -> Path:
        """The folder of what the component and those before it have installed."""
        return self.folder / "prefix"

    @property
    def record(self) -> Path:
        """The file that is written last: without it, the build is not complete. Its time is that of the last use."""
        return self.folder / _RECORD

    @property
    def lock_file(self) -> Path:
        """The lock of the folder."""
        return self.folder.with_name(f"{self.folder.name}.lock")

    @contextmanager
    def lent_sources(self) -> Iterator[None]:
        """Have the user that code runs as own the tree while commands of the component run, and not afterwards."""
        user = self.packages.user
        if user is None:
            yield
            return
        user.give(self.sources)
        try:
            yield
        finally:
            OwnUser(os.getuid(), os.getgid()).give(self.sources)

    def run(self, command: Sequence[str], extra: Mapping[str, str] | None = None) -> Finished:
        """Run a command of the component in its sources. Raises `BuildError` at its limit, and if it is not installed."""
        own = {**_NO_BYTE_CODE, **(extra or {}), **self.component.environment}
        environment = {name: self._placed(value) for name, value in own.items()}
        words = [self._placed(word) for word in command]
        try:
            with scratch_folder("stack") as scratch:
                scratch.chmod(0o711)
                return run_code(
                    words, self.packages, scratch / "home", timeout_s=self.component.timeout_seconds, folder=self.sources,
                    extra=environment,
                )  # fmt: skip
        except FileNotFoundError:
            raise BuildError(f"{words[0]} is not installed, or is no program; install it, or correct the command") from None

    def _placed(self, text: str) -> str:
        return text.replace("{prefix}", str(self.prefix))


def build_stack(
    project: Project,
    stack: Stack,
    sources: Mapping[str, Source],
    packages: PackageSource,
    artifacts: ArtifactStore,
    cache: Path,
    step: Step,
) -> SoftwareStack:
    """Build the components at their states below the folder `cache`, or take the builds of the same inputs.

    Raises `BuildError` if a command fails, or if nothing is installed at the end, and `SourceError`.
    """
    started, before, made = time.monotonic(), "", []
    step.total(len(stack.components))
    cache.mkdir(parents=True, exist_ok=True)
    last: BuiltComponent | None = None
    for component in stack.components:
        if (source := sources.get(component.name)) is None:
            raise BuildError(
                f"the revision has no state of the component {component.name}, which was configured after it was resolved; "
                "start a new run"
            )
        key = component_key(component, source, before)
        place = component_place(component, key, cache, packages)
        began = time.monotonic()
        with FileLock(place.lock_file):
            reused = _is_complete(place)
            if not reused:
                _build(place, checkout_component(project, component, source), last, source)
        work_s = 0.0 if reused else round(time.monotonic() - began, 3)
        made.append(StackComponent(component.name, source, key, reused, work_s))
        step.advance(f"{component.name} {source.label}{' (reused)' if reused else ''}")
        before, last = key, place
    if last is None or not any(path.is_file() for path in last.prefix.rglob("*")):
        raise BuildError("the components of the stack install no file; let their build commands install into {prefix}")
    with FileLock(last.lock_file):
        archive = _archive(last, artifacts)
    environment = {name: value.replace("{stack}", str(last.prefix)) for name, value in stack.environment.items()}
    content = json.dumps([archive.sha256, str(last.prefix), environment], sort_keys=True)
    digest, work_s = hashlib.sha256(content.encode()).hexdigest(), round(time.monotonic() - started, 3)
    return SoftwareStack(tuple(made), archive, digest, str(last.prefix), environment, work_s)


def component_key(component: Component, source: Source, before: str) -> str:
    """Name a component's build by what it depends on: its sources and commands, and the key of the component `before`.

    A pull request of the component, and what comes after it, is built apart, and built anew once it is merged.
    """
    settings = component.model_dump(mode="json", include={"name", "build", "environment", "submodules", "lfs"})
    inputs = [settings, source.repository, source.tree or source.sha, source.label, before]
    inputs += [] if is_trusted_ref(source.ref, component.ref) else ["not trusted"]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def component_place(component: Component, key: str, cache: Path, packages: PackageSource) -> BuiltComponent:
    """Return where the build of a component with this key is, or will be."""
    return BuiltComponent(component, cache.absolute() / key[:16], packages)


def bring_stack(stack: SoftwareStack, artifacts: ArtifactStore) -> None:
    """Have the files of a stack in its prefix: from the archive where they were pruned, or another machine built them.

    Raises `AccelCiError` if the archive is gone or damaged, or has a link that leads out of it.
    """
    prefix = Path(stack.prefix)
    prefix.parent.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{prefix.parent}.lock"):
        if not prefix.is_dir():
            prefix.parent.mkdir(exist_ok=True)
            with (
                artifacts.checked_path(stack.archive).open("rb") as archive,
                scratch_folder("stack", prefix.parent) as scratch,
            ):
                try:
                    unpack(archive, scratch / "prefix", limit=_UNPACKED_LIMIT)
                except TarError as error:
                    advice = "run the build with `--again`, and let components install relative links"
                    raise BuildError(f"the stack cannot be restored from {stack.archive.name}: {error}; {advice}") from None
                (scratch / "prefix").rename(prefix)


def _is_complete(place: BuiltComponent) -> bool:
    """Return whether a component was built and nothing has changed what it has installed since."""
    if not place.record.is_file():
        return False
    if changed := changes(place.folder, _SEAL, leave_out=_NOT_SEALED):
        _LOG.warning("the component %s is built anew: %s", place.component.name, in_short(changed))
        return False
    os.utime(place.record)  # `prune` leaves what was used in the last day
    return True


def _build(place: BuiltComponent, checkout: Path, before: BuiltComponent | None, source: Source) -> None:
    user = place.packages.user
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir()
    shutil.copytree(checkout_root(checkout), place.sources, symlinks=True)
    if before is None:
        place.prefix.mkdir()
    else:
        shutil.copytree(before.prefix, place.prefix, symlinks=True)
    if user is not None:
        user.give(place.prefix)
    with place.lent_sources():
        _run_build(place, source)
    seal(place.folder, _SEAL, leave_out=_NOT_SEALED)
    write_whole_file(place.record, json.dumps({"name": place.component.name, "source": source.label}).encode())


def _run_build(place: BuiltComponent, source: Source) -> None:
    component = place.component
    for command in component.build:
        shown = shlex.join(command)[:200]
        try:
            done = place.run(command)
        except BuildError as error:
            raise BuildError(f"the component {component.name} at {source.label} cannot be built: {shown}: {error}") from None
        if done.status != 0:
            raise BuildError(
                f"the component {component.name} at {source.label} cannot be built: {shown} ended with the status "
                f"{done.status}:\n{done.tail}\nCorrect its sources, or its build commands in the section 'stack'"
            )


def _archive(place: BuiltComponent, artifacts: ArtifactStore) -> Artifact:
    """Keep the installed files as an archive whose digest depends on their names, permissions and content alone."""
    record = place.folder / _ARCHIVE
    try:
        known = _ARTIFACT.validate_json(record.read_bytes())
        artifacts.checked_path(known)
        artifacts.mark_used(known)
    except (OSError, ValueError, AccelCiError):
        with scratch_folder("stack") as scratch:
            file = scratch / "stack.tar.gz"
            write_archive(place.prefix, file)
            known = artifacts.put(file)
        write_whole_file(record, _ARTIFACT.dump_json(known))
    return known


def write_archive(folder: Path, file: Path) -> None:
    """Write the files, links and folders of a folder, in the order of their names, without times and owners."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry if (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()) else None

    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=plain)
