"""Look at images in their registry, and copy and tag them, by the OCI distribution API: no engine or privilege is needed.

Manifests and configurations are checked against their digests. A registry on this machine's loopback is asked by HTTP, as
Docker does, and every other one by HTTPS. Users and passwords are those of `docker login`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlencode, urljoin, urlsplit

import pyarrow as pa

from accel_ci.config.extras import require_extra
from accel_ci.errors import BuildError
from accel_ci.images.contents import ImageContents, Layer, join_layers, read_layer

if TYPE_CHECKING:
    import requests
    from requests import Response

_TIMEOUT_S = (10, 120)
_DOCUMENT_LIMIT = 8 << 20
"""The longest manifest or configuration, in bytes."""

_LISTS = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
MANIFEST_TYPE = _MANIFESTS[0]
_BLOCK = 1 << 20
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


def remove_image(reference: str) -> str | None:
    """Remove an image by digest from its registry, with the tags that name it. Return why it stays; None if it is gone.

    Many registries let nobody remove anything, or only some users.
    """
    repository, _, digest = reference.partition("@")
    try:
        return _Repository(repository, "pull,delete").remove(f"manifests/{digest}")
    except BuildError as error:
        return str(error)


def read_image(image: RemoteImage) -> ImageContents:
    """Read the contents of an image, all layers of it. Raises `BuildError` if they cannot be read."""
    repository = image.reference.partition("@")[0]
    layers = [_read(repository, *layer) for layer in image.layers]
    history = [each for each in image.config.get("history", ()) if not each.get("empty_layer")]
    made_by = [" ".join(each.get("created_by", "").split())[:_MADE_BY_CHARACTERS] for each in history]
    made_by += [""] * (len(layers) - len(made_by))
    return join_layers(layers, made_by)


class Destination:
    """A repository of a registry that images are copied to. All methods raise `BuildError` if the registry refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._own = _Repository(name, "pull,push")

    def copy(self, reference: str) -> str:
        """Copy an image by digest from another repository, with all that it consists of, and return its digest.

        What is here already is not copied again. Its manifest comes last.
        """
        source, _, digest = reference.partition("@")
        if not self._own.has(f"manifests/{digest}"):
            self._copy(_Repository(source), source, digest)
        return digest

    def _copy(self, source: _Repository, name: str, digest: str) -> None:
        content = source.document(f"manifests/{digest}", digest)
        manifest = json.loads(content)
        for each in manifest.get("manifests", ()):
            self._copy(source, name, each["digest"])
        for each in (*manifest.get("layers", ()), *([manifest["config"]] if "config" in manifest else [])):
            if not self._own.has(f"blobs/{each['digest']}"):
                with closing(source.get(f"blobs/{each['digest']}")) as answer:
                    self._own.send_blob(each["digest"], _Sized(answer.iter_content(_BLOCK), each["size"]))
        self.put_manifest(content, manifest.get("mediaType", MANIFEST_TYPE), digest)

    def digest_of(self, tag: str) -> str | None:
        """Return the digest that a tag names; None if there is no such tag."""
        if not self._own.has(f"manifests/{tag}"):
            return None
        return _digest(self._own.small(f"manifests/{tag}"))

    def manifest(self, tag_or_digest: str) -> Mapping[str, Any]:
        """Return a manifest."""
        return dict(json.loads(self._own.small(f"manifests/{tag_or_digest}")))

    def descriptor(self, digest: str) -> Mapping[str, Any]:
        """Describe a manifest that is here, for others to refer to."""
        content = self._own.document(f"manifests/{digest}", digest)
        return {"mediaType": json.loads(content).get("mediaType", MANIFEST_TYPE), "digest": digest, "size": len(content)}

    def set_tag(self, digest: str, tag: str) -> None:
        """Have a tag name a manifest that is here, whatever it named before."""
        content = self._own.document(f"manifests/{digest}", digest)
        self.put_manifest(content, json.loads(content).get("mediaType", MANIFEST_TYPE), tag)

    def put_blob(self, content: bytes, media_type: str) -> Mapping[str, Any]:
        """Put a small blob where there is none of its digest, and describe it."""
        digest = _digest(content)
        if not self._own.has(f"blobs/{digest}"):
            self._own.send_blob(digest, content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def put_manifest(self, content: bytes, media_type: str, tag: str | None = None) -> str:
        """Put a manifest under a tag, or its digest, and return its digest."""
        digest = _digest(content)
        self._own.send(f"manifests/{tag or digest}", content, media_type)
        return digest


class _Sized:
    """Blocks of a known size in bytes together: not every registry takes a body whose length nobody has told it."""

    def __init__(self, blocks: Iterator[bytes], size: int) -> None:
        self._blocks, self._size = blocks, int(size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


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

    def __init__(self, name: str, actions: str = "pull") -> None:
        require_extra("docker", "a look into a registry")
        import requests
        from docker import auth

        host, path = auth.resolve_repository_name(name)
        self._name, self._session, self._actions = name, requests.Session(), actions
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
        content = self.small(what)
        if _digest(content) != digest:
            raise ValueError(f"{what} has another digest")
        return content

    def small(self, what: str) -> bytes:
        """Return a small document, whatever its digest."""
        with closing(self.get(what)) as answer:
            return bytes(answer.raw.read(_DOCUMENT_LIMIT, decode_content=True))

    def send(self, what: str, content: bytes, media_type: str) -> None:
        """Write a manifest. Raises `BuildError` if the registry refuses."""
        self.has(what)  # by which the user logs in
        with closing(self._write("PUT", f"{self._address}/{what}", content, {"Content-Type": media_type})) as answer:
            self._require_written(answer, what)

    def send_blob(self, digest: str, content: bytes | _Sized) -> None:
        """Write a blob, in one piece. Raises `BuildError` if the registry refuses, such as a blob with another digest."""
        self.has(f"blobs/{digest}")  # by which the user logs in
        with closing(self._write("POST", f"{self._address}/blobs/uploads/", b"", {})) as answer:
            self._require_written(answer, "blobs")
            place = urljoin(answer.url, answer.headers.get("Location", ""))
        if not place.startswith(f"{self._address.partition('/v2/')[0]}/"):  # it would get the password
            raise BuildError(f"the registry of {self._name} takes blobs at another server; that is not supported")
        place += f"{'&' if urlsplit(place).query else '?'}{urlencode({'digest': digest})}"
        with closing(self._write("PUT", place, content, {"Content-Type": "application/octet-stream"})) as answer:
            self._require_written(answer, f"blobs/{digest}")

    def remove(self, what: str) -> str | None:
        """Remove a manifest. Return why it stays; None if it is gone. Raises `BuildError` if nobody answers."""
        self.has(what)  # by which the user logs in
        with closing(self._write("DELETE", f"{self._address}/{what}", b"", {})) as answer:
            if answer.status_code in (200, 202, 404):
                return None
            return f"the registry of {self._name} does not remove it: {answer.status_code} {answer.reason}"

    def _write(self, method: str, address: str, content: bytes | _Sized, headers: Mapping[str, str]) -> Response:
        import requests

        try:
            return self._session.request(
                method, address, data=content, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as error:
            reason = f"{type(error).__name__} of {urlsplit(self._address).netloc}"
            raise BuildError(f"the registry of {self._name} cannot be written to: {reason}; see that it runs") from error

    def _require_written(self, answer: Response, what: str) -> None:
        if answer.status_code not in (201, 202):
            advice = "see that `docker login` lets this user push there"
            raise BuildError(f"the registry of {self._name} refuses {what}: {answer.status_code} {answer.reason}; {advice}")

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
        scope = {"service": asked.get("service", ""), "scope": f"repository:{self._path}:{self._actions}"}
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
