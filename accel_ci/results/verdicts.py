"""The verdict rule: what all attempts of a test in one build amount to.

Failures whose cause is the infrastructure do not count; when nothing else is left, the verdict is `infra`. A failure and a
result that is not one in the same build are `flaky`, failures alone `failed`; otherwise the last outcome stands. A test
without an attempt that ran is `not_run`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from accel_ci.model import OUTCOMES, VERDICTS
from accel_ci.results.columns import Column, kernels

CODES: dict[str, int] = {verdict: code for code, verdict in enumerate(VERDICTS)}
"""A verdict's place in `VERDICTS`: how it is stored."""

_OF_OUTCOME: pa.Array[Any] = pa.array([CODES.get(outcome, CODES["failed"]) for outcome in OUTCOMES], pa.int8())


def verdict_codes(failed: Column, unfailed: Column, infra: Column, last: Column) -> Column:
    """The verdicts of tests as codes, from columns with a row per test.

    Args:
        failed: An attempt failed, and not by the infrastructure.
        unfailed: An attempt ended otherwise, and not by the infrastructure.
        infra: An attempt was lost to the infrastructure.
        last: The index in `OUTCOMES` of the last attempt that counts in `failed` or `unfailed`; any index where none does.
    """
    without = kernels.if_else(infra, CODES["infra"], CODES["not_run"])
    ended = kernels.if_else(failed, CODES["failed"], kernels.if_else(unfailed, _OF_OUTCOME.take(last), without))
    found: Column = kernels.if_else(kernels.and_(failed, unfailed), CODES["flaky"], ended)
    return found
