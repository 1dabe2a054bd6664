"""The environment of tests: what is allowed through and what is configured, so that no secret of the driver gets in."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

ALLOWED: frozenset[str] = frozenset(
    {
        "CURL_CA_BUNDLE", "DYLD_LIBRARY_PATH", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
        "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR", "TZ", "USER",
    }
)  # fmt: skip
"""Variables that pass; so do those that begin with `LC_`. Proxy settings do not, for they may hold a password."""


def clean_environment(
    configured: Mapping[str, str | None], *, inherited: Mapping[str, str] | None = None, keep: Collection[str] = ()
) -> dict[str, str]:
    """The allowed variables of `inherited` (this process's environment by default), then the configured ones.

    A configured None takes a variable away. `keep` names more variables to let through.
    """
    given = os.environ if inherited is None else inherited
    passed = {name: value for name, value in given.items() if name in ALLOWED or name in keep or name.startswith("LC_")}
    return {name: value for name, value in {**passed, **configured}.items() if value is not None}
