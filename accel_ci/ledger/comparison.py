"""The comparison of a build with the one before: which build that is, and what fails since."""

from __future__ import annotations

import logging

from accel_ci.errors import AccelCiError
from accel_ci.model import CONFIRM, Build, Ledger, Trigger
from accel_ci.pipelines import LEDGER
from accel_ci.results.questions import newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore

INSTEAD: dict[Trigger, tuple[Trigger, ...]] = {"pr": ("nightly", "intraday", "main"), CONFIRM: ()}
"""The triggers that a build is compared with, where these are not its own."""

_LOG = logging.getLogger(__name__)


def finished_before(manifests: ManifestStore, ledger: Ledger) -> Ledger | None:
    """Return the ledger of the newest earlier build of the same trigger and variant with all suites of this one.

    The build of a pull request is compared with those of the branch, not with another pull request's. One that confirms
    failures is compared with none.
    """

    def has_all_suites(before: Ledger) -> bool:
        return ledger.suites.keys() <= before.suites.keys()

    return manifests.previous(LEDGER, ledger.build, Ledger, has_all_suites, INSTEAD)


def builds_to_compare(manifests: ManifestStore, after: Build | None = None) -> tuple[Build, Build]:
    """Return a build, the newest finished one by default, after the one that it is compared with.

    Raises `AccelCiError` where there is no such pair.
    """
    builds = manifests.list_builds() if after is None else iter([after])
    ledger = next((found for build in builds if (found := manifests.find(LEDGER, build, Ledger))), None)
    if ledger is None:
        raise AccelCiError(f"{f'{after.name} has no' if after else 'no build has a'} ledger; name the two builds to compare")
    before = finished_before(manifests, ledger)
    if before is None:
        raise AccelCiError(
            f"no earlier build of the trigger and variant of {ledger.build.name} has all of its suites; "
            "name the two builds to compare"
        )
    return before.build, ledger.build


def count_newly_failing(manifests: ManifestStore, results: ResultsStore, ledger: Ledger) -> int | None:
    """Count the tests that fail and did not in the build before; None where there is no such build, or it is unreadable."""
    try:
        before = finished_before(manifests, ledger)
        if before is None:
            return None
        return sum(change.suite in ledger.suites for change in newly_failing(results, before.build, ledger.build))
    except AccelCiError as error:
        _LOG.warning("%s cannot be compared with the build before: %s", ledger.build.name, error)
        return None
