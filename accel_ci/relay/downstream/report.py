"""Report the builds that came from deliveries, and nightly ones: find the callbacks that are due, and send each once.

What was sent is kept beside the manifests of the build, so that no later report sends it again. A callback that is refused
is never repeated. One whose answer did not come is sent again: a relay that had taken it then refuses the repetition, which
counts as taken. Nothing here changes a build, and no failure here is one of a build.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.relay_settings import Relay
from accel_ci.config.values import COMMIT_PLACE
from accel_ci.errors import AccelCiError
from accel_ci.hud.addresses import build_address
from accel_ci.ledger.wanted_suites import wanted_suites
from accel_ci.model import Build, Ledger, Revision, RuntimeImage, Trigger
from accel_ci.pipelines import LEDGER, RUNTIME_IMAGE, Pipeline
from accel_ci.quality.judgement import read_causes
from accel_ci.relay.downstream.deliveries import CallingWorkflow, KeptDelivery, deliveries_of
from accel_ci.relay.downstream.jobs import (
    conclude,
    count_tests,
    failed_tests,
    job_name,
    other_commit_verdict,
    verdict_of_job,
)
from accel_ci.relay.downstream.relayed_builds import relay_settings, relay_variants
from accel_ci.relay.downstream.sender import Answer, Sender
from accel_ci.relay.downstream.tokens import TokenError, oidc_token
from accel_ci.relay.messages import Conclusion, Status, Workflow, callback_body
from accel_ci.results.questions import bad_tests
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

GIVEN_UP = timedelta(days=3)
"""After so long the relay does not know a delivery any more."""

_NIGHTLY: dict[Trigger, str] = {"nightly": "nightly", "intraday": "periodic"}
"""The triggers whose builds are reported without a delivery, and what the relay calls them."""


@dataclass(frozen=True)
class Subject:
    """The reason to report a build: the `client_payload` that each callback repeats, and the id in it.

    Builds that were begun before `since` do not count. With `once`, only the end of a job is reported. `wanted` is the
    commit of PyTorch that is to be tested, None if any.
    """

    id: str
    client_payload: Mapping[str, Any]
    since: datetime | None = None
    once: bool = False
    wanted: str | None = None
    caller: CallingWorkflow | None = None
    obsolete: bool = False


@dataclass(frozen=True)
class Callback:
    """A callback that is due; `key` tells it from all others of its subject.

    `make` reads the results, which takes time, so that it is only called for what has not been sent.
    """

    key: str
    job: str
    status: Status
    make: Callable[[], Workflow]


@dataclass
class _Sent:
    """The callbacks that were sent for a build and a subject: the answer by place and callback, and the runs reported."""

    answers: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)


_SENT = TypeAdapter(_Sent)
_SENDING = "sending"


@dataclass(frozen=True)
class Progress:
    """The work of a report: a line for each callback, and whether nothing more is to come."""

    lines: tuple[str, ...]
    is_complete: bool


def new_sender(workspace: Workspace) -> Sender:
    """Return a sender with the token of the project."""
    return Sender(partial(oidc_token, relay_settings(workspace), workspace.project.root))


def report_all(workspace: Workspace, now: datetime) -> tuple[str, ...]:
    """Send what is due for deliveries and, if they are to be reported, for nightly builds; return a line for each callback.

    Raises `AccelCiError` for what concerns all of them, such as a missing token, or relays that are all away.
    """
    sender, settings = new_sender(workspace), relay_settings(workspace)
    lines = report_deliveries(workspace, sender, now).lines
    lines += report_nightlies(workspace, sender, now).lines if settings.nightly else ()
    if settings.callbacks and sender.away.issuperset(settings.callbacks):
        raise AccelCiError("; ".join(lines))
    return lines


def report_deliveries(workspace: Workspace, sender: Sender, now: datetime, only: str | None = None) -> Progress:
    """Send what is due for the builds of all deliveries, or of one.

    Raises `AccelCiError` for what concerns all of them, such as a missing token.
    """
    settings, deliveries = relay_settings(workspace), deliveries_of(workspace)
    lines: list[str] = []
    complete = True
    for each in deliveries.summaries():
        if each.outcome.state in ("refused", "reported") or only not in (None, each.delivery.id) or each.delivery.is_polled:
            continue
        if (kept := deliveries.whole(each)) is None:
            continue
        try:
            progress = report_delivery(workspace, settings, kept, sender, now)
        except TokenError:
            raise
        except AccelCiError as error:  # that of one build, which must not keep the others from being reported
            progress = Progress((f"{kept.delivery.id}: {error}",), False)
        lines += progress.lines
        if progress.is_complete:
            deliveries.note(kept, state="reported")
        elif now - kept.delivery.received_at > GIVEN_UP:
            deliveries.note(kept, state="reported", reason=f"not all of it: given up after {GIVEN_UP.days} days")
        else:
            complete = False
    return Progress(tuple(lines), complete)


def report_delivery(workspace: Workspace, settings: Relay, kept: KeptDelivery, sender: Sender, now: datetime) -> Progress:
    """Send what is due for the builds of a delivery."""
    outcome = kept.outcome
    if outcome.revision is None:
        return Progress((), outcome.state == "obsolete")
    found = [
        report_build(workspace, settings, Build(outcome.revision, variant), subject_of(kept), sender, now)
        for variant in outcome.variants
    ]
    return Progress(tuple(line for each in found for line in each.lines), all(each.is_complete for each in found))


def subject_of(kept: KeptDelivery) -> Subject:
    """Return the subject of a delivery's callbacks."""
    delivery, outcome = kept.delivery, kept.outcome
    return Subject(
        delivery.id, delivery.client_payload, outcome.asked_at, wanted=delivery.change.sha, caller=delivery.caller,
        obsolete=outcome.state == "obsolete",
    )  # fmt: skip


