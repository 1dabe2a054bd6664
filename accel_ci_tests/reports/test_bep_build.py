from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_ci.model import BazelActions
from accel_ci.reports.bep_build import read_build
from accel_ci_tests.recorded import RECORDED


def test_tested_targets() -> None:
    build = read_build(RECORDED / "faults")
    assert (build.exit_name, build.exit_code) == ("TESTS_FAILED", 3)
    assert {t.label.rpartition(":")[2]: (t.status, len(t.logs)) for t in build.targets.values() if t.is_test} == {
        "visible_cards_test": ("PASSED", 1),
        "parity_test": ("PASSED", 1),
        "symbols_test": ("PASSED", 1),
        "all_reduce_test": ("PASSED", 1),
        "kernels_test": ("PASSED", 2),
        "every_other_test": ("FLAKY", 2),
        "hanging_test": ("TIMEOUT", 2),
        "failing_test": ("FAILED", 2),
    }
    logs = build.targets["//shim:failing_test"].logs
    assert logs == ["shim/failing_test/test.log", "shim/failing_test/test_attempts/attempt_1.log"], "the last comes first"


def test_a_cached_build_did_nothing() -> None:
    build = read_build(RECORDED / "cached")
    assert build.actions == BazelActions(created=95, executed=0, local_cache_hits=0, remote_cache_hits=16)
    assert [target.cached for target in build.targets.values() if target.is_test] == [True] * 5


def test_a_target_that_failed_to_build_has_the_compilers_message() -> None:
    build = read_build(RECORDED / "broken")
    assert build.exit_name == "BUILD_FAILURE"
    assert len(build.targets) == 5
    for target in build.targets.values():
        assert target.status == "FAILED_TO_BUILD"
        assert "shim/shim.cc:49:54: error: expected ';' before '}' token" in (target.message or "")
        assert not target.out_of_reach


def test_an_outage_of_remote_execution_is_not_a_failure() -> None:
    build = read_build(RECORDED / "down")
    assert (build.exit_name, build.exit_code) == ("REMOTE_ERROR", 34)
    assert build.errors[0] == "ERROR: Failed to query remote execution capabilities: UNAVAILABLE: io exception"
    assert any(target.out_of_reach for target in build.targets.values())


def test_the_worst_configuration_of_a_target_counts(tmp_path: Path) -> None:
    def event(kind: str, configuration: str, payload: dict[str, object]) -> str:
        return json.dumps({"id": {kind: {"label": "//a", "configuration": {"id": configuration}}}, **payload})

    failed = event("testResult", "1", {"testResult": {"status": "FAILED"}})
    passed = event("testResult", "2", {"testResult": {"status": "PASSED", "cachedLocally": True}})
    broken = event("targetCompleted", "3", {"completed": {"failureDetail": {"message": "no header"}}})
    for lines, status, message in (
        ((failed, passed), "FAILED", None),
        ((passed, failed), "FAILED", None),
        ((broken, passed), "FAILED_TO_BUILD", "no header"),
    ):
        (tmp_path / "bep.ndjson").write_text("\n".join(lines))
        target = read_build(tmp_path).targets["//a"]
        assert (target.status, target.message, target.cached) == (status, message, lines == (broken, passed))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"not json\n",
        b"[]\n{}\n",
        b'{"id": {"buildFinished": 1}, "finished": []}\n',
        b'{"id": {"testResult": {"label": "//a"}}, "testResult": {"testActionOutput": [3, {"name": "test.log", "uri": 4}]}}',
        b'{"id": {"actionCompleted": {"label": "//a"}}, "action": {"stderr": {"uri": "file:///etc/passwd"}}}\n'
        b'{"id": {"targetCompleted": {"label": "//a"}}, "children": [1, {"actionCompleted": {"label": "//a"}}]}',
    ],
)
def test_any_content_is_read_without_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bep.ndjson").write_bytes(content)
    build = read_build(tmp_path)
    assert all("root:" not in (target.message or "") for target in build.targets.values()), "no file elsewhere is read"


def test_a_missing_file_is_an_empty_build(tmp_path: Path) -> None:
    assert not read_build(tmp_path).complete
