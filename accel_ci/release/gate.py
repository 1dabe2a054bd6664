"""The gate of a release: the criteria that a build must meet, each with its value. Pure: facts in, criteria out.

Gathering the facts of a build belongs in `facts.py`, and what a build that meets them does in `publish.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import get_args

from packaging.version import Version

from accel_ci.config.release_settings import Gate, Released
from accel_ci.ledger.status import shortcomings
from accel_ci.model import CheckResult, Ledger, Source, Trigger, Verdict
from accel_ci.quality.levels import Figure, shown
from accel_ci.release.tags import ReleaseTag

_PASSING: tuple[Verdict, ...] = ("passed", "flaky", "xpassed")


@dataclass(frozen=True)
class BuildFacts:
    """The facts of a build that a gate judges.

    `activity` has what pipelines do beside the ledger, or where they stopped. `wanted` are the suites of its job. `checks`
    are those of its wheel and image, None where there is no wheel. `version` is the wheel's, and `tag` the release tag that
    the build is released by, None for a build that is none. `level` is the backend's. `public_only` is true if it goes to an
    index that takes no local version, such as `1.0+g0123`. `stack` are the states of the stack's components,
    of which some may be `at_changes`: at change requests that nobody has merged.
    """

    trigger: Trigger
    activity: tuple[str, ...]
    source: Source
    ledger: Ledger | None
    wanted: tuple[str, ...]
    checks: tuple[CheckResult, ...] | None
    version: str | None
    tag: ReleaseTag | None
    level: str | None
    figures: tuple[Figure, ...]
    public_only: bool = False
    stack: Mapping[str, Source] = field(default_factory=dict)
    at_changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Criterion:
    """A condition of a release, the value that it was judged by, and what is wanted.

    One that is `firm` is not a matter of opinion, so that nobody may override it.
    """

    name: str
    met: bool
    value: str
    wanted: str
    firm: bool = False


@dataclass(frozen=True)
class Override:
    """A person's word that a build is released although it does not meet `criteria`, and the reason.

    `results` is the digest of the ledger that the person has seen; None in records of earlier versions.
    """

    person: str
    reason: str
    at: datetime
    criteria: tuple[str, ...]
    results: str | None = None


@dataclass(frozen=True)
class Decision:
    """The criteria of a build, and the override that covers those that are not met, if there is one."""

    criteria: tuple[Criterion, ...]
    override: Override | None = None

    @property
    def refused_by(self) -> tuple[Criterion, ...]:
        """The criteria that keep the build from being released."""
        covered = set(self.override.criteria) if self.override is not None else set()
        return tuple(each for each in self.criteria if not each.met and (each.firm or each.name not in covered))

    @property
    def goes_out(self) -> bool:
        """True if the build may be released."""
        return not self.refused_by


def judge(gate: Gate, facts: BuildFacts) -> tuple[Criterion, ...]:
    """Return all criteria of a build. Without a ledger, only those that need none."""
    return (*_of_sources(facts), *_of_ledger(gate, facts), *_of_checks(gate, facts), *_of_quality(gate, facts))


def _of_sources(facts: BuildFacts) -> Iterator[Criterion]:
    activity = "; ".join(facts.activity)
    yield Criterion("at rest", not activity, activity or "no run works on it", "the last run has reported", firm=True)
    allowed: tuple[str, ...] = get_args(Released)
    yield Criterion("trigger", facts.trigger in allowed, facts.trigger, f"one of {', '.join(allowed)}", firm=True)
    yield Criterion("sources", _is_commit(facts.source), _state(facts.source), "a commit", firm=True)
    if facts.stack:
        states = ", ".join(f"{name} {_state(source)}" for name, source in facts.stack.items())
        met = all(map(_is_commit, facts.stack.values()))
        yield Criterion("stack", met, states, "each component is a commit", firm=True)
    if facts.at_changes:
        refs = ", ".join(f"{name} {facts.stack[name].ref}" for name in facts.at_changes)
        yield Criterion("merged", False, refs, "no component is at a change request", firm=True)
    if (tag := facts.tag) is not None:
        source = facts.source if tag.component is None else facts.stack.get(tag.component)
        built_from, at = source.sha if source is not None else None, tag.sha or "no such tag"
        met = tag.sha == built_from is not None
        yield Criterion("tag", met, f"{tag.shown} is {at}", f"is {built_from or 'a part of the build'}", firm=True)
    if (tag := facts.tag) is not None and tag.component is None:
        built = facts.version or "no wheel"
        same = facts.version is not None and Version(Version(facts.version).public) == tag.version
        yield Criterion("version", same, built, f"{tag.version}, as the tag says", firm=True)
    if facts.public_only and facts.version is not None:
        local = Version(facts.version).local
        yield Criterion("public version", local is None, facts.version, "no local version: this index takes none", firm=True)


def _is_commit(source: Source) -> bool:
    return source.sha is not None and not source.dirty


def _state(source: Source) -> str:
    return (source.sha or source.note or "unknown") + (" with uncommitted changes" if source.dirty else "")


def _of_ledger(gate: Gate, facts: BuildFacts) -> Iterator[Criterion]:
    ledger = facts.ledger
    there = ledger is not None
    yield Criterion("ledger", there, "is there" if there else "is missing", "the build has ended", firm=True)
    if ledger is None:
        return
    total = sum(ledger.counts.values())
    balance = f"{ledger.expected} expected, {total} accounted for"
    yield Criterion("balance", total == ledger.expected, balance, "each test has one verdict", firm=True)
    passed = sum(ledger.counts.get(verdict, 0) for verdict in _PASSING)
    yield Criterion("tests", passed > 0, f"{passed} passed", "some test passed", firm=True)
    yield Criterion("passed", passed >= gate.passed, f"{passed} passed", f"at least {gate.passed}")
    bad = shortcomings(ledger)
    yield Criterion("green", not bad and not ledger.informative, ", ".join(bad) or "nothing failed", "nothing fails")
    for suite in gate.suites or facts.wanted:
        own = sum(ledger.suites.get(suite, {}).get(verdict, 0) for verdict in _PASSING)
        yield Criterion(f"suite {suite}", own > 0, f"{own} passed", "some test passed")
    share = ledger.counts.get("flaky", 0) / max(1, ledger.expected)
    yield Criterion("flaky", share <= gate.flaky, f"{share:.1%} of the tests", f"at most {gate.flaky:.1%}")
    if gate.muted is not None:
        yield Criterion("muted", len(ledger.muted) <= gate.muted, f"{len(ledger.muted)} failures", f"at most {gate.muted}")


def _of_checks(gate: Gate, facts: BuildFacts) -> Iterator[Criterion]:
    yield Criterion("wheel", facts.checks is not None, facts.version or "is missing", "there is one", firm=True)
    for check in facts.checks if gate.checks and facts.checks is not None else ():
        yield Criterion(f"check {check.name}", check.passed, check.summary, "holds")


def _of_quality(gate: Gate, facts: BuildFacts) -> Iterator[Criterion]:
    if gate.level is not None:
        reached = facts.level is not None and facts.level >= gate.level
        yield Criterion("level", reached, facts.level or "none", f"{gate.level} or higher")
    figures = {each.name: each for each in facts.figures}
    for name in gate.quality:
        figure = figures.get(name)
        if figure is None:
            known = "one that `accel-ci quality` lists"
            yield Criterion(f"quality: {name}", False, "there is no such criterion", known)
        else:
            yield Criterion(f"quality: {name}", figure.met is True, shown(figure), figure.goal)


def unmet_in_words(criteria: Sequence[Criterion]) -> str:
    """Name criteria that are not met, each with its value and what is wanted."""
    return "; ".join(f"{each.name}: {each.value} (wanted: {each.wanted})" for each in criteria)
