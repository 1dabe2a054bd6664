"""The sections `github` and `pull_requests`: the backend's repository on GitHub, and what its pull requests get."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from accel_ci.config.relay_settings import FullName
from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint, GitRef


class GitHubApp(Section):
    """The GitHub App that acts: its id or client id, and a file with its private key, relative to the configuration."""

    id: Annotated[str, Field(pattern=r"\A[A-Za-z0-9._-]{1,100}\z", coerce_numbers_to_str=True)]
    private_key_file: str
    installation: Annotated[int, Field(ge=1)] | None = None


class GitHub(Section):
    """The backend's repository on GitHub, and the API that serves it.

    Requests have the token of the `app`, else the one in the variable `ACCEL_CI_GITHUB_TOKEN`.
    """

    repository: FullName
    api: Endpoint = "https://api.github.com"
    app: GitHubApp | None = None


Label = Annotated[str, Field(pattern=r"\A[^,\x00-\x1f]{1,100}\z")]


class PullRequestRefs(Section):
    """Pull requests as refs of git, for a host that is not GitHub: `*` in the `pattern` stands for the number.

    Refs do not tell who has pushed, so all of them are built: `trust_all` is there to be said.
    """

    pattern: Annotated[GitRef, Field(pattern=r"\Arefs/[A-Za-z0-9._/-]+/\*(/[A-Za-z0-9._-]+)*\z")] = "refs/pull/*/head"
    trust_all: Literal[True]


class PullRequests(Section):
    """The backend's pull requests that are built, and their answers.

    Those from forks are built once a maintainer has set one of `labels` after the newest commit; those of `trusted_authors`
    from their own forks, and of branches of the repository itself, are built at once. `drafts` are passed over by default.
    Unless `blocking` is set, a check is neutral where it would fail.
    With `refs`, pull requests are found by git and get no answer. Without `enabled`, the sensors are stopped at first.
    """

    enabled: bool = False
    check_every_seconds: Annotated[int, Field(ge=15)] = 60
    labels: tuple[Label, ...] = ()
    trusted_authors: tuple[Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9-]{0,38}\z")], ...] = ()
    drafts: bool = False
    blocking: bool = False
    comment: bool = True
    refs: PullRequestRefs | None = None
