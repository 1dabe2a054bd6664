"""A release that is killed at its writes to the index and the registry: its version names nothing until all is there."""

from __future__ import annotations

import os
import re
import signal
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
import requests

from accel_ci.images.registry import Destination, find_image
from accel_ci.progress import LineProgress
from accel_ci.release.publish import RELEASE, Published, publish_build
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.package_index import TOKEN, package_index
from accel_ci_tests.fixtures.released_build import BUILD, write_released_build
from accel_ci_tests.fixtures.small_image import push_image


class KillingProxy:
    """Stands before the registry, and kills the process that writes to it at the write that it is told.

    The one that was killed writes no more, nor do the programs in `left`, which it has started.
    """

    def __init__(self, registry: str) -> None:
        self.writes = 0
        self.kill_at: int | None = None
        self.victim: int | None = None
        self.left: list[psutil.Process] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on()

            def do_PUT(self) -> None:
                if proxy.lets_pass():
                    self._pass_on()
                else:
                    self.close_connection = True

            do_HEAD, do_POST = do_GET, do_PUT

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = requests.request(
                    self.command, f"http://{registry}{self.path}", data=body, headers=dict(self.headers), timeout=30
                )
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def lets_pass(self) -> bool:
        """Count a write, or kill who writes."""
        if self.writes != self.kill_at:
            self.writes += 1
            return True
        if self.victim is not None:
            self.left = psutil.Process(self.victim).children(recursive=True)
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None
        return False

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def proxy() -> Iterator[KillingProxy]:
    named = os.environ.get("ACCEL_CI_DOCKER_IMAGE", "")
    if not named:
        pytest.skip("ACCEL_CI_DOCKER_IMAGE is not set: an image in a registry that takes more")
    made = KillingProxy(named.partition("/")[0])
    yield made
    made.close()


def publish(workspace: Workspace, proxy: KillingProxy, kill_at: int | None = None) -> int | None:
    """Publish the build in a process, and return how it ended."""
    proxy.writes, proxy.kill_at, proxy.victim, proxy.left = 0, None, None, []
    begin = get_context("fork").Event()

    def work() -> None:
        begin.wait(30)
        with LineProgress().step("release") as step:
            publish_build(workspace, BUILD, step)

    process = get_context("fork").Process(target=work)
    process.start()
    proxy.victim, proxy.kill_at = process.pid, kill_at
    begin.set()
    process.join(60)
    _, alive = psutil.wait_procs(proxy.left, timeout=60)
    assert not alive
    return process.exitcode


def test_kills_between_any_two_writes_leave_no_version_half_published(tmp_path: Path, proxy: KillingProxy) -> None:
    kills = 0
    for writes in range(100):
        name = f"{proxy.address}/test-{uuid.uuid4().hex}"
        source = Destination(f"{name}-source")
        image = f"{source.name}@{push_image(source, b'first')}"
        workspace = write_released_build(tmp_path / f"project{writes}", {"images": {"repository": name}}, image)
        place, record = Destination(name), workspace.manifests.path(RELEASE, BUILD.revision, BUILD.variant)
        ended = publish(workspace, proxy, writes)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        kills += 1
        assert place.digest_of("1.0.0") is None
        assert not record.is_file()
        assert publish(workspace, proxy) == 0
        digest = place.digest_of("1.0.0")
        assert find_image(f"{name}@{digest}").layers
        published = workspace.manifests.read(record, Published)
        assert [(each.tag, each.digest, each.state) for each in published.images] == [("1.0.0", digest, "set")]
        assert [place.manifest(each)["subject"]["digest"] for each in published.attached] == [digest, digest]
        assert publish(workspace, proxy) == 0
        assert proxy.writes == 2, "the two attachments are put again, under their digests"
    # layer, configuration (2 requests each) and manifest; an empty configuration, then 2 attachments; the tag
    assert kills == 5 + 2 + 3 + 3 + 1
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", str(place.digest_of("1.0.0")))


@pytest.mark.parametrize("kill_at", [0, 1, 2, 15], ids=["first wheel", "second wheel", "first layer", "tag"])
def test_a_kill_between_index_and_registry_leaves_the_rest_to_be_done(
    tmp_path: Path, proxy: KillingProxy, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    monkeypatch.setenv("TOY_INDEX_TOKEN", TOKEN)
    name = f"{proxy.address}/test-{uuid.uuid4().hex}"
    source, place = Destination(f"{name}-source"), Destination(name)
    image = f"{source.name}@{push_image(source, b'first')}"
    with package_index(tmp_path / "index") as index:
        index.drops = lambda request: request == "POST /" and not proxy.lets_pass()
        release = {"index": index.section(), "images": {"repository": name}, "verify": False}
        workspace = write_released_build(tmp_path / "project", release, image)
        record = workspace.manifests.path(RELEASE, BUILD.revision, BUILD.variant)
        assert publish(workspace, proxy, kill_at) == -signal.SIGKILL
        there = {path.name: path.stat().st_mtime_ns for path in index.folder.iterdir()}
        assert len(there) == min(kill_at, 2)
        assert place.digest_of("1.0.0") is None
        assert not record.is_file()

        assert publish(workspace, proxy) == 0
        published, both = workspace.manifests.read(record, Published), index.names
        assert len(both) == 2
        assert sorted(published.uploaded) == sorted({*both} - {*there})
        assert [(each.tag, each.state) for each in published.images] == [("1.0.0", "set")]
        assert place.digest_of("1.0.0") == image.partition("@")[2]
        after = {path.name: path.stat().st_mtime_ns for path in index.folder.iterdir()}
        assert after.items() >= there.items()

        assert publish(workspace, proxy) == 0
        assert {path.name: path.stat().st_mtime_ns for path in index.folder.iterdir()} == after
        assert workspace.manifests.read(record, Published).uploaded == ()
