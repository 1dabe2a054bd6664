"""The attestations of wheels (PEP 740): who has published this very file, signed by an identity of Sigstore.

An attestation is made before its wheel goes out, and kept with the build from then on: a publication that was cut short goes
on with it. Sigstore's packages work in another process (`sigstore_client.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from accel_ci.config.extras import require_extra
from accel_ci.config.release_settings import Index, Sigstore
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.model import Artifact, Build
from accel_ci.process.run import run_tool
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.release import sigstore_client
from accel_ci.release.sigstore_client import ANSWER, SUFFIX
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.uv_environment import uv_environment
from accel_ci.workspace import Workspace

ATTESTATIONS = "attestations"
"""The manifest of a build's attestations."""

_GITHUB = ("GITHUB_ACTIONS", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")
_GITLAB = "SIGSTORE_ID_TOKEN"
_LARGEST_TOKEN = 16 << 10


@dataclass(frozen=True)
class Attested:
    """A wheel that has an attestation, whose signature holds. `identity` has signed it, by the word of `issuer`.

    `log_index` is its place in the transparency log.
    """

    wheel: Artifact
    attestation: Artifact
    identity: str
    issuer: str
    log_index: int


@dataclass(frozen=True)
class Attestations:
    """The attestations of a build's wheels."""

    of: tuple[Attested, ...]


def attestations_of(workspace: Workspace, build: Build, wheels: Sequence[Artifact]) -> tuple[Attested, ...]:
    """Return the attestations of wheels that are kept with their build."""
    kept = workspace.manifests.find(ATTESTATIONS, build, Attestations)
    digests = {each.sha256 for each in wheels}
    return tuple(each for each in kept.of if each.wheel.sha256 in digests) if kept is not None else ()


def attest(
    workspace: Workspace,
    build: Build,
    wheels: Sequence[Artifact],
    names: Collection[str],
    index: Index,
    *,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Attested, ...]:
    """Sign those of a build's wheels that are named and have no attestation yet, and return all that have one.

    Raises `AccelCiError` where there is no identity to sign with, and if Sigstore's services do not do it.
    """
    kept = {each.wheel.name: each for each in attestations_of(workspace, build, wheels)}
    missing = [each for each in wheels if each.name in names and each.name not in kept]
    if missing:
        settings, root = _sigstore(workspace), workspace.project.root
        token = identity_token(settings, environment)
        with scratch_folder("attestations") as folder:
            paths = [str(workspace.artifacts.checked_path(each)) for each in missing]
            given = {"trust": _trust(settings, root), "wheels": paths, "token": token, "out": str(folder)}
            answer = _run(given, folder, index.timeout_seconds, environment)
            for each in missing:
                attestation = workspace.artifacts.put(folder / f"{each.name}{SUFFIX}")
                kept[each.name] = Attested(each, attestation, **answer[each.name])
        of = tuple(kept[each.name] for each in wheels if each.name in kept)
        workspace.manifests.write(workspace.manifests.path(ATTESTATIONS, build.revision, build.variant), Attestations(of))
    return tuple(kept[each.name] for each in wheels if each.name in kept)


def shown_by(
    workspace: Workspace, attested: Sequence[Attested], index: Index, *, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the names of the wheels of which an index shows an attestation: by the same identity, with a good signature.

    An index that shows none at all does not know them, which is no fault. Raises `AccelCiError` if it shows other ones.
    """
    if not attested:
        return ()
    wheels = {
        each.wheel.name: {
            "project": parse_wheel_filename(each.wheel.name)[0], "sha256": each.wheel.sha256,
            "identity": each.identity, "issuer": each.issuer,
        }
        for each in attested
    }  # fmt: skip
    with scratch_folder("attestations") as folder:
        trust = _trust(_sigstore(workspace), workspace.project.root)
        given = {"trust": trust, "simple": index.simple, "wheels": wheels, "out": str(folder)}
        answer = _run(given, folder, index.timeout_seconds, environment)
    return tuple(name for name in wheels if answer[name])


def identity_token(settings: Sigstore, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the OIDC token of the configured file or of GitLab; None in a job of GitHub Actions, which is asked later.

    Raises `AccelCiError` where there is neither, or the packages are not installed.
    """
    require_extra("release", "attestations in release")
    if settings.token_file is None:
        if all(environment.get(name) for name in _GITHUB):
            return None
        if token := environment.get(_GITLAB):
            return token
        raise AccelCiError(
            "there is no identity to sign attestations with: give a job of GitHub Actions the permission `id-token: write`, "
            "or one of GitLab the token SIGSTORE_ID_TOKEN with the audience `sigstore`, or set release.sigstore.token_file"
        )
    if not (name := environment.get(settings.token_file)):
        raise AccelCiError(f"${settings.token_file} is not set; set it to the file of the OIDC token for attestations")
    try:
        with Path(name).open("rb") as file:
            token = file.read(_LARGEST_TOKEN + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise AccelCiError(f"${settings.token_file}: the file {name} cannot be read: {error.strerror}") from None
    if token.count(".") != 2 or len(token) > _LARGEST_TOKEN or len(token.split()) != 1:
        raise AccelCiError(f"${settings.token_file}: the file {name} has no OIDC token")
    OF_THIS_PROCESS.learn([token])
    return token


def _sigstore(workspace: Workspace) -> Sigstore:
    release = workspace.project.settings.release
    return release.sigstore if release is not None else Sigstore()


def _trust(settings: Sigstore, root: Path) -> str | None:
    if settings.trust is None:
        return None
    if not (file := root / settings.trust).is_file():
        raise AccelCiError(f"release.sigstore.trust: there is no file {file}")
    return str(file.absolute())


def _run(given: Mapping[str, Any], folder: Path, timeout_s: float, environment: Mapping[str, str]) -> Any:
    """Run the client, and return its answer."""
    require_extra("release", "attestations in release")
    own = uv_environment(environment, _GITHUB)
    if certificates := own.get("SSL_CERT_FILE"):
        own.setdefault("REQUESTS_CA_BUNDLE", certificates)
    command = [sys.executable, "-I", sigstore_client.__file__]
    try:
        done = run_tool(command, timeout_s=timeout_s, environment=own, stdin=json.dumps(given))
    except BuildError as error:
        raise AccelCiError(f"Sigstore, or the index, does not answer: {error}") from None
    if done.status != 0:
        raise AccelCiError(f"the attestations cannot be {'verified' if 'simple' in given else 'made'}: {done.tail}")
    return json.loads((folder / ANSWER).read_bytes())
