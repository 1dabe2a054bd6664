"""The environment of programs that run code of the sources: allowed and configured variables only.

Nothing that this process holds for itself gets in: tests, collection, probes, builds and checks see what is listed here and
what the configuration names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

ALLOWED: frozenset[str] = frozenset({
    "CURL_CA_BUNDLE", "DYLD_LIBRARY_PATH", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
    "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR", "TZ", "USER",
})  # fmt: skip
"""Variables that pass, as do those that begin with `LC_`. Proxy settings do not: they may hold a password."""

PROXIES: frozenset[str] = frozenset({
    *(name for kind in ("http", "https", "all", "no") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())),
})  # fmt: skip

COMPILERS: frozenset[str] = frozenset({
    "AR", "CC", "CFLAGS", "CMAKE_ARGS", "CMAKE_BUILD_PARALLEL_LEVEL", "CMAKE_GENERATOR", "CMAKE_PREFIX_PATH", "CPATH",
    "CPPFLAGS", "CXX", "CXXFLAGS", "LDFLAGS", "LIBRARY_PATH", "MAKEFLAGS", "MAX_JOBS", "PKG_CONFIG_PATH",
    "SOURCE_DATE_EPOCH",
})  # fmt: skip
"""The variables that builds read by convention."""


def clean_environment(
    configured: Mapping[str, str | None], *, inherited: Mapping[str, str] | None = None, keep: Collection[str] = ()
) -> dict[str, str]:
    """The allowed variables of `inherited` (by default this process's environment), overridden by the configured ones.

    A configured None removes a variable. `keep` names more variables that pass.
    """
    given = os.environ if inherited is None else inherited
    passed = {name: value for name, value in given.items() if name in ALLOWED or name in keep or name.startswith("LC_")}
    return {name: value for name, value in {**passed, **configured}.items() if value is not None}