def report_nightlies(workspace: Workspace, sender: Sender, now: datetime) -> Progress:
    """Send what is due for the nightly and intraday builds of the last days."""
    settings, lines, complete = relay_settings(workspace), list[str](), True
    for each in workspace.manifests.revisions():
        if each.trigger not in _NIGHTLY or now - each.seen_at > GIVEN_UP:
            continue
        revision = workspace.manifests.revision(each.key)
        for build in workspace.manifests.builds_of(each.key):
            subject = nightly_subject(workspace, settings, revision, build) if revision is not None else None
            if subject is not None:
                try:
                    progress = report_build(workspace, settings, build, subject, sender, now)
                except TokenError:
                    raise
                except AccelCiError as error:
                    progress = Progress((f"{build.name}: {error}",), False)
                lines += progress.lines
                complete = complete and progress.is_complete
    return Progress(tuple(lines), complete)


def nightly_subject(workspace: Workspace, settings: Relay, revision: Revision, build: Build) -> Subject | None:
    """Return the subject of a nightly build: the commit of PyTorch that it tested.

    None where the build is of another trigger or of a released PyTorch, or the commit is not known yet.
    """
    event = _NIGHTLY.get(revision.trigger)
    sha = _tested_commit(workspace, build) or revision.upstream.sha
    if event is None or sha is None or build.variant not in relay_variants(workspace):
        return None
    payload = {"repository": {"full_name": settings.repository}, "head_sha": sha}
    return Subject(sha, {"event_type": event, "delivery_id": sha, "payload": payload}, once=True)


def report_build(
    workspace: Workspace, settings: Relay, build: Build, subject: Subject, sender: Sender, now: datetime
) -> Progress:
    """Send what is due for a build and a subject."""
    workspace.manifests.bring(build)
    revision = workspace.manifests.revision(build.revision)
    if revision is None or not workspace.manifests.folder(build).is_dir():  # a folder would look like a build that has begun
        return Progress((), subject.obsolete)
    with _record(workspace, build, subject) as (sent, keep):
        due, open_jobs = _due(workspace, settings, revision, build, subject, sent, now)
        lines = [_send(settings, url, build, callback, subject, sent, keep, sender)
                 for url in settings.callbacks for callback in due]  # fmt: skip
    keys = [_key(url, callback) for url in settings.callbacks for callback in due]
    settled = all(sent.answers.get(key, _SENDING) != _SENDING for key in keys)
    return Progress(tuple(line for line in lines if line), not open_jobs and settled)


