"""Fixtures of the relay's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_ci_tests.fixtures.github_server import GitHubServer, github_server
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer, oidc_issuer


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    """A stand-in for GitHub."""
    with github_server() as server:
        yield server


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    """A stand-in for an issuer of tokens."""
    with oidc_issuer() as server:
        yield server
