"""Run git on repositories that may be hostile or away: no prompt, no hooks, few transports, a time limit, clear messages.

What a repository's refs mean is in `refs.py`, and how its files are had in `checkout.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from urllib.parse import urlsplit

from accel_ci.errors import SourceError
from accel_ci.process.run import run_apart
from accel_ci.redaction import redact, without_credentials
from accel_ci.source.git_credentials import config_environment, git_credentials, logins_of, without_address_credentials

TRANSPORTS = ("file", "git", "http", "https", "ssh")
"""The only transports: `ext::` and others run programs."""

_OWN = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.askPass": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.recurseSubmodules": "false",
    "advice.detachedHead": "false",
    "transfer.credentialsInUrl": "allow",
    "fetch.fsckObjects": "true",
    **{f"fetch.fsck.{fault}": "ignore" for fault in ("zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate")},
}
"""Objects are checked as they come in, but for faults that old and harmless commits of large repositories have."""

_SLOW_BYTES_PER_S = "100"

_ADVICE = (
    (r"could not read (Username|Password)|Authentication failed|error: 40[13]|Permission denied", "check the credentials"),
    (r"error: 429", "the server limits requests; try again later"),
    (r"error: 5\d\d", "the server has a problem; try again later"),
    (r"not valid: is this a git repo|repository '.*' not found|does not appear to be a git repository|does not exist",
     "correct the address: no git repository is there"),
    (r"url base from redirection", "correct the address: the server sends on to another one"),
    (r"transport '.*' not allowed|is not a git command|unable to find remote helper|protocol '.*' is not supported",
     f"use one of the transports {', '.join(TRANSPORTS)}"),
    (r"Could not resolve host|Failed to connect|Couldn't connect|Connection (refused|timed out|reset)|Operation too slow",
     "check the address and the network"),
    (r"Host key verification failed", "add the server's key to known_hosts"),
    (r"dubious ownership", "run as the owner of the folder, or add it to git's safe.directory"),
    (r"No space left on device", "free some space and run the same again"),
)  # fmt: skip


def run_git(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    transports: Sequence[str] = TRANSPORTS,
) -> str:
    r"""Run one git command and return what it prints, with bytes that are no UTF-8 as half surrogates.

    `config` is added to git's configuration for this command, where no other user sees it. Credentials in its addresses and
    in those of the command reach git by its environment. Raises `SourceError` with git's message, without credentials, and
    with what to do.
    """
    given = config or {}
    credentials = git_credentials(logins_of((*arguments, *given.values())))
    clean = dict(zip(given, without_address_credentials(given.values()), strict=True))
    settings = (*clean.items(), *credentials.settings)
    own = {**_git_environment(timeout_s, settings), "GIT_ALLOW_PROTOCOL": ":".join(transports), **credentials.variables}
    own |= environment or {}
    arguments = without_address_credentials(arguments)
    command = next(word for word in arguments if not word.startswith("-"))
    try:
        done = run_apart(["git", *arguments], timeout_s=timeout_s, environment=own, folder=folder, errors="surrogateescape")
    except FileNotFoundError:
        raise SourceError("git is not installed; install it and try again") from None
    except TimeoutExpired:
        address = next((f" of {without_credentials(word)}" for word in arguments if "://" in word), "")
        advice = "check the address and the network, or raise limits.git_seconds"
        raise SourceError(f"git {command}{address} did not answer within {timeout_s:g} s; {advice}") from None
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode} and no message"
        raise SourceError(f"git {command} failed: {_explain(said)}")
    return done.stdout.strip("\n")


def local_path(repository: str, root: Path) -> Path | None:
    """The folder that `repository` names, relative to `root`; None if it is a URL."""
    if urlsplit(repository).scheme or re.match(r"[^/]+@[^/]+:", repository):
        return None
    return (root / repository).resolve()


def _git_environment(timeout_s: float, config: Sequence[tuple[str, str]]) -> dict[str, str]:
    """This process's environment without what would redirect git, and with settings that beat those of any file."""
    dropped = ("SSH_ASKPASS", "DISPLAY")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and (not name.startswith("GIT_") or name.startswith("GIT_SSL"))
    }
    slow = {"http.lowSpeedLimit": _SLOW_BYTES_PER_S, "http.lowSpeedTime": str(max(1, min(60, int(timeout_s))))}
    settings = config_environment((*_OWN.items(), *slow.items(), *config))
    kept["GIT_NO_REPLACE_OBJECTS"] = "1"  # a commit is what its id says, not what `refs/replace` puts in its place
    no_prompt = {"GIT_TERMINAL_PROMPT": "0", "GCM_INTERACTIVE": "never", "SSH_ASKPASS_REQUIRE": "never"}
    return {**kept, **settings, **no_prompt, "LC_ALL": "C"}


def _explain(output: str) -> str:
    """Git's message in one line, without credentials, and with what to do where that is known."""
    text = redact(without_credentials(output)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    decisive = [place for place, line in enumerate(lines) if re.match(r"(fatal|error): ", line)]
    if decisive:  # the line before may have the reason, as with ssh and with what a server says
        last = decisive[-1]
        lines = [line for line in lines[max(0, last - 1) : last + 1] if not line.startswith(("hint:", "Cloning into"))]
    message = "; ".join(dict.fromkeys(lines[-2:])) or "no message"
    advice = next((text for pattern, text in _ADVICE if re.search(pattern, output, re.IGNORECASE)), None)
    return message if advice is None else f"{message}; {advice}"
