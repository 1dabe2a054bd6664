"""The tokens of a GitHub App, with GitHub's stand-in: one for each owner, renewal, revocation, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from accel_ci.errors import ConfigError
from accel_ci.github.answers import Answer, Failed, Limited, Sent
from accel_ci.github.app_tokens import AppTokens
from accel_ci.redaction import OF_THIS_PROCESS, redact
from accel_ci.relay.server.authorization import authorization_for
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.settings import load_relay
from accel_ci_tests.fixtures.github_app import APP_ID, Reply, app_key
from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer, pull_request

BODY = json.dumps({"event_type": "push", "client_payload": {"delivery_id": "one"}}).encode()
Send = Callable[[str, float], Awaitable[Answer]]


@pytest.fixture(autouse=True)
def nothing_is_learnt() -> Iterator[None]:
    """Forget the tokens of a test."""
    before = OF_THIS_PROCESS.secrets
    yield
    OF_THIS_PROCESS.forget(OF_THIS_PROCESS.secrets - before)


def run(
    github: GitHubServer, script: Callable[[Send], Awaitable[Any]], key: int = 0, timeout_s: float = 10, **options: Any
) -> Any:
    """Run a script that sends dispatches with an App's tokens."""

    async def whole() -> Any:
        private = load_pem_private_key(app_key(key).encode(), None)
        tokens = AppTokens(github.url, str(APP_ID), private, timeout_s, **options)  # type: ignore[arg-type]
        client = GitHubClient(github.url, tokens, timeout_s)
        try:
            return await script(lambda repository, now: client.send(repository, BODY, now))
        finally:
            await client.close()
            await tokens.close()

    return asyncio.run(whole())


def send_all(github: GitHubServer, *sends: tuple[str, float], **options: Any) -> list[Answer]:
    """Send dispatches one after the other."""

    async def script(send: Send) -> list[Answer]:
        return [await send(*one) for one in sends]

    return list(run(github, script, **options))


def test_owners_have_a_token_each_which_all_that_send_share(github: GitHubServer) -> None:
    github.app.installations = {"a": 1, "b": 2}
    github.app.delay_s = 0.1
    now = time.time()

    async def script(send: Send) -> list[Answer]:
        repositories = ("a/one", "A/two", "b/three") * 5
        return [*await asyncio.gather(*(send(one, now) for one in repositories)), await send("a/one", now)]

    assert run(github, script) == [Sent()] * 16
    made = {path: count for path, count in github.app.requests.items() if path.startswith("/app")}
    assert made == {"/app/installations/1/access_tokens": 1, "/app/installations/2/access_tokens": 1}
    assert sum(github.app.requests.values()) == 4
    assert len(github.dispatches) == 16


def test_a_token_is_renewed_five_minutes_before_its_end(github: GitHubServer) -> None:
    github.app.installations = {"a": 1}
    now = time.time()
    made = "/app/installations/1/access_tokens"
    # A second less, and one more: the stand-in's times have no fractions.
    assert send_all(github, ("a/b", now), ("a/b", now + 3600 - 302)) == [Sent()] * 2
    assert github.app.requests[made] == 1
    assert send_all(github, ("a/b", now), ("a/b", now + 3600 - 298)) == [Sent()] * 2
    assert github.app.requests[made] == 3


def test_a_revoked_token_is_replaced_once(github: GitHubServer) -> None:
    github.app.installations = {"a": 1}

    async def script(send: Send) -> list[Answer]:
        now = time.time()
        first = await send("a/b", now)
        github.app.tokens.clear()
        second = await send("a/b", now)
        github.behaviours["a/b"] = Behaviour(401, message="Bad credentials")
        return [first, second, await send("a/b", now), await send("a/b", now)]

    bad = Failed("HTTP 401: Bad credentials")
    assert run(github, script) == [Sent(), Sent(), bad, bad]
    # One without and one with a revoked token, and two for each of the two that stay refused.
    assert github.requests["a/b"] == 1 + 2 + 2 + 2
    # The last ones are not used again, either.
    assert github.app.requests["/app/installations/1/access_tokens"] == 4


def test_an_app_that_is_not_installed_yet(github: GitHubServer) -> None:
    async def script(send: Send) -> list[Answer]:
        first = await send("a/b", time.time())
        github.app.installations = {"a": 1}
        return [first, await send("a/b", time.time())]

    missing = Failed("the GitHub App has no token, HTTP 404: Not Found; install it for this repository")
    assert run(github, script) == [missing, Sent()]
    assert github.requests["a/b"] == 1


def test_an_app_that_is_installed_anew(github: GitHubServer) -> None:
    github.app.installations = {"a": 1}

    async def script(send: Send) -> list[Answer]:
        now = time.time()
        first = await send("a/b", now)
        github.app.installations, github.app.tokens = {"a": 2}, {}
        return [first, await send("a/b", now), await send("a/b", now)]

    first, second, third = run(github, script)
    assert (first, third) == (Sent(), Sent())
    assert isinstance(second, Failed)
    assert not second.permanent


def test_an_installation_of_the_settings(github: GitHubServer) -> None:
    github.app.installations = {"a": 7}
    assert send_all(github, ("a/b", time.time()), ("a/c", time.time()), installation=7) == [Sent()] * 2
    assert github.app.requests == {"/app/installations/7/access_tokens": 1}


def test_another_key_than_the_apps(github: GitHubServer) -> None:
    github.app.installations = {"a": 1}
    (answer,) = send_all(github, ("a/b", time.time()), key=1)
    assert isinstance(answer, Failed)
    assert answer.reason.endswith("could not be decoded; check github.app.id, its private key, and the clock")
    assert not github.dispatches


