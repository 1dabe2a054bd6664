"""The ledger tells faults apart and its sums are exact; an error stops the run with a message, and is never green."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from accel_ci.model import Build
from accel_ci.pipelines import STAGES
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import Bench, assert_balanced


def test_the_ledger_tells_faults_apart(bench: Bench, faulty_nightly: Build) -> None:
    assert_balanced(bench, faulty_nightly)
    verdicts = bench.verdicts(faulty_nightly)
    assert {name: (v.verdict, v.attempts) for name, v in verdicts.items() if v.verdict != "passed"} == {
        "test_op[atan2]": ("flaky", ("failed", "passed", "passed")),
        "test_op[tan]": ("failed", ("crashed", "crashed")),
        "test_op[erfinv]": ("failed", ("timeout", "timeout")),
        "test_op[to_sparse]": ("failed", ("failed", "failed")),
    }
    assert "SIGSEGV" in (verdicts["test_op[tan]"].message or "")
    for retried in ("test_op[atan2]", "test_op[to_sparse]"):
        assert len(verdicts[retried].cards) == 2, "a failed test is run again on the other card"


def test_every_attempt_is_stored_once(bench: Bench, faulty_nightly: Build) -> None:
    stored = ResultsStore(bench.project.home / "results").query(
        "SELECT suite, test, round, count(*) FROM attempts WHERE revision = ? AND suite <> 'smoke' GROUP BY ALL",
        [faulty_nightly.revision],
    )
    streamed = Counter((a.suite, a.test, a.round) for a in bench.attempts(faulty_nightly))
    assert {tuple(row[:3]): row[3] for row in stored} == dict(streamed)
    assert set(streamed.values()) == {1}


def test_a_bad_card_is_not_held_against_its_tests(bench: Bench, bad_card_run: Build) -> None:
    assert_balanced(bench, bad_card_run)
    assert {name: v.verdict for name, v in bench.verdicts(bad_card_run).items() if v.verdict != "passed"} == {
        "test_op[to_sparse]": "failed",
    }
    infra = [attempt for attempt in bench.attempts(bad_card_run) if attempt.infra is not None]
    assert {attempt.card for attempt in infra} == {"1"}
    assert len(infra) == bench.ledger(bad_card_run).infra_attempts > 0
    assert [card.healthy for card in bench.results(bad_card_run).cards] == [True, False]


@pytest.mark.parametrize(
    ("changes", "stopped_at", "message"),
    [
        ({"suites__smoke__paths": ["tests/pytest.ini"]}, "smoke_results", "have no 'tests/pytest.ini'"),
        ({"suites__smoke__scope": {"include": ["*linear*"]}, "suites__pytorch__scope": {"include": ["*typo*"]}},
         "test_selection", "suite 'pytorch': none of the 702 collected tests is in scope"),
        ({"pool__environment__EMU_FAULTS": "missing_device"}, "smoke_results", "no card is healthy"),
    ],
)  # fmt: skip
def test_an_error_before_the_tests_stops_with_a_message(
    bench: Bench, faulty_nightly: Build, changes: dict[str, Any], stopped_at: str, message: str
) -> None:
    bench.configure(**changes)
    try:
        output = bench.accel_ci("run", "manual", "--name", f"stops {stopped_at} {len(message)}", status=1)
        build = Build(f"manual-stops-{stopped_at.replace('_', '-')}-{len(message)}", faulty_nightly.variant)
        assert message in output
        assert bench.status(build)["state"] == f"stopped after {stopped_at} failed"
        assert not ManifestStore(bench.project.home).path("ledger", build.revision, build.variant).exists()
        page = (bench.project.home / "hud" / "index.html").read_text()
        assert f"stopped after {stopped_at} failed" in page
    finally:
        bench.configure()


def test_a_collection_of_nothing_is_never_green(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(
        suites__smoke__scope={"include": ["*linear*"]},
        suites__pytorch={"paths": ["README.md"], "stage": "device"},
    )
    try:
        output = bench.accel_ci("run", "manual", "--name", "nothing", status=1)
        assert "collected no tests from README.md" in output
    finally:
        bench.configure()


def test_a_failing_smoke_test_stops_the_run(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(pool__environment__EMU_FAULTS="crash:add")
    try:
        output = bench.accel_ci("run", "manual", "--name", "smoke fails", status=1)
    finally:
        bench.configure()
    assert "the check smoke_passed failed" in output
    assert "crashed" in output
    build = Build("manual-smoke-fails", faulty_nightly.variant)
    manifests = ManifestStore(bench.project.home)
    made = [stage for stage in STAGES if manifests.path(stage, build.revision, build.variant).exists()]
    assert made == ["wheel", "runtime_image", "smoke_results"]


def test_a_wheel_that_does_not_import_stops_before_the_image(bench: Bench, faulty_nightly: Build) -> None:
    module = bench.folder / "backend" / "src" / "torch_emu" / "__init__.py"
    sound = module.read_text()
    module.write_text(f"import no_such_module\n{sound}")
    try:
        output = bench.accel_ci("run", "manual", "--name", "no import", status=1)
    finally:
        module.write_text(sound)
    assert "wheel: the check imports failed" in output
    assert "No module named 'no_such_module'" in output
    assert bench.status(Build("manual-no-import", faulty_nightly.variant))["state"] == "stopped after wheel failed"


def test_a_pytorch_that_cannot_be_installed_stops_with_a_message(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(variants__0__torch="torch==2.13.999")
    try:
        output = bench.accel_ci("run", "manual", "--name", "no pytorch", status=1)
    finally:
        bench.configure()
    assert "the check clean_install failed" in output
    assert "torch==2.13.999" in output
    assert "PIP_FIND_LINKS" in output


def test_a_run_of_the_same_sources_reuses_what_was_built(bench: Bench, bad_card_run: Build) -> None:
    manifests = ManifestStore(bench.project.home)
    for stage in ("wheel", "runtime_image"):
        manifest = json.loads(manifests.path(stage, bad_card_run.revision, bad_card_run.variant).read_text())
        assert (manifest["reused"], manifest["work_s"]) == (True, 0)
