"""The tags of runs: their names, and those by which the list of runs shows the verdict of a build and can be filtered."""

from accel_ci.ledger.status import shortcomings
from accel_ci.model import Ledger

BUILD_TAG = "accel_ci/build"
"""The build and the pipeline that a run works on: `dagster.yaml` lets one run for each value start."""

LOCATION_TAG = "accel_ci/location"
"""The code location that a run belongs to; none where a project has the instance to itself."""

TRIGGER_TAG = "accel_ci/trigger"
TRIGGERED_AT = "accel_ci/triggered_at"
"""The time at which the build was asked for; its wall time counts from there."""

VERDICT_TAG = "accel_ci/verdict"
"""`green`, or the reasons why the build does not pass, such as `121 failed`."""

RESULT_TAG = "accel_ci/result"
"""`green` or `red`, so that one filter finds all red builds."""

NEW_TAG = "accel_ci/new"
"""The number of tests that failed and did not in the build before."""

AGAIN_TAG = "accel_ci/again"
"""Set on a run that makes all stages anew, and takes up nothing of one that stopped."""

STRANGER_TAG = "accel_ci/stranger"
"""Set on a run of a stranger's pull request that no maintainer has allowed yet: it gets no card and no secret."""

SUITES_TAG = "accel_ci/suites"

NOT_YET = {VERDICT_TAG: "none yet", RESULT_TAG: "none yet", NEW_TAG: "none yet"}
"""These tags of a run whose ledger is not there yet; a run that is executed again inherits those of the earlier run."""


def verdict_tags(ledger: Ledger, newly_failing: int | None) -> dict[str, str]:
    """Return the tags of a run whose ledger is there; `newly_failing` is None where there is no build to compare with."""
    bad = shortcomings(ledger)
    return {
        VERDICT_TAG: ", ".join(bad) or "green",
        RESULT_TAG: "red" if bad else "green",
        NEW_TAG: "no earlier build" if newly_failing is None else str(newly_failing),
        SUITES_TAG: ", ".join(ledger.suites) or "none",
    }
