"""The modes of tests, which the rules of a suite's scope give them, as pytest's marks on their items.

The reasons of these marks begin with `RULE`, so that what a rule excuses is told from what a test itself skips or excuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

RULE = "accel_ci rule: "
_FLAKY = "flaky_known"


class TestModes:
    """The modes of a suite's tests: each record has a `mode`, its `reason` and the `tests` that it is for.

    A test in mode `skip` does not run. One in mode `xfail` or `flaky_known` may fail; a pass is `xpassed` in the former and
    `passed` in the latter. In mode `xfail_strict` a pass is a failure.
    """

    __test__ = False

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._modes = {test: (record["mode"], RULE + record["reason"]) for record in records for test in record["tests"]}

    def mark(self, items: Mapping[str, Any]) -> None:
        """Mark the items by test; marks of the tests' own come after these."""
        for test, (mode, reason) in self._modes.items():
            if test in items:
                is_skip, strict = mode == "skip", mode == "xfail_strict"
                mark = pytest.mark.skip(reason=reason) if is_skip else pytest.mark.xfail(reason=reason, strict=strict)
                items[test].add_marker(mark, append=False)

    def outcome(self, test: str, outcome: str, message: str | None) -> tuple[str, str | None]:
        """Return an outcome and message as they are reported: a test that is known to be flaky may pass."""
        mode, reason = self._modes.get(test, ("", ""))
        return ("passed", None) if mode == _FLAKY and outcome == "xpassed" and message == reason else (outcome, message)
