"""The extras of the package: optional third-party packages, and which settings need them.

`pyproject.toml` says what each extra installs. Modules that import an optional package call `require_extra` first.
"""

from __future__ import annotations

from importlib.util import find_spec

from accel_ci.config.settings import Settings
from accel_ci.errors import AccelCiError

EXTRAS = {
    "docker": ("docker",),
    "github": ("cryptography", "httpx", "jwt"),
    "kubernetes": ("kubernetes", "boto3"),
    "notify": ("apprise",),
    "postgres": ("psycopg2",),
    "relay": ("clickhouse_connect", "cryptography", "httptools", "httpx", "jwt", "starlette", "uvicorn"),
    "release": ("pypi_attestations", "requests", "sigstore"),
    "s3": ("boto3",),
}
"""The extras, each with the modules that it must bring."""


def require_extra(extra: str, needed_by: str) -> None:
    """Check that the modules of an extra are installed. Raises `AccelCiError` with the command that installs them."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise AccelCiError(f"{needed_by} needs the package {module}; install it with: pip install 'accel-ci[{extra}]'")


def require_configured_extras(settings: Settings) -> None:
    """Check for all optional packages that a configuration needs. Raises `AccelCiError` for the first one missing."""
    if settings.pool.extra is not None:
        require_extra(settings.pool.extra, f"pool.kind: {settings.pool.kind}")
    if settings.store is not None:
        require_extra("s3", "store.bucket")
    if settings.results.bucket is not None:
        require_extra("s3", "results.bucket")
    if settings.github is not None:
        require_extra("github", "github")
    if settings.relay is not None and settings.relay.callbacks:
        require_extra("relay", "relay.callbacks")
    if settings.relay is not None and settings.relay.poll.enabled:
        require_extra("relay", "relay.poll")
    if settings.notify is not None and settings.notify.routes:
        require_extra("notify", "notify.routes")
    indexes = (settings.release.index, settings.release.test_index) if settings.release is not None else ()
    if any(each is not None and each.attestations for each in indexes):
        require_extra("release", "attestations in release")
    if settings.executor.kind == "kubernetes":
        require_extra("kubernetes", "executor.kind: kubernetes")
