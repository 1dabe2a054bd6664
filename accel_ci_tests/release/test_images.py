"""Images in a real registry, that of `ACCEL_CI_DOCKER_IMAGE`: copies, tags, attachments and signatures."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from accel_ci.errors import AccelCiError, BuildError
from accel_ci.images.registry import Destination, find_image, remove_image
from accel_ci.release.images import Attachment, attach, set_tag, sign
from accel_ci_tests.fixtures.small_image import push_image

STATEMENT = Attachment("application/vnd.in-toto+json", b'{"_type": "https://in-toto.io/Statement/v1"}')


@pytest.fixture
def source(registry: str) -> Destination:
    return Destination(f"{registry}/test-{uuid.uuid4().hex}")


@pytest.fixture
def place(registry: str) -> Destination:
    return Destination(f"{registry}/test-{uuid.uuid4().hex}")


def test_an_image_is_copied_with_its_digest(source: Destination, place: Destination) -> None:
    digest = push_image(source, b"first")
    assert place.copy(f"{source.name}@{digest}") == digest
    assert place.copy(f"{source.name}@{digest}") == digest
    assert find_image(f"{place.name}@{digest}").layers == find_image(f"{source.name}@{digest}").layers
    with pytest.raises(BuildError, match="see that it was pushed"):
        place.copy(f"{source.name}@sha256:{'0' * 64}")


def test_a_version_is_set_once_and_a_moving_tag_follows(place: Destination) -> None:
    first, second = push_image(place, b"first"), push_image(place, b"second")
    assert set_tag(place, first, "1.2.3") == "set"
    assert set_tag(place, first, "1.2.3") == "there"
    assert set_tag(place, second, "1.2.3") == "kept"
    assert place.digest_of("1.2.3") == first
    assert set_tag(place, first, "nightly", moves=True) == "set"
    assert set_tag(place, second, "nightly", moves=True) == "moved"
    assert place.digest_of("nightly") == second
    assert place.digest_of("nightly-20261127") is None


def test_an_image_is_removed_with_its_tags_and_no_other_one(place: Destination) -> None:
    first, second = push_image(place, b"first"), push_image(place, b"second")
    for digest, tag in ((first, "published"), (first, "again"), (second, "kept")):
        place.set_tag(digest, tag)
    assert remove_image(f"{place.name}@{first}") is None
    assert [place.digest_of(tag) for tag in ("published", "again", "kept")] == [None, None, second]
    assert remove_image(f"{place.name}@{first}") is None, "it is gone already"


def test_a_registry_that_removes_nothing_is_named_with_its_answer() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(405 if self.command == "DELETE" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_HEAD

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        reference = f"127.0.0.1:{server.server_port}/images@sha256:{'0' * 64}"
        assert "does not remove it: 405 Method Not Allowed" in (remove_image(reference) or "")
        server.shutdown()
    assert "cannot be asked" in (remove_image(reference) or "")


def test_documents_are_attached_once(place: Destination) -> None:
    digest = push_image(place, b"first")
    attached = attach(place, digest, STATEMENT)
    assert attach(place, digest, STATEMENT) == attached
    manifest = place.manifest(attached)
    assert manifest["subject"]["digest"] == digest
    assert manifest["artifactType"] == STATEMENT.media_type
    host, _, path = place.name.partition("/")
    answer = requests.get(f"http://{host}/v2/{path}/blobs/{manifest['layers'][0]['digest']}", timeout=10)
    assert answer.content == STATEMENT.content


def test_a_signature_is_where_cosign_looks_and_holds(tmp_path: Path, place: Destination) -> None:
    digest, key = push_image(place, b"first"), ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "key.pem"
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    tag = sign(place, digest, file)
    assert tag == f"sha256-{digest.removeprefix('sha256:')}.sig"
    signed = place.digest_of(tag)
    assert sign(place, digest, file) == tag
    assert place.digest_of(tag) == signed
    [layer] = place.manifest(tag)["layers"]
    host, _, path = place.name.partition("/")
    payload = requests.get(f"http://{host}/v2/{path}/blobs/{layer['digest']}", timeout=10).content
    signature = b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    key.public_key().verify(signature, payload, ec.ECDSA(SHA256()))
    assert json.loads(payload)["critical"]["image"]["docker-manifest-digest"] == digest
    file.write_text("no key")
    with pytest.raises(AccelCiError, match="must be a private key in PEM"):
        sign(place, digest, file)
