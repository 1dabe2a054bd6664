"""Fixtures of the relay's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.github_server import GitHubServer, github_server
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer, oidc_issuer
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres


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


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'relay.sqlite'}"
    elif POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    else:
        yield from empty_postgres()
