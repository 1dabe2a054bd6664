"""Try steps again that a store has left: S3, or Dagster's database.

A step that fails by itself would fail again. One whose process was ended is for `accel_ci.defs.executors`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import sleep

import dagster as dg

from accel_ci.redaction import redact

BEFORE_RETRY_S = 30.0
"""The wait for a store that is away. Clients have tried for some ten seconds before."""


def is_outage(error: BaseException) -> bool:
    """Return whether an error comes from a store that is away for now: S3, or Dagster's database."""
    cause: BaseException | None = error
    while cause is not None:
        module = type(cause).__module__.partition(".")[0]
        if module in ("botocore", "boto3") and _is_outage_of_s3(cause):
            return True
        if module == "sqlalchemy" and type(cause).__name__ in ("OperationalError", "InterfaceError"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_outage_of_s3(error: BaseException) -> bool:
    from accel_ci.storage.s3 import is_transient

    return is_transient(error)


def is_canceling(instance: dg.DagsterInstance, run: str) -> bool:
    """Return whether somebody has asked for the end of a run."""
    found = instance.get_run_by_id(run)
    return found is not None and found.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


@contextmanager
def retrying_outages(times: int, wait_s: float = BEFORE_RETRY_S) -> Iterator[None]:
    """Ask Dagster to try the step again, at most so many times, if a store is away in the context; wait before."""
    try:
        yield
    except Exception as error:
        if times and is_outage(error):
            raise try_again(error, times, wait_s) from None
        raise


def try_again(error: BaseException, times: int, wait_s: float) -> dg.RetryRequested:
    """Make the request to try a step again, after a wait; its description has no secrets.

    Dagster does not learn of the wait. Otherwise, a process that resumes the run would replay the retry as one that is still
    waiting (`ActiveExecution.rebuild_from_events`), and the step's next event would fail the run.
    """
    with suppress(dg.DagsterExecutionInterruptedError):
        sleep(wait_s)
    return _Again(times, redact(f"{type(error).__name__}: {error}"))


class _Again(dg.RetryRequested):
    """A request to try a step again, which tells why in Dagster's events."""

    def __init__(self, times: int, reason: str) -> None:
        super().__init__(times)
        self._reason = reason

    def __str__(self) -> str:
        return f"the step is tried again, since a store was away: {self._reason}"
