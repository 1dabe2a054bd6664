"""From files on disk to the grid and the pages of builds."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.hud.gather import MOST_REVISIONS, gather_builds
from accel_ci.hud.grid import GridPage, make_grid
from accel_ci.hud.site import write_site
from accel_ci.model import Attempt, Build
from accel_ci.pipelines import STAGES
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts
from accel_ci_tests.hud.samples import GREEN, NOW, VARIANTS, flakiness, lay_build, lay_revision, results, workspace_of


def grid_of(home: Path, revisions: int = MOST_REVISIONS) -> GridPage:
    found, kept = gather_builds(workspace_of(home), {}, NOW, revisions)
    return make_grid("torch_emu", found, kept, now=NOW)


def site_of(home: Path) -> Path:
    return write_site(workspace_of(home), flakiness(), home / "hud", now=NOW).parent


def html_of(home: Path, revision: str, variant: str = VARIANTS[0]) -> str:
    return (site_of(home) / f"builds/{revision}~{variant}.html").read_text()


def data_of(home: Path, revision: str, variant: str = VARIANTS[0]) -> dict[str, object]:
    found: dict[str, object] = json.loads((site_of(home) / f"builds/{revision}~{variant}.json").read_text())
    return found


def test_a_history_is_read_as_it_was_written(home: Path) -> None:
    page = grid_of(home)
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
    assert page.torch == {("2.13.0", "f00dbabe" * 5): list(VARIANTS)}


def test_only_the_newest_revisions_are_shown(home: Path) -> None:
    assert [row.key for row in grid_of(home, revisions=2).rows] == ["nightly-20261127", "nightly-20261126"]


def lay_commits(home: Path, count: int) -> None:
    """Lay builds of a few tests for the trigger `main`, each younger than any nightly."""
    for number in range(count):
        one = lay_revision(home, 0, trigger="main", key=f"main-{number:012x}", hours=0)
        lay_build(home, Build(one.key, VARIANTS[0]), {"passed": 32})


def test_a_main_build_hides_no_failure_of_the_nightly(home: Path) -> None:
    lay_commits(home, 2)
    page = grid_of(home)
    assert [row.key for row in page.latest] == ["nightly-20261127", "main-000000000001"]
    assert page.rows[0].key == "nightly-20261127"


def changes_of(home: Path) -> tuple[int, int, object, object]:
    found = data_of(home, "nightly-20261127")["changes"]
    assert isinstance(found, dict)
    return len(found["new"]), len(found["still"]), found["before"], found["green"]


def test_builds_are_new_against_the_same_trigger_and_suites(home: Path) -> None:
    lay_commits(home, 1)
    assert changes_of(home) == (6, 6, "nightly-20261126", "nightly-20261125")
    path = ManifestStore(home).path("ledger", "nightly-20261126", VARIANTS[0])
    manifest = json.loads(path.read_text())
    del manifest["suites"]["pytorch"]
    path.write_text(json.dumps(manifest))
    ManifestStore(home).path("ledger", "nightly-20261127", VARIANTS[0]).touch()
    assert changes_of(home) == (12, 0, "nightly-20261125", "nightly-20261125")


def test_other_triggers_take_no_nightly_out_of_the_grid(tmp_path: Path) -> None:
    for day in range(4):
        lay_revision(tmp_path, day)
    for hour in range(9):
        lay_revision(tmp_path, 0, trigger="intraday", key=f"intraday-20261127T{hour:02d}", hours=hour)
    keys = [row.key for row in grid_of(tmp_path, revisions=4).rows]
    assert keys == [
        *(f"nightly-202611{day}" for day in (27, 26, 25, 24)), *(f"intraday-20261127T{hour:02d}" for hour in range(4)),
    ]  # fmt: skip


def test_only_builds_that_have_changed_are_read_again(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    workspace = workspace_of(home)
    revisions, kept = gather_builds(workspace, {}, NOW)
    assert gather_builds(workspace, kept, NOW) == (revisions, kept)
    path = workspace.manifests.path("ledger", "nightly-20261120", VARIANTS[0])
    before = path.stat()
    path.write_text("{ broken")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with caplog.at_level(logging.WARNING):
        again, _ = gather_builds(workspace, kept, NOW)
    assert again[-1].builds[0].state.kind == "unreadable"
    assert again[:-1] == revisions[:-1]


def test_a_build_that_stopped_at_smoke_names_its_tests_and_messages(tmp_path: Path) -> None:
    build = Build(lay_revision(tmp_path, 0).key, VARIANTS[0])
    lay_build(tmp_path, build, {}, until="runtime_image")
    manifests = ManifestStore(tmp_path)
    manifests.write(manifests.path("smoke_results", build.revision, build.variant), results((), 1.0, failed=1))
    failed = Attempt(
        "smoke", "test_smoke.py::test_add", 1, "failed", NOW, 0.1, "RuntimeError: <no> device", None, "0", "h", "w"
    )
    write_attempts(ResultsStore(tmp_path / "results"), build, NOW.date(), [failed])
    state = grid_of(tmp_path).rows[0].cells[0].state
    assert (state.words, state.detail) == (
        "stopped at smoke_results", "1 smoke failed · test_smoke.py::test_add: RuntimeError: <no> device",
    )  # fmt: skip
    html = html_of(tmp_path, build.revision)
    assert "<pre>RuntimeError: &lt;no&gt; device</pre>" in html
    assert '<span class="file">test_smoke.py::</span>test_add</code>' in html


def test_a_stage_that_raised_is_named_with_its_message(tmp_path: Path) -> None:
    build = Build(lay_revision(tmp_path, 0).key, VARIANTS[0])
    manifests = ManifestStore(tmp_path)
    with pytest.raises(AccelCiError), manifests.noting_failure("wheel", build):
        raise AccelCiError("the build failed; see the log\ngcc: <fatal>")
    state = grid_of(tmp_path).rows[0].cells[0].state
    assert (state.words, state.detail) == ("stopped at wheel", "wheel: the build failed; see the log")
    assert "gcc: &lt;fatal&gt;</pre>" in html_of(tmp_path, build.revision)
    with manifests.noting_failure("wheel", build):
        assert grid_of(tmp_path).rows[0].cells[0].state.detail == "no manifest yet"


@pytest.mark.parametrize("until", STAGES[:-1])
def test_a_build_that_stopped_is_never_green(tmp_path: Path, until: str) -> None:
    revision = lay_revision(tmp_path, 0)
    lay_build(tmp_path, Build(revision.key, VARIANTS[0]), {}, until=until)
    state = grid_of(tmp_path).rows[0].cells[0].state
    assert state.kind not in GREEN
    assert state.detail.startswith(f"after {until}")


def test_a_variant_folder_without_any_manifest_is_a_build_that_stopped(tmp_path: Path) -> None:
    revision = lay_revision(tmp_path, 0)
    (tmp_path / "builds" / revision.key / VARIANTS[0]).mkdir()
    assert grid_of(tmp_path).rows[0].cells[0].state.words.endswith("at wheel")


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
        page = grid_of(tmp_path)
        assert f"Unreadable: {stage}." in html_of(tmp_path, build.revision)
    assert str(path) in caplog.text
    assert (page.rows[0].cells[0].state.kind in GREEN) == (stage != "ledger")


def test_a_revision_without_its_manifest_still_has_its_row(home: Path) -> None:
    path = ManifestStore(home).path("revision", "nightly-20261127")
    path.write_text("[]")
    os.utime(path, (time.time() + 3600,) * 2)
    page = grid_of(home)
    assert (page.rows[0].key, page.rows[0].revision) == ("nightly-20261127", None)
    assert "revision.json is missing or unreadable" in (site_of(home) / "index.html").read_text()


def test_lost_verdicts_are_said_to_be_lost(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(home / "results")
    site = site_of(home)
    lost = [
        path.stem for path in site.glob("builds/*.html") if "The verdicts of this build are unreadable" in path.read_text()
    ]
    ledgers = [path for path in home.glob("builds/*/*/ledger.json") if "broken" not in path.read_text()]
    with_tests = [path.parent for path in ledgers if json.loads(path.read_text())["expected"]]
    assert sorted(lost) == sorted(f"{path.parent.name}~{path.name}" for path in with_tests)
    assert "cannot be read" in caplog.text


def test_an_empty_history_says_how_to_begin(tmp_path: Path) -> None:
    html = (site_of(tmp_path / "nothing") / "index.html").read_text()
    assert "accel-ci run nightly" in html
    assert "No test failed" not in html


def test_no_credentials_reach_the_page(home: Path) -> None:
    site = site_of(home)
    pages = [path.read_text() for path in (*site.glob("*.*"), *site.glob("builds/*"))]
    assert not any("secret-token" in page for page in pages)
    assert any("https://git.example/emu/torch_emu/commit/" in page for page in pages)
    assert any("https://git.example/emu/torch_emu/compare/" in page for page in pages)
