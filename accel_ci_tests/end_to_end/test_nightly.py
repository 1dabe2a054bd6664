"""The ledger of the example's nightly tells faults apart, and its sums are exact."""

from __future__ import annotations

import json
from collections import Counter

from dagster import AssetKey

from accel_ci.defs.instance import open_instance
from accel_ci.defs.metadata import plain_rows
from accel_ci.model import Build
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


def test_the_page_of_the_ledger_in_the_ui_has_the_causes_and_leads_to_the_hud(bench: Bench, faulty_nightly: Build) -> None:
    with open_instance(bench.project) as instance:
        [observed] = instance.fetch_observations(AssetKey("ledger"), limit=1).records
        [ledger] = instance.fetch_materializations(AssetKey("ledger"), limit=1).records
    shown = observed.asset_observation
    assert shown is not None
    assert observed.partition_key == f"{faulty_nightly.revision}|{faulty_nightly.variant}"
    causes = plain_rows(shown.metadata["causes"])
    assert {(row.split(" | ")[0], row.split("::")[1].split(" | ")[0]) for row in causes} >= {("flaky", "test_op[atan2]")}
    assert len(causes) == 4
    address = shown.metadata["page"].value
    assert ledger.asset_materialization is not None
    assert ledger.asset_materialization.metadata["page"].value == address
    page = bench.project.home / "hud" / "builds" / str(address).partition("/builds/")[2]
    assert "Cards over time" in page.read_text()


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


def test_a_run_of_the_same_sources_reuses_what_was_built(bench: Bench, bad_card_run: Build) -> None:
    manifests = ManifestStore(bench.project.home)
    for stage in ("wheel", "runtime_image"):
        manifest = json.loads(manifests.path(stage, bad_card_run.revision, bad_card_run.variant).read_text())
        assert (manifest["reused"], manifest["work_s"]) == (True, 0)


def test_the_quality_report_knows_how_long_a_nightly_took_and_waited(bench: Bench, faulty_nightly: Build) -> None:
    report = json.loads(bench.accel_ci("quality", "--json"))
    figures = {figure["name"]: figure for figure in report["promotion"]}
    signal, queue = figures["time to signal, P50"], figures["mean queue"]
    assert faulty_nightly.name in [f"{build}" for build in queue["builds"]]
    assert 0 <= queue["value"] < signal["value"]
