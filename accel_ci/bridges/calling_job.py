"""The job of another CI system that this process belongs to, as that system's variables describe it.

The values come from whoever pushed: only a whole commit and a number are taken, and no text becomes a part of a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

System = Literal["github", "buildkite", "jenkins", "none"]
"""A CI system; `none` for a terminal or one that is not known."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_LARGEST_EVENT = 32 << 20


@dataclass(frozen=True)
class CallingJob:
    """A job: its system, the commit that it is for and the number of its pull request, None where it has none.

    `is_unsafe` where the CI system gives secrets to a job for the pull request of a fork: GitHub on one event, an agent of
    Jenkins or Buildkite always.
    """

    system: System = "none"
    commit: str | None = None
    pull_request: int | None = None
    is_unsafe: bool = False


def calling_job(environment: Mapping[str, str]) -> CallingJob:
    """Return the job that these variables describe.

    In GitHub Actions, the commit of a pull request is its head, which the event names: `GITHUB_SHA` is a merge that nobody
    pushed. In Jenkins, `GIT_COMMIT` of a pull request may be such a merge, too, so that its newest head counts.
    """
    get = environment.get
    if get("GITHUB_ACTIONS") == "true":
        pull = _mapping(_event(get("GITHUB_EVENT_PATH")).get("pull_request"))
        if (number := _number(pull.get("number"))) is not None:
            head, base = _mapping(pull.get("head")), _mapping(pull.get("base"))
            is_own = _repository(head) is not None and _repository(head) == _repository(base)
            is_unsafe = get("GITHUB_EVENT_NAME") == "pull_request_target" and not is_own
            return CallingJob("github", _commit(head.get("sha")), number, is_unsafe)
        return CallingJob("github", _commit(get("GITHUB_SHA")))
    if get("BUILDKITE") == "true":
        number, origin = _number(get("BUILDKITE_PULL_REQUEST")), get("BUILDKITE_PULL_REQUEST_REPO")
        is_fork = bool(origin) and _place(origin or "") != _place(get("BUILDKITE_REPO") or "")
        return CallingJob("buildkite", _commit(get("BUILDKITE_COMMIT")), number, number is not None and is_fork)
    if get("JENKINS_URL") or get("JENKINS_HOME"):
        number = _number(get("CHANGE_ID"))
        is_fork = number is not None and bool(get("CHANGE_FORK"))
        return CallingJob("jenkins", _commit(get("GIT_COMMIT")) if number is None else None, number, is_fork)
    return CallingJob()


def _event(path: str | None) -> Mapping[str, Any]:
    """Return the event that has started a workflow; nothing where it cannot be read."""
    with suppress(OSError, ValueError):
        if path and Path(path).stat().st_size <= _LARGEST_EVENT:
            return _mapping(json.loads(Path(path).read_bytes()))
    return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _repository(side: Mapping[str, Any]) -> object:
    """Return the name of the repository on one side of a pull request; None where it was deleted."""
    return _mapping(side.get("repo")).get("full_name")


def _place(address: str) -> str:
    """Return the host and the path of a repository's address, by which two of the same repository are equal."""
    _, _, rest = address.lower().rpartition("://")
    host, _, path = rest.rpartition("@")[2].replace(":", "/", 1).partition("/")
    return f"{host}/{path.strip('/').removesuffix('.git')}"


def _commit(value: object) -> str | None:
    return value if isinstance(value, str) and _COMMIT.fullmatch(value) else None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, (int, str)) and _NUMBER.fullmatch(str(value)) else None
