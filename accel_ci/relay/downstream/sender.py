"""Send callbacks to the places that want them: each with a time limit, a few tries and no redirects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from accel_ci.github.answers import read_start
from accel_ci.redaction import redact

_TIMEOUT_S = 10.0
_TRIES = 3
_LONGEST_WAIT_S = 5.0
_SHOWN = 200
_READ_BYTES = 4096
_LOG = logging.getLogger(__name__)


class Answer(Enum):
    """The answer to a callback: it was taken, it will never be, or it may be next time.

    Nobody knows whether an `UNKNOWN` one was taken. A `REPEATED` one was refused as a step that the job cannot take, which
    a relay says to one that it had taken before.
    """

    TAKEN = "taken"
    REFUSED = "refused"
    REPEATED = "refused in this state"
    LATER = "not taken yet"
    UNKNOWN = "not answered yet"


class _AgainError(Exception):
    """The place may take the callback in a moment. `wait_s` is what it asks for."""

    def __init__(self, answer: Answer, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.answer, self.wait_s = answer, wait_s


@dataclass
class Sender:
    """Sends callbacks until its time is over. A place that has failed is left alone from then on.

    `token` is asked for once, when it is first needed. `seconds` is the time for all callbacks together.
    """

    token: Callable[[], str]
    seconds: float = 40.0
    _token: str | None = None
    _away: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    def is_away(self, url: str) -> bool:
        """Return whether nothing more is sent to a place for now."""
        return url in self._away or self._left_s() <= 0

    @property
    def away(self) -> frozenset[str]:
        """The places that have failed."""
        return frozenset(self._away)

    def _left_s(self) -> float:
        return self.seconds - (time.monotonic() - self._began)

    def authorize(self) -> None:
        """Have a token. Raises `TokenError`."""
        if self._token is None:
            self._token = self.token()

    def send(self, url: str, body: bytes) -> tuple[Answer, str]:
        """Send a callback; return the answer and its reason. Raises `TokenError` if there is no token for it."""
        self.authorize()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        headers["Accept-Encoding"] = "identity"  # a small answer must not become a large one

        def stop(state: RetryCallState) -> bool:
            return stop_after_attempt(_TRIES)(state) or self._left_s() <= 0

        def wait(state: RetryCallState) -> float:
            asked = getattr(state.outcome.exception(), "wait_s", 0.0) if state.outcome else 0.0
            own = wait_random_exponential(multiplier=0.3, max=_LONGEST_WAIT_S)(state)
            return max(0.0, min(max(own, asked), _LONGEST_WAIT_S, self._left_s()))

        was_lost = False
        try:
            for attempt in Retrying(retry=retry_if_exception_type(_AgainError), stop=stop, wait=wait, reraise=True):
                with attempt:
                    try:
                        answer, reason = self._post(url, body, headers)
                    except _AgainError as error:
                        was_lost = was_lost or error.answer is Answer.UNKNOWN
                        raise
                    return Answer.TAKEN if was_lost and answer is Answer.REPEATED else answer, reason
        except _AgainError as error:
            self._away.add(url)
            _LOG.warning("%s does not take callbacks for now: %s", httpx.URL(url).host, error)
            return error.answer, str(error)
        raise AssertionError("tenacity ends with a result or an error")

    def _post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[Answer, str]:
        limit_s = max(0.1, min(_TIMEOUT_S, self._left_s()))
        try:
            answer, content = asyncio.run(asyncio.wait_for(_exchange(url, body, headers, limit_s), limit_s))
        except (TimeoutError, asyncio.TimeoutError):
            raise _AgainError(Answer.UNKNOWN, f"no answer within {limit_s:.1f} s") from None
        except httpx.HTTPError as error:
            raise _AgainError(Answer.UNKNOWN, redact(f"{type(error).__name__}: {error}")[:_SHOWN]) from None
        text = redact(content.decode("utf-8", "replace"))
        said = "".join(letter if letter.isprintable() else " " for letter in text)
        reason = f"{answer.status_code} {said}".strip()[:_SHOWN]
        if answer.is_success:
            return Answer.TAKEN, reason
        if answer.status_code in (408, 429) or answer.is_server_error:
            kind = Answer.UNKNOWN if answer.is_server_error else Answer.LATER
            raise _AgainError(kind, reason, _seconds(answer.headers.get("Retry-After", "")))
        if answer.status_code in (401, 403):  # another token may be right
            self._away.add(url)
            return Answer.LATER, reason
        return Answer.REPEATED if answer.status_code in (400, 409) else Answer.REFUSED, reason


async def _exchange(url: str, body: bytes, headers: dict[str, str], timeout_s: float) -> tuple[httpx.Response, bytes]:
    """Post a callback, and read the beginning of the answer: a place may drip one, or never end it."""
    async with (
        httpx.AsyncClient(timeout=timeout_s, follow_redirects=False) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        return answer, await read_start(answer, _READ_BYTES)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 7 else 0.0
