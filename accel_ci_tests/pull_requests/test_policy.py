"""The policy of pull requests, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.config.github_settings import PullRequests
from accel_ci.pull_requests.policy import (
    Labelled,
    PullRequest,
    is_trusted,
    maintainers_to_ask,
    other_target,
    reason_to_pass_over,
    wait_for_label,
)

SEEN = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
LATER = SEEN + timedelta(seconds=1)
POLICY = PullRequests(labels=("ciflow/emu", "ciflow/all"), trusted_authors=("Robin",))
OWN = PullRequest(1, "a" * 40, author="dev", owner="org")
FORK = PullRequest(2, "b" * 40, author="stranger", owner="stranger", is_fork=True, labels=("ciflow/emu",))


@pytest.mark.parametrize(
    ("base", "is_for_default", "configured", "target"),
    [
        ("main", True, "HEAD", None),
        ("release-1", False, "HEAD", "refs/heads/release-1"),
        ("main", True, "main", None),
        ("release-1", False, "refs/heads/release-1", None),
        ("main", True, "refs/heads/release-1", "refs/heads/main"),
        ("", True, "refs/heads/release-1", None),
    ],
)
def test_the_branch_of_a_pull_request_is_told_from_the_configured_one(
    base: str, is_for_default: bool, configured: str, target: str | None
) -> None:
    assert other_target(replace(OWN, base=base, is_for_default=is_for_default), configured) == target


@pytest.mark.parametrize(
    ("pull", "trusted"),
    [
        (OWN, True),
        (FORK, False),
        (replace(FORK, author="robin", owner="ROBIN"), True),
        (replace(FORK, author="robin", owner="stranger"), False),
        (replace(FORK, author="stranger", owner="robin"), False),
        (replace(FORK, author="", owner=None), False),
    ],
)
def test_only_the_repository_and_trusted_authors_need_no_label(pull: PullRequest, trusted: bool) -> None:
    assert is_trusted(pull, POLICY) == trusted


@pytest.mark.parametrize(
    ("labelled", "asked"),
    [
        (Labelled("ciflow/emu", "maintainer", LATER), {"maintainer": "ciflow/emu"}),
        (Labelled("ciflow/emu", "maintainer", SEEN), {}),
        (Labelled("ciflow/emu", "Stranger", LATER), {}),
        (Labelled("ciflow/all", "maintainer", LATER), {}),
        (Labelled("bug", "maintainer", LATER), {}),
    ],
)
def test_a_label_counts_if_it_is_there_and_newer_than_the_commit(labelled: Labelled, asked: dict[str, str]) -> None:
    assert maintainers_to_ask(FORK, SEEN, [labelled], POLICY) == asked


def test_drafts_are_passed_over_unless_the_policy_wants_them() -> None:
    draft = replace(OWN, is_draft=True)
    assert reason_to_pass_over(draft, POLICY) == "it is a draft"
    assert reason_to_pass_over(draft, PullRequests(drafts=True)) is None
    assert reason_to_pass_over(OWN, POLICY) is None


def test_without_a_label_in_the_policy_no_stranger_is_built() -> None:
    assert "names no label" in wait_for_label(PullRequests())
    assert maintainers_to_ask(replace(FORK, labels=("x",)), SEEN, [Labelled("x", "maintainer", LATER)], PullRequests()) == {}
