"""The secrets of this machine: variables, credentials in URLs, and the files of tools that log in.

The redactor learns them before anything else is done (`accel_ci.redaction`). A value counts by the name of its variable or
key; a path, a word such as `true` and a very short value never do.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from netrc import netrc
from pathlib import Path
from typing import Any

import yaml

from accel_ci.redaction import OF_THIS_PROCESS, SHORTEST, credentials_in

_SECRET_WORDS = frozenset({
    "APIKEY", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "KEY", "PASS", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT",
    "PRIVATEKEY", "SECRET", "SECRETS", "TOKEN", "AUTH",
})  # fmt: skip
_OTHER_ENDINGS = frozenset({
    "ALGORITHM", "DIR", "ENDPOINT", "EXPIRATION", "FILE", "FOLDER", "HOST", "LENGTH", "METHOD", "NAME", "PARALLELISM",
    "PATH",
    "PROVIDER", "REGION", "SIZE", "SOCK", "TTL", "TYPE", "URI", "URL",
})  # fmt: skip
"""The last words of names whose values are about a secret."""

_BEFORE_KEY = frozenset({"ASSET", "PARTITION", "STEP"})
"""Words before KEY that make it the key of a thing, such as `DAGSTER_RUN_STEP_KEY` in the pods of steps."""

_BESIDE_A_NAME = frozenset({"value", "values", "operator", "effect", "limit"})
"""Keys beside which a `key` is a name: of a tag in Dagster's limits, of a taint or a label in Kubernetes."""

_LARGEST_FILE = 1 << 20


def learn_secrets(
    document: object = None, environment: Mapping[str, str] | None = None, folders: Iterable[Path] = ()
) -> None:
    """Have the redactor learn the secrets of this machine and of a configuration's `document`.

    `folders` may have a `dagster.yaml`, which often names a database with its password.
    """
    given = os.environ if environment is None else environment
    named = set(_names_of_secrets(document))
    found = {value for name, value in given.items() if name in named or (is_secret_name(name) and _may_be_secret(value))}
    found |= {each for value in given.values() for each in credentials_in(value)}
    found |= set(_in_document(document)) | set(_in_files(given, folders))
    OF_THIS_PROCESS.learn(found)


def is_secret_name(name: str) -> bool:
    """Return whether a variable or key of this name holds a secret."""
    words = [word for word in re.split(r"[^A-Z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).upper()) if word]
    if not words or words[-1] in _OTHER_ENDINGS or (words[-1] == "KEY" and not _BEFORE_KEY.isdisjoint(words[-2:-1])):
        return False
    return any(_is_secret_word(word) for word in words)


def _is_secret_word(word: str) -> bool:
    ends = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "APIKEY")
    return word in _SECRET_WORDS or word.endswith(ends)


def _may_be_secret(value: str) -> bool:
    """Return whether a value of such a name is one: no path, no few words and no small number."""
    plain = re.sub(r"[ _.-]", "", value)
    short = len(value) < SHORTEST or (len(plain) < 16 and plain.isalpha()) or (len(plain) < 12 and plain.isdigit())
    return not short and not value.startswith(("/", "~", "./"))


def _names_of_secrets(document: object) -> Iterator[str]:
    """The variables that the configuration takes for credentials."""
    rbe = document.get("rbe") if isinstance(document, dict) else None
    headers = rbe.get("headers") if isinstance(rbe, dict) else None
    if isinstance(headers, dict):
        yield from (name for name in headers.values() if isinstance(name, str))
    notify = document.get("notify") if isinstance(document, dict) else None
    routes = notify.get("routes") if isinstance(notify, dict) else None
    for route in routes.values() if isinstance(routes, dict) else ():
        name = route.get("urls_from") if isinstance(route, dict) else None
        if isinstance(name, str):
            yield name


def _in_document(value: object, key: str = "") -> Iterator[str]:
    """The secrets in a document: credentials in URLs, and the values of keys with such names."""
    if isinstance(value, dict):
        of_a_pair = not _BESIDE_A_NAME.isdisjoint(value)
        for name, each in value.items():
            yield from _in_document(each, "" if of_a_pair and name == "key" else str(name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _in_document(each, key)
    elif isinstance(value, str):
        yield from credentials_in(value)
        if key and is_secret_name(key) and _may_be_secret(value):
            yield value


def _in_files(environment: Mapping[str, str], folders: Iterable[Path]) -> Iterator[str]:
    """The secrets in the files of tools: pip, uv, git, Docker, AWS, netrc and Dagster."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - raises nothing
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    named = (environment.get(name) for name in ("PIP_CONFIG_FILE", "UV_CONFIG_FILE"))
    with_urls = [
        *(Path(name) for name in named if name),
        config / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf"),
        config / "uv" / "uv.toml", Path("/etc/uv/uv.toml"), home / ".git-credentials", config / "git" / "credentials",
        home / ".gitconfig",
    ]  # fmt: skip
    for file in with_urls:
        yield from credentials_in(_read(file))
    yield from _in_netrc(Path(environment.get("NETRC") or home / ".netrc"))
    yield from _in_docker(Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    keys = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    for line in _read(keys).splitlines():
        name, _, value = line.partition("=")
        if is_secret_name(name) and _may_be_secret(value.strip()):
            yield value.strip()
    for folder in folders:
        text = _read(folder / "dagster.yaml")
        yield from credentials_in(text)
        with suppress(yaml.YAMLError):
            yield from _in_document(yaml.safe_load(text))


def _in_netrc(file: Path) -> Iterator[str]:
    with suppress(Exception):  # other programs complain about its mistakes
        for _, _, password in netrc(file).hosts.values():
            yield password or ""


def _in_docker(file: Path) -> Iterator[str]:
    """The log-ins of Docker: `auth` is the user and the password in base64."""
    document: Any = None
    with suppress(ValueError):
        document = json.loads(_read(file) or "null")
    logins = document.get("auths") if isinstance(document, dict) else None
    for login in logins.values() if isinstance(logins, dict) else ():
        for name, value in login.items() if isinstance(login, dict) else ():
            if not isinstance(value, str) or name in ("username", "email"):
                continue
            yield value
            if name == "auth":
                with suppress(ValueError):
                    both = b64decode(value).decode()
                    yield from (both, both.partition(":")[2])


def _read(file: Path) -> str:
    """The text of a small file; nothing if it cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_FILE:
            return ""
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
