"""The tests that a change may concern: which are chosen, why, and when all of them run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accel_ci.model import SelectedTest
from accel_ci.ramp.chances import RampTest
from accel_ci.ramp.changed import Choice, FileRules, Reason, SuiteBefore, choose_tests, with_groups
from accel_ci.source.changes import ChangedFile, Line
from accel_ci_tests.ramp.ramp_tests import ramp_test


def op_test(name: str, op: str | None = None, **changes: object) -> RampTest:
    return ramp_test(name, op, **{"enabled": True, **changes})


def text(path: str, *changed: str) -> ChangedFile:
    return ChangedFile(path, "text", tuple(Line(line, changed=True) for line in changed))


def before(tests: list[RampTest], *failed: str) -> dict[str, SuiteBefore]:
    return {"upstream": SuiteBefore("nightly-1", frozenset(test.test for test in tests), frozenset(failed))}


RULES = FileRules(
    frozenset({"t.py", "tests/unit/test_a.py"}), ("tests/unit", "tests/smoke"), {"base.py": "device.test_base"}
)
SOURCE = text("csrc/add.cpp", 'm.impl("add.Tensor", x);')


def reasons(choice: Choice) -> dict[str, str]:
    assert choice.whole is None
    return {test.removeprefix("t.py::"): reason.words for (_, test), reason in choice.tests.items()}


def test_each_chosen_test_has_its_reason_and_the_rest_is_counted() -> None:
    tests = [
        op_test("own", file="tests/unit/test_a.py"),
        *(op_test(f"add{number}", "add") for number in range(3)),
        op_test("fails", "mul"),
        op_test("new", "sub"),
        *(op_test(f"exp{number}", "exp", cost_s=3 - number) for number in range(3)),
        op_test("off", "add", enabled=False),
        *(op_test(f"mul{number}", "mul") for number in range(5)),
    ]
    known = before([test for test in tests if test.test != "t.py::new"], "t.py::fails")
    choice = choose_tests(tests, [text("tests/unit/test_a.py"), SOURCE, text("a.py", "x = 1")], known, RULES, 60)
    assert reasons(choice) == {
        "own": "its file changed",
        "add0": "op add is named in csrc/add.cpp",
        "add1": "op add is named in csrc/add.cpp",
        "add2": "op add is named in csrc/add.cpp",
        "fails": "failed in nightly-1",
        "new": "is not among the enabled tests of nightly-1",
        "exp2": "sample of op exp",
    }
    assert choice.in_words(14_000) == (
        "7 of 14,000 tests: 1 of changed files, 3 of changed ops, 1 that failed lately, 1 newly enabled, 1 as a sample; "
        "no op is named in a.py"
    )


def test_the_sample_has_the_cheapest_test_that_passes_of_each_op_within_its_seconds() -> None:
    tests = [
        op_test("a_fails", "a", cost_s=0.1, doubtful=True), op_test("a_dear", "a", cost_s=2), op_test("a", "a", cost_s=1),
        op_test("b", "b", cost_s=0.5, doubtful=True), op_test("c", "c", cost_s=9), op_test("d", "d", cost_s=2),
        op_test("plain", file="p.py"), op_test("plain_dear", file="p.py", cost_s=5),
    ]  # fmt: skip
    chosen = [reasons(choose_tests(tests, [text("x.py")], before(tests), RULES, card_s)) for card_s in (3, 5, 100)]
    assert [sorted(found) for found in chosen] == [
        ["a", "b", "plain"],
        ["a", "b", "d", "plain"],
        ["a", "b", "c", "d", "plain"],
    ]
    assert chosen[0]["plain"] == "sample of p.py"


def test_a_suite_is_never_without_a_test() -> None:
    tests = [op_test("long", "add", cost_s=500), op_test("longer", "mul", cost_s=600), op_test("x", "add", suite="other")]
    known = {**before(tests), "other": SuiteBefore("main-1", frozenset({"t.py::x"}), frozenset())}
    assert reasons(choose_tests(tests, [text("a.py")], known, RULES, 10)) == {
        "x": "sample of op add",
        "long": "sample of the suite upstream",
    }


def test_all_tests_of_a_suite_run_that_no_build_knows() -> None:
    tests = [op_test("a", "add"), op_test("b", "add"), op_test("c", "add", suite="new")]
    choice = choose_tests(tests, [text("a.py")], before(tests), RULES, 60)
    assert choice.tests["new", "t.py::c"].kind == "unknown"
    assert len(choice.tests) == 2
    nothing = choose_tests(tests, [text("a.py")], {}, RULES, 60)
    assert (
        nothing.in_words(3)
        == "3 of 3 tests: 3 of suites that no nightly and no build of main has run; no op is named in a.py"
    )


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (text("setup.py"), "may concern all tests"),
        (text("csrc/CMakeLists.txt"), "may concern all tests"),
        (text("../pyproject.toml"), "may concern all tests"),
        (text("tests/unit/conftest.py"), "may concern all tests"),
        (text("requirements-test.txt"), "may concern all tests"),
        (text("accel_ci.yaml"), "may concern all tests"),
        (text("base.py"), "is device.test_base"),
        (text("../other/a.cpp"), "is outside of the backend's sources"),
        (ChangedFile("firmware.bin", "binary"), "is no text"),
        (ChangedFile("third_party/lib", "special"), "is a link or a submodule"),
        (text("tests/unit/shapes.py"), "tests may share"),
        (text("tests/common.py"), "tests may share"),
    ],
)
def test_all_tests_run_where_an_effect_cannot_be_bounded(file: ChangedFile, why: str) -> None:
    choice = choose_tests([op_test("a")], [SOURCE, file], before([]), RULES, 60)
    assert choice.whole == f"{file.path} changes, which {why}"
    assert choice.in_words(31_000) == f"all 31,000 tests: {file.path} changes, which {why}"


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "../docs/a.png",
        "../.github/workflows/a.yml",
        "LICENSE",
        "tests/smoke/test_x.py",
        "tests/unit/test_gone.py",
    ],
)
def test_some_files_concern_no_test(path: str) -> None:
    tests = [op_test("a", "add"), op_test("b", "add")]
    kind = "binary" if path.endswith(".png") else "text"
    choice = choose_tests(tests, [ChangedFile(path, kind)], before(tests), RULES, 60)  # type: ignore[arg-type]
    assert reasons(choice) == {"a": "sample of op add"}
    assert choice.silent == ()


def test_a_test_file_of_another_kind_is_still_its_tests() -> None:
    tests = [op_test("a"), op_test("b", file="u.py")]
    found = choose_tests(tests, [ChangedFile("t.py", "binary")], before(tests), RULES, 0.5)
    assert reasons(found) == {"a": "its file changed"}


def test_no_change_runs_everything() -> None:
    assert choose_tests([op_test("a")], [], {}, RULES, 60).whole == "nothing differs from the target"


def test_many_reasons_are_cut_short_and_names_are_printable() -> None:
    files = [text(f"{number}/setup.py") for number in range(9)]
    assert choose_tests([], files, {}, RULES, 60).whole == (
        "0/setup.py changes, which may concern all tests, 1/setup.py changes, which may concern all tests, "
        "2/setup.py changes, which may concern all tests, and 6 more"
    )
    hostile = "a\n\x1b[31m\u202e\udcff" + "x" * 5000
    choice = choose_tests([op_test("a", "add")], [text(hostile, '"add"')], before([]), RULES, 60)
    words = reasons(choice)["a"]
    assert words.startswith("op add is named in a\\n\\x1b[31m\\u202e\\xff" + "x")
    assert len(words) < 300


def test_tests_that_run_together_are_chosen_together() -> None:
    chosen = Choice({("s", "b"): Reason("file", "its file changed")})
    tests = [SelectedTest("s", test, group) for test, group in (("a", "g"), ("b", "g"), ("c", "h"), ("d", None))]
    found = with_groups(chosen, [*tests, SelectedTest("other", "e", "g")])
    assert {test: reason.kind for (_, test), reason in found.tests.items()} == {"a": "group", "b": "file"}
    assert replace(found, tests={}) == replace(chosen, tests={})