def due_callbacks(
    workspace: Workspace, build: Build, subject: Subject, now: datetime
) -> tuple[tuple[Callback, ...], dict[str, Any]]:
    """Return the callbacks of a build as they are now, also those that were sent before, and the record of those."""
    settings = relay_settings(workspace)
    workspace.manifests.bring(build)
    revision = workspace.manifests.revision(build.revision)
    if revision is None:
        raise AccelCiError(f"there is no revision {build.revision!r}")
    sent = _read(_record_file(workspace, build, subject))
    due, _ = _due(workspace, settings, revision, build, subject, sent, now)
    return tuple(due), dict(sent.answers)


def _send(
    settings: Relay, url: str, build: Build, callback: Callback, subject: Subject, sent: _Sent, keep: Any, sender: Sender
) -> str:
    """Send a callback to a place, unless it was; return a line for people, empty where nothing was done."""
    key = _key(url, callback)
    before = sent.answers.get(key)
    if before not in (None, _SENDING) or sender.is_away(url):
        return ""
    try:
        body = callback_body(subject.client_payload, callback.make())
    except ValueError as error:
        sent.answers[key] = f"refused: {error}"
        return f"{build.name} {callback.job}: {error}"
    sender.authorize()
    sent.answers[key] = _SENDING
    keep()
    answer, reason = sender.send(url, body)
    if answer is Answer.TAKEN or (answer is Answer.REPEATED and before == _SENDING):
        sent.answers[key] = "taken"
    elif answer in (Answer.REFUSED, Answer.REPEATED):
        sent.answers[key] = f"refused: {reason}"
    elif answer is Answer.LATER and before is None:
        del sent.answers[key]
    keep()
    return f"{build.name} {callback.job} {callback.status}: {answer.value} by {urlsplit(url).netloc} ({reason})"


def _key(url: str, callback: Callback) -> str:
    """The name of a callback in the record, without the address, which may hold a secret."""
    return f"{sha256(url.encode()).hexdigest()[:16]} {callback.key}"


def _due(
    workspace: Workspace,
    settings: Relay,
    revision: Revision,
    build: Build,
    subject: Subject,
    sent: _Sent,
    now: datetime,
) -> tuple[list[Callback], bool]:
    """Return the callbacks of a build in their order, and whether further ones will come."""
    due: list[Callback] = []
    is_open = False
    results = _Results(workspace, build, revision, subject, now)
    for pipeline, suite in wanted_suites(workspace, revision, build):
        run = workspace.manifests.last_run(pipeline, build)
        if run is None or (subject.since is not None and run.asked_at < subject.since):
            is_open = is_open or not subject.obsolete
            continue
        has_ended = run.ended_at is not None or not workspace.manifests.has_run(pipeline, build)
        attempt = _attempt(sent, pipeline, run)
        job = _Job(settings, workspace, build, subject, pipeline, run, suite, attempt)
        if not subject.once:
            due.append(job.callback("in_progress", partial(job.workflow, "in_progress")))
        if has_ended:
            due.append(job.callback("completed", partial(results.completed, job)))
        is_open = is_open or not has_ended
    return due, is_open


def _attempt(sent: _Sent, pipeline: Pipeline, run: PipelineRun) -> int:
    """Return the attempt that a run is: the next one where the end of an earlier run was reported, else the same."""
    runs = sent.runs.setdefault(pipeline.name, [])
    if run.run in runs:
        return runs.index(run.run) + 1
    of_this = [pipeline.name, str(len(runs))]
    ended = any(key.split()[1:3] == of_this and key.endswith(" completed") for key in sent.answers)
    if runs and not ended:
        runs[-1] = run.run
    else:
        runs.append(run.run)
    return len(runs)


@dataclass(frozen=True)
class _Job:
    """A suite in a variant, and the run that it is reported of."""

    settings: Relay
    workspace: Workspace
    build: Build
    subject: Subject
    pipeline: Pipeline
    run: PipelineRun
    suite: str
    attempt: int

    @property
    def name(self) -> str:
        """The name of the job."""
        return job_name(self.build.variant, self.suite)

    def callback(self, status: Status, make: Callable[[], Workflow]) -> Callback:
        """Make the callback of a status."""
        return Callback(f"{self.pipeline.name} {self.attempt} {self.name} {status}", self.name, status, make)

    def workflow(self, status: Status, **results: Any) -> Workflow:
        """Make the state of the job in a status."""
        caller = self.subject.caller
        addresses = self.workspace.project.settings.addresses
        page = f"{addresses.hud.rstrip('/')}/{build_address(self.build)}" if addresses is not None else None
        ui = f"{addresses.ui.rstrip('/')}/runs/{self.run.run}" if addresses is not None else ""
        run_id = caller.run_id if caller is not None else _number(self.subject.id, self.build.name)
        attempt = int(caller.run_attempt) - 1 + self.attempt if caller is not None else self.attempt
        return Workflow(
            status=status,
            conclusion=results.pop("conclusion", None),
            name=self.settings.workflow,
            url=caller.url if caller is not None else ui,
            run_id=run_id,
            run_attempt=str(attempt),
            job_name=self.name,
            check_run_id=_number(self.subject.id, self.build.name, self.name, str(attempt)),
            started_at=(self.run.started_at or self.run.asked_at) if status == "in_progress" else None,
            completed_at=self.run.ended_at if status == "completed" else None,
            artifact_url=page,
            **results,
        )


