"""Say who looks after failures: the owner that a decision on a flaky test names, else that of the first rule that matches.

The rules are `quality.owners` of the settings; the facts of tests are read from the scope of the builds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import date

import pyarrow as pa

from accel_ci.config.settings import OwnerRule
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.quality.incidents import Incident, Key
from accel_ci.quality.quarantine_file import as_entries, read_decisions
from accel_ci.quality.versions import Cause
from accel_ci.results.columns import kernels
from accel_ci.scope.rules import Rule, TestIndex, decide
from accel_ci.scope.table import FACTS, facts_table, read_scope
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)
_IN_THE_NAME = {"tests", "files"}
"""The criteria that need no more than a test's id."""


def with_owners(workspace: Workspace, incidents: Sequence[Incident], builds: Iterable[Build], today: date) -> list[Incident]:
    """Return incidents with the owner of most of their tests; of several, the one that comes first in the alphabet.

    `builds` are those whose scope tells what the tests are, the newest first.
    """
    failures = {(incident.cause, key) for incident in incidents for key in incident.now}
    owners = owners_of(workspace, failures, builds, today)
    found = []
    for incident in incidents:
        counts = Counter(owner for key in incident.now if (owner := owners.get((incident.cause, key))) is not None)
        owner = min(counts, key=lambda name: (-counts[name], name), default=None)
        found.append(replace(incident, owner=owner))
    return found


def owners_of(
    workspace: Workspace, failures: Collection[tuple[Cause, Key]], builds: Iterable[Build], today: date
) -> dict[tuple[Cause, Key], str]:
    """Return the owner of each failure that has one, by cause and test. A failure of the infrastructure is no test's."""
    rules = workspace.project.settings.quality.owners
    found: dict[tuple[Cause, Key], str] = {}
    if rules and failures:
        tests = sorted({test for _, (_, _, test) in failures})
        needs_more = any(rule.criteria.keys() - _IN_THE_NAME for rule in rules)
        facts = _facts(workspace, tests, builds if needs_more else ())
        for cause in {cause for cause, _ in failures}:
            by_test = _decided([rule for rule in rules if cause in rule.causes], facts)
            found |= {(of, key): by_test[key[2]] for of, key in failures if of == cause and key[2] in by_test}
    decisions = read_decisions(workspace.project)
    for variant in {variant for _, (variant, _, _) in failures} if decisions else ():
        entries = {
            entry.identity: entry.owner
            for entry in as_entries(decisions, variant)
            if entry.owner is not None and entry.since <= today <= entry.expires
        }
        found |= {
            (cause, key): entries[key[1:]]
            for cause, key in failures
            if cause != "infra" and key[0] == variant and key[1:] in entries
        }
    return found


def _decided(rules: Sequence[OwnerRule], facts: pa.Table) -> dict[str, str]:
    """The owner of each test that a rule matches."""
    decisions = decide([Rule(rule.owner, rule.criteria) for rule in rules], TestIndex(facts))
    owners = zip(facts["test"].to_pylist(), decisions.rules, strict=True)
    return {str(test): rules[number].owner for test, number in owners if number >= 0}


def _facts(workspace: Workspace, tests: Sequence[str], builds: Iterable[Build]) -> pa.Table:
    """The facts of tests from the newest scope of each variant; of tests in none of them, the facts in their ids."""
    manifests, parts, left = workspace.manifests, list[pa.Table](), set(tests)
    seen = set[str]()
    for build in builds:
        if not left or build.variant in seen:
            continue
        selection = manifests.read_history(manifests.path(TEST_SELECTION, build.revision, build.variant), TestSelection)
        if selection is None or selection.scope is None:
            continue
        seen.add(build.variant)
        try:
            table = read_scope(selection.scope, workspace.artifacts).select(FACTS.names)
        except AccelCiError as error:
            _LOG.warning("passed over: %s", error)
            continue
        names = pa.array(sorted(left), pa.string())
        rows = kernels.drop_null(kernels.index_in(names, table["test"].combine_chunks()))
        parts.append(table.take(rows))
        left -= set(parts[-1]["test"].to_pylist())
    return pa.concat_tables([*parts, facts_table(sorted(left), {})])
