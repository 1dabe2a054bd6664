"""The section `relay`: a backend's end of the cross-repository CI relay."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint


def _callback(value: str) -> str:
    """Refuse an address to which a token must not go."""
    parts = urlsplit(value)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.password is not None:
        raise ValueError("must be an address such as 'https://relay.example.org/github/callback', without user or password")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("must begin with https://, since each callback has a token")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


CallbackAddress = Annotated[str, AfterValidator(_callback)]
FullName = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9._-]+\z")]
"""The name of a repository on GitHub, with its owner."""


class Poll(Section):
    """The changes that are asked for at GitHub's `api`: of all pull requests, or of those with a `label`.

    With `enabled`, a sensor asks every `every_seconds`; `accel-ci relay poll` asks in any case.
    """

    api: Endpoint = "https://api.github.com"
    label: str | None = None
    enabled: bool = False
    every_seconds: Annotated[int, Field(ge=30)] = 120


class Relay(Section):
    """The dispatches of upstream's changes that are built, and where their results go.

    Dispatches of another upstream than `repository` are refused. Without `variants`, the variants with PyTorch from main are
    built, since others do not test the change. With `supersede`, a new commit of a pull request ends the builds of earlier
    ones. Each of `callbacks` gets all results, with an OIDC token that proves the `identity` of the backend: one of GitHub
    Actions or Buildkite, where the command runs there, or the content of `token_file`. `workflow` names the results. With
    `nightly`, those of the nightly and intraday jobs are reported too. The HUD links to `pages`, those of the relay. If
    `enabled`, its sensors start with the daemon.
    """

    repository: FullName = "pytorch/pytorch"
    variants: tuple[str, ...] = ()
    supersede: bool = True
    callbacks: tuple[CallbackAddress, ...] = ()
    identity: Literal["github", "buildkite", "file"] = "file"
    token_file: str | None = None
    workflow: Annotated[str, Field(pattern=r"\A[\w .-]{1,100}\z")] = "accel-ci"
    nightly: bool = False
    pages: Endpoint | None = None
    enabled: bool = False
    check_every_seconds: Annotated[int, Field(ge=5)] = 30
    poll: Poll = Poll()