def _number(*parts: str) -> str:
    """A number that stands for some names: the relay takes only numbers as ids of runs. JavaScript can hold it."""
    return str(int(sha256("\n".join(parts).encode()).hexdigest()[:13], 16))


class _Results:
    """The results of a build, read when a job of it has ended."""

    def __init__(self, workspace: Workspace, build: Build, revision: Revision, subject: Subject, now: datetime) -> None:
        self._workspace, self._build, self._revision, self._subject, self._now = workspace, build, revision, subject, now

    def completed(self, job: _Job) -> Workflow:
        """Make the state of a job whose run has ended."""
        ledger = self._ledger() if job.run.reported else None
        if ledger is None:  # that of an earlier run tells nothing of this one
            conclusion: Conclusion = "cancelled" if job.run.ending == "interrupted" or self._subject.obsolete else "failure"
            return job.workflow("completed", conclusion=conclusion)
        conclusion, tested = conclude(ledger, job.suite), _tested_commit(self._workspace, self._build)
        verdict: dict[str, Any] | None = None
        if conclusion != "success":
            causes = read_causes(self._workspace, self._build)
            verdict = verdict_of_job(causes.blames if causes is not None else (), job.suite, self._now)
        if (wanted := self._subject.wanted) is not None and not self._is_of(tested, wanted):
            conclusion, verdict = "neutral", other_commit_verdict(tested, wanted, self._now)
        verdicts = ledger.suites.get(job.suite, {})
        counts = count_tests(verdicts)
        bad = bad_tests(self._workspace.results, self._build, [job.suite]) if counts.failed else ()
        return job.workflow(
            "completed",
            conclusion=conclusion,
            test_results=counts,
            failed_tests_detail=failed_tests(bad, job.suite),
            triage_verdict=verdict,
        )

    def _is_of(self, tested: str | None, wanted: str) -> bool:
        """Return whether the PyTorch is of a commit. One that does not tell is, if it came from the place of that commit."""
        variant = self._workspace.project.settings.variant(self._build.variant)
        return tested == wanted or (tested is None and COMMIT_PLACE in (variant.torch_index or ""))

    def _ledger(self) -> Ledger | None:
        return self._workspace.manifests.find(LEDGER, self._build, Ledger)


def _tested_commit(workspace: Workspace, build: Build) -> str | None:
    """The commit of the PyTorch of a build; None while not known, or where its wheel does not tell."""
    image = workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    return image.torch_sha if image is not None else None


def _record_file(workspace: Workspace, build: Build, subject: Subject) -> Path:
    return workspace.manifests.folder(build) / f".relay-{subject.id}.json"


@contextmanager
def _record(workspace: Workspace, build: Build, subject: Subject) -> Iterator[tuple[_Sent, Any]]:
    """Have what was sent for a build, and a function that keeps it; nobody else sends meanwhile."""
    path, share = _record_file(workspace, build, subject), workspace.manifests.share
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), share.turn(path.with_suffix(".turn")) as check:
        share.bring_file(path)
        sent = _read(path)

        def keep() -> None:
            check()
            workspace.manifests.write(path, sent)

        yield sent, keep


def _read(path: Path) -> _Sent:
    """Read what was sent. A damaged record raises `AccelCiError`: nobody knows what was sent then."""
    try:
        return _SENT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return _Sent()
    except (OSError, ValueError):
        raise AccelCiError(
            f"{path} cannot be read, so nobody knows what was reported; remove it to report all again"
        ) from None
