"""Look at images in their registry, by the OCI distribution API: no engine and no privilege is needed.

Manifests and configurations are checked against their digests. A registry on this machine's loopback is asked by HTTP, as
Docker does, and every other one by HTTPS. Users and passwords are those of `docker login`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

from accel_ci.config.extras import require_extra
from accel_ci.errors import BuildError
from accel_ci.images.contents import ImageContents, Layer, join_layers, read_layer

if TYPE_CHECKING:
    import requests

_TIMEOUT_S = (10, 120)
_DOCUMENT_LIMIT = 8 << 20
"""The longest manifest or configuration, in bytes."""

_LISTS = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_MADE_BY_CHARACTERS = 160
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class RemoteImage:
    """An image in a registry. `config` is its configuration, and `layers` are the digests and media types of its layers."""

    reference: str
    config: Mapping[str, Any]
    layers: tuple[tuple[str, str], ...]


def find_image(reference: str) -> RemoteImage:
    """Find an image by its name, `registry/repository@sha256:…`.

    Raises `BuildError` if it is not there, or the registry does not answer or lets nobody in.
    """
    repository, _, digest = reference.partition("@")
    registry = _Repository(repository)
    try:
        manifest = json.loads(registry.document(f"manifests/{digest}", digest))
        if manifest.get("mediaType") in _LISTS or "manifests" in manifest:
            digest = _on_linux(manifest["manifests"])
            manifest = json.loads(registry.document(f"manifests/{digest}", digest))
        digest = manifest["config"]["digest"]
        config = json.loads(registry.document(f"blobs/{digest}", digest))
        layers = tuple((layer["digest"], layer["mediaType"]) for layer in manifest["layers"])
    except (ValueError, LookupError, TypeError) as error:
        raise BuildError(f"{reference} is no image that can be read ({error!r}); push it again") from None
    return RemoteImage(reference, config, layers)


def is_there(reference: str) -> bool:
    """Return True if a registry has an image. Raises `BuildError` if the registry does not answer or lets nobody in."""
    repository, _, digest = reference.partition("@")
    return _Repository(repository).has(f"manifests/{digest}")


def require_image(reference: str) -> None:
    """Check that a registry has an image. Raises `BuildError`."""
    if not is_there(reference):
        raise BuildError(f"there is no {reference}; see that it was pushed, and that nothing has removed it")


def check_access(repository: str) -> None:
    """Check that the registry of a repository answers and lets this user in. Raises `BuildError`."""
    _Repository(repository).has("manifests/accel-ci-check")


def read_image(image: RemoteImage) -> ImageContents:
    """Read the contents of an image, all layers of it. Raises `BuildError` if they cannot be read."""
    repository = image.reference.partition("@")[0]
    layers = [_read(repository, *layer) for layer in image.layers]
    history = [each for each in image.config.get("history", ()) if not each.get("empty_layer")]
    made_by = [" ".join(each.get("created_by", "").split())[:_MADE_BY_CHARACTERS] for each in history]
    made_by += [""] * (len(layers) - len(made_by))
    return join_layers(layers, made_by)


@lru_cache(maxsize=64)
def _read(repository: str, digest: str, media_type: str) -> Layer:
    """Read a layer once: the targets of a recipe share most of theirs."""
    with closing(_Repository(repository).get(f"blobs/{digest}")) as answer:
        stream: IO[bytes] = answer.raw
        if media_type.endswith("zstd"):
            stream = cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(answer.raw, "r"), "zstd"))
        try:
            layer = read_layer(stream)
        except (OSError, zlib.error) as error:  # zlib.error: tarfile lets those of damaged gzip data through
            raise BuildError(f"the layer {digest} of {repository} cannot be read: {error}; push the image again") from error
    if layer is None:
        raise BuildError(f"the layer {digest} of {repository} is no archive; push the image again")
    return layer


def _on_linux(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of the image for this machine's kind, of a list of images for several."""
    for each in manifests:
        platform = each.get("platform", {})
        if platform.get("os") == "linux" and platform.get("architecture") == _ARCHITECTURE:
            return str(each["digest"])
    raise ValueError(f"it has none for linux/{_ARCHITECTURE}")


class _Repository:
    """A repository of a registry, with what lets this user in."""

    def __init__(self, name: str) -> None:
        require_extra("docker", "a look into a registry")
        import requests
        from docker import auth

        host, path = auth.resolve_repository_name(name)
        self._name, self._session = name, requests.Session()
        self._login = auth.load_config().resolve_authconfig(host) or {}
        if host == auth.INDEX_NAME:
            host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
        scheme = "http" if _is_loopback(host.partition(":")[0]) else "https"
        self._path, self._address = path, f"{scheme}://{host}/v2/{path}"

    def has(self, what: str) -> bool:
        """Return True if the repository has a manifest or a blob."""
        with closing(self._ask("HEAD", what)) as answer:
            return self._is_there(answer)

    def get(self, what: str) -> requests.Response:
        """Ask for a manifest or a blob; its content is still to be read. Raises `BuildError` if it is not there."""
        answer = self._ask("GET", what)
        if not self._is_there(answer):
            answer.close()
            raise BuildError(f"{self._name} has no {what}; see that it was pushed and that nothing has removed it")
        return answer

    def document(self, what: str, digest: str) -> bytes:
        """Return a small document. Raises `ValueError` if it has another digest."""
        with closing(self.get(what)) as answer:
            content = answer.raw.read(_DOCUMENT_LIMIT, decode_content=True)
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise ValueError(f"{what} has another digest")
        return bytes(content)

    def _is_there(self, answer: requests.Response) -> bool:
        if answer.status_code == 404:
            return False
        if answer.status_code != 200:
            advice = "see that `docker login` lets this user in"
            raise BuildError(f"the registry of {self._name} answers {answer.status_code} {answer.reason}; {advice}")
        return True

    def _ask(self, method: str, what: str) -> requests.Response:
        import requests

        headers = {"Accept": ", ".join((*_MANIFESTS, *_LISTS))} if what.startswith("manifests/") else {}
        try:
            answer = self._request(method, what, headers)
            if answer.status_code == 401 and self._log_in(answer.headers.get("WWW-Authenticate", "")):
                answer.close()
                answer = self._request(method, what, headers)
        except (requests.RequestException, ValueError) as error:
            reason = f"{type(error).__name__} of {self._address.split('/')[2]}"  # the text may hold a token
            raise BuildError(f"the registry of {self._name} cannot be asked: {reason}; see that it runs") from error
        return answer

    def _request(self, method: str, what: str, headers: Mapping[str, str]) -> requests.Response:
        return self._session.request(
            method, f"{self._address}/{what}", headers=headers, timeout=_TIMEOUT_S, stream=True, allow_redirects=True
        )

    def _log_in(self, challenge: str) -> bool:
        """Answer the challenge of a registry, by a password or by a token that is had for it."""
        kind, _, rest = challenge.partition(" ")
        user, password = self._login.get("Username"), self._login.get("Password")
        login = (user, password) if user and password else None
        if kind.lower() == "basic" and login:
            self._session.auth = login
            return True
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        trusted = ("https://", f"{self._address.partition('/v2/')[0]}/")  # a password is not sent in the clear
        if kind.lower() != "bearer" or not asked.get("realm", "").startswith(trusted):
            return False
        scope = {"service": asked.get("service", ""), "scope": f"repository:{self._path}:pull"}
        answer = self._session.get(asked["realm"], params=scope, auth=login, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        tokens = answer.json()
        self._session.headers["Authorization"] = f"Bearer {tokens.get('token') or tokens['access_token']}"
        return True


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
