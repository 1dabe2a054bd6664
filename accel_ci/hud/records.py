"""The manifests and tests of builds as the page's decisions need them. Plain data, filled in by `gather.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from accel_ci import model
from accel_ci.model import Build, Ledger, Revision, TestVerdict, Trigger, trigger_of_key


@dataclass(frozen=True)
class BuildRecord:
    """The manifests of one build; one that is missing or unreadable is None.

    `begun` are the first stages of the pipelines that have begun, `activity` what those do that have not reported, and
    `failures` the messages of stages that failed.
    """

    build: Build
    present: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    changed_at: datetime | None = None
    begun: tuple[str, ...] = ()
    activity: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    stack: model.SoftwareStack | None = None
    stack_test_results: model.DeviceTestResults | None = None
    wheel: model.Wheel | None = None
    runtime_image: model.RuntimeImage | None = None
    deviceless_results: model.DeviceTestResults | None = None
    smoke_results: model.DeviceTestResults | None = None
    test_selection: model.TestSelection | None = None
    device_test_results: model.DeviceTestResults | None = None
    source_build: model.SourceBuild | None = None
    bazel_test_results: model.BazelTestResults | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True)
class RevisionRecord:
    """The manifests of one revision. `revision` is None when its manifest is missing or unreadable."""

    key: str
    seen_at: datetime
    revision: Revision | None
    builds: tuple[BuildRecord, ...]

    @property
    def trigger(self) -> Trigger | None:
        """The trigger, from the key where the manifest is unreadable."""
        return self.revision.trigger if self.revision else trigger_of_key(self.key)


@dataclass(frozen=True)
class BuildTests:
    """The tests of a build that its section lists: those with a bad verdict, and the slowest.

    `newly_failing` are (suite, test) of those that failed and did not in the build of the revision `compared_with`, the last
    finished one of the same trigger and suites; both are None without such a build.
    """

    verdicts: tuple[TestVerdict, ...]
    newly_failing: frozenset[tuple[str, str]] | None = None
    compared_with: str | None = None