NO_INSTALLATION = Failed("GitHub's answer has no installation of the App")
NO_TOKEN = Failed("GitHub's answer has no token of the App's installation")
RENAMED = "the GitHub App has no token, HTTP 301: Moved: the repository was renamed; correct its name"
SECONDARY = "You have exceeded a secondary rate limit"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((429, {"message": "slow down"}, {"Retry-After": "17"}), Limited(17, "HTTP 429: slow down")),
        ((403, {"message": SECONDARY}, {}), Limited(60, f"HTTP 403: {SECONDARY}")),
        ((403, {"message": "suspended"}, {}), Failed("the GitHub App has no token, HTTP 403: suspended")),
        ((503, {"message": "down"}, {"Retry-After": "9"}), Failed("the GitHub App has no token, HTTP 503: down", wait_s=9)),
        ((301, {"message": "Moved"}, {"Location": "/elsewhere"}), Failed(RENAMED, permanent=True)),
        ((200, {}, {}), NO_INSTALLATION),
        ((200, {"id": "1"}, {}), NO_INSTALLATION),
        ((200, {"id": 1, "x": "y" * 100_000}, {}), NO_INSTALLATION),
        ((200, {"id": 1}, {}), NO_TOKEN),
        ((200, {"id": 1, "token": "x", "expires_at": "soon"}, {}), NO_TOKEN),
        ((200, {"id": 1, "token": "x", "expires_at": 5}, {}), NO_TOKEN),
        ((200, {"id": 1, "token": "", "expires_at": "2999-01-01T00:00:00Z"}, {}), NO_TOKEN),
        ((200, {"id": 1, "token": "a\r\nb: c", "expires_at": "2999-01-01T00:00:00Z"}, {}), NO_TOKEN),
    ],
    ids=[
        "limited", "limited by its message", "suspended", "down", "renamed", "empty", "no number", "too large", "no token",
        "no end", "an end as number", "an empty token", "a token with another header",
    ],
)  # fmt: skip
def test_answers_without_a_token(github: GitHubServer, reply: Reply, expected: Answer) -> None:
    github.app.instead = reply
    assert send_all(github, ("a/b", time.time())) == [expected]
    assert not github.requests["a/b"]


def test_a_token_that_does_not_come(github: GitHubServer) -> None:
    github.app.delay_s = 30
    (answer,) = send_all(github, ("a/b", time.time()), timeout_s=0.3)
    assert isinstance(answer, Failed)
    assert not answer.permanent


def test_tokens_are_redacted_until_they_have_ended(github: GitHubServer) -> None:
    github.app.installations = {"a": 1}
    now = time.time()
    send_all(github, ("a/b", now))
    (first,) = github.app.tokens
    assert redact(f"x {first}") == "x ***"

    send_all(github, ("a/b", now), ("a/b", now + 4000))
    second, third = list(github.app.tokens)[1:]
    assert redact(f"{second} {third}") == f"{second} ***"


def test_the_settings_of_an_app(tmp_path: Path) -> None:
    def load(github: str) -> Any:
        path = tmp_path / "relay.yaml"
        path.write_text(f"upstream: a/b\nwebhook_secret: {{variable: A}}\ngithub: {github}\n")
        return authorization_for(load_relay(path))

    (tmp_path / "key.pem").write_text(app_key())
    (tmp_path / "no.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n")
    (tmp_path / "token").write_text("ghs_fixedTokenOfATest")
    assert isinstance(load("{app: {id: 1, private_key: {file: key.pem}}}"), AppTokens)
    assert isinstance(load("{app: {id: Iv23abc, private_key: {file: key.pem}, installation: 7}}"), AppTokens)
    assert asyncio.run(load("{token: {file: token}}").token("a/b", 0)) == "ghs_fixedTokenOfATest"
    for wrong, mistake in {
        "{}": "must have either 'token' or 'app'",
        "{token: {file: token}, app: {id: 1, private_key: {file: key.pem}}}": "must have either 'token' or 'app'",
        "{app: {id: 0, private_key: {file: key.pem}}}": "github.app.id",
        "{app: {id: 1}}": "github.app.private_key",
        "{app: {id: 1, private_key: {file: gone}}}": "github.app.private_key: .*gone cannot be read",
        "{app: {id: 1, private_key: {file: no.pem}}}": "github.app.private_key: must be the RSA key in PEM",
    }.items():
        with pytest.raises(ConfigError, match=mistake) as raised:
            load(wrong)
        assert "AAAA" not in str(raised.value)


def test_a_server_with_an_app(tmp_path: Path, github: GitHubServer) -> None:
    github.app.installations = {"a": 1}
    server = RelayServer(tmp_path, github.url, "L1: [a/b, other/c]\n", fan_out={"first_pause_s": 0.1, "tries": 2})
    settings = yaml.safe_load((tmp_path / "relay.yaml").read_text())
    settings["github"] = {"api": github.url, "app": {"id": APP_ID, "private_key": {"variable": "APP_KEY"}}}
    (tmp_path / "relay.yaml").write_text(yaml.safe_dump(settings))
    server.environment |= {"APP_KEY": app_key(), "RELAY_TOKEN": ""}
    try:
        server.start()
        assert server.deliver(pull_request(), delivery="one").status_code == 202
        wait_for(lambda: len(github.dispatches) == 1 and "other/c, it is a dead letter" in server.log)
        assert server.terminate() == 0
        assert "it is a dead letter: the GitHub App has no token, HTTP 404: Not Found; install it" in server.log
    finally:
        server.stop()
    (token,) = github.app.tokens
    assert token not in server.log
    assert not [line for line in app_key().splitlines()[1:-1] if line in server.log]
