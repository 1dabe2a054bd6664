"""The OIDC token by which the relay knows who calls it: of GitHub Actions, of Buildkite, or from a file.

A token is short-lived, so it is asked for anew for each batch of callbacks, and kept nowhere. The redactor learns it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import TimeoutExpired

import httpx

from accel_ci.config.relay_settings import Relay
from accel_ci.errors import AccelCiError
from accel_ci.process.run import run_apart
from accel_ci.redaction import OF_THIS_PROCESS, redact
from accel_ci.relay.messages import AUDIENCE

_TIMEOUT_S = 10.0
_LARGEST_TOKEN = 16 << 10

GITHUB_URL, GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"


class TokenError(AccelCiError):
    """There is no token for a callback; the message says how to get one."""


def oidc_token(settings: Relay, root: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return a token with the audience of the relay. A relative `token_file` is below `root`. Raises `TokenError`."""
    given = os.environ if environment is None else environment
    if settings.identity == "github":
        token = _of_github(given)
    elif settings.identity == "buildkite":
        token = _of_buildkite()
    else:
        token = _of_file(root / (settings.token_file or ""))
    token = token.strip()
    if not token or len(token) > _LARGEST_TOKEN or not token.isascii() or any(part.isspace() for part in token):
        raise TokenError(f"what relay.identity '{settings.identity}' yields is no token")
    OF_THIS_PROCESS.learn([token])
    return token


def _of_github(environment: Mapping[str, str]) -> str:
    url, token = environment.get(GITHUB_URL), environment.get(GITHUB_TOKEN)
    if not url or not token:
        raise TokenError(f"{GITHUB_URL} is not set: give the job the permission 'id-token: write', or set relay.identity")
    try:
        answer = httpx.get(
            httpx.URL(url).copy_merge_params({"audience": AUDIENCE}),
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_S,
        )
        answer.raise_for_status()
        value = answer.json()["value"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise TokenError(f"GitHub gave no OIDC token: {type(error).__name__}; the next report asks again") from None
    return str(value)


def _of_buildkite() -> str:
    # The relay knows a pipeline by these two claims, which Buildkite leaves out unless it is asked for them.
    claims = ["--claim", "organization_id", "--claim", "pipeline_id"]
    command = ["buildkite-agent", "oidc", "request-token", "--audience", AUDIENCE, *claims]
    try:
        finished = run_apart(command, timeout_s=_TIMEOUT_S)
    except (FileNotFoundError, TimeoutExpired) as error:
        raise TokenError(f"buildkite-agent gave no OIDC token: {error}; run in a step of Buildkite") from None
    if finished.returncode:
        raise TokenError(f"buildkite-agent gave no OIDC token: {redact(finished.stderr).strip()[-300:]}")
    return finished.stdout


def _of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_TOKEN + 1).decode("ascii", "replace")
    except OSError as error:
        raise TokenError(f"the token file {path} cannot be read: {error.strerror}; see relay.token_file") from None
