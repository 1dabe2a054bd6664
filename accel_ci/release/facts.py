"""Gather the facts of a build that the gate judges, and keep people's overrides."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timezone

from accel_ci.config.release_settings import Index
from accel_ci.errors import AccelCiError
from accel_ci.ledger.activity import read_activity
from accel_ci.ledger.status import shortcomings
from accel_ci.ledger.wanted_suites import wanted_suites
from accel_ci.model import Build, Ledger, Revision, RuntimeImage, Wheel
from accel_ci.pipelines import LEDGER, REVISION, RUNTIME_IMAGE, WHEEL
from accel_ci.quality.flakiness import measure
from accel_ci.quality.levels import Figure
from accel_ci.quality.report import make_report
from accel_ci.redaction import redact
from accel_ci.release.gate import BuildFacts, Decision, Override, judge
from accel_ci.release.tags import ReleaseTag
from accel_ci.source.revision import components_at_changes
from accel_ci.workspace import Workspace

OVERRIDE = "release_override"
"""The manifest of a build's override."""


def decide(
    workspace: Workspace,
    build: Build,
    tag: ReleaseTag | None = None,
    *,
    index: Index | None = None,
    in_its_run: bool = False,
) -> Decision:
    """Judge a build by the project's gate, with its override. `index` is the index that it goes to.

    `in_its_run` is true for a step of the build's own run, which keeps other runs away. Raises `AccelCiError` where there is
    no section `release` or no such revision.
    """
    settings = workspace.project.settings
    if settings.release is None:
        raise AccelCiError("the configuration has no section 'release', so nothing is released; see docs/release.md")
    gate, manifests = settings.release.gate, workspace.manifests
    revision = manifests.read(manifests.path(REVISION, build.revision), Revision)
    wheel = manifests.find(WHEEL, build, Wheel)
    image = manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    checks = (*wheel.checks, *(image.checks if image is not None else ())) if wheel is not None else None
    # A version of a component goes out by all suites of the job, whichever a person has chosen for the build.
    whole = replace(revision, suites=()) if tag is not None and tag.component is not None else revision
    facts = BuildFacts(
        trigger=revision.trigger,
        activity=() if in_its_run else tuple(read_activity(manifests, build).values()),
        source=revision.backend,
        ledger=(ledger := manifests.find(LEDGER, build, Ledger)),
        wanted=tuple(suite for _, suite in wanted_suites(workspace, whole, build)),
        checks=checks,
        version=wheel.version if wheel is not None else None,
        tag=tag,
        level=settings.quality.level,
        figures=_figures(workspace) if gate.quality else (),
        public_only=index is not None and not index.local_versions,
        stack=revision.stack,
        at_changes=components_at_changes(settings, revision),
    )
    word = manifests.find(OVERRIDE, build, Override)
    is_on_these = word is not None and word.results in (None, results_digest(ledger))
    return Decision(judge(gate, facts), word if is_on_these else None)


def results_digest(ledger: Ledger | None) -> str:
    """Name the results of a build, which an override is on: another run may fail for another reason."""
    of = (
        None
        if ledger is None
        else (ledger.digest, sorted(ledger.counts.items()), shortcomings(ledger), sorted(ledger.muted))
    )
    return hashlib.sha256(repr(of).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def override(workspace: Workspace, build: Build, person: str, reason: str) -> Override:
    """Record that a person releases a build in spite of the criteria that it does not meet now, and return the record.

    Raises `AccelCiError` without a name or a reason, if all criteria are met, or if one of them is firm.
    """
    person, reason = person.strip(), redact(reason.strip())
    if not person or not reason:
        raise AccelCiError("an override needs the name of a person and a reason: they are kept with the release")
    unmet = [each for each in decide(workspace, build).criteria if not each.met]
    if not unmet:
        raise AccelCiError(f"{build.name} meets all criteria; there is nothing to override")
    if firm := [each.name for each in unmet if each.firm]:
        raise AccelCiError(f"{', '.join(firm)}: nobody can override this; `accel-ci release check {build.name}` has more")
    results = results_digest(workspace.manifests.find(LEDGER, build, Ledger))
    word = Override(person, reason, datetime.now(timezone.utc), tuple(each.name for each in unmet), results)
    workspace.manifests.write(workspace.manifests.path(OVERRIDE, build.revision, build.variant), word)
    return word


def _figures(workspace: Workspace) -> tuple[Figure, ...]:
    now = datetime.now(timezone.utc)
    flakiness = measure(workspace.trusted_results, now.date(), workspace.project.settings.quality.window_days)
    return make_report(workspace, flakiness, now).figures
