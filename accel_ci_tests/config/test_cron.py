from __future__ import annotations

import dagster as dg
import pytest

from accel_ci.config.cron import check_cron

TAKEN = (
    "0 2 * * *", "0 6,11,16,21 * * *", "30 5 * * 6", "@daily", "@midnight", "@hourly", "0 2 * * 7", "0 2 * * MON#1",
    "0 2 L * *", "0 2 * * L5", "0 2 * * mon-fri", "0 2 * jan *", "0 2,14 */2 * *", "0 2 ? * *", "0  2 * * *",
    "0 2 * * 6-1", "0 2 29 2 *", "00 02 * * *",
)  # fmt: skip
REFUSED = (
    ("0 2 * * 5L", "'5L' is no day of the week"), ("0 2 15W * *", "'15W' is no day of the month"),
    ("0 2 LW * *", "'LW' is no day of the month"), ("0 0 2 * * *", "it has 6 fields"),
    ("30 2 * * * 2026", "it has 6 fields"), ("TZ=UTC 0 2 * * *", "it has 6 fields"), ("0 2 * *", "it has 4 fields"),
    ("", "it has 0 fields"), ("60 2 * * *", "'60' is no minute"), ("0 24 * * *", "'24' is no hour"),
    ("*/0 * * * *", "'*/0' is no minute"), ("H 2 * * *", "'H' is no minute"), ("@reboot", "@reboot is no name"),
    ("0 2 31 2 *", "do not fit together"), ("1.5 2 * * *", "'1.5' is no minute"), ("0 2 * * MON#6", "'MON#6' is no day"),
)  # fmt: skip


def schedule(expression: str) -> dg.ScheduleDefinition:
    """Make a schedule, as the definitions do. Raises what Dagster raises."""
    return dg.ScheduleDefinition(name="x", job_name="x", cron_schedule=expression, execution_timezone="UTC")


@pytest.mark.parametrize("expression", TAKEN)
def test_what_dagster_takes_is_valid(expression: str) -> None:
    assert schedule(check_cron(expression)).cron_schedule == expression


@pytest.mark.parametrize(("expression", "fault"), REFUSED)
def test_what_dagster_refuses_is_refused_with_the_fault(expression: str, fault: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        schedule(expression)
    with pytest.raises(ValueError, match="not a cron expression") as caught:
        check_cron(expression)
    assert fault in str(caught.value)


@pytest.mark.parametrize("expression", ["0 2 31 4 *", "0 2 30-31 2 *", "0 2 31 4,6,9,11 *"])
def test_a_day_that_never_comes_is_refused(expression: str) -> None:
    """Dagster defines such a schedule, and its daemon then fails at every tick."""
    with pytest.raises(ValueError, match="ever comes"):
        check_cron(expression)
