"""The nightly channel: what installers see, the pointer, retention, and kills between any two of its writes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag

import pytest
import uv
from filelock import FileLock, Timeout

from accel_ci.config.release_settings import Channel as ChannelSettings
from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.release.channel import Channel, ChannelResult
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.folder_files import FolderFiles
from accel_ci.storage.object_store import Entry
from accel_ci.storage.s3 import environment_keys, s3_client, s3_session
from accel_ci.storage.shared_lease import turn
from accel_ci_tests.fixtures.stand_in_torch import write_package

NOW = datetime(2026, 11, 28, 6, tzinfo=timezone.utc)
KEEP = ChannelSettings(keep_days=3, keep_builds=2)


class MortalFiles(FolderFiles):
    """A folder whose process is killed after so many writes."""

    def __init__(self, root: Path, writes: int) -> None:
        super().__init__(root)
        self._left = writes

    def upload(self, path: Path, name: str) -> None:
        self._write()
        super().upload(path, name)

    def put_bytes(self, name: str, content: bytes) -> Entry:
        self._write()
        return super().put_bytes(name, content)

    def delete(self, name: str) -> None:
        self._write()
        super().delete(name)

    def _write(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def channel_in(home: Path) -> Channel:
    return Channel(FolderFiles(home), lambda name: FileLock(home / "turn"), "py3")


def wheels_of(folder: Path, night: int, version: str = "") -> list[Path]:
    """The wheels of a night: a companion and the backend, which needs it."""
    if folder.is_dir():
        return [*folder.glob("toy_runtime-*"), *folder.glob("toy_backend-*")]
    folder.mkdir(parents=True)
    version = version or f"1.0.dev{night}"
    runtime = write_package(folder, f"toy_runtime-{version}", {"toy_runtime.py": f"night = {night}\n"})
    needs = f"Requires-Dist: toy-runtime\nRequires-Python: >=3.{'0' * (night % 2)}9\n"
    return [runtime, write_package(folder, f"toy_backend-{version}", {"toy_backend.py": f"night = {night}\n"}, needs)]


def publish(channel: Channel, folder: Path, night: int, version: str = "", keep: ChannelSettings = KEEP) -> ChannelResult:
    at = datetime(2026, 11, night, 2, tzinfo=timezone.utc)
    return channel.publish(Build(f"nightly-202611{night}", "py3"), at, wheels_of(folder, night, version), keep, NOW)


def links(page: Path) -> list[str]:
    return re.findall(r'href="([^"]*)"', page.read_text())


def assert_nothing_dangles(home: Path) -> None:
    """Check that each page and the pointer name only files that are there, with the content that they promise."""
    simple = home / "channel" / "py3" / "simple"
    for page in simple.glob("*/index.html"):
        for address in links(page):
            name, fragment = urldefrag(address)
            wheel = page.parent / unquote(name)
            assert f"sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" == fragment
    for page in simple.glob("*/index.json"):
        for file in json.loads(page.read_bytes())["files"]:
            wheel = page.parent / file["filename"]
            assert hashlib.sha256(wheel.read_bytes()).hexdigest() == file["hashes"]["sha256"]
            metadata = wheel.with_name(f"{wheel.name}.metadata").read_bytes()
            assert hashlib.sha256(metadata).hexdigest() == file["core-metadata"]["sha256"]
    if (simple / "index.html").is_file():
        assert all((simple / unquote(name)).is_dir() for name in links(simple / "index.html"))
    pointer = simple.parent / "latest.json"
    if pointer.is_file():
        for file in json.loads(pointer.read_bytes())["files"]:
            assert hashlib.sha256((simple / file["path"]).read_bytes()).hexdigest() == file["sha256"]
            assert f"sha256={file['sha256']}" in (simple / file["project"] / "index.html").read_text()
            assert f'"{file["project"]}/"' in (simple / "index.html").read_text()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The index, served on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "home")))
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/channel/py3/simple/"
    server.shutdown()


def installed(python: Path) -> str:
    code = "import toy_backend, toy_runtime; print(toy_backend.night, toy_runtime.night)"
    done = subprocess.run([python, "-I", "-B", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize("place", ["file", "http"])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_clean_environment_gets_the_newest_build(tmp_path: Path, address: str, place: str, installer: str) -> None:
    channel = channel_in(tmp_path / "home")
    # The commit that sorts last is not that of the newest build.
    publish(channel, tmp_path / "a", 26, "1.0+gfff")
    publish(channel, tmp_path / "b", 27, "1.0+g000")
    environment, index = tmp_path / "environment", address
    if place == "file":
        index = (tmp_path / "home" / "channel" / "py3" / "simple").as_uri()
    python = environment / "bin" / "python"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    subprocess.run(
        [uv.find_uv_bin(), "venv", "--quiet", "--no-config", *(["--seed"] if installer == "pip" else []), str(environment)],
        check=True, env=os.environ, timeout=120,
    )  # fmt: skip
    command = (
        [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        if installer == "pip"
        else [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-cache", "--python", str(python)]
    )
    subprocess.run([*command, "--index-url", index, "toy-backend"], check=True, env=own, timeout=120)
    assert installed(python) == "27 27"
    # Who pins an older build gets that one.
    pins = ["toy-backend==1.0+gfff", "toy-runtime==1.0+gfff"]
    subprocess.run([*command, "--index-url", index, *pins], check=True, env=own, timeout=120)
    assert installed(python) == "26 26"


def test_a_repetition_writes_nothing(tmp_path: Path) -> None:
    channel, home = channel_in(tmp_path / "home"), tmp_path / "home" / "channel"
    assert [name.partition("-")[0] for name in publish(channel, tmp_path / "a", 27).new] == ["toy_runtime", "toy_backend"]
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert publish(channel, tmp_path / "a", 27).new == ()
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()} == before


def test_a_name_never_gets_other_content_even_after_its_removal(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "home")
    publish(channel, tmp_path / "a", 20)
    with pytest.raises(AccelCiError, match=r"toy_runtime-1\.0\.dev20-.*a name never gets other content"):
        publish(channel, tmp_path / "b", 27, "1.0.dev20")
    assert_nothing_dangles(tmp_path / "home")
    for night in (26, 27):
        publish(channel, tmp_path / str(night), night)
    assert [file.build for file in channel.project("toy-backend").files] == ["nightly-20261126~py3", "nightly-20261127~py3"]
    with pytest.raises(AccelCiError, match="a name never gets other content"):
        publish(channel, tmp_path / "c", 28, "1.0.dev20")


def test_the_pointer_moves_only_forward(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "home")
    assert channel.latest() is None
    publish(channel, tmp_path / "a", 27)
    late = publish(channel, tmp_path / "b", 26)  # a night that ended after the next one
    assert late.new
    assert late.latest.build == "nightly-20261127~py3"
    assert not late.is_latest(Build("nightly-20261126", "py3"))
    latest = publish(channel, tmp_path / "c", 28).latest
    assert latest == channel.latest()
    assert {(file.project, file.version) for file in latest.files} == {
        ("toy-runtime", "1.0.dev28"),
        ("toy-backend", "1.0.dev28"),
    }


def test_a_build_out_of_the_future_does_not_keep_the_pointer(tmp_path: Path) -> None:
    """The clock of the machine that made it was wrong."""
    channel, wheel = channel_in(tmp_path / "home"), wheels_of(tmp_path / "a", 27)
    channel.publish(Build("nightly-20361127", "py3"), NOW + timedelta(days=3652), wheel, KEEP, NOW + timedelta(days=3652))
    assert publish(channel, tmp_path / "b", 28).latest.build == "nightly-20261128~py3"


def test_what_follows_the_pointer_moves_while_it_stays(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "home")
    publish(channel, tmp_path / "a", 27)
    with channel.while_latest(Build("nightly-20261127", "py3")) as is_latest:
        assert is_latest
        with pytest.raises(Timeout), FileLock(tmp_path / "home" / "turn", timeout=0):
            pytest.fail("another publisher has the turn, too")
    publish(channel, tmp_path / "b", 28)
    with channel.while_latest(Build("nightly-20261127", "py3")) as is_latest:
        assert not is_latest


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    channel = channel_in(tmp_path / "home")
    wheel = tmp_path / "toy_backend-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("toy_backend-1.0.dist-info/METADATA", "Name: toy-backend\nVersion: 1.0\n" * 50)
    content = bytearray(wheel.read_bytes())
    begin = content.index(b"METADATA") + len("METADATA")
    content[begin : begin + 8] = b"\xff" * 8
    encrypted = bytearray(wheel.read_bytes())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        encrypted[encrypted.index(mark) + at] |= 1
    for damaged in (content, encrypted):
        wheel.write_bytes(damaged)
        with pytest.raises(AccelCiError, match=r"^toy_backend-1\.0-py3-none-any\.whl is no wheel that can be published"):
            channel.publish(Build("nightly-20261128", "py3"), NOW, [wheel], KEEP, NOW)


def test_retention_keeps_days_builds_and_what_the_pointer_names(tmp_path: Path) -> None:
    channel, simple = channel_in(tmp_path / "home"), tmp_path / "home" / "channel" / "py3" / "simple"
    everything = ChannelSettings(keep_days=365, keep_builds=1)
    for night in (10, 20, 26, 27):
        publish(channel, tmp_path / str(night), night, keep=everything)
    removed = publish(channel, tmp_path / "27", 27, keep=ChannelSettings(keep_days=3, keep_builds=1)).removed
    gone = [f"toy_{name}-1.0.dev{night}" for name in ("backend", "runtime") for night in (10, 20)]
    assert sorted(removed) == [f"{name}-py3-none-any.whl" for name in gone]
    assert [file.build for file in channel.project("toy-backend").files] == ["nightly-20261126~py3", "nightly-20261127~py3"]
    assert len([*simple.rglob("*.whl")]) == 4
    assert len([*simple.rglob("*.metadata")]) == 4
    publish(channel, tmp_path / "20", 20, keep=ChannelSettings(keep_days=0, keep_builds=1))
    assert [file.build for file in channel.project("toy-backend").files] == ["nightly-20261127~py3"]
    assert_nothing_dangles(tmp_path / "home")


def test_hostile_text_in_a_wheel_is_escaped(tmp_path: Path) -> None:
    channel, at = channel_in(tmp_path / "home"), NOW - timedelta(hours=4)
    wheel = write_package(tmp_path, "toy_backend-1.0", {}, 'Requires-Python: >=3.9"><script>alert(1)</script>\n')
    channel.publish(Build("nightly-20261128", "py3"), at, [wheel], KEEP, NOW)
    page = (tmp_path / "home" / "channel" / "py3" / "simple" / "toy-backend" / "index.html").read_text()
    assert "<script>" not in page
    wrong = wheel.rename(tmp_path / "other_backend-1.0-py3-none-any.whl")
    with pytest.raises(AccelCiError, match=r"its METADATA is not that of other-backend"):
        channel.publish(Build("nightly-20261128", "py3"), at, [wrong], KEEP, NOW)


def test_kills_between_any_two_writes_leave_nothing_half_published(tmp_path: Path) -> None:
    nights = {27: wheels_of(tmp_path / "27", 27), 28: wheels_of(tmp_path / "28", 28)}
    whole = tmp_path / "whole"
    for night, wheels in nights.items():
        assert run_publisher(whole, night, -1, wheels) == 0
    kills = 0
    for writes in range(100):
        home = tmp_path / f"home{writes}"
        assert run_publisher(home, 27, -1, nights[27]) == 0
        ended = run_publisher(home, 28, writes, nights[28])
        assert_nothing_dangles(home)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        kills += 1
        latest = json.loads((home / "channel" / "py3" / "latest.json").read_bytes())["build"]
        assert run_publisher(home, 28, -1, nights[28]) == 0
        assert_nothing_dangles(home)
        assert same_but_for_times(home) == same_but_for_times(whole)
        assert latest in ("nightly-20261127~py3", "nightly-20261128~py3")
    # 2 wheels with their metadata, 2 × 2 pages, no new project, the pointer; 2 × 2 pages and 4 files that are too old
    assert kills == 4 + 4 + 1 + 4 + 4


def run_publisher(home: Path, night: int, writes: int, wheels: list[Path]) -> int | None:
    """Publish a night in a process, which is killed after so many writes; return how it ended."""
    at, keep = datetime(2026, 11, night, 2, tzinfo=timezone.utc), ChannelSettings(keep_days=0, keep_builds=1)
    channel = Channel(MortalFiles(home, writes), lambda name: FileLock(home / "turn"), "py3")
    home.mkdir(exist_ok=True)
    given = Build(f"nightly-202611{night}", "py3"), at, wheels, keep, NOW
    process = get_context("fork").Process(target=channel.publish, args=given)
    process.start()
    process.join(60)
    return process.exitcode


def same_but_for_times(home: Path) -> dict[str, bytes]:
    """The files of the channel."""
    top = home / "channel"
    files = [path for path in top.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in files}


def test_a_bucket_has_the_same_channel_with_the_types_that_installers_ask_for(tmp_path: Path) -> None:
    given = [os.environ.get(f"ACCEL_CI_S3_{name}") for name in ("ENDPOINT", "BUCKET")]
    if not all(given):
        pytest.skip("needs an S3 server: ACCEL_CI_S3_ENDPOINT, …_BUCKET, …_ACCESS_KEY, …_SECRET_KEY")
    endpoint, name = map(str, given)
    prefix = f"channel-of-tests/{uuid.uuid4().hex}"
    client = s3_client(s3_session(*environment_keys()), endpoint)
    bucket = BucketStore(client, name, prefix, tmp_path / "cache")
    channel = Channel(bucket, lambda turn_of: turn(bucket, turn_of), "py3")
    for night in (26, 27):
        assert publish(channel, tmp_path / str(night), night).new
    assert publish(channel, tmp_path / "27", 27).new == ()
    removed = publish(channel, tmp_path / "28", 28, keep=ChannelSettings(keep_days=0, keep_builds=2)).removed
    assert len(removed) == 2
    for entry in bucket.list_below("channel/py3/simple"):
        copy = tmp_path / "copy" / entry.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        bucket.download(entry, copy)
    assert_nothing_dangles(tmp_path / "copy")
    page = client.head_object(Bucket=name, Key=f"{prefix}/channel/py3/simple/toy-backend/index.html")
    assert page["ContentType"] == "text/html"
