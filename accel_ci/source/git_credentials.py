"""Hand credentials to git by its environment: never on a command line, which every user can read, nor in a file.

A credential helper that git runs takes them from variables that only this git and its children have. It answers for the
host of the address alone, so that submodules with a relative address have them, too, and in place of other helpers, which
could store them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from accel_ci.redaction import without_credentials

_USER, _PASSWORD = "ACCEL_CI_GIT_USER_{}", "ACCEL_CI_GIT_PASSWORD_{}"
_HELPER = '!f() {{ test "$1" = get && printf \'username=%s\\npassword=%s\\n\' "${}" "${}"; }}; f'


@dataclass(frozen=True)
class GitCredentials:
    """Settings and variables for git that stand for the credentials in the addresses of a command."""

    settings: tuple[tuple[str, str], ...]
    variables: Mapping[str, str]


def logins_of(words: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Find the users and passwords in addresses of HTTP, by their servers. An address may begin with `git+`."""
    found: dict[str, tuple[str, str]] = {}
    for word in words:
        try:
            address = urlsplit(word.removeprefix("git+"))
            host, port = address.hostname, address.port
        except ValueError:
            continue
        if address.scheme in ("http", "https") and host and (address.username or address.password):
            place = f"[{host}]" if ":" in host else host
            where = f"{address.scheme}://{place}" + (f":{port}" if port else "")
            found[where] = (unquote(address.username or ""), unquote(address.password or ""))
    return found


def git_credentials(logins: Mapping[str, tuple[str, str]]) -> GitCredentials:
    """Turn log-ins by server into what git asks for them by."""
    settings: list[tuple[str, str]] = []
    variables: dict[str, str] = {}
    for number, (where, (user, password)) in enumerate(logins.items()):
        names = _USER.format(number), _PASSWORD.format(number)
        variables |= dict(zip(names, (user, password), strict=True))
        settings += [(f"credential.{where}.helper", ""), (f"credential.{where}.helper", _HELPER.format(*names))]
    return GitCredentials(tuple(settings), variables)


def config_environment(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return git's configuration as variables, which beat those of any file."""
    keys = {f"GIT_CONFIG_KEY_{number}": key for number, (key, _) in enumerate(settings)}
    values = {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(settings)}
    return {"GIT_CONFIG_COUNT": str(len(settings)), **keys, **values}


def without_address_credentials(words: Iterable[str]) -> list[str]:
    """Return the words of a command with the credentials taken out of their addresses."""
    return [without_credentials(word) if word.startswith(("http://", "https://")) else word for word in words]
