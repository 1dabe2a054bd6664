"""The newest commits of change requests: the runs that they get, and the end of those of older commits.

They are pull requests of the backend, or change requests of a component of the stack. Looking for them is the sensors'.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from time import monotonic

import dagster as dg
from dagster._core.storage.tags import PRIORITY_TAG

from accel_ci.config.stack_settings import Component
from accel_ci.defs.instance import UNFINISHED
from accel_ci.defs.location import asset_key, runs_of
from accel_ci.defs.partitions import build_of_run
from accel_ci.defs.quality import assets_after
from accel_ci.defs.run_tags import STRANGER_TAG
from accel_ci.defs.triggers import builds_of, run_request, start_revision
from accel_ci.errors import AccelCiError, SourceChangedError
from accel_ci.model import Build, Revision
from accel_ci.pipelines import INTEGRATION
from accel_ci.pull_requests.strangers import stages_for_strangers
from accel_ci.pull_requests.watched import Head, Watched, keep_watched, target_of
from accel_ci.redaction import redact
from accel_ci.resumption import stages_left
from accel_ci.source.revision import ComponentChange
from accel_ci.workspace import Workspace

PULL_REQUEST_TAG = "accel_ci/pull_request"
"""The number of the pull request that a run was asked for by."""

CHANGE_TAG = "accel_ci/component_change"
"""The component and the number of the change request that a run was asked for by, such as `runtime:7`."""

HEAD_TAG = "accel_ci/pull_request_head"
"""The commit of the pull request or change request that a run tests."""

_TO_END = [status for status in UNFINISHED if status != dg.DagsterRunStatus.CANCELING]


@dataclass
class TakenUp:
    """The runs that a tick asks for, the words on what is not built, and how many of those that it `tried` have failed."""

    requests: list[dg.RunRequest] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    tried: int = 0


class Heads:
    """The heads of the backend's pull requests, or of the change requests of one component of the stack."""

    def __init__(self, instance: dg.DagsterInstance, workspace: Workspace, component: Component | None = None) -> None:
        self._instance, self._workspace, self._component = instance, workspace, component
        self._settings, self._job = workspace.project.settings, INTEGRATION.job_for("pr")

    def take_up(self, watched: Watched, until: float) -> TakenUp:
        """Do what each head needs now, and keep what became of it. After the moment `until`, the others wait."""
        taken = TakenUp()
        component = self._component.name if self._component is not None else None
        for number in sorted(watched.heads):
            if monotonic() > until:
                taken.reasons.append(f"{self._name(number)}: it and those after it wait for the next tick")
                break
            head = watched.heads[number]
            taken.tried += head.state in ("allowed", "asked") or self._is_to_screen(head)
            try:
                after, made = self._handle(number, head, target_of(self._workspace, watched, number))
            except SourceChangedError as error:  # the next look decides on what was pushed
                taken.reasons.append(redact(f"{self._name(number)}: {error}"))
                continue
            except AccelCiError as error:
                taken.errors.append(redact(f"{self._name(number)}: {error}"))
                continue
            if after != head:
                watched = replace(watched, heads={**watched.heads, number: after})
                keep_watched(self._workspace, watched, component)
            taken.requests += made
            if after.reason and after.state in ("waiting", "passed over"):
                taken.reasons.append(f"{self._name(number)}: {after.reason}")
        return taken

    def end_obsolete(self, watched: Watched) -> Iterator[str]:
        """End the runs of pull requests that are closed, and of commits that are not their newest. Say which."""
        current = {self._name(number): head.sha for number, head in watched.heads.items()}
        for record in runs_of(self._instance, self._settings.location, job=self._job.name, statuses=_TO_END):
            run = record.dagster_run
            name = run.tags.get(self._tag)
            if name is None or not self._is_own(name) or current.get(name) == run.tags.get(HEAD_TAG):
                continue
            if self._instance.run_coordinator.cancel_run(run.run_id):
                why = "has a newer commit" if name in current else "is closed"
                yield f"{name}: {why}; its run {run.run_id[:8]} was ended"

    def note_obsolete(self, before: Watched, now: Watched) -> None:
        """Note at builds that wait for a label that a look has found a newer commit, or the pull request closed."""
        for number, head in before.heads.items():
            if number not in now.heads or now.heads[number].sha != head.sha:
                self._note(head, "replaced by a newer commit" if number in now.heads else "its pull request is closed")

    def _note(self, head: Head, obsolete: str | None) -> None:
        """Note why the builds of a stranger's commit are obsolete, or that they are not."""
        manifests = self._workspace.manifests
        for variant in head.variants:
            build = Build(head.revision or "", variant)
            manifests.bring(build)
            run = manifests.last_run(INTEGRATION, build)
            if run is not None and run.before_label and run.ended_at is not None and run.obsolete != obsolete:
                manifests.write(manifests.run_file(INTEGRATION, build), replace(run, obsolete=obsolete))

    def _handle(self, number: int, head: Head, target: str | None) -> tuple[Head, list[dg.RunRequest]]:
        """Do what a head needs now: return what became of it, and the runs to ask for. Raises `SourceError`."""
        is_stranger = head.state == "waiting"
        if head.state not in ("allowed", "asked") and not self._is_to_screen(head):
            return head, []
        own_tags = {self._tag: self._name(number), HEAD_TAG: head.sha}
        records = list(runs_of(self._instance, self._settings.location, job=self._job.name, tags=own_tags))
        screening = [one for one in records if STRANGER_TAG in one.dagster_run.tags]
        if head.state == "allowed":
            if any(not one.dagster_run.is_finished for one in screening):
                return head, []
            head = replace(self._ask(number, head, target), state="asked")
        elif is_stranger and head.revision is None:
            head = self._ask(number, head, target)
        started, ended = set[str](), Counter[str]()
        for record in screening if is_stranger else [one for one in records if one not in screening]:
            made = build_of_run(record.dagster_run)
            variant = made.variant if made is not None else ""
            if _ended_before(record, head):
                ended[variant] += 1
            else:
                started.add(variant)
        missing = [variant for variant in head.variants if variant not in started]
        if not missing:
            return (replace(head, screened=True) if is_stranger else replace(head, state="started")), []
        # The daemon may have been killed before it started them; a run with a key that was used is not started again.
        requests, kind = [], "pull" if self._component is None else "component_change"
        for variant in missing:
            build, key = Build(head.revision or "", variant), f"{kind}:{self._name(number)}:{head.sha}:{variant}"
            key += (":deviceless" if is_stranger else "") + (f":{ended[variant]}" if ended[variant] else "")
            request = run_request(self._job, build, key)
            strangers = {STRANGER_TAG: "true", PRIORITY_TAG: "-1"} if is_stranger else {}
            names = self._assets(build, is_stranger=is_stranger) if screening or is_stranger else ()
            assets = [asset_key(self._settings.location, name) for name in names]
            tags = {**request.tags, **own_tags, **strangers}
            requests.append(request._replace(tags=tags, asset_selection=assets or None))
        return head, requests

    def _ask(self, number: int, head: Head, target: str | None) -> Head:
        """Make the revision of a head, unless there is one; none where somebody has pushed since the decision."""
        now = datetime.now(timezone.utc)
        if head.revision is not None:
            return replace(head, asked_at=now)
        revision = self._revision(number, head, target, now)
        variants = tuple(build.variant for build in builds_of(self._workspace, self._job, revision))
        asked = replace(head, revision=revision.key, variants=variants, asked_at=now)
        self._note(asked, None)  # the commit may have come back
        return asked

    def _revision(self, number: int, head: Head, target: str | None, now: datetime) -> Revision:
        component, pulls = self._component, self._settings.pull_requests
        if component is not None and component.changes is not None:
            change = ComponentChange(component.name, number, component.changes.ref_of(number), head.sha)
            return start_revision(self._instance, self._workspace, "pr", now=now, change=change)
        refs = pulls.refs if pulls is not None else None
        ref = refs.ref_of(number) if refs is not None else f"refs/pull/{number}/head"
        how = {"now": now, "pull_request": number, "backend_ref": ref, "backend_sha": head.sha, "target": target}
        return start_revision(self._instance, self._workspace, "pr", **how)

    def _is_to_screen(self, head: Head) -> bool:
        """Return whether the deviceless suites of a stranger's pull request are still to be started."""
        pulls = self._settings.pull_requests
        return pulls is not None and head.state == "waiting" and pulls.strangers == "deviceless" and not head.screened

    def _assets(self, build: Build, *, is_stranger: bool) -> tuple[str, ...]:
        """Return the assets that a run makes: of a stranger's, what needs no card; none for all of them.

        Once a maintainer has allowed it, the other run makes what is left.
        """
        pipeline = INTEGRATION.as_configured(self._settings)
        if is_stranger:
            return stages_for_strangers(pipeline)
        self._workspace.manifests.bring(build)
        left = stages_left(self._workspace, pipeline, build)
        return () if left == pipeline.stages else assets_after(self._settings, left)

    @property
    def _tag(self) -> str:
        return PULL_REQUEST_TAG if self._component is None else CHANGE_TAG

    def _name(self, number: int) -> str:
        return str(number) if self._component is None else f"{self._component.name}:{number}"

    def _is_own(self, name: str) -> bool:
        return self._component is None or name.rpartition(":")[0] == self._component.name


def _ended_before(record: dg.RunRecord, head: Head) -> bool:
    """Return whether a run was ended before its commit came back, when the branch was reset or the pull request reopened."""
    is_ended = record.dagster_run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
    return is_ended and head.asked_at is not None and record.create_timestamp < head.asked_at
