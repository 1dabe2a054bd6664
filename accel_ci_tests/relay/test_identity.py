"""Callers by their OIDC tokens, with an issuer on loopback: forged and wrong tokens, times, and keys that change."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from jwt.algorithms import RSAAlgorithm

from accel_ci.errors import ConfigError
from accel_ci.relay.messages import AUDIENCE
from accel_ci.relay.server.identity import LARGEST_TOKEN, Identities, NotIdentified
from accel_ci.relay.server.settings import ISSUERS, Issuer, OidcSettings, load_relay
from accel_ci_tests.fixtures.oidc_issuer import CONFIGURATION, KEYS, OidcIssuer, oidc_issuer, private_key

NOW = 1_800_000_000.0
LEEWAY_S = 60
GOOD = {"alg": "RS256", "kid": "key-0"}
SETTINGS = OidcSettings(leeway_s=LEEWAY_S, keys_s=300, stale_keys_s=3600, cool_down_s=10, timeout_s=5)
SMALL = private_key(0, bits=1024)
Call = tuple[str | None, float]
Make = Callable[[OidcIssuer], str]


def ask(issuers: Sequence[Issuer], *calls: Call, between: Callable[[int], None] | None = None) -> list[Any]:
    """Identify callers one after the other: the repository of each, or the status and detail. `between` runs before each."""

    async def run() -> list[Any]:
        identities = Identities(issuers, SETTINGS)
        answers: list[Any] = []
        for number, (authorization, now) in enumerate(calls):
            if between is not None:
                between(number)
            try:
                answers.append(await identities.identify(authorization, now))
            except NotIdentified as refused:
                answers.append((refused.status, refused.detail))
        await identities.close()
        return answers

    return asyncio.run(run())


def ask_once(issuer: OidcIssuer, token: str, **settings: Any) -> Any:
    """Identify the bearer of one token."""
    return ask([Issuer(issuer=issuer.url, **settings)], (f"Bearer {token}", NOW))[0]


def part(value: object) -> str:
    """A part of a token."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def signed_with(issuer: OidcIssuer, header: object, claims: object | None = None) -> str:
    """A token with this very header and these claims, and a good RS256 signature of them."""
    signing = f"{part(header)}.{part(issuer.claims(now=NOW) if claims is None else claims)}"
    return f"{signing}.{part(jwt.get_algorithm_by_name('RS256').sign(signing.encode(), private_key(issuer.number)))}"


def confused(issuer: OidcIssuer) -> str:
    """A token that is signed with the public key as if that were a shared secret."""
    public = private_key(0).public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signing = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'key-0'})}.{part(issuer.claims(now=NOW))}"
    return f"{signing}.{part(hmac.new(secret, signing.encode(), hashlib.sha256).digest())}"


def changed(token: str) -> str:
    """The token with another repository, under the same signature."""
    header, claims, signature = token.split(".")
    whole = json.loads(base64.urlsafe_b64decode(claims + "=="))
    return f"{header}.{part({**whole, 'repository': 'a/other'})}.{signature}"


def duplicated(issuer: OidcIssuer) -> str:
    """A token that its issuer has signed, with the repository twice."""
    text = json.dumps(issuer.claims("a/one", NOW))
    return signed_with(issuer, GOOD, (text[:-1] + ', "repository": "a/two"}').encode())


def endless(issuer: OidcIssuer) -> str:
    """A token whose end is beyond all numbers."""
    return signed_with(issuer, GOOD, json.dumps(issuer.claims(now=NOW, exp=9)).replace(": 9,", ": 1e999,").encode())


