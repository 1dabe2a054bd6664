"""The tags of released images, and what is attached to them: provenance, bill of materials, signature.

A tag of a version or of a day is set once; `nightly` follows the channel's pointer. Attachments are OCI artifacts whose
`subject` is the image (https://github.com/opencontainers/distribution-spec), but for the signature, which is where cosign
looks for it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from accel_ci.config.extras import require_extra
from accel_ci.errors import AccelCiError
from accel_ci.images.registry import MANIFEST_TYPE, Destination

TagState = Literal["set", "moved", "there", "kept"]
"""`there`: it named the image already; `kept`: it names another one, and is not moved."""

_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_SIGNED_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"


@dataclass(frozen=True)
class Attachment:
    """A document about an image, with its media type."""

    media_type: str
    content: bytes


def set_tag(place: Destination, digest: str, tag: str, *, moves: bool = False) -> TagState:
    """Have a tag name the image of a digest, which the repository has; one that names another image only if it `moves`."""
    there = place.digest_of(tag)
    if there == digest:
        return "there"
    if there is not None and not moves:
        return "kept"
    place.set_tag(digest, tag)
    return "set" if there is None else "moved"


def attach(place: Destination, digest: str, attachment: Attachment) -> str:
    """Attach a document to an image, and return the digest of its manifest. The same document is attached once."""
    layer = place.put_blob(attachment.content, attachment.media_type)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": attachment.media_type,
        "config": place.put_blob(_EMPTY, _EMPTY_TYPE),
        "layers": [layer],
        "subject": place.descriptor(digest),
    }
    return place.put_manifest(_encoded(manifest), MANIFEST_TYPE)


def sign(place: Destination, digest: str, key: Path) -> str:
    """Sign an image as `cosign sign --key` does, and return the tag of the signature: `cosign verify --key` finds it there.

    The key is an unencrypted one of ECDSA in PEM. An image that has a signature with this key keeps it. Raises
    `AccelCiError` if the key cannot be used.
    """
    require_extra("relay", "release.images.key")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise AccelCiError(
            f"the key in {key} cannot be used ({type(error).__name__}); it must be a private key in PEM"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise AccelCiError(f"the key in {key} is none of ECDSA; `openssl ecparam -name prime256v1 -genkey` makes one")
    payload = _encoded({
        "critical": {
            "identity": {"docker-reference": place.name},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    })  # fmt: skip
    tag = f"{digest.replace(':', '-')}.sig"
    layers = list(place.manifest(tag)["layers"]) if place.digest_of(tag) is not None else []
    if any(_is_signed(private.public_key(), layer, payload) for layer in layers):
        return tag
    signature = b64encode(private.sign(payload, ec.ECDSA(SHA256()))).decode()
    layers.append({**place.put_blob(payload, _SIGNED_TYPE), "annotations": {_SIGNATURE: signature}})
    of_layers = [layer["digest"] for layer in layers]
    config = _encoded({"architecture": "", "os": "", "config": {}, "rootfs": {"type": "layers", "diff_ids": of_layers}})
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": place.put_blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    }
    place.put_manifest(_encoded(manifest), MANIFEST_TYPE, tag)
    return tag


def _is_signed(key: Any, layer: Mapping[str, Any], payload: bytes) -> bool:
    """Return whether a layer of a signature signs the payload with the key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(b64decode(layer["annotations"][_SIGNATURE]), payload, ec.ECDSA(SHA256()))
    except (InvalidSignature, LookupError, ValueError):
        return False
    return layer.get("digest") == f"sha256:{hashlib.sha256(payload).hexdigest()}"


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
