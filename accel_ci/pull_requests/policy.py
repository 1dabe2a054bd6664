"""The rules by which a pull request is built. Pure: what GitHub knows of it comes as data.

A stranger's code gets no card and no secret before a maintainer has looked at it. The label of the maintainer must be newer
than the first sight of the commit, both by GitHub's clock: a label that was set before a push tells nothing of what was
pushed. That is stricter than needed for a label within one tick of the push, which must be set again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from accel_ci.config.github_settings import PullRequests


@dataclass(frozen=True)
class PullRequest:
    """An open pull request. `owner` is that of the repository it comes from, None where that is gone.

    `base` is the branch that it is for, empty where that is not known, and it `is_for_default` if that is the repository's
    default branch. `updated_at` is GitHub's time of its last change.
    """

    number: int
    head: str
    author: str = ""
    owner: str | None = None
    is_fork: bool = False
    is_draft: bool = False
    labels: tuple[str, ...] = ()
    base: str = ""
    is_for_default: bool = True
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Labelled:
    """A label that was set, by whom, and when by GitHub's clock."""

    name: str
    by: str
    at: datetime


def reason_to_pass_over(pull: PullRequest, policy: PullRequests) -> str | None:
    """Return why a pull request gets neither a build nor an answer now; None if it may get them."""
    return "it is a draft" if pull.is_draft and not policy.drafts else None


def is_trusted(pull: PullRequest, policy: PullRequests) -> bool:
    """Return whether a pull request needs no label: it is of the repository itself, or a trusted author's own fork."""
    if not pull.is_fork:
        return True
    author = pull.author.lower()
    return author == (pull.owner or "").lower() and author in {each.lower() for each in policy.trusted_authors}


def other_target(pull: PullRequest, configured: str) -> str | None:
    """Return the ref of the branch that a pull request is for; None where that is the `configured` ref, or not known."""
    is_same = pull.is_for_default if configured == "HEAD" else pull.base == configured.removeprefix("refs/heads/")
    return None if is_same or not pull.base else f"refs/heads/{pull.base}"


def maintainers_to_ask(
    pull: PullRequest, seen_at: datetime, labelled: Iterable[Labelled], policy: PullRequests
) -> dict[str, str]:
    """Return who has set a label that counts, if they are a maintainer, with the label.

    It must be on the pull request, one of the policy's, set after the commit was first seen, and not by the author.
    """
    wanted = set(policy.labels) & set(pull.labels)
    return {
        each.by: each.name
        for each in labelled
        if each.name in wanted and each.at > seen_at and each.by.lower() != pull.author.lower()
    }


def wait_for_label(policy: PullRequests) -> str:
    """Say what a stranger's pull request waits for."""
    names = " or ".join(policy.labels)
    if not names:
        return "it is from a fork, and pull_requests.labels names no label by which a maintainer could have it built"
    return f"it is from a fork: a maintainer has it built by setting {names} now, after this commit"
