"""Questions to a small history whose answers were worked out by hand.

| build | day | unit: steady | unit: breaks | unit: fixes | unit: shaky | unit: card | other: steady |
| --- | --- | --- | --- | --- | --- | --- | --- |
| n1 | 25 | passed 1 s | passed 2 s | failed | failed, passed | infra | - |
| n2 | 26 | passed 3 s | failed | passed 2 s | passed | passed | skipped |
| n2 (other variant) | 26 | failed | | | | | |
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import VERDICTS, Attempt, Build, Verdict
from accel_ci.quality.flakiness import measure
from accel_ci.results.questions import (
    Change,
    bad_tests,
    bad_tests_in_brief,
    counts_per_day,
    failed_attempts,
    failures,
    find_tests,
    history,
    newly_failing,
    newly_passing,
    slowest,
)
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import flakiness_of, histories, write_attempts

N1, N2, OTHER = Build("n1", "py3"), Build("n2", "py3"), Build("n2", "py4")
TODAY = date(2026, 11, 27)


@pytest.fixture
def store(tmp_path: Path, attempt: Callable[..., Attempt]) -> ResultsStore:
    store = ResultsStore(tmp_path / "results")
    write_attempts(store, N1, date(2026, 11, 25), [
        attempt("steady", "passed", seconds=1.0), attempt("breaks", "passed", seconds=2.0),
        attempt("fixes", "failed", message="off by 3", card="1"), attempt("shaky", "failed", message="off by 17"),
        attempt("shaky", "passed", round=2, card="1"), attempt("card", "failed", infra="bad card", message="device lost"),
    ])  # fmt: skip
    write_attempts(store, N2, date(2026, 11, 26), [
        attempt("steady", "passed", seconds=3.0), attempt("breaks", "failed", message="no kernel"),
        attempt("fixes", "passed", seconds=2.0), attempt("shaky", "passed"), attempt("card", "passed"),
        attempt("steady", "skipped", suite="other", seconds=None),
    ])  # fmt: skip
    write_attempts(store, OTHER, date(2026, 11, 26), [attempt("steady", "failed", message="off by 4")])
    return store


def test_a_tests_history(store: ResultsStore) -> None:
    found = history(store, "steady", TODAY)
    assert [(h.day.day, h.build, h.suite, h.verdict, h.duration_s, h.message) for h in found] == [
        (25, N1, "unit", "passed", 1.0, None),
        (26, N2, "other", "skipped", None, None),
        (26, N2, "unit", "passed", 3.0, None),
        (26, OTHER, "unit", "failed", 1.0, "off by 4"),
    ]
    shaky = history(store, "shaky", TODAY, variant="py3")
    assert [(h.verdict, h.attempts, h.failures, h.signature) for h in shaky] == [
        ("flaky", 2, 1, "off by <n>"),
        ("passed", 1, 0, None),
    ]
    assert [h.day.day for h in history(store, "steady", TODAY, days=1, suite="unit", variant="py3")] == [26]
    assert history(store, "never seen", TODAY) == history(store, "steady", date(2026, 11, 24)) == []


def test_the_failures_of_a_build_by_signature(store: ResultsStore) -> None:
    first, second = failures(store, N1)
    assert (first.signature, first.tests, first.attempts, first.infra) == ("off by <n>", 2, 2, 0)
    assert (first.cards, first.hosts, first.message, first.some_tests) == (
        ("0", "1"),
        ("host",),
        "off by 3",
        ("fixes", "shaky"),
    )
    assert (second.signature, second.tests, second.attempts, second.infra) == ("device lost", 1, 1, 1)
    assert failures(store, N2, "other") == []
    with pytest.raises(AccelCiError, match="no results are stored for n3~py3"):
        failures(store, Build("n3", "py3"))


def test_the_slowest_tests_of_a_build(store: ResultsStore) -> None:
    found = slowest(store, N1, limit=2)
    assert [(s.test, s.total_s, s.longest_s, s.attempts) for s in found] == [("breaks", 2.0, 2.0, 1), ("shaky", 2.0, 1.0, 2)]


def test_what_changed_between_two_builds(store: ResultsStore) -> None:
    assert newly_failing(store, N1, N2) == [Change("unit", "breaks", "passed", "failed", "no kernel")]
    assert newly_passing(store, N1, N2) == [Change("unit", "fixes", "failed", "passed", "off by 3")]
    assert newly_failing(store, N2, N1) == [Change("unit", "fixes", "passed", "failed", "off by 3")]
    assert newly_failing(store, N2, OTHER) == [Change("unit", "steady", "passed", "failed", "off by 4")]
    assert newly_failing(store, N1, N1) == newly_passing(store, N1, N1) == []


def test_a_new_test_that_fails_is_newly_failing(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    new = Build("n3", "py3")
    write_attempts(store, new, TODAY, [attempt("born", "failed"), attempt("born", "failed", suite="new suite")])
    assert newly_failing(store, N2, new) == [
        Change("new suite", "born", None, "failed", None),
        Change("unit", "born", None, "failed", None),
    ]


def test_counts_per_day(store: ResultsStore) -> None:
    def counts(**said: int) -> dict[Verdict, int]:
        return {verdict: said.get(verdict, 0) for verdict in VERDICTS}

    found = [(c.day.day, c.variant, c.suite, c.builds, c.attempts, c.counts) for c in counts_per_day(store, TODAY)]
    assert found == [
        (25, "py3", "unit", 1, 6, counts(passed=2, failed=1, flaky=1, infra=1)),
        (26, "py3", "other", 1, 1, counts(skipped=1)),
        (26, "py3", "unit", 1, 5, counts(passed=4, failed=1)),
        (26, "py4", "unit", 1, 1, counts(failed=1)),
    ]
    assert [c.day.day for c in counts_per_day(store, TODAY, days=1, variant="py4")] == [26]


def test_flakiness_is_the_same_from_sums_and_from_all_histories(store: ResultsStore) -> None:
    found = measure(store, TODAY, 30)
    assert found == flakiness_of(histories(store, TODAY, 30), 30)
    assert (found.tests, [(t.test, t.builds, t.flaky_builds, t.last_failure) for t in found.flaky]) == (
        6,  # `steady` is skipped wherever it is in the suite `other`
        [("shaky", 2, 1, "off by 17")],
    )
    assert measure(store, TODAY, 1).flaky == ()


def test_questions_take_hostile_names_as_they_are(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    names = ["'; DROP VIEW attempts; --", '"', "$1", "?", "a\x00b", "a\nb", "x" * 10_000, "%s{}"]
    hostile = Build("r'; --\x00/../~*", "v[0]?")
    write_attempts(store, hostile, TODAY, [attempt(name, "failed", message=name, suite="s/..") for name in names])
    for name in names:
        assert [(h.build, h.suite, h.verdict) for h in history(store, name, TODAY)] == [(hostile, "s/..", "failed")]
    assert {test for cluster in failures(store, hostile) for test in cluster.some_tests} == set(names)
    assert len(slowest(store, hostile, "s/..")) == len(newly_failing(store, N1, hostile)) == len(names)


def test_bad_tests_come_with_their_attempts_and_the_slowest_beside_them(
    store: ResultsStore, attempt: Callable[..., Attempt]
) -> None:
    build = Build("nightly-bad", "py3")
    write_attempts(store, build, TODAY, [
        attempt("a", "passed", seconds=9.0, message="a warning"), attempt("b", "passed"),
        attempt("c", "failed", message="first"), attempt("c", "crashed", round=2, message="second", card="1"),
        attempt("c", "passed", round=3, message="a warning"), attempt("c", "passed", round=4),
        attempt("d", "failed", infra="bad card", message="bad"),
        attempt("e", "not_run", seconds=None, message="lost"), attempt("other", "failed", suite="elsewhere"),
    ])  # fmt: skip
    found = {verdict.test: verdict for verdict in bad_tests(store, build, ["unit"], slowest=1)}
    assert {test: (v.verdict, v.attempts, v.message) for test, v in found.items()} == {
        "a": ("passed", ("passed",), "a warning"),
        "c": ("flaky", ("failed", "crashed", "passed", "passed"), "second"),
        "d": ("infra", ("failed",), "bad"),
        "e": ("not_run", ("not_run",), "lost"),
    }
    assert (found["c"].cards, found["a"].duration_s, found["e"].duration_s) == (("0", "1"), 9.0, None)
    assert [(a.test, a.outcome, a.infra) for a in failed_attempts(store, build, ["unit"])] == [
        ("c", "failed", None), ("d", "failed", "bad card"), ("c", "crashed", None),
    ]  # fmt: skip
    with pytest.raises(AccelCiError, match="no results are stored for nightly-bad~py3, suite missing"):
        bad_tests(store, build, ["unit", "missing"])
    brief = bad_tests_in_brief(store, build, ["unit"])
    assert {(v.suite, v.test, v.verdict, v.message) for v in brief} == {
        ("unit", v.test, v.verdict, None if v.verdict in ("not_run", "infra") else v.message)
        for v in found.values()
        if v.test != "a"
    }
    with pytest.raises(AccelCiError, match="no results are stored for nightly-bad~py3, suite missing"):
        bad_tests_in_brief(store, build, ["unit", "missing"])


def test_a_test_is_found_by_its_id_or_a_part_of_it(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    build = Build("nightly-named", "py3")
    names = ["a.py::test_one", "b.py::test_one", "b.py::test_one[x]", "%::_"]
    write_attempts(store, build, TODAY, [attempt(name, "passed") for name in names])
    found = {text: [v.test for v in find_tests(store, build, text)] for text in ("test_one", "one[", "%", "%::_", "no")}
    assert found == {"test_one": names[:2], "one[": [names[2]], "%": [names[3]], "%::_": [names[3]], "no": []}
