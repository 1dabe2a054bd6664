"""The answer to a job of another CI system: the end of one build in words, and the exit status that follows from all. Pure.

It is small enough for the metadata of a run, so that a job gets the same answer from a project that runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from accel_ci.errors import AccelCiError
from accel_ci.ledger.status import shortcomings
from accel_ci.model import VERDICTS, Build, Ledger, TestVerdict, trigger_of_key
from accel_ci.pull_requests.answer import Conclusion, Failure, Tested, check_run, conclude, title
from accel_ci.redaction import redact
from accel_ci.results.ingest import IngestReport

ANSWER = "answer"
"""The metadata of a run in which a project keeps the answer to its build."""

STARTED_BY = "accel_ci/started_by"
"""The tag of a run with the id of the run of the job `start` that has queued it."""

CALLER = "accel_ci/caller"
"""The tag of a run of the job `start` by which the calling job finds it again."""

_NAMED = 20
"""So many failures are named; the summary has more of them."""


@dataclass(frozen=True)
class BuildAnswer:
    """The end of one pipeline of a build, or of a suite that was ingested (`part`).

    `summary` is Markdown with escaped text; all other texts are plain. `passed` counts the tests that passed, and
    `failures` are the first ones. `page` is the address of the build's page.
    """

    build: str
    part: str
    conclusion: Conclusion
    title: str
    summary: str = ""
    passed: int = 0
    page: str | None = None
    failures: tuple[Failure, ...] = ()


_ANSWER = TypeAdapter(BuildAnswer)


def answer_of(tested: Tested, problems: Sequence[str] = ()) -> BuildAnswer:
    """Answer with the end of a pipeline of a build, whose run met these `problems`. Each of them makes it a failure."""
    ended = replace(tested, progress="ended")
    counts = tested.ledger.counts if tested.ledger is not None else {}
    shown = check_run(ended, "", "", blocking=True)
    words = [*problems, *([title(ended)] if tested.ledger is not None or not problems else [])]
    return BuildAnswer(
        tested.build.name if tested.build is not None else "",
        f"{tested.pipeline} / {tested.variant}",
        "failure" if problems or _is_broken(ended) else conclude(ended, blocking=True),
        redact("; ".join(words)),
        redact(shown["output"]["summary"]) if tested.ledger is not None else "",
        sum(counts.get(verdict, 0) for verdict in ("passed", "flaky", "xpassed")),
        shown.get("details_url"),
        tuple(replace(one, test=redact(one.test), message=redact(one.message)) for one in tested.failures[:_NAMED]),
    )


def _is_broken(tested: Tested) -> bool:
    """Return whether the branch itself is broken. Only a pull request is not to blame for what its base has."""
    is_change = tested.build is not None and trigger_of_key(tested.build.revision) == "pr"
    return tested.counts["broken base"] > 0 and not is_change


def answer_of_reports(build: Build, suite: str, report: IngestReport, bad: Sequence[TestVerdict]) -> BuildAnswer:
    """Answer with what reports of the calling job's own tests say. `bad` are its tests that did not simply pass.

    A report that is not whole is a failure, as is a suite in which nothing passed.
    """
    counts = {verdict: report.counts.get(verdict, 0) for verdict in VERDICTS}
    faults = [*shortcomings(Ledger(build, sum(counts.values()), counts, {}, (), (), 0, 0.0, 0.0))]
    faults += (
        [f"{file.path.name}: {file.status}, {file.reason}" for file in report.troubled[:_NAMED]] if report.exit_code else []
    )
    return BuildAnswer(
        build.name,
        f"reports / {suite}",
        "failure" if faults or report.exit_code else "success",
        redact("; ".join(faults) or f"{sum(counts.values()):,} tests passed or were excused"),
        passed=sum(counts[verdict] for verdict in ("passed", "flaky", "xpassed")),
        failures=tuple(Failure(one.suite, redact(one.test), "unknown", redact(one.message or "")) for one in bad[:_NAMED]),
    )


def stopped(build: str, part: str, problem: str, page: str | None = None) -> BuildAnswer:
    """Answer with a run that ended before there was an account of its tests."""
    return BuildAnswer(build, part, "failure", redact(problem), page=page)


def exit_status(answers: Sequence[BuildAnswer], *, strict: bool = False) -> int:
    """Return 0 where nothing failed that is the backend's, and each build passed a test; else 1.

    With `strict`, what failed by upstream or the infrastructure counts, too.
    """
    good = ("success",) if strict else ("success", "neutral")
    return 0 if answers and all(one.conclusion in good and one.passed for one in answers) else 1


def overall(answers: Sequence[BuildAnswer], *, strict: bool = False) -> Conclusion:
    """Return the conclusion of all answers together."""
    if exit_status(answers, strict=strict):
        return "failure"
    return "success" if all(one.conclusion == "success" for one in answers) else "neutral"


def to_document(answer: BuildAnswer) -> str:
    """Return an answer as JSON."""
    return _ANSWER.dump_json(answer).decode()


def read_document(text: str) -> BuildAnswer:
    """Return the answer in a document. Raises `AccelCiError` for one of another version."""
    try:
        return _ANSWER.validate_json(text)
    except ValidationError:
        raise AccelCiError(
            "the project's answer cannot be read; install the same release of accel-ci here as there"
        ) from None
