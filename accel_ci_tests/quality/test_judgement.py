"""Builds in a real store are judged: whose failures they are, and which incidents they belong to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.ledger.comparison import finished_before
from accel_ci.ledger.status import shortcomings
from accel_ci.model import (
    VERDICTS,
    Artifact,
    Build,
    DeviceTestResults,
    Ledger,
    Outcome,
    Revision,
    Source,
    Subset,
    SuiteSelection,
    TestSelection,
    Trigger,
    Verdict,
)
from accel_ci.pipelines import DEVICE_TEST_RESULTS, INTEGRATION, LEDGER, TEST_SELECTION
from accel_ci.quality.current_quarantine import muted_failures, quarantined, update_quarantine, without_disabled
from accel_ci.quality.flakiness import measure
from accel_ci.quality.gather import point_of, verdicts_of
from accel_ci.quality.judgement import (
    INCIDENTS,
    MOST_BUILDS,
    finished_builds,
    judge_new_builds,
    read_causes,
    read_incidents,
)
from accel_ci.quality.places import Place
from accel_ci.quality.report import jobs_until
from accel_ci.ramp.evidence import gather_evidence
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import (
    BROKEN,
    FAILS,
    FLAKES,
    NIGHTS,
    PASS,
    PASSES,
    RACE,
    STEADY,
    TODAY,
    Told,
    Tries,
    attempts_of,
    fails,
    sha,
    write_ledger,
    write_night,
    write_reruns,
)
from accel_ci_tests.fixtures.stored_attempts import write_attempts


@pytest.fixture
def workspace(make_project: Callable[..., Project]) -> Workspace:
    return Workspace(make_project())


def causes_of(workspace: Workspace, build: Build) -> dict[str, str]:
    found = read_causes(workspace, build)
    assert found is not None
    return {blame.test: blame.cause for blame in found.blames}


def test_a_breakage_a_flake_and_a_lost_test_have_their_causes(workspace: Workspace) -> None:
    for night in range(NIGHTS - 2):
        write_night(workspace, night, {RACE: FLAKES} if night in (3, 7) else {}, backend=night)
    broken = dict.fromkeys(BROKEN, fails())
    before = write_night(workspace, NIGHTS - 2, {**broken, RACE: FLAKES}, backend=NIGHTS - 2)
    lost: Told = {STEADY[0]: [("crashed", "0", "card 0 does not answer")]}
    last = write_night(workspace, NIGHTS - 1, {**broken, **lost, RACE: fails()}, backend=NIGHTS - 1)
    found = judge_new_builds(workspace, TODAY)
    backend = dict.fromkeys(BROKEN, "backend")
    assert causes_of(workspace, before) == {**backend, RACE: "flaky"}
    assert causes_of(workspace, last) == {**backend, RACE: "flaky", STEADY[0]: "infra"}, "the race is known"
    now = {incident.cause: incident for incident in found.of(last.revision)}
    assert {cause: len(incident.now) for cause, incident in now.items()} == {"backend": 4, "flaky": 1, "infra": 1}
    assert (now["backend"].first, now["backend"].state, now["backend"].revisions) == (before.revision, "open", 2)
    assert f"between g{sha(NIGHTS - 3)[:12]} and g{sha(NIGHTS - 2)[:12]}" in now["backend"].sentence
    assert read_incidents(workspace) == found


def test_what_passes_again_is_fixed_and_returns(workspace: Workspace) -> None:
    states = []
    for night in range(NIGHTS):
        write_night(workspace, night, dict.fromkeys(BROKEN, fails()) if night in (10, 11, 13) else {}, backend=night)
        [*found] = judge_new_builds(workspace, TODAY).incidents
        states.append([incident.state for incident in found])
    assert states == [*([[]] * 10), ["open"], ["open"], ["fixed"], ["returned"]]


def test_upstream_is_told_from_the_backend_by_the_other_variant(workspace: Workspace) -> None:
    for night in range(8):
        write_night(workspace, night, {}, backend=night)
        write_night(workspace, night, {}, backend=night, upstream=night, variant="main")
    write_night(workspace, 8, {}, backend=8)
    main_only = write_night(workspace, 8, dict.fromkeys(BROKEN, fails()), backend=8, upstream=8, variant="main")
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, main_only) == dict.fromkeys(BROKEN, "upstream")
    result = CliRunner().invoke(
        main, ["--config", str(workspace.project.config_path), "causes", main_only.name, "--test", BROKEN[0]]
    )
    assert result.exit_code == 0, result.output
    assert "it passes in py3, the same backend with another upstream" in result.output
    [sentence] = {blame.sentence for blame in (read_causes(workspace, main_only) or pytest.fail("not judged")).blames}
    assert sentence.endswith(": it fails in main but passes in py3, with the same backend.")


def test_without_a_variant_that_tells_them_apart_the_cause_is_unknown(workspace: Workspace) -> None:
    for night in range(8):
        write_night(workspace, night, {}, backend=night, upstream=night)
    both = write_night(workspace, 8, dict.fromkeys(BROKEN, fails()), backend=8, upstream=8)
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, both) == dict.fromkeys(BROKEN, "unknown")
    [causes] = {blame.sentence for blame in (read_causes(workspace, both) or pytest.fail("not judged")).blames}
    assert "backend and upstream changed" in causes


def test_a_change_of_the_environment_alone_is_infrastructure(workspace: Workspace) -> None:
    for night in range(8):
        write_night(workspace, night, {}, backend=1)
    changed = write_night(workspace, 8, dict.fromkeys(BROKEN, fails()), backend=1, numpy="3.0")
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, changed) == dict.fromkeys(BROKEN, "infra")


def test_a_build_is_judged_anew_only_when_a_ledger_changed(workspace: Workspace) -> None:
    for night in range(3):
        write_night(workspace, night, dict.fromkeys(BROKEN, fails()) if night == 2 else {}, backend=night)
    judge_new_builds(workspace, TODAY)
    kept = sorted(workspace.manifests.path(INCIDENTS).parent.glob("causes/*.json"))
    times = [path.stat().st_mtime_ns for path in kept]
    judge_new_builds(workspace, TODAY)
    assert [path.stat().st_mtime_ns for path in kept] == times
    build = write_night(workspace, 2, {}, backend=2)
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, build) == {}
    shutil.rmtree(workspace.manifests.folder(build))
    judge_new_builds(workspace, TODAY)
    assert read_causes(workspace, build) is None, "as `accel-ci prune` leaves it"
    assert len(list(kept[0].parent.iterdir())) == 2


def test_a_build_is_judged_anew_when_its_failures_ran_again(workspace: Workspace) -> None:
    for night in range(4):
        write_night(workspace, night, {}, backend=night)
    build = write_night(workspace, 4, {RACE: fails(), BROKEN[0]: fails()}, backend=4)
    judge_new_builds(workspace, TODAY)
    before = {blame.test: blame for blame in (read_causes(workspace, build) or pytest.fail("not judged")).blames}
    assert {each.cause for each in before.values()} == {"unknown"}
    again = write_reruns(workspace, build, {RACE: PASSES, BROKEN[0]: FAILS})
    found = judge_new_builds(workspace, TODAY)
    causes = read_causes(workspace, build)
    assert causes is not None
    after = {blame.test: blame for blame in causes.blames}
    assert {test: blame.cause for test, blame in after.items()} == {RACE: "flaky", BROKEN[0]: "backend"}
    assert after[BROKEN[0]].probability > before[BROKEN[0]].probability
    assert all(again.name in str(blame.evidence) for blame in after.values())
    assert again.name in causes.judged_from
    assert {incident.last for incident in found.incidents} == {build.revision}, "the reruns are no build for themselves"
    assert read_causes(workspace, again) is None
    assert [each.build for each in finished_builds(workspace, TODAY)][-1] == build
    shown = CliRunner().invoke(main, ["--config", str(workspace.project.config_path), "causes", again.name])
    assert f"{build.name}: 1 backend, 1 flaky" in shown.output
    again = write_reruns(workspace, build, {BROKEN[0]: [*PASSES, *PASSES]}, number=2)
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, build)[BROKEN[0]] == "flaky", "passes on other cards come from a second build, too"


def test_later_builds_know_what_reruns_showed(workspace: Workspace) -> None:
    for night in range(8):
        build = write_night(workspace, night, {RACE: fails()} if night in (4, 6) else {}, backend=night)
        if night in (4, 6):
            write_reruns(workspace, build, {RACE: PASSES})
    last = write_night(workspace, 8, {RACE: fails()}, backend=8)
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, last) == {RACE: "flaky"}, "it is a known flake"


def test_tests_that_only_run_with_a_failure_are_no_failures_of_the_build(workspace: Workspace) -> None:
    write_night(workspace, 0, {}, backend=0)
    build = write_night(workspace, 1, {RACE: fails()}, backend=1)
    lost: Sequence[tuple[Outcome, str, str | None]] = [("crashed", "2", "card 2 does not answer"), ("passed", "3", None)]
    write_reruns(workspace, build, {RACE: [*PASSES, *lost], STEADY[0]: FAILS})
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, build) == {RACE: "flaky"}


def test_a_failure_of_the_other_variant_that_passed_again_is_no_evidence_for_a_breakage(workspace: Workspace) -> None:
    store = workspace.results
    write_night(workspace, 0, {}, backend=0)
    build = write_night(workspace, 1, {RACE: fails(), BROKEN[0]: fails()}, backend=1)
    again = write_reruns(workspace, build, {RACE: PASSES, BROKEN[0]: FAILS})
    tests = (RACE, BROKEN[0], STEADY[0], "no such test")
    assert [verdicts_of(store, build)("unit", test) for test in tests] == ["failed", "failed", "passed", None]
    assert [verdicts_of(store, build, [again])("unit", test) for test in tests] == ["flaky", "failed", "passed", None]


def test_reruns_are_no_sample_for_rates_coverage_or_levels(workspace: Workspace) -> None:
    for night in range(2):
        build = write_night(workspace, night, {RACE: FLAKES} if night else {}, backend=night)
    before = measure(workspace.results, TODAY.date(), 30)
    [flaky] = before.flaky
    assert (flaky.test, flaky.builds, flaky.flaky_builds) == (RACE, 2, 1)
    evidence = gather_evidence(workspace.results, "py3", ["unit"], TODAY.date(), 30, 100.0).sort_by("key")
    again = write_reruns(workspace, build, {RACE: PASSES})
    workspace.manifests.write(
        workspace.manifests.run_file(INTEGRATION, again), PipelineRun("run", TODAY, TODAY, "ledger", reported=True)
    )
    assert measure(workspace.results, TODAY.date(), 30) == before
    assert gather_evidence(workspace.results, "py3", ["unit"], TODAY.date(), 30, 100.0).sort_by("key") == evidence
    assert again.name not in [job.name for job in jobs_until(workspace, TODAY)]
    assert finished_before(workspace.manifests, workspace.manifests.read(
        workspace.manifests.path(LEDGER, again.revision, again.variant), Ledger)
    ) is None, "it is compared with no build"  # fmt: skip


def test_commands_show_causes_and_incidents(workspace: Workspace) -> None:
    for night in range(NIGHTS):
        write_night(workspace, night, dict.fromkeys(BROKEN, fails()) if night == NIGHTS - 1 else {}, backend=night)
    own = ["--config", str(workspace.project.config_path)]
    shown = CliRunner().invoke(main, [*own, "causes"])
    assert shown.exit_code == 0, shown.output
    assert "4 backend" in shown.output
    listed = CliRunner().invoke(main, [*own, "incidents"])
    assert "A change of backend broke it, between g00000000000c and g00000000000d." in listed.output
    unknown = CliRunner().invoke(main, [*own, "causes", "--test", "no such test"])
    assert (unknown.exit_code, "did not fail" in unknown.output) == (2, True)
    report = CliRunner().invoke(main, [*own, "quality"])
    assert (report.exit_code, "longest outage" in report.output) == (0, True), report.output
    trends = CliRunner().invoke(main, [*own, "quality", "--trends"])
    assert (trends.exit_code, "no test became slower" in trends.output) == (0, True), trends.output
    behind = CliRunner().invoke(main, [*own, "quality", "--builds", "no such figure"])
    assert (behind.exit_code, "`accel-ci quality` lists them" in behind.output) == (2, True)


def test_the_quarantine_of_a_project(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(quality={"quarantine": {"file": "flaky.yaml", "automatic": True, "budget": 1.0}}))
    for night in range(NIGHTS):
        write_night(workspace, night, {RACE: FLAKES} if night % 3 == 1 else {}, backend=night)
    judge_new_builds(workspace, TODAY)
    scope = SuiteSelection("unit", 50, 50, {})
    selection = TestSelection(Artifact("0" * 64, "selection.json", 2), (scope,), 1.0)
    newest = f"nightly-{TODAY - timedelta(days=1):%Y%m%d}"
    workspace.manifests.write(workspace.manifests.path(TEST_SELECTION, newest, "py3"), selection)
    [entry] = update_quarantine(workspace, TODAY).entries
    assert (entry.test, entry.state, entry.by) == (RACE, "muted", "rule")
    assert list(quarantined(workspace, "py3", TODAY.date())) == [("unit", RACE)]
    own = ["--config", str(workspace.project.config_path), "quarantine"]
    given = ["--suite", "unit", "--state", "active", "--reason", "it is fixed", "--owner", "robin"]
    added = CliRunner().invoke(main, [*own, "add", RACE, *given])
    assert added.exit_code == 0, added.output
    assert quarantined(workspace, "py3", TODAY.date()) == {}, "a person's decision beats the rule's"
    assert "robin" in CliRunner().invoke(main, [*own, "list"]).output
    disabled = CliRunner().invoke(main, [*own, "add", STEADY[0], "--suite", "unit", "--state", "disabled", "--reason", "x"])
    assert disabled.exit_code == 0, disabled.output
    suites = without_disabled(workspace.project.settings.suites, quarantined(workspace, "py3", TODAY.date()))
    [rule] = suites["unit"].scope.modes
    assert (rule.tests, rule.mode) == ((STEADY[0],), "skip")
    removed = CliRunner().invoke(main, [*own, "remove", RACE])
    assert removed.exit_code == 0, removed.output
    update_quarantine(workspace, TODAY)
    assert set(quarantined(workspace, "py3", TODAY.date())) == {("unit", RACE), ("unit", STEADY[0])}
    again = CliRunner().invoke(main, [*own, "remove", RACE])
    assert (again.exit_code, "has no decision" in again.output) == (2, True)


def test_muted_failures_do_not_gate(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(quality={"quarantine": {"file": "flaky.yaml"}}))
    build = write_night(workspace, 1, {RACE: fails(), BROKEN[0]: fails()}, backend=1)
    counts: dict[Verdict, int] = {**dict.fromkeys(VERDICTS, 0), "failed": 2, "passed": 43}
    ledger = Ledger(build, 45, counts, {"unit": counts}, (), (), 0, 1.0, 1.0)
    assert shortcomings(ledger) == ("2 failed",)
    own = ["--config", str(workspace.project.config_path), "quarantine"]
    for test in (RACE, BROKEN[0]):
        day = datetime.now(timezone.utc).date()
        muted = muted_failures(workspace.results, ledger, quarantined(workspace, "py3", day))
        assert len(muted) == [RACE, BROKEN[0]].index(test)
        CliRunner().invoke(main, [*own, "add", test, "--suite", "unit", "--reason", "x"])
    muted = muted_failures(workspace.results, ledger, quarantined(workspace, "py3", datetime.now(timezone.utc).date()))
    assert set(muted) == {f"unit: {RACE}", f"unit: {BROKEN[0]}"}
    assert shortcomings(replace(ledger, muted=muted[:1])) == ("1 failed",)
    assert shortcomings(replace(ledger, muted=muted)) == ()


def test_the_base_of_a_pull_request_is_that_of_its_selection(workspace: Workspace) -> None:
    at = TODAY - timedelta(hours=2)
    sources = Source("backend", "refs/pull/7/head", sha(9)), Source("upstream", "main", sha(0))
    workspace.manifests.add_revision(Revision("pr-7-a", "pr", at, *sources))
    selection = TestSelection(Artifact("0" * 64, "selection.json", 2), (), 1.0, subset=Subset("a part", base=sha(5)))
    workspace.manifests.write(workspace.manifests.path(TEST_SELECTION, "pr-7-a", "py3"), selection)
    found = point_of(workspace.manifests, Build("pr-7-a", "py3"))
    assert found is not None
    assert (found[0].base, found[0].backend) == (f"g{sha(5)[:12]}", f"g{sha(9)[:12]}")


@pytest.mark.parametrize(("target", "cause"), [(None, "backend"), ("refs/heads/release-1", "unknown")])
def test_a_pull_request_for_another_branch_is_not_judged_by_this_one(
    workspace: Workspace, target: str | None, cause: str
) -> None:
    for night in range(NIGHTS):
        write_night(workspace, night, {BROKEN[0]: FAILS} if night > 9 else {}, backend=10 if night > 9 else 1)
    sources = Source("backend", "refs/pull/7/head", sha(20)), Source("upstream", "main", sha(0))
    build = Build("pr-7-a", "py3")
    workspace.manifests.add_revision(Revision(build.revision, "pr", TODAY - timedelta(hours=2), *sources, target=target))
    write_attempts(workspace.results, build, TODAY.date(), attempts_of({BROKEN[0]: FAILS, STEADY[0]: PASS}, TODAY))
    write_ledger(workspace, build)
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, build) == {BROKEN[0]: cause}


def test_many_pull_requests_push_no_nightly_out_of_the_window(workspace: Workspace) -> None:
    sources = Source("backend", "main", sha(1)), Source("upstream", "main", sha(0))

    def finish(trigger: Trigger, count: int, hours_ago: int) -> None:
        for number in range(count):
            at = TODAY - timedelta(hours=hours_ago, minutes=number)
            workspace.manifests.add_revision(Revision(f"{trigger}-{number}", trigger, at, *sources))
            write_ledger(workspace, Build(f"{trigger}-{number}", "py3"))

    finish("nightly", 3, hours_ago=20)
    finish("pr", MOST_BUILDS + 5, hours_ago=10)
    found = [each.build.revision for each in finished_builds(workspace, TODAY)]
    assert found[:3] == ["nightly-2", "nightly-1", "nightly-0"], "the oldest first"
    assert found[3:] == [f"pr-{number}" for number in reversed(range(MOST_BUILDS))]
    finish("main", MOST_BUILDS, hours_ago=1)
    found = [each.build.revision for each in finished_builds(workspace, TODAY)]
    assert [key for key in found if not key.startswith("pr-")] == [
        f"main-{number}" for number in reversed(range(MOST_BUILDS))
    ]


def test_a_driver_is_named_where_its_hosts_alone_fail(workspace: Workspace) -> None:
    cards = ["b/0", "b/1", "c/0", "c/1"]
    usual: Told = {
        test: [("passed", cards[number % 4] if number < 12 else "a/0", None)] for number, test in enumerate(STEADY)
    }
    drivers = dict.fromkeys("abc", "1.0")
    for night in range(8):
        write_night(workspace, night, usual, backend=night, drivers=drivers)
    wrong: Told = {
        test: [("failed", cards[number % 4], None), ("passed", "a/0", None), ("passed", "a/1", None)]
        for number, test in enumerate(STEADY[:12])
    }
    words = dict.fromkeys(wrong, "the driver refuses")
    new = {**drivers, "b": "2.0", "c": "2.0"}
    build = write_night(workspace, 8, {**usual, **wrong}, backend=8, words=words, drivers=new)
    judge_new_builds(workspace, TODAY)
    found = read_causes(workspace, build)
    assert found is not None
    assert {blame.test for blame in found.blames} == wrong.keys()
    assert {(blame.cause, blame.place) for blame in found.blames} == {("infra", Place("driver", "2.0"))}


@pytest.mark.parametrize("trigger", ["manual", "pr"])
def test_what_a_pull_request_reports_of_a_card_explains_no_failure_of_the_branch(
    workspace: Workspace, trigger: Trigger
) -> None:
    sources = Source("backend", "refs/heads/main", sha(1)), Source("upstream", "main", sha(0))
    at = TODAY - timedelta(days=2)
    usual: Told = {test: [("passed", f"a/{number % 4}", None)] for number, test in enumerate(STEADY)}
    on_card: Tries = [("failed", "a/0", None), ("passed", "a/1", None)]
    for number in range(3):
        build = Build(f"{trigger}-{number}", "py3")
        workspace.manifests.add_revision(Revision(build.revision, trigger, at + timedelta(hours=number), *sources))
        told = {**usual, **dict.fromkeys(STEADY[::4], on_card)}
        write_attempts(workspace.results, build, at.date(), attempts_of(told, at))
        write_ledger(workspace, build)
    night = write_night(workspace, NIGHTS - 1, {**usual, RACE: on_card}, backend=1)
    judge_new_builds(workspace, TODAY)
    own, others = read_causes(workspace, night), read_causes(workspace, build)
    assert own is not None
    assert others is not None
    card = Place("card", "a:0")
    assert [bad.place for bad in others.bad] == [card]
    assert [bad.place for bad in own.bad] == ([card] if trigger == "manual" else [])


def test_pull_requests_of_the_backend_are_no_jobs_of_the_levels_and_no_sample_of_flakiness(workspace: Workspace) -> None:
    backend, upstream = Source("backend", "main", sha(1)), Source("upstream", "main", sha(0))
    for number, revision in enumerate(
        (
            Revision("nightly-1", "nightly", TODAY, backend, upstream),
            Revision("pr-7-a", "pr", TODAY, replace(backend, ref="refs/pull/7/head"), upstream),
            Revision("pr-8-a", "pr", TODAY, backend, replace(upstream, ref="refs/pull/8/head")),
            Revision("manual-a", "manual", TODAY, replace(backend, ref=sha(9)), upstream),
        )
    ):
        workspace.manifests.add_revision(revision)
        build = Build(revision.key, "py3")
        write_attempts(workspace.results, build, TODAY.date(), attempts_of({BROKEN[number]: FLAKES}, TODAY))
        write_ledger(workspace, build)
        run = PipelineRun("run", TODAY, TODAY, LEDGER, reported=True)
        workspace.manifests.write(workspace.manifests.run_file(INTEGRATION, build), run)
    assert {job.name for job in jobs_until(workspace, TODAY)} == {"nightly-1~py3", "pr-8-a~py3"}
    flaky = measure(workspace.trusted_results, TODAY.date(), 30).flaky
    assert [each.test for each in flaky] == [BROKEN[0]]


def test_failures_on_a_host_with_a_new_driver_are_not_taken_for_a_breakage(workspace: Workspace) -> None:
    for night in range(8):
        write_night(workspace, night, {}, backend=night, drivers={"host": "1.0", "a": "1.0"})
    on_host: list[tuple[Outcome, str, str | None]] = [("failed", "host/0", None), ("failed", "host/1", None)]
    elsewhere: Told = {test: [("passed", "a/0", None)] for test in STEADY}
    told = {**elsewhere, **dict.fromkeys(BROKEN[:2], on_host)}
    updated = write_night(workspace, 8, told, backend=8, drivers={"host": "2.0", "a": "1.0"})
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, updated) == dict.fromkeys(BROKEN[:2], "infra")
    write_night(workspace, 8, told, backend=8, drivers={"host": "1.0", "a": "1.0"}, numpy="2.0")
    write_ledger(workspace, updated, "another")
    judge_new_builds(workspace, TODAY)
    assert causes_of(workspace, updated) == dict.fromkeys(BROKEN[:2], "backend"), "had the driver stayed"


def test_results_of_earlier_versions_know_no_driver(workspace: Workspace) -> None:
    build = write_night(workspace, 1, {}, backend=1, drivers={"host": "1.0"})
    path = workspace.manifests.path(DEVICE_TEST_RESULTS, build.revision, build.variant)
    told = json.loads(path.read_bytes())
    del told["drivers"]
    path.write_text(json.dumps(told))
    found = point_of(workspace.manifests, build)
    assert found is not None
    assert found[0].drivers == {}
    assert workspace.manifests.read(path, DeviceTestResults).drivers == {}
    before = write_night(workspace, 2, {}, backend=1)
    without = point_of(workspace.manifests, before)
    assert without is not None
    assert without[0].environment == found[0].environment
