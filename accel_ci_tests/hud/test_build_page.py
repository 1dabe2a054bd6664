"""The page of one build: what its lists have, whose the failures are, and what is new."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from accel_ci.hud.build_page import BuildFacts, BuildPage, make_build_page
from accel_ci.hud.changes import Changes, find_changes
from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.render import Site, render_page
from accel_ci.hud.stops import find_stop
from accel_ci.hud.text import one_line
from accel_ci.model import Build, CheckResult, TestVerdict, Verdict
from accel_ci.pipelines import STAGES
from accel_ci.quality.causes import Blame
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import Causes
from accel_ci.quality.versions import Cause, Evidence
from accel_ci_tests.hud.samples import HOSTILE, NOW, VARIANTS, ledger, record, results, verdicts, wheel_with

SITE = Site("emu", NOW)


def page_of(one: BuildRecord, tests: BuildTests | None = None, **facts: Any) -> BuildPage:
    incidents = facts.pop("incidents", ())
    return make_build_page(BuildFacts(one, None, "nightly", NOW, tests, **facts), incidents, NOW)


def html_of(page: BuildPage, listed: int = 50) -> str:
    return render_page(
        "build.html", SITE, "build.json", root="../", b=page, listed=listed, before_address=None,
        run_address=lambda run: None, artifact_address=lambda artifact: None,
    )  # fmt: skip


def blame(test: str, cause: Cause, since: str | None = None, signature: str = "RuntimeError") -> Blame:
    now = Build("nightly-20261127", VARIANTS[0])
    return Blame(
        "pytorch", test, now, cause, 0.99, 0.9, 1.0, f"A change of {cause} broke it.",
        (Evidence(f"{test} passes at the commit before", cause),), signature, Build(since, VARIANTS[0]) if since else None,
    )  # fmt: skip


def test_new_failures_come_first_and_every_test_is_on_the_page() -> None:
    counts: dict[Verdict, int] = {"failed": 60, "passed": 40, "infra": 3}
    found = tuple(verdicts(counts))
    new = tuple((verdict.suite, verdict.test) for verdict in found[20:60])
    still = tuple((verdict.suite, verdict.test) for verdict in found[:20])
    changes = Changes(None, "nightly-20261125", new, still, (), ())
    page = page_of(record(ledger(counts)), BuildTests(found), changes=changes)
    assert sum(group.new for group in page.groups["failed"]) == 40
    assert [bool(group.new) for group in page.groups["failed"]] == sorted(
        (bool(group.new) for group in page.groups["failed"]), reverse=True
    )
    assert [sum(len(group.tests) for group in page.groups[v]) for v in ("failed", "infra")] == [60, 3]
    html = html_of(page)
    shown = {unescape(re.sub("<[^>]*>", "", name)) for name in re.findall('<code class="test">(.*?)</code>', html)}
    wanted = [f"{v.test.partition('::')[0]}::{one_line(v.test.partition('::')[2])}" for v in found[:63]]
    assert [name for name in wanted if name not in shown] == []
    slow = [verdict.duration_s or 0 for verdict in page.slowest]
    assert len(slow) == 20
    assert slow == sorted(slow, reverse=True)
    assert re.findall("<td>(.*?)</td>", html.partition("Makespan")[2])[:4] == ["5 m 42 s", "9.2 s", "5 m 02 s", "1.10"]


def test_failures_of_one_cause_are_one_group() -> None:
    one = [
        TestVerdict(
            "unit", f"test_a.py::test_{n}", "failed", ("failed",), 0.1, ("0",), f"RuntimeError: no kernel at 0x{n:08x}"
        )
        for n in range(120)
    ]
    other = TestVerdict("unit", "test_b.py::test_new", "failed", ("failed",), 0.1, ("0",), "ValueError: another cause")
    changes = Changes("nightly-20261125", "nightly-20261126", (other.identity,), (), (), ())
    page = page_of(record(ledger({"failed": 121})), BuildTests((*one, other)), changes=changes)
    assert [(len(group.tests), group.new) for group in page.groups["failed"]] == [(1, 1), (120, 0)]
    html = html_of(page)
    assert html.count('<details class="item group"') == 2
    assert "<b>120 tests</b>" in html
    assert html.count("::</span>test_") == 50 + 3 + 20, "of the group, of the other one, and the slowest"
    assert '70 more in the <a href="build.json">JSON</a>' in html


@pytest.mark.parametrize(
    ("changes", "words", "detail"),
    [
        ({"present": STAGES[:1], "wheel": wheel_with(CheckResult("tags", False, "1 wrong tag", ("cp39 <b> not cp311",)))},
         "stopped at wheel", "tags: 1 wrong tag"),
        ({"present": (), "failures": {"wheel": "the build of torch_emu failed\ngcc: <error>"}},
         "stopped at wheel", "wheel: the build of torch_emu failed"),
        ({"present": (), "failures": {"stack": "the component a <b> cannot be built\nmake: <error>"}},
         "stopped at stack", "stack: the component a <b> cannot be built"),
        ({"smoke_results": results((), 1.0, failed=2)}, "stopped at smoke_results",
         "2 smoke failed · tests/test_smoke.py::test_a: RuntimeError: no <device> · 1 more"),
    ],
)  # fmt: skip
def test_a_build_that_stopped_names_the_stage_the_reason_and_the_message(
    changes: dict[str, Any], words: str, detail: str
) -> None:
    smoke = [
        TestVerdict(
            "smoke", f"tests/test_smoke.py::test_{name}", "failed", ("failed",), 0.1, ("0",), "RuntimeError: no <device>"
        )
        for name in "ab"
    ]
    stopped = record(None, **changes)
    page = page_of(stopped, BuildTests(tuple(smoke)))
    assert (page.state.kind, page.state.words, page.state.detail) == ("stopped", words, detail)
    assert (html := html_of(page)).count(f"<h4>{words.capitalize()} ") == 1
    for fault in find_stop(stopped, smoke).faults:
        assert fault.message.splitlines()[-1].replace("<", "&lt;").replace(">", "&gt;") in html


def test_times_are_absolute_and_no_age_is_written_down() -> None:
    html = html_of(page_of(record(None)))
    body = html[html.index("</svg>") : html.index("<script>")]
    assert " ago" not in body
    assert f'<time datetime="{NOW.isoformat()}" data-age>2026-11-27 08:30 UTC</time>' in body


def test_nothing_is_new_when_there_is_nothing_to_compare_with() -> None:
    counts: dict[Verdict, int] = {"failed": 2}
    page = page_of(record(ledger(counts)), BuildTests(tuple(verdicts(counts))))
    assert page.new == frozenset()
    assert 'id="changes"' not in html_of(page)


def test_changes_since_the_last_green_build_are_of_four_kinds() -> None:
    now = [("unit", name) for name in ("new", "still", "back")]
    before = ("nightly-20261126", [("unit", "still"), ("unit", "gone")])
    found = find_changes(now, before, "nightly-20261123", [[("unit", "back")], []], [("unit", "gone")])
    assert found == Changes(
        "nightly-20261123", "nightly-20261126", (("unit", "new"),), (("unit", "still"),), (("unit", "back"),),
        (("unit", "gone"),),
    )  # fmt: skip


def test_failures_are_put_to_their_incidents_with_evidence_and_owner() -> None:
    blames = (blame("test_a", "backend", "nightly-20261126"), blame("test_b", "backend"), blame(HOSTILE, "flaky"))
    tests = frozenset((VARIANTS[0], "pytorch", test) for test in ("test_a", "test_b"))
    incident = Incident(
        "0123456789ab", "backend", "RuntimeError: no <kernel>", "", 0.99, "nightly-20261126", "nightly-20261127", "open",
        tests, tests, frozenset(), owner="team <kernels>",
    )  # fmt: skip
    one = record(ledger({"failed": 3}))
    page = page_of(one, causes=Causes(one.build, {}, (), blames), incidents=(incident,))
    assert [(each.id, each.cause, len(each.tests), each.owner) for each in page.incidents] == [
        ("0123456789ab", "backend", 2, "team <kernels>"), (None, "flaky", 1, None),
    ]  # fmt: skip
    assert page.incidents[0].evidence == tuple(f"{test} passes at the commit before" for test in ("test_a", "test_b"))
    assert page.blamed == {"broken base": 1, "new": 1, "flaky": 1}
    html = html_of(page)
    assert 'id="i-0123456789ab"' in html
    assert 'href="../incidents.html#i-0123456789ab"' in html
    assert "team &lt;kernels&gt;" in html
    assert "<script>document" not in html
