"""Answers in the form that each CI system shows: GitHub Actions, Buildkite, Jenkins, and plain text for all.

Names and messages of tests are hostile: in a log of GitHub Actions, a line that begins with `::` is a command.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from accel_ci.bridges.build_answer import BuildAnswer, overall
from accel_ci.errors import AccelCiError
from accel_ci.github.markdown import block, code, fitting, one_line, web_address
from accel_ci.process.run import run_tool
from accel_ci.pull_requests.answer import KINDS, Conclusion, Failure, brief_message

_LARGEST_SUMMARY = 900_000
"""Bytes; GitHub takes 1 MiB for the summary of a step, Buildkite for an annotation."""

_ANNOTATED = 10
"""GitHub shows so many errors, and so many warnings, of a step."""

_LONGEST_MESSAGE = 2000
_AGENT_S = 60.0
_STYLES: Mapping[Conclusion, str] = {"success": "success", "neutral": "warning", "failure": "error", "cancelled": "error"}

Write = Callable[[str], None]


def plain_lines(answers: Sequence[BuildAnswer]) -> Iterator[str]:
    """Return the answers for a log, without control characters."""
    for one in answers:
        yield one_line(f"{one.build} ({one.part}): {one.conclusion}: {one.title}")
        for failure in one.failures:
            yield f"  {_words(failure)[:_LONGEST_MESSAGE]}"
        if one.page is not None:
            yield f"  {one_line(one.page)}"


def markdown(answers: Sequence[BuildAnswer], *, strict: bool = False) -> str:
    """Return the answers as Markdown, in which no text of theirs is interpreted."""
    lines = [f"### Tests on the accelerator: {overall(answers, strict=strict)}"]
    for one in answers:
        name, address = code(f"{one.build} ({one.part})"), web_address(one.page) if one.page is not None else None
        shown = f'<a href="{escape(address)}">{name}</a>' if address is not None else name
        lines += ["", f"{shown}: {one.conclusion}", "", "<pre>", block(one_line(one.title)), "</pre>"]
        tests = [block(_words(failure)[:_LONGEST_MESSAGE]) for failure in one.failures]
        if report := one.summary.splitlines() or (["<pre>", *tests, "</pre>"] if tests else []):
            lines += ["", "<details>", "<summary>Failures</summary>", "", *report, "", "</details>"]
    kept, more = fitting(lines, _LARGEST_SUMMARY)
    return "\n".join([*kept, *([f"</pre></details>\n\n{more:,} more lines are not shown."] if more else []), ""])


def _words(failure: Failure) -> str:
    return one_line(f"{KINDS[failure.kind]}: {failure.suite}: {failure.test}{brief_message(failure)}")


@contextmanager
def no_workflow_commands(write: Write) -> Iterator[None]:
    """Have GitHub Actions take no line of the log for a command until the context ends.

    After an error that is not our own, this stays so: its traceback follows.
    """
    token = secrets.token_hex(16)
    write(f"::stop-commands::{token}")
    try:
        yield
    except AccelCiError:
        write(f"::{token}::")
        raise
    write(f"::{token}::")


def show_in_github(answers: Sequence[BuildAnswer], environment: Mapping[str, str], write: Write, *, strict: bool) -> None:
    """Show the answers on the page of a workflow's run: annotations, the summary of the step, and its outputs.

    The outputs are `conclusion` and `builds`, one name a line. Raises `AccelCiError` when a file cannot be written.
    """
    annotated = {"error": 0, "warning": 0}
    for one in answers:
        kind = "error" if one.conclusion == "failure" else "warning"
        if one.conclusion == "success":
            continue
        found = [(f"{one.build}: {one.title}", f"accel-ci: {one.part}")]
        found += [(_words(failure), f"accel-ci: {one.part}") for failure in one.failures]
        for message, heading in found[: _ANNOTATED - annotated[kind]]:
            annotated[kind] += 1
            text = one_line(message)[:_LONGEST_MESSAGE]
            write(f"::{kind} title={_property(one_line(heading))}::{_data(text)}")
    _append(environment.get("GITHUB_STEP_SUMMARY"), markdown(answers, strict=strict))
    builds = "\n".join(dict.fromkeys(one_line(one.build) for one in answers if one.build))
    outputs = {"conclusion": overall(answers, strict=strict), "builds": builds}
    _append(environment.get("GITHUB_OUTPUT"), "".join(_output(name, value) for name, value in outputs.items()))


def github_error(message: str) -> str:
    """Return the workflow command that shows an error of our own."""
    return f"::error title=accel-ci::{_data(one_line(message))}"


def _data(text: str) -> str:
    """Return the message of a workflow command, escaped as GitHub's own toolkit (`@actions/core`) does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Return a property of a workflow command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _output(name: str, value: str) -> str:
    """Return a value of several lines for `GITHUB_OUTPUT`, behind a delimiter that nobody can guess."""
    delimiter = f"accel_ci_{secrets.token_hex(16)}"
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def _append(path: str | None, text: str) -> None:
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise AccelCiError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None


def show_in_buildkite(answers: Sequence[BuildAnswer], environment: Mapping[str, str], *, strict: bool) -> str | None:
    """Annotate the page of a Buildkite build. Return the reason where that failed; the exit status stays."""
    conclusion = overall(answers, strict=strict)
    job = re.sub(r"[^A-Za-z0-9-]", "", environment.get("BUILDKITE_STEP_ID", ""))
    command = ["buildkite-agent", "annotate", "--style", _STYLES[conclusion], "--context", f"accel-ci-{job}".rstrip("-")]
    try:
        done = run_tool(command, timeout_s=_AGENT_S, environment=environment, stdin=markdown(answers, strict=strict))
    except (AccelCiError, FileNotFoundError) as error:
        return f"no annotation: {error}"
    return f"no annotation: buildkite-agent: {done.tail}" if done.status else None


def write_files(answers: Sequence[BuildAnswer], folder: Path, *, strict: bool) -> None:
    """Write `summary.md` and `conclusion.txt` for a CI that archives files, such as Jenkins. Raises `AccelCiError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.md").write_text(markdown(answers, strict=strict), "utf-8")
        (folder / "conclusion.txt").write_text(f"{overall(answers, strict=strict)}\n", "utf-8")
    except OSError as error:
        raise AccelCiError(f"{folder} cannot be written: {os.strerror(error.errno or 0)}; choose another --output") from None
