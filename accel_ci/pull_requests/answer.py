"""The answer to a pull request: check runs and one comment, in which each failure is the change's own or not. Pure.

Success is only said of a build whose ledger is complete and in which something passed. What follows from the causes of
failures (`accel_ci.quality`) and from the build of the merge base is decided here; all names and messages are hostile.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

from accel_ci.github.markdown import LONGEST_TEXT, block, code, fitting, inert, one_line, web_address
from accel_ci.ledger.status import deviceless_shortcoming, shortcomings
from accel_ci.model import Build, Ledger, TestVerdict, Verdict
from accel_ci.quality.causes import Blame, Identity

Kind = Literal["new", "unknown", "broken base", "upstream", "flaky", "infra", "muted"]
"""A failure to the author: the change's own, one that cannot be told yet, or one that is not the change's."""

KINDS: Mapping[Kind, str] = {
    "new": "new",
    "unknown": "not known yet",
    "broken base": "broken in the base, too",
    "upstream": "broken by upstream",
    "flaky": "flaky",
    "infra": "lost by the infrastructure",
    "muted": "in quarantine",
}

Progress = Literal["waiting", "queued", "running", "stopped", "cancelled", "ended"]
Conclusion = Literal["success", "failure", "neutral", "cancelled"]

_BAD: tuple[Verdict, ...] = ("failed", "infra", "not_run")
_LONGEST_NAME = 250
_SHOWN_TESTS = 20
_MESSAGE = 200


@dataclass(frozen=True)
class Failure:
    """A test that did not simply pass, and whose failure that is."""

    suite: str
    test: str
    kind: Kind
    message: str = ""


@dataclass(frozen=True)
class Base:
    """The comparison of a build of a pull request with an earlier one.

    `commit` is the merge base, None where it cannot be told. `build` is the build that is compared with, None where there
    is none yet, `is_merge_base` whether that tested the merge base itself, and `digest` the content of its ledger.
    `target` is the branch that the pull request is for, None for the configured one.
    """

    commit: str | None = None
    build: Build | None = None
    is_merge_base: bool = False
    digest: str = ""
    target: str | None = None


@dataclass(frozen=True)
class Tested:
    """A pipeline of a build of a pull request, as far as it has come. `ledger` is that of the last run, once it has ended.

    `base` is what it is compared with. `activity` says where a run is, or where it stopped; `shortcomings` are the reasons
    why the build does not pass but for its failures. `deviceless` is the account of the deviceless suites where no other
    suite has run after them: they failed, or a stranger's pull request waits for a label.
    """

    __test__ = False

    pipeline: str
    variant: str
    progress: Progress
    build: Build | None = None
    activity: str = ""
    ledger: Ledger | None = None
    failures: tuple[Failure, ...] = ()
    shortcomings: tuple[str, ...] = ()
    base: Base = Base()
    page: str | None = None
    subset: str | None = None
    deviceless: Ledger | None = None

    @property
    def counts(self) -> Counter[Kind]:
        """The failures by kind."""
        return Counter(failure.kind for failure in self.failures)

    @property
    def closed(self) -> bool:
        """True if the deviceless suites keep the others from running."""
        return self.deviceless is not None and deviceless_shortcoming(self.deviceless) is not None


def sort_failures(
    ledger: Ledger, bad: Iterable[TestVerdict], blames: Iterable[Blame], base: Mapping[Identity, Verdict] | None
) -> tuple[Failure, ...]:
    """Say whose each failure of a build is.

    `bad` are its tests that failed, were flaky or lost, `base` those of the build to compare with, None where there is none.
    A cause of the quality rules goes before the comparison with the base, but for what they cannot tell from few builds.
    """
    of_test, muted = {blame.identity: blame for blame in blames}, set(ledger.muted)
    return tuple(
        Failure(
            one.suite,
            one.test,
            "muted" if f"{one.suite}: {one.test}" in muted else _kind(one, of_test.get(one.identity), base, ledger.build),
            one.message or "",
        )
        for one in bad
    )


def _kind(test: TestVerdict, blame: Blame | None, base: Mapping[Identity, Verdict] | None, build: Build) -> Kind:
    cause = blame.cause if blame is not None else "unknown"
    if cause == "infra" or test.verdict in ("infra", "not_run"):
        return "infra"
    if cause == "flaky" or test.verdict == "flaky":
        return "flaky"
    before = base.get(test.identity) if base is not None else None
    if before == "failed":
        return "broken base"
    if blame is not None and blame.since is not None and blame.since.revision != build.revision:
        return "broken base"
    if cause == "upstream":
        return "upstream"
    if before == "flaky":
        return "flaky"
    return "new" if base is not None or cause == "backend" else "unknown"


def conclude(tested: Tested, *, blocking: bool) -> Conclusion:
    """Conclude a check run that has ended. Unless it is `blocking`, it is neutral where it would be a failure.

    It fails for new failures, for those that cannot be told yet, and for what was not tested. It is neutral where nothing
    but the base, upstream, flaky tests or the infrastructure failed.
    """
    if tested.progress == "cancelled":
        return "cancelled"
    failure: Conclusion = "failure" if blocking else "neutral"
    ledger, counts = tested.ledger, tested.counts
    if ledger is None and tested.deviceless is not None and counts:
        return failure if counts["new"] or counts["unknown"] else "neutral"
    if ledger is None or counts["new"] or counts["unknown"]:
        return failure
    if tested.shortcomings or not _passed(ledger):
        is_lost = counts["infra"] > 0 and not ledger.missing_suites and not ledger.vanished_reasons
        return "neutral" if is_lost else failure
    failed = ledger.counts.get("failed", 0) - len(ledger.muted)
    return "neutral" if failed > 0 or counts["broken base"] or counts["upstream"] or counts["infra"] else "success"


def untested(ledger: Ledger) -> tuple[str, ...]:
    """Return the reasons why a build does not pass but for the verdicts of its tests, in a few words each."""
    bad = sum(ledger.counts.get(verdict, 0) for verdict in _BAD)
    others = {verdict: count for verdict, count in ledger.counts.items() if verdict not in _BAD}
    return shortcomings(replace(ledger, counts={**others, "passed": others.get("passed", 0) + bad}, muted=()))


def _passed(ledger: Ledger) -> int:
    return sum(ledger.counts.get(verdict, 0) for verdict in ("passed", "flaky", "xpassed"))


def check_name(tested: Tested) -> str:
    """Return the name of a check run."""
    return f"accel-ci / {tested.pipeline} / {tested.variant}"[:_LONGEST_NAME]


def check_run(tested: Tested, head: str, key: str, *, blocking: bool, reason: str = "") -> dict[str, Any]:
    """Return what GitHub is to show of a pipeline of a pull request; `key` tells it from others of its name."""
    body: dict[str, Any] = {"name": check_name(tested), "head_sha": head, "external_id": key}
    if tested.page is not None and (address := web_address(tested.page)) is not None:
        body["details_url"] = address
    if tested.progress in ("stopped", "cancelled", "ended"):
        body |= {"status": "completed", "conclusion": conclude(tested, blocking=blocking)}
    else:
        body["status"] = "in_progress" if tested.progress == "running" else "queued"
    lines = [*_report(tested)] or [inert(reason or title(tested))]
    body["output"] = {"title": title(tested)[:_LONGEST_NAME], "summary": _within("\n".join(lines), LONGEST_TEXT)}
    return body


def title(tested: Tested) -> str:
    """Return the answer in a few words: is it the change?"""
    counts = [f"{tested.counts[kind]:,} {words}" for kind, words in KINDS.items() if tested.counts[kind]]
    if tested.progress == "waiting":
        before = f"{_passed(tested.deviceless):,} deviceless tests passed; the others wait" if tested.deviceless else "waits"
        return f"{before} for a maintainer"
    if tested.progress in ("queued", "running"):
        return f"pending: {one_line(tested.activity) or tested.progress}"
    if tested.progress == "cancelled":
        return "cancelled"
    if tested.ledger is None and tested.deviceless is not None:
        return f"{', '.join(counts) or 'no deviceless test passed'}; no card was taken"
    if tested.ledger is None:
        return one_line(tested.activity) or "stopped before anything was tested"
    if tested.shortcomings:
        return one_line("; ".join(tested.shortcomings))
    if not _passed(tested.ledger):
        return "no test passed"
    return ", ".join(counts) or f"{tested.ledger.expected:,} tests passed or were excused"


def comment(head: str, tested: Sequence[Tested], marker: str, *, waiting: str = "") -> str:
    """Return the comment on a pull request: a table of its builds, the failures of each, and how to reproduce them.

    `waiting` says what a stranger's pull request waits for. The `marker` is a hidden line by which it is found again.
    """
    lines = [marker, f"**Tests of {code(head[:12])} on the accelerator**", ""]
    if waiting and not any(one.build for one in tested):
        return "\n".join([*lines, f"Not built yet: {inert(waiting)}."])
    if waiting:
        lines += [f"No card tests this yet: {inert(waiting)}.", ""]
    lines += ["| build | answer | compared with |", "| --- | --- | --- |"]
    for one in tested:
        name = code(f"{one.pipeline} / {one.variant}")
        shown = f'<a href="{escape(address)}">{name}</a>' if one.page and (address := web_address(one.page)) else name
        lines.append(f"| {shown} | {inert(title(one))} | {_base(one)} |")
    for one in tested:
        if report := _report(one):
            lines += [
                "",
                "<details>",
                f"<summary>{code(f'{one.pipeline} / {one.variant}')}</summary>",
                "",
                *report,
                "</details>",
            ]
    return _within("\n".join(lines), LONGEST_TEXT)


def _base(tested: Tested) -> str:
    base = tested.base
    if base.build is None:
        none = "no earlier build" if base.target is None else f"no build of {code(base.target.removeprefix('refs/heads/'))}"
        return "" if tested.ledger is None and tested.deviceless is None else none
    return f"{code(base.build.revision)}, {'the merge base' if base.is_merge_base else 'the newest build of the branch'}"


def _report(tested: Tested) -> list[str]:
    """Return the failures by kind, and the command that runs them again; nothing where there are none."""
    lines: list[str] = []
    if tested.subset is not None and tested.ledger is not None:
        lines += [f"Ran {inert(tested.subset)}.", ""]
    for kind, words in KINDS.items():
        of_kind = [failure for failure in tested.failures if failure.kind == kind]
        if not of_kind:
            continue
        tests = [block(one_line(f"{one.suite}: {one.test}{brief_message(one)}")) for one in of_kind[:_SHOWN_TESTS]]
        shown, _ = fitting(tests, LONGEST_TEXT // (2 * len(KINDS)))
        more = len(of_kind) - len(shown)
        lines += [f"{len(of_kind):,} {words}:", "", "<pre>", *shown, "</pre>"]
        lines += [f"{more:,} more are not shown.", ""] if more else [""]
    first = next((one for kind in KINDS for one in tested.failures if one.kind == kind), None)
    if first is not None and tested.build is not None and tested.ledger is not None:
        command = f"accel-ci reproduce {shlex.quote(tested.build.name)} {shlex.quote(one_line(first.test))}"
        lines += ["To reproduce the first one:", "", "<pre>", block(command), "</pre>"]
    return lines


def brief_message(failure: Failure) -> str:
    """Return the beginning of the message behind a colon, without the folders of the machine that the test ran on."""
    file = failure.test.partition("::")[0]
    text = re.sub(rf"/\S*/(?={re.escape(file)})", "", one_line(failure.message))[:_MESSAGE]
    return f": {text}" if text else ""


def _within(text: str, limit: int) -> str:
    """Cut a text that is too long at the end of a line; the names in it are already bounded."""
    if len(text.encode()) <= limit:
        return text
    kept, more = fitting(text.split("\n"), limit - 100)
    return "\n".join([*kept, f"</pre></details>\n\n{more:,} more lines are not shown."])
