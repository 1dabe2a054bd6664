"""From files on disk to the page."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from accel_ci.hud.gather import gather
from accel_ci.hud.page import HudPage
from accel_ci.hud.render import render_hud, write_hud
from accel_ci.model import Build
from accel_ci.pipelines import STAGES
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.hud.samples import GREEN, NOW, VARIANTS, flakiness, lay_build, lay_revision, workspace_of


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
    assert "The verdicts of this build are unreadable" in render_hud(page)
    assert "cannot be read" in caplog.text


def test_an_empty_history_says_how_to_begin(tmp_path: Path) -> None:
    html = render_hud(page_of(tmp_path / "nothing"))
    assert "accel-ci run nightly" in html
    assert "No test failed" not in html


def test_the_page_is_written_whole_and_again(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site" / "hud"
    first = write_hud(page_of(home), folder)
    write_hud(page_of(home), folder)
    assert first == folder / "index.html"
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert first.read_text(encoding="utf-8") == render_hud(page_of(home))


def test_no_credentials_reach_the_page(home: Path) -> None:
    html = render_hud(page_of(home))
    assert "secret-token" not in html
    assert "https://git.example/emu/torch_emu/commit/" in html