REFUSED: dict[str, tuple[Make, int, str]] = {
    "forged": (lambda one: jwt.encode(one.claims(now=NOW), private_key(9), "RS256", GOOD), 401, "InvalidSignature"),
    "changed": (lambda one: changed(one.token(now=NOW)), 401, "InvalidSignature"),
    "no signature": (lambda one: one.token(now=NOW).rpartition(".")[0] + ".", 401, "must be 'Bearer' and"),
    "a short signature": (lambda one: one.token(now=NOW).rpartition(".")[0] + ".AAAA", 401, "InvalidSignature"),
    "alg none": (lambda one: f"{part({'alg': 'none', 'kid': 'key-0'})}.{part(one.claims(now=NOW))}.AAAA", 401, "RS256"),
    "alg none with a signature": (lambda one: signed_with(one, {"alg": "none", "kid": "key-0"}), 401, "RS256"),
    "no alg": (lambda one: signed_with(one, {"kid": "key-0"}), 401, "RS256"),
    "alg of another type": (lambda one: signed_with(one, {"alg": ["RS256"], "kid": "key-0"}), 401, "RS256"),
    "the public key as a secret": (confused, 401, "RS256"),
    "RS512": (lambda one: jwt.encode(one.claims(now=NOW), private_key(0), "RS512", {"kid": "key-0"}), 401, "RS256"),
    "PS256": (lambda one: jwt.encode(one.claims(now=NOW), private_key(0), "PS256", {"kid": "key-0"}), 401, "RS256"),
    "no kid": (lambda one: jwt.encode(one.claims(now=NOW), private_key(0), "RS256"), 401, "'kid'"),
    "kid of another type": (lambda one: signed_with(one, {"alg": "RS256", "kid": 0}), 401, "'kid'"),
    "an unknown kid": (lambda one: one.sign(one.claims(now=NOW), kid="key-7"), 401, "a key that its issuer does not have"),
    "a critical header": (lambda one: signed_with(one, {**GOOD, "crit": ["exp"]}), 401, "RS256"),
    "the header twice": (lambda one: signed_with(one, b'{"alg": "RS256", "kid": "a", "kid": "b"}'), 401, "appears twice"),
    "claims twice": (duplicated, 401, "appears twice"),
    "nested deeply": (lambda one: signed_with(one, GOOD, b'{"a":' * 900 + b"1" + b"}" * 900), 401, "nested"),
    "claims are no object": (lambda one: signed_with(one, GOOD, ["a"]), 401, "not an object"),
    "claims are no JSON": (lambda one: signed_with(one, GOOD, b"\xff"), 401, "not JSON"),
    "a part is no base64": (lambda one: "A" + one.token(now=NOW), 401, "the token is no JWT"),
    "two parts": (lambda one: one.token(now=NOW).rpartition(".")[0], 401, "must be 'Bearer' and"),
    "five parts": (lambda one: one.token(now=NOW) + ".a.b", 401, "must be 'Bearer' and"),
    "a letter beyond ASCII": (lambda one: one.token(now=NOW) + "\u0660", 401, "must be 'Bearer' and"),
    "a line break": (lambda one: one.token(now=NOW) + "\n", 401, "must be 'Bearer' and"),
    "huge": (lambda one: one.token(now=NOW, padding="x" * LARGEST_TOKEN), 401, f"more than {LARGEST_TOKEN} characters"),
    "another audience": (lambda one: one.token(now=NOW, aud="sts.amazonaws.com"), 401, "InvalidAudience"),
    "no audience": (lambda one: one.token(now=NOW, aud=None), 401, "MissingRequiredClaim"),
    "other audiences": (lambda one: one.token(now=NOW, aud=["one", "two"]), 401, "InvalidAudience"),
    "several audiences": (lambda one: one.token(now=NOW, aud=[AUDIENCE, "another"]), 401, "InvalidAudience"),
    "an audience of another type": (lambda one: one.token(now=NOW, aud={AUDIENCE: 1}), 401, "InvalidAudience"),
    "another issuer": (lambda one: one.token(now=NOW, iss="https://example.com"), 401, "no issuer that is trusted"),
    "a slash after the issuer": (lambda one: one.token(now=NOW, iss=one.url + "/"), 401, "no issuer that is trusted"),
    "no issuer": (lambda one: one.token(now=NOW, iss=None), 401, "no issuer that is trusted"),
    "an issuer of another type": (lambda one: signed_with(one, GOOD, {"iss": [one.url]}), 401, "no issuer"),
    "expired": (lambda one: one.token(now=NOW, exp=NOW - LEEWAY_S), 401, "has expired"),
    "no end": (lambda one: one.token(now=NOW, exp=None), 401, "'exp' must be a time"),
    "an end as text": (lambda one: one.token(now=NOW, exp=str(NOW + 9)), 401, ""),
    "an end that is true": (lambda one: one.token(now=NOW, exp=True), 401, "'exp' must be a time"),
    "an endless end": (endless, 401, "'exp' must be a time"),
    "an end of 400 digits": (lambda one: one.token(now=NOW, exp=10**400), 401, "'exp' must be a time"),
    "a begin of 400 digits": (lambda one: one.token(now=NOW, nbf=-(10**400)), 401, "'nbf' must be a time"),
    "not yet valid": (lambda one: one.token(now=NOW, nbf=NOW + LEEWAY_S + 1), 401, "'nbf'"),
    "a begin of another type": (lambda one: one.token(now=NOW, nbf=[NOW]), 401, ""),
    "of the future": (lambda one: one.token(now=NOW, iat=NOW + LEEWAY_S + 1), 401, "'iat'"),
    "no time of its making": (lambda one: one.token(now=NOW, iat=None), 401, "'iat' must be a time"),
    "no repository": (lambda one: one.token(None, NOW), 403, "no claim 'repository'"),
    "a repository of another type": (lambda one: one.sign({**one.claims(now=NOW), "repository": ["a/b"]}), 403, "no claim"),
    "a hostile repository": (lambda one: one.token("a/b\n", NOW), 403, "no claim 'repository'"),
    "a path as repository": (lambda one: one.token("a/b/../c", NOW), 403, "no claim 'repository'"),
}  # fmt: skip


