"""The ticks of sensors and schedules: previews, which write nothing, and looks that fail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dagster as dg

from accel_ci.errors import AccelCiError
from accel_ci.redaction import redact

PREVIEW = "this is a preview, which writes nothing"
"""The beginning of what a preview says instead."""


def is_preview(context: dg.ScheduleEvaluationContext | dg.SensorEvaluationContext) -> bool:
    """Return whether a person looks at a tick in the UI, so that it may write nothing.

    The daemon gives the log of a tick a key that ends in its number. For a preview, Dagster makes one from the time.
    """
    return context.log_key is not None and not context.log_key[-1].isdecimal()


@contextmanager
def failing_tick(what: str) -> Iterator[None]:
    """Have the tick fail where the look fails: `what` cannot be done, and no run and no cursor comes of the tick.

    Dagster shows it, and the next tick looks again. Of several in a row, the section `notify` tells people. Dagster keeps
    the error with its causes, so that this one has none, and no secret.
    """
    try:
        yield
    except AccelCiError as error:
        raise AccelCiError(redact(f"{what}: {error}")) from None


def fail_if_all_failed(what: str, errors: Sequence[str], tried: int) -> None:
    """Have the tick fail if each of so many things that it `tried` has failed: one alone is no fault of the tick.

    Raises `AccelCiError`.
    """
    if errors and len(errors) == tried:
        with failing_tick(what):
            raise AccelCiError("; ".join(errors))
