"""The interface to the tokens with which a process acts at GitHub, and one token for all. Those of an App: `app_tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from accel_ci.errors import AccelCiError
from accel_ci.github.answers import Failed, Limited


class NoTokenError(AccelCiError):
    """There is no token for a request; `answer` says what follows, as if GitHub had answered the request with it."""

    def __init__(self, answer: Limited | Failed) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Authorization(Protocol):
    """The tokens with which a process acts at GitHub. Who made it closes it."""

    async def token(self, repository: str, now: float) -> str:
        """Return a token for a repository. Raises `NoTokenError` and `httpx.HTTPError`."""

    def drop(self, repository: str, token: str) -> bool:
        """Use a token no more that GitHub has refused with 401. Return whether there may be another one."""

    async def close(self) -> None:
        """Close connections."""


@dataclass(frozen=True)
class FixedToken:
    """One token for all repositories, such as a fine-grained one of a user."""

    value: str

    async def token(self, repository: str, now: float) -> str:
        """Return the token."""
        return self.value

    def drop(self, repository: str, token: str) -> bool:
        """Return False: there is no other one."""
        return False

    async def close(self) -> None:
        """Do nothing."""
