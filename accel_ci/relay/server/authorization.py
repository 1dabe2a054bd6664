"""The authorization for GitHub that the settings of the relay name."""

from __future__ import annotations

from accel_ci.github.app_tokens import AppTokens, private_key
from accel_ci.github.authorization import Authorization, FixedToken
from accel_ci.relay.server.settings import RelayProject


def authorization_for(project: RelayProject) -> Authorization:
    """Make the authorization for GitHub that the settings name. Raises `ConfigError` where its secret cannot be used."""
    github = project.settings.github
    if github.app is None:
        return FixedToken(project.token())
    name = "github.app.private_key"
    key = private_key(github.app.private_key.read(project.folder, name), name)
    return AppTokens(github.api, str(github.app.id), key, project.settings.fan_out.timeout_s, github.app.installation)
