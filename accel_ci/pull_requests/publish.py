"""Answer pull requests at GitHub: check runs and one comment, each created once and sent again only when it has changed.

What an answer says is decided in `answer`. The record of what was sent, and finding it again after a kill, belong
here. Before a comment is created, its hidden marker with a random part is kept: nobody else knows it, so
the oldest comment with it is ours, and a stranger's with the same words is never edited.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from time import monotonic
from typing import Any
from urllib.parse import quote

from accel_ci.config.github_settings import GitHub, PullRequests
from accel_ci.config.stack_settings import Component
from accel_ci.errors import AccelCiError
from accel_ci.github.answers import is_paused
from accel_ci.github.client import GitHubError, GitHubRequests, RateLimitError, open_github
from accel_ci.model import Build
from accel_ci.pull_requests.answer import Tested, check_name, check_run, comment
from accel_ci.pull_requests.progress import Bases, look_at_builds
from accel_ci.pull_requests.sent import Sent, SentAnswers
from accel_ci.pull_requests.watched import Head, Watched, read_watched, targets_now
from accel_ci.quality.judgement import read_causes
from accel_ci.redaction import redact
from accel_ci.workspace import Workspace

_EARLIER = timedelta(minutes=10)
"""Comments are looked for from so long before the marker was made: two clocks differ."""

_LOST = (403, 404, 410)
"""The statuses of GitHub's answers where a check run is another App's, or is gone."""


def publish_answers(workspace: Workspace, now: datetime, limit_s: float = math.inf) -> list[str]:
    """Send the answers that have changed, and return a line for each. After `limit_s` seconds, the others are left.

    Raises `AccelCiError` for what concerns all of them, such as a missing token or an outage; the others are lines.
    """
    settings, github = workspace.project.settings.pull_requests, workspace.project.settings.github
    if settings is None or github is None:
        raise AccelCiError("answers need the sections pull_requests and github")
    watched = read_watched(workspace)
    bases = Bases(workspace, targets_now(workspace, watched))
    return _publish(workspace, github, settings, watched, SentAnswers(workspace), bases, now, limit_s)


def publish_component_answers(
    workspace: Workspace, component: Component, now: datetime, limit_s: float = math.inf
) -> list[str]:
    """Send the check runs of a component's change requests that have changed; see `publish_answers`.

    The component has `github`, its repository there. The token or App is that of the section `github`.
    """
    own, pulls = workspace.project.settings.github, workspace.project.settings.pull_requests
    github = GitHub(repository=component.github or "")
    if own is not None:
        app = own.app.model_copy(update={"installation": None}) if own.app is not None else None
        github = github.model_copy(update={"api": own.api, "app": app})
    settings = PullRequests(comment=False, blocking=pulls is not None and pulls.blocking)
    watched, answers = read_watched(workspace, component.name), SentAnswers(workspace, component.name)
    return _publish(workspace, github, settings, watched, answers, Bases(workspace), now, limit_s)


def _publish(
    workspace: Workspace,
    github: GitHub,
    settings: PullRequests,
    watched: Watched,
    answers: SentAnswers,
    bases: Bases,
    now: datetime,
    limit_s: float,
) -> list[str]:
    heads = watched.heads
    if is_paused(answers.record.paused_until, now):
        return [f"GitHub's rate limit is used up until {answers.record.paused_until:%H:%M:%S}"]
    lines, errors, began = list[str](), list[AccelCiError](), monotonic()
    sent = current = 0
    with open_github(github, workspace.project.root) as requests:
        for number, head in heads.items():
            if head.state == "passed over":
                continue
            try:
                stamp, pull = _stamp(workspace, head), watched.pulls.get(number)
                changed_at = pull.updated_at if pull is not None else None
                if _is_answered(answers.record.answers.get(number), head, stamp, bases, changed_at):
                    current += 1
                    continue
                if lines and monotonic() - began > limit_s:
                    return [*lines, "the other pull requests wait for the next tick"]
                tested = look_at_builds(workspace, head, bases)
                locked = _Answer(requests, github, settings, answers, number, head, now, changed_at).send(tested, stamp)
                lines.append(f"{number}: answered{', but for the comment: its conversation is locked' if locked else ''}")
                sent += 1
            except RateLimitError as error:
                answers.pause(now + timedelta(seconds=error.wait_s))
                return [*lines, str(error)]
            except AccelCiError as error:  # that of one pull request, which must not keep the others from their answers
                lines.append(redact(f"{number}: {error}"))
                errors.append(error)
        for number in answers.record.answers.keys() - heads.keys():
            try:
                _end_checks(requests, github.repository, answers, number, "the pull request is closed")
            except RateLimitError as error:
                answers.pause(now + timedelta(seconds=error.wait_s))
                return [*lines, str(error)]
            except AccelCiError as error:
                lines.append(redact(f"{number}: {error}"))
    answers.forget_old(heads, now)
    if errors and not sent and (not current or any(map(_is_outage, errors))):
        raise AccelCiError("; ".join(lines))
    return lines


def _is_outage(error: AccelCiError) -> bool:
    """Return whether an error at one pull request is one at all: GitHub does not answer, or takes no token."""
    return isinstance(error, GitHubError) and (error.status is None or error.status == 401 or error.status >= 500)


def _end_checks(requests: GitHubRequests, repository: str, answers: SentAnswers, number: int, why: str) -> None:
    """Complete the check runs of a commit that nobody tests any more, which would be pending for ever.

    One that cannot be changed any more is left as it is. What they said is forgotten: the commit may come back.
    """
    sent = answers.record.answers[number]
    for name in sent.checks.keys() - set(sent.ended):
        output = {"title": why, "summary": f"Not completed: {why}."}
        body = {"status": "completed", "conclusion": "cancelled", "output": output}
        try:
            requests.send("PATCH", f"repos/{repository}/check-runs/{sent.checks[name]}", body)
        except GitHubError as error:
            if error.status not in (*_LOST, 422):
                raise
        said = {other: digest for other, digest in sent.digests.items() if other != name}
        sent = answers.keep(number, replace(sent, ended=(*sent.ended, name), digests=said, stamp=""))


def _stamp(workspace: Workspace, head: Head) -> str:
    """Return a name for the facts that an answer is made from, which costs no look at results."""
    parts: list[object] = [head.sha, head.state, head.reason, head.revision]
    for variant in head.variants:
        build = Build(head.revision or "", variant)
        workspace.manifests.bring(build)
        for pipeline in workspace.pipelines:
            run = workspace.manifests.last_run(pipeline, build)
            parts += [run, workspace.manifests.has_run(pipeline, build) if run is not None else None]
        causes = read_causes(workspace, build)
        parts.append(sorted(causes.judged_from.items()) if causes is not None else None)
        parts.append(workspace.manifests.early_failure(build))
    return sha256(repr(parts).encode()).hexdigest()


def _is_answered(sent: Sent | None, head: Head, stamp: str, bases: Bases, changed_at: datetime | None) -> bool:
    """Return whether the answer that was sent is that of now. A build to compare with may end after those of the change.

    A conversation that was locked may not be so any more once the pull request has changed, at `changed_at`.
    """
    if sent is None or sent.sha != head.sha or sent.stamp != stamp or sent.locked_at not in (None, changed_at):
        return False
    return all(bases.is_current(base, Build(head.revision or "", variant)) for variant, base in sent.bases.items())


class _Answer:
    """Sends the answer to one pull request."""

    def __init__(
        self,
        requests: GitHubRequests,
        github: GitHub,
        settings: PullRequests,
        answers: SentAnswers,
        number: int,
        head: Head,
        now: datetime,
        changed_at: datetime | None,
    ) -> None:
        self._requests, self._repository, self._settings = requests, github.repository, settings
        self._answers, self._number, self._head, self._now = answers, number, head, now
        self._changed_at = changed_at
        self._sent = answers.record.answers.get(number) or Sent(head.sha, now)

    def send(self, tested: list[Tested], stamp: str) -> bool:
        """Send what has changed, and return whether the comment was refused because the conversation is locked.

        The stamp is kept last, so that after a kill all of it is looked at again.
        """
        if self._sent.sha != self._head.sha:
            _end_checks(self._requests, self._repository, self._answers, self._number, "a newer commit is tested instead")
            before = self._answers.record.answers[self._number]
            self._sent = replace(
                before, sha=self._head.sha, at=self._now, stamp="", bases={}, checks={}, digests={}, ended=()
            )
        waiting = self._head.reason if self._head.state == "waiting" else ""
        for one in tested:
            self._check(one, waiting)
        was_locked = self._sent.locked_at is not None and self._sent.locked_at == self._changed_at
        if self._settings.comment and not was_locked:
            self._keep(locked_at=None if self._may_comment(tested, waiting) else self._changed_at or self._now)
        self._keep(stamp=stamp, bases={one.variant: one.base for one in tested if one.ledger is not None})
        return self._sent.locked_at is not None and not was_locked

    def _keep(self, **changes: Any) -> None:
        self._sent = self._answers.keep(self._number, replace(self._sent, **changes))

    def _check(self, tested: Tested, waiting: str) -> None:
        if self._sent.key is None:
            self._keep(key=secrets.token_hex(8))
        name, key = check_name(tested), f"{self._number}:{tested.pipeline}:{tested.variant}:{self._sent.key}"
        body = check_run(tested, self._head.sha, key, blocking=self._settings.blocking, reason=waiting)
        body["output"] = {part: redact(text) for part, text in body["output"].items()}
        digest = _digest(body)
        if self._sent.digests.get(name) == digest:
            return
        number = self._sent.checks.get(name) or self._find_check(name, key)
        if number is not None and not self._change_check(number, body):
            number = None
        if number is None:
            number = _id(self._requests.send("POST", f"repos/{self._repository}/check-runs", body))
        self._keep(
            checks={**self._sent.checks, name: number},
            digests={**self._sent.digests, name: digest},
            ended=(*(each for each in self._sent.ended if each != name), *([name] if body["status"] == "completed" else [])),
        )

    def _change_check(self, number: int, body: Mapping[str, Any]) -> bool:
        """Change a check run; return False where it is gone, or of an App that was replaced."""
        change = {field: value for field, value in body.items() if field != "head_sha"}  # it cannot be changed
        try:
            self._requests.send("PATCH", f"repos/{self._repository}/check-runs/{number}", change)
        except GitHubError as error:
            if error.status not in _LOST:
                raise
            return False
        return True

    def _find_check(self, name: str, key: str) -> int | None:
        """Look for a check run that was created before a kill."""
        query = f"check_name={quote(name, safe='')}&filter=all&per_page=100&page=1"
        found = self._requests.get(f"repos/{self._repository}/commits/{self._head.sha}/check-runs?{query}").document
        runs = found.get("check_runs") if isinstance(found, dict) else None
        own = [one for one in runs or [] if isinstance(one, dict) and one.get("external_id") == key]
        return max((_id(one) for one in own), default=None)

    def _may_comment(self, tested: list[Tested], waiting: str) -> bool:
        """Send the comment; return False where the conversation is locked."""
        try:
            self._comment(tested, waiting)
        except GitHubError as error:
            if error.status != 403 or "locked" not in str(error).lower():
                raise
            return False
        return True

    def _comment(self, tested: list[Tested], waiting: str) -> None:
        if self._sent.marker is None:
            marker = f"<!-- accel-ci: pull request {self._number}, {secrets.token_hex(16)} -->"
            self._keep(marker=marker, marked_at=self._now)
        text = redact(comment(self._head.sha, tested, self._sent.marker or "", waiting=waiting))
        digest = _digest(text)
        if self._sent.digests.get("comment") == digest:
            return
        number = self._sent.comment or self._find_comment()
        if number is not None:
            try:
                self._requests.send("PATCH", f"repos/{self._repository}/issues/comments/{number}", {"body": text})
            except GitHubError as error:
                if error.status != 404:
                    raise
                self._keep(marker=None, comment=None)  # somebody has deleted it, and knows the marker
                self._comment(tested, waiting)
                return
        else:
            path = f"repos/{self._repository}/issues/{self._number}/comments"
            number = _id(self._requests.send("POST", path, {"body": text}))
        self._keep(comment=number, digests={**self._sent.digests, "comment": digest})

    def _find_comment(self) -> int | None:
        """Look for the comment that was created before a kill."""
        since = ((self._sent.marked_at or self._now) - _EARLIER).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"repos/{self._repository}/issues/{self._number}/comments?since={since}&per_page=100"
        own = [_id(one) for one in self._requests.pages(path) if (self._sent.marker or "\0") in str(one.get("body"))]
        return min(own, default=None)


def _digest(document: object) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _id(document: Mapping[str, Any]) -> int:
    value = document.get("id")
    if not isinstance(value, int) or value <= 0:
        raise GitHubError("GitHub's answer has no id; check github.api")
    return value