def test_a_good_token_stands_for_its_repository(issuer: OidcIssuer) -> None:
    token = issuer.token("a/reporting", NOW)
    trusted = [*ISSUERS, Issuer(issuer=issuer.url)]
    calls: list[Call] = [
        (f"Bearer {token}", NOW),
        (f"bearer  {token}", NOW + 299),
        (f"Bearer {issuer.token('B/x.y', NOW)}", NOW),
    ]
    # A job sends all its callbacks with one token, and the keys are fetched once for everybody.
    assert ask(trusted, *calls) == ["a/reporting", "a/reporting", "B/x.y"]
    assert issuer.requests == {CONFIGURATION: 1, KEYS: 1}


@pytest.fixture(scope="module")
def refusals() -> dict[str, Any]:
    """The answers to all of `REFUSED`, by name; with one client, since making one for each takes long."""
    with oidc_issuer() as one:
        calls: list[Call] = [(f"Bearer {make(one)}", NOW) for make, _, _ in REFUSED.values()]
        return dict(zip(REFUSED, ask([Issuer(issuer=one.url)], *calls), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_tokens(refusals: dict[str, Any], name: str) -> None:
    _, status, detail = REFUSED[name]
    assert refusals[name][0] == status
    assert detail in refusals[name][1]


def test_no_part_of_a_token_is_logged_or_answered(issuer: OidcIssuer, caplog: pytest.LogCaptureFixture) -> None:
    tokens = [make(issuer) for make, _, _ in REFUSED.values()]
    with caplog.at_level(logging.DEBUG):
        answers = ask([Issuer(issuer=issuer.url)], *((f"Bearer {token}", NOW) for token in tokens))
    shown = caplog.text + "".join(detail for _, detail in answers)
    assert issuer.url + KEYS in shown
    assert not [one for token in tokens for one in token.split(".") if len(one) > 4 and one in shown]


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Token a.b.c", "a.b.c", "Bearer a b.c.d"]
)
def test_headers_without_a_token(issuer: OidcIssuer, authorization: str | None) -> None:
    status, detail = ask([Issuer(issuer=issuer.url)], (authorization, NOW))[0]
    assert status == 401
    assert "Bearer" in detail
    assert not issuer.requests


def test_the_clocks_may_differ_a_little(issuer: OidcIssuer) -> None:
    for claims in ({"exp": NOW - LEEWAY_S + 1}, {"nbf": NOW + LEEWAY_S, "iat": NOW + LEEWAY_S}, {"nbf": None}):
        assert ask_once(issuer, issuer.token(now=NOW, **claims)) == "a/reporting"


def test_an_issuer_with_a_slash_at_its_end(issuer: OidcIssuer) -> None:
    issuer.configuration["issuer"] = issuer.url + "/"
    trusted = [Issuer(issuer=issuer.url + "/")]
    good, other = issuer.token(now=NOW, iss=issuer.url + "/"), issuer.token(now=NOW)
    answers = ask(trusted, (f"Bearer {good}", NOW), (f"Bearer {other}", NOW))
    assert answers[0] == "a/reporting"
    assert answers[1][0] == 401


def test_pipelines_of_buildkite(issuer: OidcIssuer) -> None:
    settings: dict[str, Any] = {"identity": "buildkite", "pipelines": {"org-1/pipe-1": "a/reporting"}}
    names = {"organization_id": "org-1", "pipeline_id": "pipe-1"}
    assert ask_once(issuer, issuer.token(None, NOW, **names), **settings) == "a/reporting"
    # A claim that only GitHub's tokens have says nothing in those of others.
    other = ask_once(issuer, issuer.token("a/reporting", NOW, **{**names, "pipeline_id": "pipe-2"}), **settings)
    assert other == (403, "the pipeline stands for no repository: name it in 'pipelines' of the relay's issuers")
    for claims in ({"organization_id": "org-1"}, {**names, "pipeline_id": 1}, {**names, "organization_id": ""}):
        assert ask_once(issuer, issuer.token("a/reporting", NOW, **claims), **settings)[0] == 403


def test_the_keys_of_one_issuer_prove_nothing_for_another(issuer: OidcIssuer) -> None:
    with oidc_issuer() as other:
        other.rotate()
        trusted = [Issuer(issuer=issuer.url), Issuer(issuer=other.url)]
        stolen = other.sign(issuer.claims(now=NOW))
        posing = other.sign(issuer.claims(now=NOW), kid="key-0")
        answers = ask(trusted, (f"Bearer {other.token(now=NOW)}", NOW), (f"Bearer {stolen}", NOW), (f"Bearer {posing}", NOW))
    assert answers[0] == "a/reporting"
    assert [answer[0] for answer in answers[1:]] == [401, 401]


def test_a_new_key_is_good_at_once_and_an_old_one_until_the_keys_are_fetched_again(issuer: OidcIssuer) -> None:
    old = f"Bearer {issuer.token(now=NOW)}"
    issuer.rotate(keep_old=True)
    new = f"Bearer {issuer.token(now=NOW)}"
    both = issuer.keys
    issuer.keys = both[:1]

    def between(number: int) -> None:
        issuer.keys = {0: both[:1], 1: both, 2: both[1:]}.get(number, issuer.keys)

    answers = ask(
        [Issuer(issuer=issuer.url)], (old, NOW), (new, NOW + 11), (old, NOW + 310), (old, NOW + 311), between=between
    )
    assert answers[:3] == ["a/reporting"] * 3
    assert answers[3] == (401, "the token is signed with a key that its issuer does not have")
    assert issuer.requests[KEYS] == 3


def test_a_flood_of_unknown_keys_does_not_reach_the_issuer(issuer: OidcIssuer) -> None:
    flood = [f"Bearer {issuer.sign(issuer.claims(now=NOW), kid=f'none-{number}')}" for number in range(20)]
    good = f"Bearer {issuer.token(now=NOW)}"
    answers = ask([Issuer(issuer=issuer.url)], *((one, NOW + 1) for one in flood), (good, NOW + 2), (flood[0], NOW + 12))
    assert [answer[0] for answer in answers[:20]] == [401] * 20
    assert answers[20] == "a/reporting"
    assert issuer.requests[KEYS] == 2


def test_callers_at_the_same_time_share_one_fetch(issuer: OidcIssuer) -> None:
    issuer.delay_s = 0.1
    token = f"Bearer {issuer.token(now=NOW)}"

    async def run() -> list[str]:
        identities = Identities([Issuer(issuer=issuer.url)], SETTINGS)
        found = await asyncio.gather(*(identities.identify(token, NOW) for _ in range(30)))
        await identities.close()
        return found

    assert asyncio.run(run()) == ["a/reporting"] * 30
    assert issuer.requests == {CONFIGURATION: 1, KEYS: 1}


def test_the_last_keys_are_good_while_the_issuer_is_down(issuer: OidcIssuer) -> None:
    issuer.rotate()
    token = f"Bearer {issuer.token(now=NOW, exp=NOW + 9000)}"
    unknown = f"Bearer {issuer.sign(issuer.claims(now=NOW, exp=NOW + 9000), kid='none')}"
    times = (NOW, NOW + 301, NOW + 302, NOW + 3599, NOW + 3600, NOW + 3601, NOW + 3611)

    def between(number: int) -> None:
        issuer.status = 200 if number in (0, 7) else 503

    calls: list[Call] = [(token, at) for at in times[:4]]
    calls += [(unknown, times[3]), (token, times[4]), (token, times[5]), (token, times[6])]
    answers = ask([Issuer(issuer=issuer.url)], *calls, between=between)
    assert answers[:4] == ["a/reporting"] * 4
    # It cannot be known whether the issuer has a key that is new.
    assert [answers[number][0] for number in (4, 5, 6)] == [503, 503, 503]
    assert answers[5][1] == f"the keys of {issuer.url} cannot be fetched; try again later"
    assert answers[7] == "a/reporting"
    # One try for each cool-down: at the start, after 301 s, 3599 s and 3611 s.
    assert issuer.requests[CONFIGURATION] == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one, "status", 500),
        lambda one: setattr(one, "status", 302),
        lambda one: one.configuration.update(issuer="https://example.com"),
        lambda one: one.configuration.update(jwks_uri=one.url.replace("127.0.0.1", "0.0.0.0") + KEYS),
        lambda one: one.configuration.update(jwks_uri="file:///etc/passwd"),
        lambda one: one.configuration.update(jwks_uri="https://[/keys"),
        lambda one: one.configuration.update(jwks_uri=None),
        lambda one: one.configuration.update(jwks_uri=one.url + "/elsewhere"),
        lambda one: setattr(one, "content", b"{}"),
        lambda one: setattr(one, "content", b'{"keys": []}'),
        lambda one: setattr(one, "content", b'{"keys": {"kid": "key-0"}}'),
        lambda one: setattr(one, "content", b"no JSON"),
        lambda one: setattr(one, "content", b"[" * 100_000),
        lambda one: setattr(one, "content", json.dumps({"keys": one.keys, "x": "x" * 300_000}).encode()),
        lambda one: setattr(one, "keys", [one.public(0, kty="EC"), 7, {"kty": "oct", "k": "AAAA", "kid": "key-0"}]),
        lambda one: setattr(one, "keys", [one.public(0, use="enc"), one.public(0, alg="RS512"), one.public(0, kid=None)]),
        lambda one: setattr(one, "keys", [one.public(0, n=RSAAlgorithm.to_jwk(SMALL.public_key(), as_dict=True)["n"])]),
        lambda one: setattr(one, "keys", [one.public(0, n="AQAB"), one.public(0, n="!"), one.public(0, n=5)]),
    ],
    ids=[
        "down", "redirect", "of another issuer", "keys without TLS", "keys in a file", "no address", "no keys named",
        "not found", "no keys", "an empty list", "no list", "no JSON", "nested deeply", "too large", "of other kinds",
        "for other uses", "too small", "no numbers",
    ],
)  # fmt: skip
def test_keys_that_cannot_be_had(issuer: OidcIssuer, change: Callable[[OidcIssuer], None]) -> None:
    change(issuer)
    assert ask_once(issuer, issuer.token(now=NOW)) == (
        503,
        f"the keys of {issuer.url} cannot be fetched; try again later",
    )


