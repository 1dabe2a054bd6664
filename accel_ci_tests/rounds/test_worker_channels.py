"""The driver's ends of channels, with this process in the place of workers: claims, news, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accel_ci.model import Limits, WorkerSpec
from accel_ci.rounds.folder_round import DRIVER, FolderRound
from accel_ci.rounds.worker_channels import WorkerChannels
from accel_ci.runner import round_folder
from accel_ci.runner.channel import LONGEST_LINE, Channel
from accel_ci.runner.events import line_of
from accel_ci.runner.round import ChannelClaims
from accel_ci_tests.fixtures.suite import batch

SPEC = WorkerSpec("python3", "/sources", {}, "CARD")
BATCHES = [batch(f"b{n}", f"test_{n}.py::test_1", f"test_{n}.py::test_2") for n in range(4)]
Join = Callable[[str], Channel]


@pytest.fixture
def record(tmp_path: Path) -> FolderRound:
    """A round that is prepared."""
    record = FolderRound(tmp_path / "round-1")
    record.prepare(1, BATCHES, SPEC, Limits(), 0)
    return record


@pytest.fixture
def channels(record: FolderRound) -> Iterator[WorkerChannels]:
    """Its channels."""
    channels = WorkerChannels(record)
    yield channels
    channels.close()


@pytest.fixture
def join(channels: WorkerChannels) -> Join:
    """Join as a worker of that name."""
    return lambda worker: Channel(str(channels.pair(worker).detach()))


def started(test: str) -> bytes:
    return line_of("started", suite="suite", test=test)


def attempt(test: str, outcome: str = "passed", **fields: object) -> bytes:
    return line_of("attempt", suite="suite", test=test, outcome=outcome, duration_s=1.0, **fields)


def end(channels: WorkerChannels, channel: Channel, worker: str = "w0-0") -> None:
    channel.close()
    channels.finish(worker)


def test_one_worker_gets_a_batch_and_all_hear_of_it(record: FolderRound, join: Join) -> None:
    first, second = ChannelClaims(join("w0-0")), ChannelClaims(join("w0-1"))
    assert (first.take("b0"), second.take("b0"), second.take("b1")) == (True, False, True)
    assert record.withdraw("b2")
    assert not first.take("b2")
    for each in (first, second):
        each.refresh()
        assert each.taken() == {"b0": "w0-0", "b1": "w0-1", "b2": DRIVER}
    assert record.claimed() == first.taken()


def test_claims_outlive_the_driver(record: FolderRound, join: Join) -> None:
    assert ChannelClaims(join("w0-0")).take("b0")
    later = WorkerChannels(FolderRound(record.path))
    claims = ChannelClaims(Channel(str(later.pair("w1-0").detach())))
    claims.refresh()
    assert claims.taken() == {"b0": "w0-0"}
    assert not claims.take("b0")
    later.close()


def test_news_come_once(record: FolderRound, join: Join) -> None:
    claims = ChannelClaims(join("w0-0"))
    record.requeue(BATCHES[:1])
    record.end()
    for _ in range(2):
        claims.refresh()
    assert [each["id"] for each in claims.requeued] == ["h0-0"]
    assert claims.over
    assert claims.take("h0-0")


def test_events_are_recorded_and_counted_for_own_tests(record: FolderRound, channels: WorkerChannels, join: Join) -> None:
    channel = join("w0-0")
    assert ChannelClaims(channel).take("b0")
    test = BATCHES[0].tests[0]
    channel.send(started(test) + attempt(test))
    end(channels, channel)
    assert [event.event for event in record.events("w0-0")] == ["started", "attempt"]
    assert not record.quarantined


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (attempt("test_1.py::test_1", "error"), "in none of its batches"),
        (started("test_1.py::test_1"), "in none of its batches"),
        (attempt("test_0.py::test_1"), "had not started"),
        (attempt("test_0.py::test_1", "splendid"), "no event"),
        (attempt("(session)"), "session"),
        (attempt("test_0.py::test_1", "error", message="x" * 300_000), "no event"),
        (b"nonsense\n", "no event"),
        (b'{"ask":"take","batch":"../../x"}\n', "nobody asks"),
        (b'{"ask":"take","batch":{}}\n', "nobody asks"),
        (b'{"ask":"all"}\n', "nobody asks"),
        (b'{"ask":' + b"[" * 100_000 + b"\n", "nobody asks"),
        (b"x" * (LONGEST_LINE + 2), "a line of more than 1 MiB"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[:30].hex() + str(len(each)),
)
def test_what_cannot_be_true_puts_a_worker_in_quarantine(
    record: FolderRound, channels: WorkerChannels, join: Join, lines: bytes, said: str
) -> None:
    channel, other = join("w0-0"), join("w0-1")
    assert ChannelClaims(channel).take("b0")
    channel.send(started("test_0.py::test_2"))
    with contextlib.suppress(SystemExit):
        channel.send(lines)
        channel.send(attempt("test_0.py::test_2"))
    end(channels, channel)
    assert [event.event for event in record.events("w0-0")] == ["started"]
    assert said in record.quarantined["w0-0"]
    assert ChannelClaims(other).take("b1"), "the others go on"
    assert list(record.path.parent.iterdir()) == [record.path]


def test_a_worker_may_not_write_without_end(record: FolderRound, channels: WorkerChannels, join: Join) -> None:
    channel = join("w0-0")
    line = line_of("collected", file="x" * 500_000)
    with contextlib.suppress(SystemExit):
        for _ in range(200):
            channel.send(line)
    end(channels, channel)
    assert len(record.events("w0-0")) < 200
    assert "more than" in record.quarantined["w0-0"]


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_a_record_that_is_no_file(record: FolderRound, put: Callable[[Path], None]) -> None:
    own = record.path / round_folder.WORKERS / "w0-0"
    own.mkdir()
    put(own / round_folder.EVENTS)
    assert record.events("w0-0") == []
    assert "no record" in record.quarantined["w0-0"]


def test_the_first_to_connect_is_the_worker_and_the_socket_goes(record: FolderRound, channels: WorkerChannels) -> None:
    room = record.path / round_folder.ROOMS / "w0-0"
    room.mkdir(parents=True)
    channels.listen("w0-0", "socket", (os.getuid(), os.getgid()))
    channel = Channel(str(room / "socket"))
    assert ChannelClaims(channel).take("b0")
    assert list(room.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        Channel(str(room / "socket"))
    end(channels, channel)


def test_a_worker_that_never_connects_has_ended_at_once(record: FolderRound, channels: WorkerChannels) -> None:
    room = record.path / round_folder.ROOMS / "w0-0"
    room.mkdir(parents=True)
    channels.listen("w0-0", "socket", (os.getuid(), os.getgid()))
    channels.finish("w0-0")
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("look", ["before", "after"])
def test_what_tests_delete_the_driver_still_knows(record: FolderRound, join: Join, look: str) -> None:
    claims = ChannelClaims(join("w0-0"))
    record.requeue(BATCHES[:1])
    assert claims.take("b0")
    if look == "before":
        assert record.claimed() == {"b0": "w0-0"}
    for name in (round_folder.CLAIMS, round_folder.REQUEUED, round_folder.PLAN):
        path = record.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert record.claimed() == {"b0": "w0-0"}
    assert claims.take("b1")
    assert claims.take("h0-0")
    assert not claims.take("b0")
    assert record.claimed() == {"b0": "w0-0", "b1": "w0-0", "h0-0": "w0-0"}
    (record.path / round_folder.REQUEUED).mkdir()
    assert [batch.id for batch in record.requeue(BATCHES[1:2])] == ["h1-0"]
    assert [batch.id for batch in record.batches()] == [*(batch.id for batch in BATCHES), "h0-0", "h1-0"]


def test_a_round_is_over_when_the_driver_says_so(record: FolderRound, join: Join) -> None:
    claims = ChannelClaims(join("w0-0"))
    (record.path / round_folder.ROUND_OVER).touch()
    claims.refresh()
    assert not claims.over


def test_who_reads_no_answers_is_left_alone(record: FolderRound, channels: WorkerChannels) -> None:
    with socket.socket(fileno=channels.pair("w0-0").detach()) as silent:
        silent.sendall(json.dumps({"ask": "news"}, separators=(",", ":")).encode() + b"\n")
        other = ChannelClaims(Channel(str(channels.pair("w0-1").detach())))
        assert other.take("b0")
