"""The addresses of routes, whose secrets the redactor must know in all their forms."""

from __future__ import annotations

import pytest

from accel_ci.config.notify_settings import Route
from accel_ci.notify.addresses import addresses_of
from accel_ci.redaction import redact


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("tgram://123456789:AAFxyz_hijklmnop/12315544/", "POST /bot123456789:AAFxyz_hijklmnop/sendMessage"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/", "no team T1JJ3T3L2"),
        ("mailto://me:a%40secret%2Fpassword@example.org", "535 wrong password a@secret/password"),
        ("mailto://me:a%40secret%2Fpassword@example.org", "the user a%40secret%2Fpassword"),
        ("ntfy://example.org/topic?auth=tk_0123456789", "tk_0123456789"),
        ("json://example.org/?+X-Token=s3cr3t%2B4711", "X-Token: s3cr3t+4711"),
    ],
)
def test_no_part_that_is_a_secret_is_shown(address: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDRESS", address)
    assert addresses_of("chat", Route(urls_from="ADDRESS")) == (address,)
    for secret in ("123456789:AAF", "AAFxyz", "T1JJ3", "a@secret", "a%40secret", "tk_0123", "s3cr3t+4711"):
        assert secret not in redact(shown)
    monkeypatch.setenv("ADDRESS", "json://localhost:18080/ ntfy://server-01/")
    addresses_of("chat", Route(urls_from="ADDRESS"))
    assert redact("localhost:18080, server-01") == "localhost:18080, server-01"
    assert redact("see https://example.org/topic of example.org") == "see https://example.org/topic of example.org"
