"""Closing the ledger of a build: a failure that belongs to no expected test keeps the build from passing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import pytest

from accel_ci.ledger.close import close_ledger
from accel_ci.ledger.status import read_status, shortcomings
from accel_ci.model import Attempt, Build, CardReport, DeviceTestResults, Ledger
from accel_ci.pipelines import LEDGER
from accel_ci.results.questions import bad_tests
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts

BUILD = Build("nightly-20261127", "py3")
SELECTED = [{"suite": "unit", "test": "a.py::t1"}, {"suite": "unit", "test": "a.py::t2", "group": "ordered a.py"}]


@pytest.fixture
def close(tmp_path: Path) -> Callable[[Sequence[Attempt]], Ledger]:
    """Closes the ledger of a build whose device tests have these attempts."""
    artifacts, store = ArtifactStore(tmp_path / "artifacts"), ResultsStore(tmp_path / "results")

    def _close(attempts: Sequence[Attempt]) -> Ledger:
        write_attempts(store, BUILD, date(2026, 11, 27), attempts)
        expected = artifacts.put_bytes(json.dumps(SELECTED).encode(), "selection.json")
        cards = (CardReport("0", True, None, len(attempts), 2.5, 0.5),)
        stage = DeviceTestResults(expected, ("unit",), {}, (), cards, 3.0, 2.0, 3.0)
        return close_ledger(BUILD, [stage], None, ["unit"], artifacts, store)

    return _close


def test_the_end_of_a_session_that_failed_is_named_and_not_green(
    close: Callable[[Sequence[Attempt]], Ledger], attempt: Callable[..., Attempt], tmp_path: Path
) -> None:
    attempts = [attempt("a.py::t1", "passed"), attempt("a.py::t2", "passed")]
    assert shortcomings(close(attempts)) == ()
    assert (close(attempts).setup_s, close(attempts).ratio) == (0.5, 1.25)
    account = close([*attempts, attempt("(session)", "error", message="OSError: device did not close")])
    assert (account.expected, account.counts["passed"], account.unexpected) == (2, 2, ("unit: (session)",))
    assert shortcomings(account) == ("failed beside the expected tests: unit: (session)",)

    manifests = ManifestStore(tmp_path)
    manifests.write(manifests.path(LEDGER, BUILD.revision, BUILD.variant), account)
    status = read_status(manifests, BUILD)
    assert (status.passed, status.state) == (False, "failed beside the expected tests: unit: (session)")
    assert json.loads(status.as_json())["unexpected_failures"] == ["unit: (session)"]
    [listed] = bad_tests(ResultsStore(tmp_path / "results"), BUILD, ["unit"])
    assert (listed.test, listed.verdict, listed.message) == ("(session)", "failed", "OSError: device did not close")


def test_many_failures_of_no_expected_test_are_counted(
    close: Callable[[Sequence[Attempt]], Ledger], attempt: Callable[..., Attempt]
) -> None:
    account = close([attempt(f"a.py::x{number}", "failed") for number in range(1005)])
    assert account.counts["not_run"] == 2
    assert shortcomings(account) == (
        "2 not run",
        "failed beside the expected tests: unit: a.py::x0, unit: a.py::x1, unit: a.py::x10, and 1,002 more",
    )
