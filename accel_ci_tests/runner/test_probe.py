"""Health probes that misbehave: what they leave behind, flood, or end by."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_ci_tests.fixtures.events import Work, of_kind
from accel_ci_tests.fixtures.processes import is_gone
from accel_ci_tests.fixtures.suite import Write


def test_what_a_probe_leaves_behind_is_ended(work: Work, write: Write, tmp_path: Path) -> None:
    """Each probe starts a daemon in a session of its own, as vendors' tools do."""
    write("test_a.py", "import os\ndef test_1(): pass\ndef test_2(): os._exit(3)\ndef test_3(): pass\n")
    pids = tmp_path / "pids"
    daemon = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        f"    open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n    time.sleep(300)\ntime.sleep(0.5)\nprint('good')"
    )
    events = work([f"test_a.py::test_{n}" for n in (1, 2, 3)], probe=["python", "-c", daemon])
    assert {(event["healthy"], event["reason"]) for event in of_kind(events, "probe")} == {(True, "good")}
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == len(of_kind(events, "probe")) >= 3
    assert all(is_gone(pid) for pid in started)


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (["sh", "-c", "yes"], "the probe printed more than 16 MiB"),
        (["sh", "-c", "kill -9 $$"], "the probe ended with -9"),
        (["no-such-probe"], "the probe cannot be started: "),
        (["sh", "-c", r"printf 'a\377b'; exit 1"], "a\ufffdb"),
    ],
)
def test_a_probe_that_misbehaves_means_an_unhealthy_card(work: Work, write: Write, probe: list[str], reason: str) -> None:
    write("test_a.py", "def test_1(): pass\n")
    [event] = of_kind(work(["test_a.py::test_1"], probe=probe), "probe")
    assert not event["healthy"]
    assert event["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("told", "driver"),
    [
        ('{"driver": "1.2.3"}', "1.2.3"),
        ('{"driver": "1.2\\n\\u2028 3", "reason": null}', "1.2 3"),
        ('{"driver": "' + "9" * 5000 + '"}', "9" * 100),
        ('{"driver": 12.5}', "12.5"),
        ('{"driver": null}', None),
        ('{"driver": " "}', None),
        ("1.2.3", None),
        ("[" * 5000, None),
    ],
    ids=range(8),
)
def test_a_probe_may_tell_the_version_of_the_driver(
    work: Work, write: Write, tmp_path: Path, told: str, driver: str | None
) -> None:
    write("test_a.py", "def test_1(): pass\n")
    file = tmp_path / "told"
    file.write_text(f"a first line\n{told}\n")
    events = of_kind(work(["test_a.py::test_1"], probe=["cat", str(file)]), "probe")
    assert [(event["healthy"], event.get("driver")) for event in events] == [(True, driver)] * len(events)
    assert events
