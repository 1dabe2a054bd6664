"""The choice of the next tests: ops first, then what adds most for its cost; never what did not pass."""

import random

import pyarrow as pa
import pytest

from accel_ci.ramp.chances import estimate_tests
from accel_ci.ramp.evidence import EVIDENCE, with_evidence
from accel_ci.ramp.proposal import propose
from accel_ci.results.rollups import test_key
from accel_ci_tests.fixtures.scoped_builds import op_rows, scope_table
from accel_ci_tests.ramp.ramp_tests import names, ramp_test


def test_each_op_has_a_test_before_any_has_two() -> None:
    cheap = [ramp_test(f"add_{number}", "add", cost_s=0.01) for number in range(8)]
    dear = [ramp_test("mul_dear", "mul", cost_s=30.0), ramp_test("mul_cheap", "mul", cost_s=20.0)]
    found = propose([*cheap, *dear], 0.3)
    assert names(found.tests) == ["add_0", "mul_cheap", "add_1"]
    assert (found.ops, found.ops_before, found.ops_left, found.missing) == (2, 0, (), 0)
    assert found.card_s == pytest.approx(20.02)


def test_the_safer_and_the_cheaper_of_two_tests_is_taken() -> None:
    tests = [ramp_test("a", cost_s=5), ramp_test("b", cost_s=1), ramp_test("c", cost_s=1, chance=0.99)]
    assert names(propose(tests, 2 / 3).tests) == ["c", "b"]


def test_a_test_that_did_not_pass_when_it_last_ran_is_left_out_and_counted() -> None:
    tests = [ramp_test("a", "add", doubtful=True), ramp_test("b"), ramp_test("c", enabled=True)]
    found = propose(tests, 1)
    assert names(found.tests) == ["b"]
    assert (found.enabled_before, found.enabled_after, found.missing, found.doubtful) == (1, 2, 1, 1)
    assert found.ops_left == ("add",)


def test_a_test_that_a_rule_holds_is_left_out_and_told_where_it_passes() -> None:
    tests = [ramp_test("a", held=True), ramp_test("b", held=True, doubtful=True), ramp_test("c")]
    found = propose(tests, 1)
    assert (names(found.tests), found.held, found.passing_held, found.doubtful, found.missing) == (["c"], 2, 1, 0, 2)


def test_a_budget_is_kept_and_what_does_not_fit_is_passed_over() -> None:
    tests = [ramp_test("long", "add", cost_s=50), *(ramp_test(f"t{number}", cost_s=3) for number in range(9))]
    found = propose(tests, 1, card_s=10)
    assert len(found.tests) == 3
    assert found.card_s == 9
    assert found.missing == 7


def test_nothing_is_proposed_where_the_share_is_reached() -> None:
    assert propose([ramp_test("a", enabled=True), ramp_test("b")], 0.5).tests == ()
    assert propose([], 0.5).tests == ()


def test_a_new_pair_of_op_and_dtype_and_another_file_come_before_more_of_the_same() -> None:
    same = [ramp_test(f"same{number}", "add", dtypes=("float32",)) for number in range(3)]
    pair = ramp_test("pair", "add", dtypes=("int64",))
    tests = [*same, pair, ramp_test("first", "mul", dtypes=("int64",), enabled=True)]
    assert names(propose(tests, 3 / 5).tests) == ["same0", "pair"]
    other = [ramp_test(f"other{number}", file="u.py", test=f"u.py::{number}") for number in range(2)]
    done = [ramp_test(f"done{number}", enabled=True) for number in range(4)]
    assert names(propose([*done, ramp_test("more"), *other], 5 / 7).tests) == ["u.py::0"]


def test_the_same_tests_in_another_order_have_the_same_proposal() -> None:
    rng = random.Random(7)
    tests = [
        ramp_test(
            f"t{n}", rng.choice("abcdef"), file=rng.choice("xyz"), chance=rng.choice([0.5, 0.9]), dtypes=(rng.choice("pq"),)
        )
        for n in range(300)
    ]
    first = propose(tests, 0.4)
    rng.shuffle(tests)
    assert propose(tests, 0.4).tests == first.tests
    assert len(first.tests) == 120


def test_a_test_that_never_ran_has_the_chance_and_the_seconds_of_its_siblings() -> None:
    rows = op_rows(["good", "bad"], ["float32", "int64", "bool"])
    evidence = [
        {
            "suite": "upstream",
            "key": test_key(row["test"]),
            "tries": 4,
            "passes": 4 if row["op"] == "good" else 0,
            "last": "passed" if row["op"] == "good" else "failed",
            "last_day": None,
            "duration_s": 2.0 if row["op"] == "good" else 8.0,
        }
        for row in rows
        if row["dtypes"] != ["bool"]
    ]
    known = with_evidence(scope_table(rows), pa.Table.from_pylist(evidence, schema=EVIDENCE))
    assert known["test"].to_pylist() == [row["test"] for row in rows]
    tests = {(test.op, test.dtypes[0]): test for test in estimate_tests(known, {"upstream": 2})}
    good, bad = tests["good", "bool"], tests["bad", "bool"]
    assert bad.chance < 0.5 < good.chance < tests["good", "int64"].chance
    assert (good.cost_s, bad.cost_s) == (4.0, 16.0), "the median of its op, on two cards"
    assert (good.known, good.doubtful, tests["bad", "int64"].doubtful) == (False, False, True)
