"""A data folder with real manifests, artifacts, images, sources and rounds, as old as a test wants it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from accel_ci.config.settings import Project
from accel_ci.model import Build, CheckResult, Revision, RuntimeImage, Source, TestPlan, Trigger, Verdict, Wheel
from accel_ci.retention.disk import Pruned
from accel_ci.retention.prune import RevisionRegister, prune
from accel_ci.workspace import Workspace
from accel_ci_tests.hud.samples import ledger, results

NOW = datetime.now(timezone.utc)


@dataclass
class DataFolder:
    """A project's data folder, and the revisions that a stand-in for Dagster's instance knows."""

    project: Project
    busy: set[str] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)

    @property
    def home(self) -> Path:
        return self.project.home

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.project)

    def prune(self, *, dry_run: bool = False) -> list[Pruned]:
        register = RevisionRegister(lambda: self.busy, self.partitions.discard)
        return prune(self.workspace, register, NOW, dry_run=dry_run)

    def lay_build(self, days: int, *, green: bool = False, variant: str = "py3", trigger: Trigger = "nightly") -> Build:
        """Lay a build of a revision of its own, with everything that a run leaves."""
        workspace, sha = self.workspace, _sha(days)
        source = Source("repository", "HEAD", sha)
        revision = Revision(f"{trigger}-{days}", trigger, NOW - timedelta(days=days, minutes=1), source, source)
        manifests, artifacts, build = workspace.manifests, workspace.artifacts, Build(revision.key, variant)
        if manifests.revision(revision.key) is None:
            manifests.add_revision(revision)
        self.partitions.add(revision.key)
        name = f"{trigger}-{days}-{variant}"
        kept = {part: artifacts.put_bytes(f"{part} of {name}".encode(), f"{part}.bin") for part in _PARTS}
        wheel = Wheel("toy", "1", kept["wheel"], kept["sdist"], (CheckResult("c", True, ""),), False, 1.0)
        digest = kept["wheel"].sha256
        folder = workspace.images / digest[:16]
        python = folder / "bin" / "python"
        image = RuntimeImage("venv", str(python), digest, "3", "2", None, (), False, 1.0, sbom=kept["sbom"])
        stage = results((), 1.0)
        counts: dict[Verdict, int] = {"passed": 2} if green else {"passed": 1, "failed": 1}
        values = {
            "wheel": wheel,
            "runtime_image": image,
            "test_plan": TestPlan(kept["batches"], 38, 700, 12, 2, 601.0, 300.5),
            "device_test_results": replace(stage, expected=kept["expected"]),
            "ledger": ledger(counts, build=build),
        }
        for asset, value in values.items():
            manifests.write(manifests.path(asset, build.revision, build.variant), value)
        manifests.write(folder / "image.json", image)
        manifests.write(workspace.wheel_cache / f"{digest}.json", wheel)
        for path in (
            python,
            self.home / "sources" / f"{source.label}-{'a' * 12}" / "setup.py",
            self.home / "rbe" / "sources" / f"{source.label}-{'a' * 12}-{'b' * 12}" / "BUILD",
            self.home / "runs" / build.revision / build.variant / "device" / "events.ndjson",
            self.home / "results" / name,
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return build

    def age(self, days: float = 2) -> None:
        """Make everything on disk that much older, the symbolic links apart."""
        for path in self.home.rglob("*"):
            if not path.is_symlink():
                os.utime(path, (path.stat().st_mtime - days * 86_400,) * 2)

    def left(self, build: Build) -> set[str]:
        """The remains of a build."""
        manifests, artifacts = self.workspace.manifests, self.workspace.artifacts
        sha = _sha(int(build.revision.rpartition("-")[2]))
        name = f"{build.revision}-{build.variant}"
        digest = _digest(f"wheel of {name}")
        there = {
            "build": manifests.path("ledger", build.revision, build.variant),
            "revision": manifests.path("revision", build.revision),
            "image": self.workspace.images / digest[:16] / "bin" / "python",
            "cached wheel": self.workspace.wheel_cache / f"{digest}.json",
            "sources": self.home / "sources" / f"g{sha[:12]}-{'a' * 12}" / "setup.py",
            "patched sources": self.home / "rbe" / "sources" / f"g{sha[:12]}-{'a' * 12}-{'b' * 12}" / "BUILD",
            "rounds": self.home / "runs" / build.revision / build.variant / "device" / "events.ndjson",
            "attempts": self.home / "results" / name,
        }
        found = {what for what, path in there.items() if path.exists()}
        for part in _PARTS:
            content = f"{part} of {name}"
            place = artifacts.root / _digest(content)[:2] / _digest(content) / f"{part}.bin"
            found |= {f"{part} artifact"} if place.is_file() else set()
        return found | ({"partition"} if build.revision in self.partitions else set())


_PARTS = ("wheel", "sdist", "sbom", "expected", "batches")
RESULTS = {"build", "revision", "attempts", "partition", "expected artifact", "batches artifact"}
WHOLE = RESULTS | {
    "image", "cached wheel", "sources", "patched sources", "rounds", "wheel artifact", "sdist artifact", "sbom artifact",
}  # fmt: skip
GONE = {"attempts"}


def _sha(days: int) -> str:
    return f"{days:012d}".ljust(40, "a")


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
