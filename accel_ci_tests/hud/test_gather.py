"""From files on disk to the page."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.hud.gather import gather
from accel_ci.hud.page import HudPage
from accel_ci.hud.render import render_hud
from accel_ci.model import Attempt, Build
from accel_ci.pipelines import STAGES
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts
from accel_ci_tests.hud.samples import GREEN, NOW, VARIANTS, flakiness, lay_build, lay_revision, results, workspace_of


def page_of(home: Path, revisions: int = 30, listed: int = 50) -> HudPage:
    return gather(workspace_of(home), flakiness(), now=NOW, revisions=revisions, listed=listed)


def test_a_history_is_read_as_it_was_written(home: Path) -> None:
    page = page_of(home)
    assert page.variants == VARIANTS
    assert [(row.key, *(cell.state.words for cell in row.cells)) for row in page.rows] == [
        ("nightly-20261127", "12 failed", "unfinished at test_selection"),
        ("nightly-20261126", "6 failed", "3 flaky"),
        ("nightly-20261125", "all passed", "41 infra · 19 not run"),
        ("nightly-20261124", "no tests", "none failed"),
        ("nightly-20261123", "ledger unreadable", "none failed"),
        ("nightly-20261122", "3 flaky", "no build"),
        ("nightly-20261121", "none failed", "1 failed"),
        ("nightly-20261120", "none failed", "none failed"),
    ]
    failed = page.builds[0]
    assert (len(failed.failed), failed.new_failures, failed.verdicts_known) == (12, 6, True)
    assert page.torch == {("2.13.0", "f00dbabe" * 5): list(VARIANTS)}


def test_only_the_newest_revisions_are_shown(home: Path) -> None:
    assert [row.key for row in page_of(home, revisions=2).rows] == ["nightly-20261127", "nightly-20261126"]


def lay_commits(home: Path, count: int) -> None:
    """Lay builds of a few tests for the trigger `main`, each younger than any nightly."""
    for number in range(count):
        one = lay_revision(home, 0, trigger="main", key=f"main-{number:012x}", hours=0)
        lay_build(home, Build(one.key, VARIANTS[0]), {"passed": 32})


def test_a_main_build_hides_no_failure_of_the_nightly(home: Path) -> None:
    lay_commits(home, 2)
    page = page_of(home)
    detailed = [one for one in page.builds if one.record.build.variant == VARIANTS[0]]
    assert [(one.record.build.revision, len(one.failed)) for one in detailed] == [
        ("nightly-20261127", 12), ("main-000000000001", 0),
    ]  # fmt: skip
    assert page.rows[0].key == "nightly-20261127"
    assert {one.record.build.name for one in (*page.builds, *page.earlier)} == {
        cell.build.name for row in page.rows for cell in row.cells if cell.anchor
    }


def test_builds_are_new_against_the_same_trigger_and_suites(home: Path) -> None:
    lay_commits(home, 1)
    page = page_of(home)
    assert [(one.new_failures, one.compared_with) for one in page.builds if one.failed] == [(6, "nightly-20261126")]
    path = ManifestStore(home).path("ledger", "nightly-20261126", VARIANTS[0])
    manifest = json.loads(path.read_text())
    del manifest["suites"]["pytorch"]
    path.write_text(json.dumps(manifest))
    assert [one.compared_with for one in page_of(home).builds if one.failed] == ["nightly-20261125"]


def test_the_failing_tests_of_some_earlier_builds_are_named(tmp_path: Path) -> None:
    for day in range(4):
        lay_build(tmp_path, Build(lay_revision(tmp_path, day).key, VARIANTS[0]), {"failed": 3, "passed": 27})
    page = gather(workspace_of(tmp_path), flakiness(), now=NOW, named=2)
    assert [len(one.failed) for one in (*page.builds, *page.earlier)] == [3, 3, 3, 0]
    assert render_hud(page).count("accel-ci results failures nightly-20261124~") == 1


def test_other_triggers_take_no_nightly_out_of_the_grid(tmp_path: Path) -> None:
    for day in range(4):
        lay_revision(tmp_path, day)
    for hour in range(9):
        lay_revision(tmp_path, 0, trigger="intraday", key=f"intraday-20261127T{hour:02d}", hours=hour)
    keys = [row.key for row in page_of(tmp_path, revisions=4).rows]
    assert keys == [
        *(f"nightly-202611{day}" for day in (27, 26, 25, 24)), *(f"intraday-20261127T{hour:02d}" for hour in range(4)),
    ]  # fmt: skip


def test_a_build_that_stopped_at_smoke_names_its_tests_and_messages(tmp_path: Path) -> None:
    build = Build(lay_revision(tmp_path, 0).key, VARIANTS[0])
    lay_build(tmp_path, build, {}, until="runtime_image")
    manifests = ManifestStore(tmp_path)
    manifests.write(manifests.path("smoke_results", build.revision, build.variant), results((), 1.0, failed=1))
    failed = Attempt(
        "smoke", "test_smoke.py::test_add", 1, "failed", NOW, 0.1, "RuntimeError: <no> device", None, "0", "h", "w"
    )
    write_attempts(ResultsStore(tmp_path / "results"), build, NOW.date(), [failed])
    page = page_of(tmp_path)
    state = page.rows[0].cells[0].state
    assert (state.words, state.detail) == (
        "stopped at smoke_results", "1 smoke failed · test_smoke.py::test_add: RuntimeError: <no> device",
    )  # fmt: skip
    html = render_hud(page)
    assert "<pre>RuntimeError: &lt;no&gt; device</pre>" in html
    assert '<span class="file">test_smoke.py::</span>test_add</code>' in html


def test_a_stage_that_raised_is_named_with_its_message(tmp_path: Path) -> None:
    build = Build(lay_revision(tmp_path, 0).key, VARIANTS[0])
    manifests = ManifestStore(tmp_path)
    with pytest.raises(AccelCiError), manifests.noting_failure("wheel", build):
        raise AccelCiError("the build failed; see the log\ngcc: <fatal>")
    page = page_of(tmp_path)
    state = page.rows[0].cells[0].state
    assert (state.words, state.detail) == ("stopped at wheel", "wheel: the build failed; see the log")
    assert "gcc: &lt;fatal&gt;</pre>" in render_hud(page)
    with manifests.noting_failure("wheel", build):
        assert page_of(tmp_path).rows[0].cells[0].state.detail == "no manifest yet"


@pytest.mark.parametrize("until", STAGES[:-1])
def test_a_build_that_stopped_is_never_green(tmp_path: Path, until: str) -> None:
    revision = lay_revision(tmp_path, 0)
    lay_build(tmp_path, Build(revision.key, VARIANTS[0]), {}, until=until)
    state = page_of(tmp_path).rows[0].cells[0].state
    assert state.kind not in GREEN
    assert state.detail.startswith(f"after {until}")


def test_a_variant_folder_without_any_manifest_is_a_build_that_stopped(tmp_path: Path) -> None:
    revision = lay_revision(tmp_path, 0)
    (tmp_path / "builds" / revision.key / VARIANTS[0]).mkdir()
    assert page_of(tmp_path).rows[0].cells[0].state.words.endswith("at wheel")


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "test_plan"])
@pytest.mark.parametrize("content", [b"", b"{ broken", b'{"another": "shape"}', b"\xff\xfe"])
def test_a_broken_manifest_is_shown_and_logged(
    tmp_path: Path, stage: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    revision = lay_revision(tmp_path, 0)
    build = Build(revision.key, VARIANTS[0])
    lay_build(tmp_path, build, {"passed": 30})
    path = ManifestStore(tmp_path).path(stage, build.revision, build.variant)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        page = page_of(tmp_path)
    assert str(path) in caplog.text
    assert page.builds[0].record.unreadable == (stage,)
    assert f"Unreadable: {stage}" in render_hud(page)
    assert (page.rows[0].cells[0].state.kind in GREEN) == (stage != "ledger")


def test_a_revision_without_its_manifest_still_has_its_row(home: Path) -> None:
    path = ManifestStore(home).path("revision", "nightly-20261127")
    path.write_text("[]")
    os.utime(path, (time.time() + 3600,) * 2)
    page = page_of(home)
    assert (page.rows[0].key, page.rows[0].revision) == ("nightly-20261127", None)
    assert "revision.json is missing or unreadable" in render_hud(page)


def test_lost_verdicts_are_said_to_be_lost(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(home / "results")
    page = page_of(home)
    assert not page.builds[0].verdicts_known
    assert render_hud(page).count("The verdicts of this build are unreadable") == 2
    assert render_hud(page).count("accel-ci results failures nightly-") == 3, "earlier builds"
    assert "cannot be read" in caplog.text


def test_an_empty_history_says_how_to_begin(tmp_path: Path) -> None:
    html = render_hud(page_of(tmp_path / "nothing"))
    assert "accel-ci run nightly" in html
    assert "No test failed" not in html


def test_no_credentials_reach_the_page(home: Path) -> None:
    html = render_hud(page_of(home))
    assert "secret-token" not in html
    assert "https://git.example/emu/torch_emu/commit/" in html
