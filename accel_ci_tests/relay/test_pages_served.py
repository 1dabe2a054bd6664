"""The pages of a running server, over real HTTP: written when results come, and nothing else than pages."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from accel_ci.relay.results_store import ResultsStore
from accel_ci_tests.fixtures.github_server import github_server
from accel_ci_tests.fixtures.job_rows import job_row
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer

ESCAPES = (
    "/hud/../relay.yaml",
    "/hud/%2e%2e/relay.yaml",
    "/hud/..%2frelay.yaml",
    "/hud/pulls/../../relay.yaml",
    "/hud//etc/passwd",
    "/hud/%2fetc/passwd",
    "/hud/link.html",
    "/hud/.written.json",
    "/hud/pulls/",
    "/hud/%00",
    "/hud/" + "a" * 5000,
    "/hud",
)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayServer]:
    """A server that writes and serves pages, with a result."""
    with github_server() as github:
        server = RelayServer(
            tmp_path_factory.mktemp("relay"), github.url, "L2: [org/backend]\n", pages={"every_s": 0.2, "busy_share": 1}
        )
        ResultsStore(server.folder / "results").add([job_row(at=time.time() - 60, delivery_id="first")])
        server.start("--no-workers")
        wait_for(lambda: get(server, "/hud/index.html").status_code == 200)
        yield server
        assert server.terminate() == 0


def get(relay: RelayServer, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """Ask for a path as it is written: httpx would resolve dots in it."""
    host = urlsplit(relay.url).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return httpx.Response(answer.status, headers=dict(answer.getheaders()), content=answer.read())
    finally:
        connection.close()


def test_the_first_page_has_a_validator(relay: RelayServer) -> None:
    page = get(relay, "/hud/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "org/backend" in page.text
    assert page.headers["x-content-type-options"] == "nosniff"
    assert get(relay, "/hud/index.html", **{"If-None-Match": page.headers["etag"]}).status_code == 304
    head = get(relay, "/hud/", "HEAD")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", page.headers["etag"])
    assert get(relay, "/hud/index.json").headers["content-type"] == "application/json"
    assert get(relay, "/hud/backends/org~backend.svg").headers["content-type"] == "image/svg+xml"


def test_new_results_come_to_their_page(relay: RelayServer) -> None:
    assert get(relay, "/hud/pulls/4711.html").status_code == 404
    store = ResultsStore(relay.folder / "results")
    store.add([job_row(at=time.time(), delivery_id="new", pull_request=4711)])
    wait_for(lambda: get(relay, "/hud/pulls/4711.json").status_code == 200)
    assert "py311~smoke" in get(relay, "/hud/pulls/4711.html").text
    assert "not written" not in relay.log


@pytest.mark.parametrize("path", ESCAPES)
def test_nothing_but_pages_is_served(relay: RelayServer, path: str) -> None:
    link = relay.folder / "pages/link.html"
    if not link.is_symlink():
        link.symlink_to(relay.folder / "relay.yaml")
    answer = get(relay, path)
    assert (answer.status_code, "upstream" in answer.text, "root:" in answer.text) == (404, False, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_pages_are_read_alone(relay: RelayServer, method: str) -> None:
    assert get(relay, "/hud/index.html", method).status_code == 405


def test_the_command_writes_them_elsewhere(relay: RelayServer) -> None:
    done = relay.command("pages", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote ")
    assert {path.name for path in (relay.folder / "elsewhere").glob("*.html")} == {"index.html", "levels.html", "pulls.html"}
    assert relay.command("pages", "elsewhere").stdout == "wrote 0 pages to elsewhere\n"
