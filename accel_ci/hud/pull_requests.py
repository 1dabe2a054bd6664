"""The builds of pull requests as their authors see them: the change's own failures, and those that are not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from accel_ci.hud.addresses import build_address
from accel_ci.hud.kept import KeptBuild
from accel_ci.hud.states import State
from accel_ci.hud.summary import RevisionBuilds
from accel_ci.model import Build, Source

KINDS = ("new", "broken base", "flaky", "infra", "unknown")
"""The failures of a pull request by kind, as `accel_ci.hud.build_page.Blamed` has them."""


@dataclass(frozen=True)
class PullRequestBuild:
    """A build of a pull request. `failures` are by kind, None while the build is pending or not judged yet."""

    build: Build
    state: State
    is_pending: bool
    failures: Mapping[str, int] | None
    address: str | None

    @property
    def words(self) -> str:
        """The answer to the author: is it the change?"""
        if self.is_pending:
            return "pending"
        if self.failures is None:
            return "not judged yet"
        if self.failures.get("new"):
            return "the change breaks tests"
        if self.failures.get("unknown"):
            return "cannot be told yet"
        return "not the change's failures" if sum(self.failures.values()) else "no failure"


@dataclass(frozen=True)
class PullRequest:
    """A revision of a pull request with its builds."""

    key: str
    seen_at: datetime
    backend: Source | None
    builds: tuple[PullRequestBuild, ...]


def make_pull_requests(revisions: Sequence[RevisionBuilds], kept: Mapping[str, KeptBuild]) -> tuple[PullRequest, ...]:
    """Make the page from the revisions, newest first."""
    return tuple(
        PullRequest(one.key, one.seen_at, one.revision.backend if one.revision else None, _builds(one, kept))
        for one in revisions
        if one.trigger == "pr"
    )


def _builds(revision: RevisionBuilds, kept: Mapping[str, KeptBuild]) -> tuple[PullRequestBuild, ...]:
    found = []
    for summary in revision.builds:
        known = kept.get(summary.build.name)
        address = build_address(summary.build) if known and known.page else None
        bad = summary.counts.get("failed", 0) + summary.counts.get("infra", 0)
        failures = known.blamed if known and (known.blamed or not bad) and summary.finished else None
        found.append(PullRequestBuild(summary.build, summary.state, not summary.finished, failures, address))
    return tuple(found)
