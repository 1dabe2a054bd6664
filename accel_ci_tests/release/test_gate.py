"""The gate of releases: each criterion that refuses a build, and people's overrides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from packaging.version import Version

from accel_ci.config.release_settings import Gate
from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, Build, CheckResult, Ledger, Revision, Source, Trigger
from accel_ci.pipelines import LEDGER
from accel_ci.quality.levels import Figure
from accel_ci.release.facts import OVERRIDE, decide, override, results_digest
from accel_ci.release.gate import BuildFacts, Decision, Override, judge
from accel_ci.release.tags import ReleaseTag, has_public_version, read_tag
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import write_ledger, write_night

SHA = "a" * 40
NOW = datetime(2026, 11, 28, 6, tzinfo=timezone.utc)


def ledger(**changes: object) -> Ledger:
    counts = {"passed": 98, "flaky": 2, "failed": 0}
    suites = {"smoke": {"passed": 8}, "unit": {"passed": 90, "flaky": 2}}
    whole = Ledger(Build("main-1", "py3"), 100, counts, suites, (), (), 0, 1.0, 1.0)  # type: ignore[arg-type]
    return replace(whole, **changes)  # type: ignore[arg-type]


GREEN = BuildFacts(
    trigger="main",
    activity=(),
    source=Source("repository", "refs/tags/v1.2.3", SHA),
    ledger=ledger(),
    wanted=("smoke", "unit"),
    checks=(CheckResult("record", True, "as named"),),
    version="1.2.3+gaaaa",
    tag=ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), SHA),
    level="L3",
    figures=(Figure("jobs that pass", 0.95, 0.9, 0.99, "share", "> 90%", True, ("a",)),),
)
GATE = Gate(flaky=0.05, muted=0, level="L2", quality=("jobs that pass",), passed=50)


def counted(**verdicts: int) -> dict[str, object]:
    """The changes of a ledger with these verdicts, and no other."""
    return {"counts": dict.fromkeys(VERDICTS, 0) | verdicts, "expected": sum(verdicts.values())}


def test_a_green_build_meets_all_criteria() -> None:
    found = judge(GATE, GREEN)
    assert [each.name for each in found if not each.met] == []
    assert {"level", "muted", "quality: jobs that pass", "suite smoke", "suite unit", "check record", "tag"} <= {
        each.name for each in found
    }


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("trigger", {"trigger": "pr"}, "pr"),
        ("at rest", {"activity": ("running at wheel",)}, "running at wheel"),
        ("sources", {"source": Source("r", "refs/tags/v1.2.3", SHA, dirty=True)}, "uncommitted changes"),
        ("tag", {"tag": ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), "b" * 40)}, "v1.2.3 is bbbb"),
        ("tag", {"tag": ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), None)}, "no such tag"),
        ("version", {"version": "1.2.4+gaaaa"}, "1.2.4+gaaaa"),
        ("public version", {"public_only": True}, "1.2.3+gaaaa"),
        ("ledger", {"ledger": None}, "is missing"),
        ("balance", {"ledger": ledger(expected=101)}, "101 expected, 100 accounted for"),
        ("tests", {"ledger": ledger(**counted())}, "0 passed"),
        ("tests", {"ledger": ledger(**counted(skipped=9))}, "0 passed"),
        ("passed", {"ledger": ledger(**counted(passed=49))}, "49 passed"),
        ("green", {"ledger": ledger(**counted(passed=99, failed=1))}, "1 failed"),
        ("green", {"ledger": ledger(**counted(passed=99, not_run=1))}, "1 not run"),
        ("green", {"ledger": ledger(missing_suites=("bazel",))}, "no results from bazel"),
        ("green", {"ledger": ledger(incomplete=("unit: 60% skipped",))}, "60% skipped"),
        ("suite smoke", {"ledger": ledger(suites={"smoke": {"skipped": 8}, "unit": {"passed": 90}})}, "0 passed"),
        ("flaky", {"ledger": ledger(**counted(passed=90, flaky=10))}, "10.0% of the tests"),
        ("muted", {"ledger": ledger(muted=("unit: a",), **counted(passed=99, failed=1))}, "1 failures"),
        ("wheel", {"checks": None}, "1.2.3+gaaaa"),
        ("check record", {"checks": (CheckResult("record", False, "RECORD lacks a file"),)}, "RECORD lacks a file"),
        ("level", {"level": "L1"}, "L1"),
        ("level", {"level": None}, "none"),
        ("quality: jobs that pass", {"figures": ()}, "there is no such criterion"),
        ("quality: jobs that pass", {"figures": (replace(GREEN.figures[0], met=False),)}, "95.0%"),
    ],
)
def test_each_criterion_refuses_and_is_named_with_its_value(name: str, changes: dict[str, object], words: str) -> None:
    decision = Decision(judge(GATE, replace(GREEN, **changes)))  # type: ignore[arg-type]
    assert not decision.goes_out
    [refusal] = [each for each in decision.refused_by if each.name == name]
    assert words in refusal.value


OF_COMPONENT = replace(
    GREEN,
    source=Source("repository", "refs/heads/main", "c" * 40),
    version="0.9+gcccc",
    tag=ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), SHA, "runtime"),
    stack={"runtime": Source("runtime", "refs/tags/v1.2.3", SHA), "compiler": Source("compiler", "main", "d" * 40)},
)


def test_a_tag_of_a_component_is_judged_by_its_commit_and_not_by_the_version_of_the_wheel() -> None:
    found = judge(GATE, OF_COMPONENT)
    assert [each.name for each in found if not each.met] == []
    assert {"stack", "tag"} <= {each.name for each in found}
    assert "version" not in {each.name for each in found}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tag", {"tag": ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), "b" * 40, "runtime")}, "runtime=v1.2.3 is bbbb"),
        ("tag", {"tag": ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), None, "runtime")}, "no such tag"),
        ("tag", {"tag": ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), SHA, "compiler")}, "compiler=v1.2.3 is aaaa"),
        ("tag", {"stack": {}}, "runtime=v1.2.3 is aaaa"),
        ("stack", {"stack": {"runtime": replace(OF_COMPONENT.stack["runtime"], dirty=True)}}, "with uncommitted changes"),
        ("merged", {"at_changes": ("compiler",)}, "compiler main"),
        ("green", {"ledger": ledger(**counted(passed=99, failed=1))}, "1 failed"),
    ],
)
def test_a_tag_of_a_component_is_refused(name: str, changes: dict[str, object], words: str) -> None:
    decision = Decision(judge(GATE, replace(OF_COMPONENT, **changes)))  # type: ignore[arg-type]
    [refusal] = decision.refused_by
    assert (refusal.name, refusal.firm) == (name, name != "green")
    assert words in refusal.value


def test_a_tag_of_a_component_needs_all_suites_of_the_job(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(release={}))
    commits = Source("backend", "main", "c" * 40), Source("upstream", "main", "d" * 40)
    stack = {"runtime": Source("runtime", "refs/tags/v1.2.3", SHA)}
    workspace.manifests.add_revision(Revision("manual-1", "manual", NOW, *commits, ("unit",), stack=stack))
    build = Build("manual-1", "py3")
    write_ledger(workspace, build)
    assert "suite smoke" not in {each.name for each in decide(workspace, build).criteria}
    refused = decide(workspace, build, ReleaseTag("v1.2.3", "1.2.3", Version("1.2.3"), SHA, "runtime")).refused_by
    assert "suite smoke" in {each.name for each in refused}


def test_an_override_covers_what_it_names_and_nothing_firm() -> None:
    facts = replace(GREEN, level="L1", ledger=ledger(**counted(passed=99, failed=1)))
    word = Override("robin", "the fix is in the next one", NOW, ("green", "level"))
    assert Decision(judge(GATE, facts), word).goes_out
    assert [each.name for each in Decision(judge(GATE, replace(facts, checks=None)), word).refused_by] == ["wheel"]
    firm = replace(word, criteria=("sources", "tests"))
    assert not Decision(judge(GATE, replace(GREEN, ledger=ledger(**counted()))), firm).goes_out


def test_an_override_is_kept_with_person_and_reason(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(release={"gate": {"passed": 1000}}))
    build = write_night(workspace, 13, {}, backend=1)
    with pytest.raises(AccelCiError, match=r"wheel: nobody can override this"):
        override(workspace, build, "robin", "it is urgent")
    with pytest.raises(AccelCiError, match="a person and a reason"):
        override(workspace, build, "robin", " ")
    assert decide(workspace, build).override is None


def test_an_override_is_on_the_results_that_a_person_has_seen(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(release={}))
    build = write_night(workspace, 13, {}, backend=1)
    ledger_file = workspace.manifests.path(LEDGER, build.revision, build.variant)
    seen = workspace.manifests.read(ledger_file, Ledger)
    place = workspace.manifests.path(OVERRIDE, build.revision, build.variant)
    word = Override("robin", "it is urgent", NOW, ("green",), results_digest(seen))
    workspace.manifests.write(place, word)
    assert decide(workspace, build).override == word
    workspace.manifests.write(ledger_file, replace(seen, counts={**seen.counts, "failed": 500}))
    assert decide(workspace, build).override is None, "the build was run again, and fails elsewhere"
    workspace.manifests.write(place, replace(word, results=None))  # of an earlier version
    assert decide(workspace, build).override is not None


def test_a_build_without_a_ledger_is_refused(make_project: Callable[..., Project]) -> None:
    workspace = Workspace(make_project(release={}))
    build = write_night(workspace, 13, {}, backend=1)
    workspace.manifests.remove(workspace.manifests.path(LEDGER, build.revision, build.variant))
    assert {"ledger", "wheel"} == {each.name for each in decide(workspace, build).refused_by}


@pytest.mark.parametrize(
    ("wanted", "trigger", "ref", "dirty", "public"),
    [
        (True, "manual", "refs/tags/v1.2.3", False, True),
        (False, "manual", "refs/tags/v1.2.3", False, False),
        (True, "nightly", "refs/tags/v1.2.3", False, False),
        (True, "manual", "refs/heads/main", False, False),
        (True, "manual", "v1.2.3", False, False),  # it may be a branch
        (True, "manual", "refs/tags/latest", False, False),
        (True, "manual", "refs/tags/v1.2.3", True, False),
    ],
)
def test_only_runs_from_a_release_tag_have_public_versions(
    make_project: Callable[..., Project], wanted: bool, trigger: Trigger, ref: str, dirty: bool, public: bool
) -> None:
    settings = make_project(release={"public_versions": wanted}).settings
    revision = Revision("manual-x", trigger, NOW, Source("r", ref, SHA, dirty=dirty), Source("u", "main", SHA))
    assert has_public_version(settings, revision) == public
    assert not has_public_version(make_project().settings, revision)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("v1.2.3", "1.2.3"),
        ("refs/tags/1.2.3", "1.2.3"),
        ("v1.2.3-rc.1", "1.2.3rc1"),
        ("v01.2.3", None),
        ("v1.2", None),
        ("refs/heads/main", None),
        ("v1.2.3+g1", None),
        ("v1.2.3-nightly.x", None),
        ("v1.2.3-1", None),  # a pre-release there, but a post-release in PEP 440
        ("v1.2.3-post.1", None),
        ("v1.2.3-rev2", None),
        ("v1.2.3-rc.1.post1", None),
        ("v1.2.3-dev1", "1.2.3.dev1"),
        ("1!1.2.3", None),
        ("v1.2.٣", None),
        ("v1.2.3\n", None),
    ],
)
def test_release_tags_are_semantic_versions(name: str, version: str | None) -> None:
    read = read_tag(name)
    assert (str(read[1]) if read is not None else None) == version
