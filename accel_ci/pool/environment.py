"""The environment of tests: allowed and configured variables only, so that no secret of the driver gets in."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from accel_ci.config.pool_settings import DockerPoolSettings, KubernetesPoolSettings
from accel_ci.model import RuntimeImage, WorkerSpec

ALLOWED: frozenset[str] = frozenset({
    "CURL_CA_BUNDLE", "DYLD_LIBRARY_PATH", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
    "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR", "TZ", "USER",
})  # fmt: skip
"""Variables that pass, as do those that begin with `LC_`. Proxy settings do not: they may hold a password."""


def clean_environment(
    configured: Mapping[str, str | None], *, inherited: Mapping[str, str] | None = None, keep: Collection[str] = ()
) -> dict[str, str]:
    """The allowed variables of `inherited` (by default this process's environment), overridden by the configured ones.

    A configured None removes a variable. `keep` names more variables that pass.
    """
    given = os.environ if inherited is None else inherited
    passed = {name: value for name, value in given.items() if name in ALLOWED or name in keep or name.startswith("LC_")}
    return {name: value for name, value in {**passed, **configured}.items() if value is not None}


def container_spec(
    settings: DockerPoolSettings | KubernetesPoolSettings,
    image: RuntimeImage,
    sources: Path,
    card_environment: str = "",
    defaults: Mapping[str, str] | None = None,
) -> WorkerSpec:
    """The spec of workers in containers: of the pool's own image, else of the build's.

    A container gets no variable of this process except those that `pass_environment` names. The configuration overrides
    `defaults`.
    """
    made = image.container("runtime")
    inherited = {name: os.environ[name] for name in settings.pass_environment if name in os.environ}
    return WorkerSpec(
        settings.python or ("python3" if settings.image else image.python), str(sources),
        clean_environment({**(defaults or {}), **settings.environment}, inherited=inherited, keep=settings.pass_environment),
        card_environment, image=settings.image or (made.reference if made is not None else None),
    )  # fmt: skip
