"""Hold the choice of tests for a change against what the next build showed: the new failures that it would have missed.

Pure: choices and failures in, judgements and their sums out. A choice of all tests misses nothing, so its size counts too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from accel_ci.model import Build
from accel_ci.ramp.chances import RampTest
from accel_ci.ramp.changed import Choice

TestKey = tuple[str, str]
"""Suite and test."""

WHOLE = "whole"
"""The kind of failures that are found because the change makes all tests run."""

_NAMED = 3


@dataclass(frozen=True)
class MissedTest:
    """A test that newly failed and was not chosen, and why not."""

    suite: str
    test: str
    file: str
    op: str | None
    why: str


@dataclass(frozen=True)
class PullFailures:
    """The new failures of a build, held against what its merged pull requests `pulls` (revisions) had run.

    `decided` counts those that one of them ran, or of which all commits are of pull requests that ran a part; `missed` are
    those of them that none ran. The others may come from commits that no pull request has.
    """

    pulls: tuple[str, ...] = ()
    decided: int = 0
    missed: tuple[TestKey, ...] = ()


@dataclass(frozen=True)
class JudgedBuild:
    """A build held against the tests that would have been chosen for the change since the build `before`.

    `basis` names the judgement of its failures. `commits` are the labels of the first and the last state, `count` the
    commits between them. `words` say what was chosen; a build that cannot be judged has a `problem` instead. Of the `tests`
    enabled tests, which take `card_s` card-seconds, `chosen` ones would have run, in `chosen_s`.
    `found` counts the new failures that were chosen, by the kind of the reason, and `missed` are the others. `left_out`
    counts failures of which nothing follows, by their cause or why.
    """

    build: Build
    at: datetime
    basis: str = ""
    before: Build | None = None
    commits: tuple[str, str] = ("", "")
    count: int = 0
    words: str = ""
    problem: str | None = None
    tests: int = 0
    chosen: int = 0
    card_s: float = 0.0
    chosen_s: float = 0.0
    found: Mapping[str, int] = field(default_factory=dict, hash=False)
    missed: tuple[MissedTest, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    pulls: PullFailures = field(default_factory=PullFailures)

    @property
    def failures(self) -> int:
        """The new failures that were chosen or missed."""
        return sum(self.found.values()) + len(self.missed)


@dataclass(frozen=True)
class MissSums:
    """The sums of judged builds: new failures, those that were missed, and the sizes of what was chosen.

    `pull_failures` and `pull_missed` are of the merged pull requests that ran a part of the tests.
    """

    builds: int = 0
    failures: int = 0
    missed: int = 0
    chosen: int = 0
    tests: int = 0
    chosen_s: float = 0.0
    card_s: float = 0.0
    pull_failures: int = 0
    pull_missed: int = 0

    @property
    def chosen_share(self) -> float | None:
        """The share of the tests that was chosen, over all builds; None without tests."""
        return self.chosen / self.tests if self.tests else None

    @property
    def time_share(self) -> float | None:
        """The share of the card-seconds that the chosen tests take; None without any."""
        return self.chosen_s / self.card_s if self.card_s else None


def sum_up(builds: Iterable[JudgedBuild]) -> MissSums:
    """Add up the builds that could be judged."""
    judged = [each for each in builds if each.problem is None]
    return MissSums(
        len(judged),
        sum(each.failures for each in judged),
        sum(len(each.missed) for each in judged),
        sum(each.chosen for each in judged),
        sum(each.tests for each in judged),
        sum(each.chosen_s for each in judged),
        sum(each.card_s for each in judged),
        sum(each.pulls.decided for each in judged),
        sum(len(each.pulls.missed) for each in judged),
    )


def size_of(choice: Choice, tests: Iterable[RampTest]) -> tuple[int, int, float, float]:
    """Return the enabled and the chosen tests, and the card-seconds of both."""
    enabled = [test for test in tests if test.enabled]
    chosen = [test for test in enabled if choice.whole is not None or (test.suite, test.test) in choice.tests]
    return len(enabled), len(chosen), sum(test.cost_s for test in enabled), sum(test.cost_s for test in chosen)


def hold_against(
    choice: Choice, tests: Mapping[TestKey, RampTest], failures: Collection[TestKey]
) -> tuple[Counter[str], list[MissedTest]]:
    """Return the new failures that a choice has, counted by the kind of its reasons, and those that it has not."""
    found: Counter[str] = Counter()
    missed = []
    for key in sorted(failures):
        if choice.whole is not None:
            found[WHOLE] += 1
        elif (reason := choice.tests.get(key)) is not None:
            found[reason.kind] += 1
        else:
            test = tests[key]
            missed.append(MissedTest(test.suite, test.test, test.file, test.op, _why_not(test, choice)))
    return found, missed


def _why_not(test: RampTest, choice: Choice) -> str:
    """Say why a test was not chosen: all rules that could have found it, in words."""
    words = f"no changed source names the op {test.op}" if test.op is not None else "it has no op"
    if choice.silent:
        more = f", and {len(choice.silent) - _NAMED:,} more" if len(choice.silent) > _NAMED else ""
        words += f" (no op is named in {', '.join(choice.silent[:_NAMED])}{more})"
    return f"{words}; its file did not change, it passed before, and the sample does not have it"


def hold_against_pulls(
    failures: Collection[TestKey],
    commits: Sequence[str],
    pulls: Mapping[str, tuple[str, frozenset[TestKey] | None]],
) -> PullFailures:
    """Hold new failures against what the merged pull requests had run.

    `commits` are all between the builds, and `pulls` has those of pull requests: the revision, and the tests that ran, None
    where all did.
    """
    ran = [tests for _, tests in pulls.values()]
    if all(tests is None for tests in ran):  # none ran a part, or there is none
        return PullFailures()
    are_all_known = all(commit in pulls for commit in commits)
    found = {key for key in failures if any(tests is None or key in tests for tests in ran)}
    missed = tuple(sorted(set(failures) - found)) if are_all_known else ()
    return PullFailures(tuple(sorted({revision for revision, _ in pulls.values()})), len(found) + len(missed), missed)
