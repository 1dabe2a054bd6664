"""The sections `github` and `pull_requests`: the backend's repository on GitHub, and what its pull requests get."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from accel_ci.config.relay_settings import FullName
from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint


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