def test_a_fetch_has_an_end(issuer: OidcIssuer) -> None:
    issuer.delay_s = 30

    async def run() -> int:
        identities = Identities([Issuer(issuer=issuer.url)], OidcSettings(timeout_s=0.2))
        with pytest.raises(NotIdentified) as refused:
            await identities.identify(f"Bearer {issuer.token(now=NOW)}", NOW)
        await identities.close()
        return refused.value.status

    assert asyncio.run(run()) == 503


def test_a_slow_issuer_holds_up_one_caller_alone(issuer: OidcIssuer) -> None:
    token = f"Bearer {issuer.token(now=NOW, exp=NOW + 9000)}"

    async def run() -> tuple[str, bool]:
        identities = Identities([Issuer(issuer=issuer.url)], OidcSettings(timeout_s=300))
        await identities.identify(token, NOW)
        issuer.delay_s = 60
        waits = asyncio.create_task(identities.identify(token, NOW + 301))
        while issuer.requests[CONFIGURATION] < 2:
            await asyncio.sleep(0.01)
        found = await identities.identify(token, NOW + 302)
        is_waiting = not waits.done()
        waits.cancel()
        await asyncio.wait([waits])
        await identities.close()
        return found, is_waiting

    assert asyncio.run(run()) == ("a/reporting", True)


