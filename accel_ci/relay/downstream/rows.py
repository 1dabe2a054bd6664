"""The backend's own builds as rows of jobs, with the columns that the relay keeps of all backends.

The pages on backends can so be made of them, without a relay. The values are those of the callbacks; the times are those of
the runs, by the clock of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from accel_ci.model import Build
from accel_ci.relay.downstream.deliveries import deliveries_of
from accel_ci.relay.downstream.relayed_builds import relay_settings
from accel_ci.relay.downstream.report import Subject, due_callbacks, nightly_subject, subject_of
from accel_ci.relay.messages import Workflow
from accel_ci.relay.rows import JobRow, category_of
from accel_ci.workspace import Workspace


def own_rows(workspace: Workspace, repository: str, since: datetime, now: datetime) -> list[JobRow]:
    """Return the rows of all jobs of builds for deliveries, and of nightly and intraday builds, that began since a time.

    `repository` stands for the backend. Raises `AccelCiError` where there is no section `relay`.
    """
    found: list[JobRow] = []
    for build, subject in _subjects(workspace, since):
        begun: dict[tuple[str, str], JobRow] = {}
        for callback in due_callbacks(workspace, build, replace(subject, once=False), now)[0]:
            flow = callback.make()
            attempt = (flow.job_name, flow.run_attempt)
            row = _row(workspace, repository, subject, flow, begun.get(attempt), now)
            if row.status == "in_progress":
                begun[attempt] = row
            found.append(row)
    return found


def _subjects(workspace: Workspace, since: datetime) -> Iterator[tuple[Build, Subject]]:
    settings, seen = relay_settings(workspace), set[tuple[str, datetime | None]]()
    # One run may stand for a dispatch and for the same change as polling found it: it is that of the dispatch then.
    for kept in sorted(deliveries_of(workspace).all(), key=lambda each: each.delivery.is_polled):
        if kept.outcome.revision is not None and kept.delivery.received_at >= since:
            if (run := (kept.outcome.revision, kept.outcome.asked_at)) in seen:
                continue
            seen.add(run)
            for variant in kept.outcome.variants:
                yield Build(kept.outcome.revision, variant), subject_of(kept)
    for each in workspace.manifests.revisions():
        revision = workspace.manifests.revision(each.key) if each.seen_at >= since else None
        for build in workspace.manifests.builds_of(each.key) if revision is not None else ():
            if revision is not None and (subject := nightly_subject(workspace, settings, revision, build)) is not None:
                yield build, subject


def _row(
    workspace: Workspace, repository: str, subject: Subject, flow: Workflow, begun: JobRow | None, now: datetime
) -> JobRow:
    """The row of a state. `begun` is that of the beginning, where this is the end."""
    told, counts, device = subject.client_payload, flow.test_results, workspace.project.settings.device
    payload: Mapping[str, Any] = told["payload"]
    asked_at = subject.since.timestamp() if subject.since is not None else None
    started_at = begun.started_at if begun is not None else _seconds(flow.started_at)
    completed_at = _seconds(flow.completed_at) if flow.status == "completed" else None
    verdict = dict(flow.triage_verdict) if flow.triage_verdict else {}
    if verdict and flow.completed_at is not None:
        verdict["analyzed_at"] = flow.completed_at.isoformat(timespec="seconds")  # the same row, whenever it is made
    triage_verdict = json.dumps(verdict) if verdict else ""
    return JobRow(
        delivery_id=subject.id,
        event=told["event_type"],
        upstream=payload["repository"]["full_name"],
        pull_request=payload["number"] if told["event_type"] == "pull_request" else None,
        head_sha=subject.wanted or payload["head_sha"],
        repository=repository,
        level="",
        device=device.type if device is not None else "",
        workflow=flow.name,
        job_name=flow.job_name,
        run_id=flow.run_id,
        run_attempt=flow.run_attempt,
        check_run_id=flow.check_run_id,
        status=flow.status,
        conclusion=flow.conclusion,
        is_infrastructure=category_of(triage_verdict) == "infra",
        url=flow.url,
        artifact_url=flow.artifact_url or "",
        passed=counts.passed if counts is not None else None,
        failed=counts.failed if counts is not None else None,
        skipped=counts.skipped if counts is not None else None,
        failed_tests=json.dumps([test.model_dump() for test in flow.failed_tests_detail]),
        triage_verdict=triage_verdict,
        at=completed_at or started_at or now.timestamp(),
        dispatched_at=asked_at,
        started_at=started_at,
        completed_at=completed_at,
        queue_s=max(0.0, started_at - asked_at) if started_at is not None and asked_at is not None else None,
        execution_s=max(0.0, completed_at - started_at) if completed_at is not None and started_at is not None else None,
    )


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None
