"""The comparison of a build with the one before: which build that is, and what fails since."""

from __future__ import annotations

import logging

from accel_ci.errors import AccelCiError
from accel_ci.model import CONFIRM, Build, Ledger, Revision, Trigger
from accel_ci.pipelines import LEDGER, REVISION
from accel_ci.results.questions import newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore

INSTEAD: dict[Trigger, tuple[Trigger, ...]] = {"pr": ("nightly", "intraday", "main"), CONFIRM: ()}
"""The triggers that a build is compared with, where these are not its own."""

_LOOKED_AT = 100
"""So many of the newest revisions are looked at for one of another branch than the configured one."""

_LOG = logging.getLogger(__name__)


def target_of(manifests: ManifestStore, build: Build) -> str | None:
    """Return the branch that the pull request of a build is for (see `Revision.target`)."""
    revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
    return revision.target if revision is not None else None


def is_of_branch(revision: Revision | None, target: str | None) -> bool:
    """Return whether a revision tests the branch that a pull request is for. Any does where that is the configured one."""
    if target is None:
        return True
    return revision is not None and revision.backend.ref in (target, target.removeprefix("refs/heads/"))


def finished_before(manifests: ManifestStore, ledger: Ledger, target: str | None = None) -> Ledger | None:
    """Return the ledger of the newest earlier build of the same trigger and variant with all suites of this one.

    The build of a pull request is compared with those of the branch, not with another pull request's. One for another
    branch, `target`, is compared with builds of that one alone. One that confirms failures is compared with none.
    """

    def has_all_suites(before: Ledger) -> bool:
        return ledger.suites.keys() <= before.suites.keys()

    if target is None:
        return manifests.previous(LEDGER, ledger.build, Ledger, has_all_suites, INSTEAD)
    revisions = manifests.revisions()
    own = next((each for each in revisions if each.key == ledger.build.revision), None)
    if own is None:
        return None
    for each in revisions[:_LOOKED_AT]:
        if each.trigger not in (*INSTEAD["pr"], "manual") or each.seen_at >= own.seen_at:
            continue
        if is_of_branch(manifests.read_history(manifests.path(REVISION, each.key), Revision), target):
            before = manifests.read_history(manifests.path(LEDGER, each.key, ledger.build.variant), Ledger)
            if before is not None and has_all_suites(before):
                return before
    return None


def builds_to_compare(manifests: ManifestStore, after: Build | None = None) -> tuple[Build, Build]:
    """Return a build, the newest finished one by default, after the one that it is compared with.

    Raises `AccelCiError` where there is no such pair.
    """
    builds = manifests.list_builds() if after is None else iter([after])
    ledger = next((found for build in builds if (found := manifests.find(LEDGER, build, Ledger))), None)
    if ledger is None:
        raise AccelCiError(f"{f'{after.name} has no' if after else 'no build has a'} ledger; name the two builds to compare")
    before = finished_before(manifests, ledger, target_of(manifests, ledger.build))
    if before is None:
        raise AccelCiError(
            f"no earlier build of the trigger and variant of {ledger.build.name} has all of its suites; "
            "name the two builds to compare"
        )
    return before.build, ledger.build


def count_newly_failing(manifests: ManifestStore, results: ResultsStore, ledger: Ledger) -> int | None:
    """Count the tests that fail and did not in the build before; None where there is no such build, or it is unreadable."""
    try:
        before = finished_before(manifests, ledger, target_of(manifests, ledger.build))
        if before is None:
            return None
        return sum(change.suite in ledger.suites for change in newly_failing(results, before.build, ledger.build))
    except AccelCiError as error:
        _LOG.warning("%s cannot be compared with the build before: %s", ledger.build.name, error)
        return None