def test_keys_at_an_address_of_the_settings(issuer: OidcIssuer) -> None:
    assert ask_once(issuer, issuer.token(now=NOW), jwks_url=issuer.url + KEYS) == "a/reporting"
    assert issuer.requests == {KEYS: 1}


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("issuers: []", "issuers:"),
        ("issuers: [{issuer: 'http://example.com'}]", "issuers[0].issuer: must begin with https://"),
        (
            "issuers: [{issuer: 'https://a', jwks_url: 'http://127.0.0.1.example.com'}]",
            "issuers[0].jwks_url: must begin with",
        ),
        ("issuers: [{issuer: 'https://a'}, {issuer: 'https://a'}]", "https://a is there twice"),
        ("issuers: [{issuer: 'https://a', pipelines: {x/y: a/b}}]", "pipelines need identity: buildkite"),
        (
            "issuers: [{issuer: 'https://a', identity: buildkite, pipelines: {x: a/b}}]",
            "'x' must be organization_id/pipeline_id",
        ),
        ("issuers: [{issuer: 'https://a', identity: buildkite, pipelines: {x/y: b}}]", "must be owner/name"),
        ("oidc: {leeway_s: 3600}", "oidc.leeway_s:"),
        ("oidc: {keys_s: 10, stale_keys_s: 5}", "stale_keys_s must be at least keys_s"),
    ],
)
def test_mistakes_in_the_settings(tmp_path: Path, text: str, mistake: str) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(f"upstream: a/b\nwebhook_secret: {{variable: A}}\ngithub: {{token: {{file: token}}}}\n{text}\n")
    with pytest.raises(ConfigError) as raised:
        load_relay(path)
    assert mistake in str(raised.value)
    assert "relay.yaml:4" in str(raised.value)
