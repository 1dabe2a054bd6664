"""The feeds in PyTorch's formats."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.plan.test_times import parse_test_times
from accel_ci.quality.current_quarantine import QuarantineState, publish_feeds
from accel_ci.quality.feeds import FEED, FEEDS, disabled_tests, feed_fault, pytorch_name, write_feeds
from accel_ci.quality.quarantine import Entry
from accel_ci.scope.importers.disabled_tests import read_disabled_tests
from accel_ci.scope.importers.imported import DeviceNames
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3

NOW = datetime(2026, 11, 27, 3, tzinfo=timezone.utc)
ADD = "upstream/test/test_ops.py::TestCommonEMU::test_out_add_emu_float32"
VIEW = "upstream/test/test_view_ops.py::TestViewEMU::test_view[a::b]"


def entry(test: str, state: str, issue: str | None = None) -> Entry:
    return Entry("upstream", test, "py3", state, "a race", "rule", date(2026, 11, 1), date(2026, 12, 1), issue=issue)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("test", "name"),
    [
        (ADD, "test_out_add_emu_float32 (__main__.TestCommonEMU)"),
        (VIEW, "test_view (__main__.TestViewEMU)"),
        ("test_a.py::test_a", None),
    ],
)
def test_names_are_pytorchs(test: str, name: str | None) -> None:
    assert pytorch_name(test) == name


def test_only_disabled_tests_are_listed_and_for_this_device_alone() -> None:
    entries = [entry(ADD, "disabled", "https://github.example/1"), entry(VIEW, "muted"), entry("a.py::test_a", "disabled")]
    found = disabled_tests(entries)
    assert found == {"test_out_add_emu_float32 (__main__.TestCommonEMU)": ["https://github.example/1", []]}
    imported = read_disabled_tests(json.dumps(found), DeviceNames("emu", "emu"), "upstream_bug")
    assert imported.entries == 1
    assert not imported.left_out


def test_feeds_are_read_back(tmp_path: Path) -> None:
    folder = write_feeds(tmp_path / "py3", [entry(ADD, "disabled")], {ADD: 2.5, VIEW: 61.0, "a.py::test_a": 1.0}, NOW)
    assert json.loads((folder / "slow-tests.json").read_text()) == {"test_view (__main__.TestViewEMU)": 61.0}
    times = parse_test_times(json.loads((folder / "test-times.json").read_text()), "emu")
    assert times == {"test_ops": 2.5, "test_view_ops": 61.0, "a": 1.0}
    assert feed_fault(folder, NOW) is None


def test_a_feed_that_is_stale_empty_or_damaged_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "py3"
    assert "cannot be read" in (feed_fault(folder, NOW) or "")
    write_feeds(folder, [], {}, NOW)
    assert feed_fault(folder, NOW) == "the feed has no tests"
    write_feeds(folder, [], {ADD: 1.0}, NOW)
    assert feed_fault(folder, NOW + timedelta(days=4)) == "the feed is 4.0 days old"
    (folder / FEED).write_text("{")
    assert "is damaged" in (feed_fault(folder, NOW) or "")


@real_s3
def test_feeds_lie_beside_the_results_in_their_bucket(make_project: Callable[..., Project]) -> None:
    endpoint, bucket, *_ = (os.environ[name] for name in NEEDED)
    prefix = f"feeds-{uuid.uuid4().hex}/"
    workspace = Workspace(make_project(results={"bucket": bucket, "prefix": prefix, "endpoint": endpoint}))
    [folder] = publish_feeds(workspace, QuarantineState(NOW.date()), NOW).values()
    variant = workspace.project.settings.variants[0].name
    objects = Workspace(workspace.project).results.objects
    for name in FEEDS:
        entry = objects.find(f"feeds/{variant}/{name}")
        assert entry is not None
        assert objects.fetch(entry).read_bytes() == (folder / name).read_bytes()
