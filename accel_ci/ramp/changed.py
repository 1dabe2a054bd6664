"""Choose the tests that a change may concern: of changed files and ops, of recent failures, new ones, and a sample.

All that is needed comes as data; every chosen test has its reason. If the effect of a changed file cannot be bounded, all
tests run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from accel_ci.model import SelectedTest
from accel_ci.ramp.chances import RampTest
from accel_ci.ramp.named_ops import OpNames, named_ops
from accel_ci.source.changes import ChangedFile

Kind = Literal["unknown", "file", "op", "failed", "new", "group", "sample"]

_IN_WORDS: Mapping[Kind, str] = {
    "unknown": "of suites that no nightly and no build of main has run",
    "file": "of changed files",
    "op": "of changed ops",
    "failed": "that failed lately",
    "new": "newly enabled",
    "group": "that run together with those",
    "sample": "as a sample",
}

UNBOUNDED = (
    "accel_ci.yaml", "setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "requirements*.txt", "constraints*.txt",
    "*.lock", "CMakeLists.txt", "*.cmake", "CMakePresets.json", "Makefile", "*.mk", "meson.build", "meson_options.txt",
    "BUILD", "WORKSPACE", "*.bazel", "*.bazel.lock", "*.bzl", ".bazelrc", ".bazelversion", "Dockerfile*", "*.patch",
    "conftest.py", "pytest.ini", "tox.ini", ".coveragerc", ".gitmodules", ".gitattributes",
)  # fmt: skip
"""Patterns of names of files that decide how everything is built or tested."""

WITHOUT_EFFECT = (
    "*.md", "*.rst", "LICENSE*", "NOTICE*", "AUTHORS*", "CODEOWNERS", ".gitignore", ".editorconfig",
    ".pre-commit-config.yaml",
)  # fmt: skip
"""Patterns of names of files that concern no test."""

_FOLDERS_WITHOUT_EFFECT = (["docs"], [".github"])
_TEST_FILES = ("test_*.py", "*_test.py")
_TEST_FOLDERS = ("test", "tests", "testing")
_NAMED = 3
_LONGEST = 200


@dataclass(frozen=True)
class SuiteBefore:
    """A suite in its last finished build of main or nightly: the revision, and its tests that were enabled, or failed."""

    revision: str
    enabled: frozenset[str]
    failed: frozenset[str]


@dataclass(frozen=True)
class FileRules:
    """Facts about files beyond their names.

    `tests` are the files that tests were collected from, `suite_paths` the paths of the backend's suites, and `named` are
    files that the configuration names, each with its key.
    """

    tests: frozenset[str] = frozenset()
    suite_paths: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reason:
    """The reason why a test runs: its kind, and in words."""

    kind: Kind
    words: str


@dataclass(frozen=True)
class Choice:
    """The chosen tests (suite and id), each with its reason; where all tests must run, `whole` has the reason.

    `silent` are changed source files that name no op.
    """

    tests: Mapping[tuple[str, str], Reason] = field(default_factory=dict)
    whole: str | None = None
    silent: tuple[str, ...] = ()

    def in_words(self, enabled: int, *, are_first: bool = False) -> str:
        """Count the chosen tests of all enabled ones by their reasons; if they `are_first`, the others follow."""
        if self.whole is not None:
            return f"all {enabled:,} tests: {self.whole}"
        counts = Counter(reason.kind for reason in self.tests.values())
        parts = ", ".join(f"{counts[kind]:,} {words}" for kind, words in _IN_WORDS.items() if counts[kind])
        silent = f"; no op is named in {_some(self.silent)}" if self.silent else ""
        if are_first and not self.tests:
            return f"all {enabled:,} tests: none is known to be concerned{silent}"
        return f"{len(self.tests):,} of {enabled:,} tests{' first' if are_first else ''}: {parts}{silent}"

    def without_sample(self) -> Choice:
        """Return the choice of the tests that the change is known to concern."""
        return replace(self, tests={test: reason for test, reason in self.tests.items() if reason.kind != "sample"})


def choose_tests(
    tests: Iterable[RampTest],
    changed: Sequence[ChangedFile],
    before: Mapping[str, SuiteBefore],
    rules: FileRules,
    sample_card_s: float,
) -> Choice:
    """Choose among the enabled tests of all suites. The sample of other ops takes up to `sample_card_s` card-seconds.

    `before` has the suites that a finished build knows; all tests of others run, and at least one test of each suite does.
    """
    effects = [(file, _effect(file, rules)) for file in changed]
    if unbounded := [f"{_shown(file.path)} changes, which {effect}" for file, effect in effects if effect not in _BOUNDED]:
        return Choice(whole=_some(unbounded))
    if not changed:
        return Choice(whole="nothing differs from the target")
    enabled = [test for test in tests if test.enabled]
    files = {file.path for file, effect in effects if effect == "tests"}
    sources, silent = _sources([file for file, effect in effects if effect == "source"], enabled)
    chosen: dict[tuple[str, str], Reason] = {}
    for test in enabled:
        known = before.get(test.suite)
        reason: Reason | None = None
        if known is None:
            reason = Reason("unknown", f"no nightly and no build of main has run the suite {test.suite}")
        elif test.file in files:
            reason = Reason("file", "its file changed")
        elif test.op in sources:
            reason = Reason("op", f"op {test.op} is named in {_shown(sources[test.op])}")
        elif test.test in known.failed:
            reason = Reason("failed", f"failed in {known.revision}")
        elif test.test not in known.enabled:
            reason = Reason("new", f"is not among the enabled tests of {known.revision}")
        if reason is not None:
            chosen[test.suite, test.test] = reason
    for test, words in _sample(enabled, chosen, sample_card_s):
        chosen[test.suite, test.test] = Reason("sample", words)
    return Choice(chosen, silent=silent)


_BOUNDED = ("tests", "none", "source")


def _effect(file: ChangedFile, rules: FileRules) -> str:
    """The effect of a changed file: one of `_BOUNDED`, or else the words that say why it may concern all tests."""
    *folders, name = file.path.split("/")
    if file.path in rules.named:
        return f"is {rules.named[file.path]}"
    if _matches(name, UNBOUNDED):
        return "may concern all tests"
    if file.path in rules.tests:
        return "tests"
    if _matches(name, WITHOUT_EFFECT) or [each for each in folders if each != ".."][:1] in _FOLDERS_WITHOUT_EFFECT:
        return "none"
    if folders[:1] == [".."]:
        return "is outside of the backend's sources"
    if file.kind != "text":
        return "is no text" if file.kind == "binary" else "is a link or a submodule"
    if any(_is_below(file.path, _test_folder(path)) for path in rules.suite_paths):
        return "none" if _matches(name, _TEST_FILES) else "tests may share"
    return "source"


def with_groups(choice: Choice, tests: Sequence[SelectedTest]) -> Choice:
    """Add the tests that must run together with chosen ones."""
    chosen = {(test.suite, test.group) for test in tests if test.group and (test.suite, test.test) in choice.tests}
    together = {
        (test.suite, test.test): Reason("group", f"runs together with others of the group {_shown(test.group)}")
        for test in tests
        if test.group and (test.suite, test.group) in chosen
    }
    return replace(choice, tests={**together, **choice.tests})


def _sources(files: Iterable[ChangedFile], tests: Iterable[RampTest]) -> tuple[dict[str | None, str], tuple[str, ...]]:
    """The first file that names each op, and the files that name none."""
    known = OpNames(test.op for test in tests if test.op is not None)
    found: dict[str | None, str] = {}
    silent = []
    for file in files:
        ops = named_ops(file, known)
        for op in ops:
            found.setdefault(op, file.path)
        if not ops:
            silent.append(_shown(file.path))
    return found, tuple(silent)


def _sample(
    tests: Iterable[RampTest], chosen: Mapping[tuple[str, str], Reason], card_s: float
) -> Iterator[tuple[RampTest, str]]:
    """Yield a test of each other op, or of each other file for tests without an op, the cheapest first, with its reason.

    One that did not pass when it last ran is taken only where there is no other. Of a suite, at least one is taken.
    """
    groups: defaultdict[tuple[str, str], list[RampTest]] = defaultdict(list)
    suites: set[str] = set()
    covered: set[tuple[str, str]] = set()
    for test in tests:
        group = ("op", test.op) if test.op is not None else ("file", test.file)
        groups[group].append(test)
        if (test.suite, test.test) in chosen:
            suites.add(test.suite)
            covered.add(group)
    best = {group: min(some, key=_preference) for group, some in groups.items() if group not in covered}
    for (kind, name), test in sorted(best.items(), key=lambda item: (item[1].cost_s, item[0])):
        if test.cost_s <= card_s:
            card_s -= test.cost_s
            suites.add(test.suite)
            yield test, f"sample of {'op ' if kind == 'op' else ''}{_shown(name)}"
    without: defaultdict[str, list[RampTest]] = defaultdict(list)
    for test in (test for some in groups.values() for test in some if test.suite not in suites):
        without[test.suite].append(test)
    for suite, some in sorted(without.items()):
        yield min(some, key=_preference), f"sample of the suite {suite}"


def _preference(test: RampTest) -> tuple[object, ...]:
    return test.doubtful, test.cost_s, test.suite, test.test


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_below(path: str, folder: str) -> bool:
    return folder in ("", ".") or path == folder or path.startswith(f"{folder}/")


def _test_folder(path: str) -> str:
    """The folder of tests that a suite's path is in: up to a part named `tests`, say, or the path itself."""
    parts = path.rstrip("/").split("/")
    ends = [place for place, part in enumerate(parts) if part in _TEST_FOLDERS]
    return "/".join(parts[: ends[0] + 1]) if ends else "/".join(parts)


def _some(words: Sequence[str]) -> str:
    """The first ones, and the number of the others."""
    more = [f"and {len(words) - _NAMED:,} more"] if len(words) > _NAMED else []
    return ", ".join([*words[:_NAMED], *more])


def _shown(name: str) -> str:
    """A name from a pull request in printable characters."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:_LONGEST]
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
