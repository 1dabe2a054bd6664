"""The comparison of a build with the one before: which build that is, and what fails since."""

from __future__ import annotations

import logging

from accel_ci.errors import AccelCiError
from accel_ci.model import Ledger
from accel_ci.pipelines import LEDGER
from accel_ci.results.questions import newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore

_LOG = logging.getLogger(__name__)


def finished_before(manifests: ManifestStore, ledger: Ledger) -> Ledger | None:
    """Return the ledger of the newest earlier build of the same trigger and variant with all suites of this one."""
    return manifests.previous(LEDGER, ledger.build, Ledger, lambda before: ledger.suites.keys() <= before.suites.keys())


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
