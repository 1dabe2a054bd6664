"""The server of the HUD's folder and the artifacts, asked as browsers and attackers ask."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from accel_ci.hud.serve import HudServer, artifact_address
from accel_ci.model import Artifact
from accel_ci.storage.artifacts import ArtifactStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HudServer]:
    """A served folder `hud` with a page, beside a secret."""
    hud = tmp_path / "hud"
    (hud / "details").mkdir(parents=True)
    (hud / "index.html").write_text("<p>ä</p>", encoding="utf-8")
    (hud / "details" / "a.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (hud / "link").symlink_to(tmp_path / "secret")
    (hud / "up").symlink_to(tmp_path)
    running = HudServer(hud, ArtifactStore(tmp_path / "artifacts"), 0)
    running.start()
    yield running
    running.shutdown()
    running.server_close()


def ask(server: HudServer, request: str) -> str:
    """Send a request as it stands; return the whole answer."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def get(server: HudServer, target: str, host: str | None = None) -> str:
    """Send a GET whose target nobody has tidied up."""
    return ask(server, f"GET {target} HTTP/1.0\r\nHost: {host or f'127.0.0.1:{server.server_port}'}\r\n\r\n")


def test_the_page_and_the_files_beside_it_are_served(server: HudServer) -> None:
    page = httpx.get(server.address)
    assert (page.status_code, page.text) == (200, "<p>ä</p>")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Cache-Control"] == "no-cache"
    assert httpx.get(f"{server.address}details/a.json").json() == {}
    assert httpx.get(f"http://localhost:{server.server_port}/index.html").status_code == 200
    assert httpx.head(server.address).status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "/../secret", "/%2e%2e/secret", "/..%2fsecret", "/details/../../secret", "//../secret", "/details/..%2f..%2fsecret",
        "/link", "/up/secret", "/up/", "/details/", "/details", "/missing", "/%00", "/index.html%00", "/a" * 5000,
    ],
    ids=str,
)  # fmt: skip
def test_nothing_else_is_served(server: HudServer, target: str) -> None:
    answer = get(server, target)
    assert answer.split()[1] in ("404", "414"), answer
    assert "secret" not in answer.partition("\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a wheel+1, ümlaut.whl", "application/octet-stream"), ("page.html", "application/octet-stream"),
        ("picture.svg", "application/octet-stream"), ("no suffix", "application/octet-stream"),
        ("index.html", "application/octet-stream"), ('"\r\nSet-Cookie: x', "application/octet-stream"),
        ("test.log", "text/plain; charset=utf-8"), ("sbom.cdx.json", "text/plain; charset=utf-8"),
        ("junit.xml", "text/plain; charset=utf-8"), ("bep.ndjson", "text/plain; charset=utf-8"),
    ],
    ids=ascii,
)  # fmt: skip
def test_an_artifact_is_text_or_saved_and_no_more(server: HudServer, name: str, content_type: str) -> None:
    content = b"<script>alert(1)</script>" * 9999
    address = artifact_address(server.address, server.artifacts.put_bytes(content, name))
    answer = httpx.get(address)
    assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, content, content_type)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "Set-Cookie" not in answer.headers
    assert answer.headers.get("Content-Disposition", "").startswith("attachment;") == (content_type[:4] != "text")
    assert httpx.head(address).headers["Content-Length"] == str(len(content))
    assert httpx.put(address, content=b"x").status_code == 501
    assert get(server, "/artifacts/", "evil.example").split()[1] == "421"


@pytest.mark.parametrize(
    "target",
    [
        "/artifacts", "/artifacts/", "/artifacts/{sha}", "/artifacts/{sha}/", "/artifacts/{sha}/.", "/artifacts/{sha}/..",
        "/artifacts/{sha}/other.log", "/artifacts/{sha}/../../../secret", "/artifacts/{sha}/..%2f..%2f..%2f..%2fsecret",
        "/artifacts/{sha}/link.log", "/artifacts/.lock", "/artifacts/../.lock", "/artifacts/..%2f../secret",
        "/artifacts/%2e%2e/secret",
        "/artifacts/{zeros}/a.log", "/artifacts/{sha}/a.log/", "/artifacts/{sha}/a.log%00", "/artifacts/{sha}%2f/a.log",
        "/artifacts/{sha}/folder", "/artifacts/{sha}/folder/index.html",
    ],
    ids=str,
)  # fmt: skip
def test_nothing_but_artifacts_of_the_store_is_served(server: HudServer, target: str) -> None:
    artifact = server.artifacts.put_bytes(b"content", "a.log")
    place = server.artifacts.location(artifact).parent
    (place / "link.log").symlink_to(server.folder.parent / "secret")
    (place / "folder").mkdir()
    (place / "folder" / "index.html").write_text("secret")
    answer = get(server, target.format(sha=artifact.sha256, zeros="0" * 64))
    assert answer.split()[1] == "404", answer
    assert "secret" not in answer.partition("\r\n\r\n")[2]
    (place / "a.log").unlink()
    assert httpx.get(artifact_address(server.address, Artifact(artifact.sha256, "a.log", 7))).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:3001", "127.0.0.1.evil.example:3001", " "])
def test_a_name_that_was_made_to_point_here_is_refused(server: HudServer, host: str) -> None:
    assert get(server, "/", host).split()[1] == "421"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_folder_is_read_only(server: HudServer, method: str) -> None:
    assert httpx.request(method, f"{server.address}index.html", content=b"x").status_code == 501
    assert (server.folder / "index.html").read_text(encoding="utf-8") == "<p>ä</p>"


def test_it_listens_on_loopback_only(server: HudServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
