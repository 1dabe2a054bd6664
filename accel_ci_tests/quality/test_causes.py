"""The rules that give a failure its cause, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from accel_ci.model import Build
from accel_ci.quality.causes import Blame, Judge
from accel_ci.quality.grid import AttemptRow, Grid, Night, Point, make_grid
from accel_ci.quality.incidents import Incident, follow, incidents_of
from accel_ci.quality.places import BadPlace, Exposure, Place, bad_places, blamed_places, count_places, count_signatures
from accel_ci.quality.triage import triage_verdict
from accel_ci.quality.versions import Sibling

TEST = ("unit", "test_a.py::test_a")
NIGHTS = 12


def point(night: int, *, backend: str | None = None, upstream: str = "u0", environment: str = "e0", **more: str) -> Point:
    build = Build(f"nightly-{night:02d}", "py3")
    return Point(build, backend or f"b{night}", upstream, environment, **more)  # type: ignore[arg-type]


def history(cells: Mapping[int, tuple[int, int, str | None]] | None = None, points: Sequence[Point] = ()) -> Grid:
    """Return a line on which the test passed but for some nights: failed and passed attempts, and the signature."""
    line = points or [point(night) for night in range(NIGHTS)]
    known = dict.fromkeys(range(len(line)), (0, 1, None)) | dict(cells or {})
    return make_grid(line, [(night, *TEST, *known[night]) for night in known], len(line))


def attempt(
    outcome: str, round: int = 1, *, card: str = "0", host: str = "h0", worker: str | None = None, infra: str | None = None,
    signature: str | None = "it broke", test: tuple[str, str] = TEST,
) -> AttemptRow:  # fmt: skip
    signature = None if outcome == "passed" else signature
    return AttemptRow(*test, round, 0, outcome, card, host, infra, signature, worker or f"w{card}")


TWICE = (attempt("failed"), attempt("failed", 2, card="1"))


def blame(
    attempts: Sequence[AttemptRow],
    grid: Grid | None = None,
    *,
    at: Point | None = None,
    siblings: Sequence[Sibling] = (),
    **more: object,
) -> Blame:
    night = Night(at or point(NIGHTS), tuple(attempts))
    found = Judge(night, grid or history(), siblings, **more).blames()  # type: ignore[arg-type]
    return next(each for each in found if each.identity == TEST)


def test_a_failure_in_all_attempts_after_a_change_is_a_breakage_with_its_range() -> None:
    found = blame(TWICE)
    assert (found.cause, found.since, found.last_good) == (
        "backend", Build(f"nightly-{NIGHTS}", "py3"), Build("nightly-11", "py3"),
    )  # fmt: skip
    assert "between b11 and b12" in found.sentence
    assert 0 < found.low <= found.probability <= found.high <= 1
    assert found.suspect == "b12"


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        (attempt("passed", 2, card="1"), "flaky"),
        (attempt("passed", 2, worker="w9"), "unknown"),  # on the same card
        (attempt("passed", 1, worker="w0"), "unknown"),  # in the same process, too
        (attempt("skipped", 2, card="1"), "unknown"),
        (attempt("xfailed", 2, card="1"), "unknown"),
        (attempt("failed", 2, card="1"), "backend"),
    ],
)
def test_only_a_pass_elsewhere_proves_a_flake(second: AttemptRow, cause: str) -> None:
    assert blame([attempt("failed"), second]).cause == cause


def test_two_passes_in_fresh_processes_on_the_only_card_prove_a_flake() -> None:
    assert blame([attempt("failed"), attempt("passed", 2), attempt("passed", 3)]).cause == "flaky"


def rerun(outcome: str, round: int = 1, *, card: str = "2", **more: object) -> AttemptRow:
    return replace(attempt(outcome, round, card=card, **more), rerun_in="confirm-nightly-12~py3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reruns", "cause", "of_known_flake"),
    [("p", "unknown", "flaky"), ("fpp", "flaky", "flaky"), ("fpfp", "unknown", "flaky"), ("ff", "backend", "unknown")],
)
def test_passes_of_a_failure_that_ran_again_count_though_it_failed_more_often(
    reruns: str, cause: str, of_known_flake: str
) -> None:
    rows = [rerun({"p": "passed", "f": "failed"}[each], n, card=f"{n + 1}") for n, each in enumerate(reruns, 1)]
    found = blame([*TWICE, *rows])
    assert found.cause == cause
    assert f"{reruns.count('p')} of {len(reruns)} reruns in confirm-nightly-12~py3 passed" in [
        e.text for e in found.evidence
    ]
    known = history(dict.fromkeys((2, 5, 8), (1, 2, "it broke")))
    assert blame([*TWICE, *rows], known).cause == of_known_flake
    assert blame([*TWICE, *(replace(row, rerun_in=None) for row in rows)]).cause == ("backend" if "p" in reruns else cause)


def test_a_pass_among_many_failures_excuses_no_breakage() -> None:
    seldom = blame([*TWICE, *(rerun("failed", n, card="0") for n in range(1, 9)), rerun("passed", 9, card="0")])
    assert (seldom.cause, seldom.retried) == ("backend", False)


def test_failures_of_one_that_ran_again_make_a_breakage_more_certain() -> None:
    before, after = blame(TWICE), blame([*TWICE, rerun("failed"), rerun("failed", 2)])
    assert (after.cause, after.probability > before.probability) == ("backend", True)
    assert after.doubt is not None
    assert before.doubt is not None
    assert after.doubt.passing < before.doubt.passing
    assert any(row[0] == "confirm-nightly-12~py3" for each in after.evidence for row in each.rows)


def test_a_worker_of_the_same_name_in_another_build_is_another_process() -> None:
    first = [attempt("failed", card="0", worker="w0")]
    assert (
        blame([*first, rerun("passed", card="0", worker="w0"), rerun("passed", 2, card="0", worker="w0")]).cause == "flaky"
    )


OTHERS = [("unit", f"test_a.py::test_{number}") for number in range(3)]


def event(*reruns: AttemptRow) -> dict[tuple[str, str], Blame]:
    """Judge a test and others that begin to fail with it in the same way, after reruns of the first."""
    rows = [*TWICE, *reruns, *(replace(row, test=test) for row in TWICE for _, test in OTHERS)]
    return {each.identity: each for each in Judge(Night(point(NIGHTS), tuple(rows)), history()).blames()}


def test_a_pass_of_one_clears_no_other_but_leaves_them_in_doubt() -> None:
    before, after = event(), event(rerun("passed"), rerun("passed", 2), rerun("passed", 3))
    assert {each.cause for each in before.values()} == {"backend"}
    assert after[TEST].cause == "flaky"
    assert {after[other].cause for other in OTHERS} == {"unknown"}, "only its own pass clears a failure"
    assert "test_a, which passed when it ran again" in after[OTHERS[0]].sentence
    assert all(after[other].doubt is not None for other in OTHERS), "so they may run again"
    mixed = event(rerun("passed"), rerun("passed", 2), rerun("passed", 3), rerun("failed", test=OTHERS[0]))
    assert {mixed[other].cause for other in OTHERS} == {"backend"}, "one of them failed again"


def test_a_known_flake_is_known_by_its_signature() -> None:
    flaky = history(dict.fromkeys((2, 5, 8), (1, 2, "it broke")))
    assert blame(TWICE, flaky).cause == "flaky"
    other = [attempt("failed", signature="another error"), attempt("failed", 2, card="1", signature="another error")]
    assert blame(other, flaky).cause == "backend", "a flaky test can break"


def test_a_rare_flake_that_fails_every_time_is_not_excused() -> None:
    nights = 60
    rare = history({2: (1, 2, "it broke")}, [point(night) for night in range(nights)])
    assert blame(TWICE, rare, at=point(nights)).cause == "unknown"
    again = dict.fromkeys(range(54, nights), (2, 0, "it broke"))
    longer = history({2: (1, 2, "it broke"), **again}, [point(night) for night in range(nights)])
    assert blame(TWICE, longer, at=point(nights)).cause == "backend"


def test_a_test_that_never_passed_has_no_known_cause() -> None:
    never = history(dict.fromkeys(range(NIGHTS), (2, 0, "it broke")))
    assert blame(TWICE, never).cause == "unknown"


def test_nothing_is_blamed_that_stood_still() -> None:
    same = [point(night, backend="b") for night in range(NIGHTS)]
    found = blame(TWICE, history(points=same), at=point(NIGHTS, backend="b"))
    assert (found.cause, "nothing that is recorded changed" in found.sentence) == ("unknown", True)


@pytest.mark.parametrize(("elsewhere", "cause"), [("passed", "upstream"), ("failed", "backend"), (None, "unknown")])
def test_another_variant_tells_upstream_from_the_backend(elsewhere: str | None, cause: str) -> None:
    line = [point(night, upstream=f"{night:040x}") for night in range(NIGHTS)]
    now = point(NIGHTS, upstream=f"{NIGHTS:040x}")
    sibling = Sibling(Point(Build(now.build.revision, "pinned"), now.backend, f"{0:040x}"), lambda *_: elsewhere)
    found = blame(TWICE, history(points=line), at=now, siblings=[sibling])
    assert found.cause == cause
    verdict = triage_verdict(found)
    assert verdict["category"] == cause
    assert ("suspected_upstream" in verdict) == (cause == "upstream")
    assert (verdict["schema_version"], verdict["analyzer"]) == (1, {"name": "accel-ci"})
    assert all({"job", "test", "excerpt"} == set(entry) and all(entry.values()) for entry in verdict["evidence"])


def test_a_suspect_that_is_no_commit_is_left_out_of_the_verdict() -> None:
    """The relay drops a verdict whole for one such value. A PyTorch that does not tell its commit has a version alone."""
    line = [point(night, upstream="2.12.0") for night in range(NIGHTS)]
    now = point(NIGHTS, upstream="2.13.0")
    sibling = Sibling(Point(Build(now.build.revision, "pinned"), now.backend, "2.12.0"), lambda *_: "passed")
    found = blame(TWICE, history(points=line), at=now, siblings=[sibling])
    assert (found.cause, found.suspect) == ("upstream", "2.13.0")
    assert "suspected_upstream" not in triage_verdict(found)


def test_upstream_is_not_blamed_where_it_stood_still() -> None:
    line = [point(night, backend="b") for night in range(NIGHTS)]
    now = point(NIGHTS, backend="b")
    sibling = Sibling(Point(Build(now.build.revision, "main"), "b", "u9"), lambda *_: "passed")
    assert blame(TWICE, history(points=line), at=now, siblings=[sibling]).cause == "unknown"
    never = history(dict.fromkeys(range(NIGHTS), (2, 0, "it broke")), line)
    assert blame(TWICE, never, at=now, siblings=[sibling]).cause == "upstream", "it has never passed on this upstream"


def test_a_variant_with_another_backend_tells_nothing() -> None:
    line = [point(night, upstream=f"u{night}") for night in range(NIGHTS)]
    sibling = Sibling(Point(Build("nightly-12", "pinned"), "another", "u0"), lambda *_: "passed")
    found = blame(TWICE, history(points=line), at=point(NIGHTS, upstream="u12"), siblings=[sibling])
    assert found.cause == "unknown"


def test_a_pull_request_on_a_broken_base_is_not_blamed() -> None:
    line = history(dict.fromkeys((10, 11), (2, 0, "it broke")))
    found = blame(TWICE, line, at=point(99, backend="of the pull request", trigger="pr", base="b11"))
    assert (found.cause, found.sentence) == ("backend", "The base is broken: backend b10 fails since nightly-10.")
    good = blame(TWICE, line, at=point(99, backend="of the pull request", trigger="pr", base="b9"))
    assert (good.cause, good.suspect) == ("backend", "of the pull request")


def test_what_the_infrastructure_lost_is_not_the_tests() -> None:
    lost = [attempt("crashed", infra="card 0 does not answer")]
    assert blame(lost).cause == "infra"
    assert blame([*lost, attempt("failed", 2, card="1"), attempt("failed", 3, card="2")]).cause == "backend"


def bad_card(card: str = "h0:0") -> BadPlace:
    return BadPlace(Place("card", card), 50, 30, 90, 20, 100, 0.4, {"it broke": 20})


def test_a_bad_card_is_blamed_only_for_failures_that_are_there_alone() -> None:
    passed_elsewhere = [attempt("failed"), attempt("passed", 2, card="1"), attempt("passed", 3, card="2")]
    assert blame(passed_elsewhere, bad=[bad_card()]).cause == "infra"
    assert blame(passed_elsewhere, bad=[bad_card("h0:5")]).cause == "flaky"
    assert blame(TWICE, bad=[bad_card()]).cause == "backend", "it fails elsewhere, too"
    assert blame([attempt("failed"), attempt("failed", 2)], bad=[bad_card()]).cause == "backend", "nothing like it there"


def test_a_breakage_at_a_dead_host_is_not_the_hosts() -> None:
    others = [
        [attempt("crashed", signature="worker ended", test=test), attempt("passed", 2, card="1", test=test)]
        for test in (("unit", f"test_b.py::test_{number}") for number in range(3))
    ]
    both = [attempt("failed"), attempt("crashed", 2, signature="worker ended")]
    rows = [row for rows in [*others, both] for row in rows]
    assert blame(rows, bad=[replace(bad_card(), signatures={"worker ended": 20})]).cause in ("backend", "unknown")
    lost = [attempt("crashed", signature="worker ended"), attempt("crashed", 2, signature="worker ended")]
    assert blame([row for rows in [*others, lost] for row in rows], bad=[bad_card()]).cause == "infra"


def test_another_error_than_the_bad_cards_is_not_blamed_on_it() -> None:
    rows = [attempt("failed", signature="a race"), attempt("passed", 2, card="1"), attempt("passed", 3, card="2")]
    assert blame(rows, bad=[bad_card()]).cause == "unknown"


@pytest.mark.parametrize(("hosts", "cause"), [(("h0", "h1"), "infra"), (("h0", "h9"), "unknown")])
def test_failures_that_follow_a_new_driver_from_host_to_host_are_the_drivers(hosts: Sequence[str], cause: str) -> None:
    updated = {"h0": 0.25, "h1": 0.25}
    now = point(NIGHTS, environment="two of four hosts")
    tests = [("unit", f"test_a.py::test_{name}") for name in "abc"]
    rows = [attempt("failed", n, host=host, card=str(n), test=test) for test in tests for n, host in enumerate(hosts, 1)]
    assert blame(rows, at=now, updated=updated).cause == cause


def test_a_host_with_a_new_driver_leaves_a_flake_in_doubt() -> None:
    rows = [attempt("failed", host="h1"), attempt("passed", 2, host="h2"), attempt("passed", 3, host="h3")]
    assert blame(rows).cause == "flaky"
    assert blame(rows, updated={"h1": 0.25}).cause == "unknown"


EXPOSURE: Exposure = {(f"h{host}", str(card)): (100, 0.05) for host in range(4) for card in range(6)}


def wrong_on(places: Sequence[tuple[str, str]], signature: str = "it broke") -> list[list[AttemptRow]]:
    """Return tests that fail at a place and pass elsewhere."""
    found = []
    for number, (host, card) in enumerate(places):
        test = ("unit", f"test_a.py::test_{number}")
        again = attempt("passed", 2, card="5", host="h9", test=test)
        found.append([attempt("failed", card=card, host=host, test=test, signature=signature), again])
    return found


def names(places: Sequence[BadPlace]) -> list[str]:
    return [f"{each.place.kind} {each.place.name}" for each in places]


def test_a_bad_place_is_named_once() -> None:
    def named(places: Sequence[tuple[str, str]], drivers: Mapping[str, str] | None = None) -> list[str]:
        return names(bad_places([count_places(EXPOSURE, wrong_on(places), drivers or {})], drivers))

    card = [("h2", "3")] * 12
    assert named(card) == ["card h2:3"]
    assert named([("h2", str(card)) for card in range(6) for _ in range(8)]) == ["host h2"]
    assert named([(f"h{host}", str(card)) for host in range(4) for card in range(6)]) == [], "all places alike"
    updated = {"h0": "2", "h1": "2", "h2": "1", "h3": "1"}
    assert named([(f"h{host}", str(card)) for host in (0, 1) for card in range(6) for _ in range(8)], updated) == [
        "driver 2"
    ]


def test_a_place_is_to_blame_for_a_signature_that_is_seen_there_alone() -> None:
    places = [("h2", "3")] * 4
    alone = count_signatures(EXPOSURE, wrong_on(places), {})
    assert (Place("card", "h2:3"), "it broke") in blamed_places([alone], 24)
    assert not blamed_places([alone, count_signatures(EXPOSURE, wrong_on([("h0", "1")]), {})], 24)
    assert not blamed_places([count_signatures(EXPOSURE, wrong_on(places[:1]), {})], 24), "once is chance"


def test_failures_of_one_cause_are_one_incident() -> None:
    ops = [("unit", f"test_ops.py::test_add[{number}]") for number in range(30)]
    rows = [attempt("failed", n, card=str(n), test=test) for test in ops for n in (1, 2)]
    race = [attempt("failed", signature="a race"), attempt("passed", 2, card="1"), attempt("passed", 3, card="2")]
    lost = [
        attempt("crashed", test=("unit", f"test_b.py::test_{n}"), host="h3", infra="card 0 does not answer")
        for n in range(9)
    ]
    night = Night(point(NIGHTS), (*rows, *race, *lost))
    judge = Judge(night, make_grid([point(number) for number in range(NIGHTS)], [], NIGHTS))
    found = {incident.cause: len(incident.now) for incident in incidents_of(judge.blames())}
    assert found == {"backend": 30, "infra": 9, "flaky": 1}


def test_an_incident_of_unknown_cause_goes_on_when_its_cause_is_known() -> None:
    def seen(cause: str, revision: str) -> Incident:
        key = frozenset({("py3", *TEST)})
        return Incident(revision, cause, "t", "s", 0.9, revision, revision, "open", key, key, frozenset({"it broke"}))  # type: ignore[arg-type]

    known: list[Incident] = []
    for cause, revision in (("unknown", "n1"), ("backend", "n2"), ("unknown", "n3"), ("flaky", "n4")):
        known = follow(known, [seen(cause, revision)], lambda _: True, revision)
    found = {incident.id: (incident.cause, incident.first, incident.revisions, incident.state) for incident in known}
    assert found == {"n1": ("backend", "n1", 3, "fixed"), "n4": ("flaky", "n4", 1, "open")}
