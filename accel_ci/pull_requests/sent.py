"""The record of the answers that were sent to pull requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError
from accel_ci.pull_requests.answer import Base
from accel_ci.pull_requests.watched import Head
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.manifests import REPAIR
from accel_ci.workspace import Workspace

_KEPT = timedelta(days=30)


@dataclass(frozen=True)
class Sent:
    """The answer to a commit of a pull request.

    `checks` are the numbers of check runs by name, `digests` what they say, and those in `ended` are completed. `stamp`
    names the facts of its builds that all of it was made from, and `bases` have what they are compared with, by variant. A
    comment belongs to the pull request, so it outlives the commit. So does the random `key`, which tells our check runs
    from those of another project or App. `locked_at` is the last change of the pull request after which its conversation was
    found locked, None if it was not.
    """

    sha: str
    at: datetime
    stamp: str = ""
    bases: dict[str, Base] = field(default_factory=dict)
    checks: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    marker: str | None = None
    marked_at: datetime | None = None
    comment: int | None = None
    key: str | None = None
    locked_at: datetime | None = None


@dataclass(frozen=True)
class SentRecord:
    """The answers by pull request. GitHub is asked for nothing before `paused_until`."""

    answers: dict[int, Sent] = field(default_factory=dict)
    paused_until: datetime | None = None


_RECORD = TypeAdapter(SentRecord)


def answers_file(workspace: Workspace, component: str | None = None) -> Path:
    """The record of the answers to pull requests of the backend, or to change requests of a component of the stack."""
    name = "answers" if component is None else f"answers-{component}"
    return workspace.project.home / "pull_requests" / f"{name}.json"


class SentAnswers:
    """The record of what was sent, by pull request. It is kept before and after each request that creates something."""

    def __init__(self, workspace: Workspace, component: str | None = None) -> None:
        self._share, self._path = workspace.manifests.share, answers_file(workspace, component)
        self._share.bring_file(self._path)
        try:
            self.record = _RECORD.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            self.record = SentRecord()
        except (OSError, ValueError):
            raise AccelCiError(f"{self._path} cannot be read: {REPAIR}, and each pull request gets a new comment") from None

    def keep(self, number: int, sent: Sent) -> Sent:
        """Keep what was sent for a pull request."""
        return self._write(replace(self.record, answers={**self.record.answers, number: sent})).answers[number]

    def pause(self, until: datetime) -> None:
        """Ask GitHub for nothing until then."""
        self._write(replace(self.record, paused_until=until))

    def forget_old(self, open_ones: Mapping[int, Head], now: datetime) -> None:
        """Forget pull requests that have been closed for a month."""
        kept = {number: sent for number, sent in self.record.answers.items() if number in open_ones or now - sent.at < _KEPT}
        if kept != self.record.answers:
            self._write(replace(self.record, answers=kept))

    def _write(self, record: SentRecord) -> SentRecord:
        content = _RECORD.dump_json(record, indent=1)
        self._share.send(self._path, content)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(self._path, content, durable=True)
        self.record = record
        return record
