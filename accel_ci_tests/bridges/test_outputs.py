"""Answers as each CI system takes them: hostile text is never a command, and never markup."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from accel_ci.bridges.build_answer import BuildAnswer
from accel_ci.bridges.outputs import (
    github_error,
    markdown,
    no_workflow_commands,
    plain_lines,
    show_in_buildkite,
    show_in_github,
    write_files,
)
from accel_ci.errors import AccelCiError
from accel_ci.pull_requests.answer import Failure

HOSTILE = (
    "\n::error::x\r\n::set-output name=a::b %0A::warning::\x1b[31m </pre><script>alert(1)</script> @team [x](http://e) |`"
)
FAILED = BuildAnswer(
    "main-abc~py3", "integration / py3", "failure", f"1 new {HOSTILE}", passed=3, page="javascript:alert(1)",
    failures=tuple(Failure("unit", f"{number} {HOSTILE}", "new", HOSTILE) for number in range(20)),
)  # fmt: skip
NEUTRAL = BuildAnswer(
    "main-abc~py3", "rbe / py3", "neutral", "1 lost by the infrastructure", passed=3, page="https://ci.example/x"
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.names.add(tag)


def test_markdown_has_no_markup_of_a_name() -> None:
    text = markdown([FAILED, NEUTRAL])
    tags = _Tags()
    tags.feed(text)
    assert tags.names == {"pre", "code", "details", "summary", "a"}
    assert text.count("<pre>") == text.count("</pre>") == 3
    assert "javascript:" not in text
    assert '<a href="https://ci.example/x">' in text
    assert "\x1b" not in text
    outside = re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "@team" not in outside, "a name outside of <pre> could call people"


def test_github_gets_annotations_a_summary_and_outputs(tmp_path: Path) -> None:
    lines: list[str] = []
    files = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    (tmp_path / "GITHUB_OUTPUT").write_text("earlier=1\n")
    hostile = BuildAnswer("main-abc~py3\nconclusion=success", "x", "failure", "")
    show_in_github([FAILED, NEUTRAL, hostile], files, lines.append, strict=False)
    assert all("\n" not in line and "\r" not in line for line in lines)
    errors = [line for line in lines if line.startswith("::error ")]
    assert (len(errors), len(lines) - len(errors)) == (10, 1), "GitHub shows ten errors and ten warnings"
    assert all(re.fullmatch(r"::(error|warning) title=[^:,]*::.*", line) for line in lines)
    assert "%250A::warning::" in errors[1], "a percent sign of a name is no escape"
    outputs = (tmp_path / "GITHUB_OUTPUT").read_text()
    read = dict(re.findall(r"^(\w+)<<(accel_ci_[0-9a-f]{32})\n", outputs, flags=re.MULTILINE))
    assert outputs.startswith("earlier=1\n")
    assert read.keys() == {"conclusion", "builds"}
    assert len(set(read.values())) == 2
    assert f"{read['conclusion']}\nfailure\n{read['conclusion']}\n" in outputs
    assert "\nconclusion=success" not in outputs
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == markdown([FAILED, NEUTRAL, hostile])


def test_commands_are_off_while_others_write_to_the_log() -> None:
    lines: list[str] = []
    with no_workflow_commands(lines.append):
        lines.append("::error::x")
    begin, _, end = lines
    [token] = re.findall(r"^::stop-commands::([0-9a-f]{32})$", begin)
    assert end == f"::{token}::"


def test_an_error_of_our_own_is_one_command() -> None:
    assert github_error("50%\n::set-env::x") == "::error title=accel-ci::50%25 ::set-env::x"


def test_a_log_has_no_line_of_a_name() -> None:
    assert not [line for line in plain_lines([FAILED]) if line.startswith("::") or "\n" in line or "\x1b" in line]


def _agent(folder: Path, script: str) -> dict[str, str]:
    agent = folder / "bin" / "buildkite-agent"
    agent.parent.mkdir()
    agent.write_text(f"#!/bin/sh\n{script}\n")
    agent.chmod(0o755)
    return {**os.environ, "PATH": f"{agent.parent}:{os.environ['PATH']}", "SEEN": str(folder / "seen")}


def test_buildkite_gets_one_annotation_for_each_step(tmp_path: Path) -> None:
    environment = _agent(tmp_path, 'printf "%s\\n" "$@" > "$SEEN"; cat >> "$SEEN"')
    environment["BUILDKITE_STEP_ID"] = "0191-ab; rm -rf"
    assert show_in_buildkite([FAILED], environment, strict=False) is None
    arguments = ["annotate", "--style", "error", "--context", "accel-ci-0191-abrm-rf"]
    assert (tmp_path / "seen").read_text() == "\n".join([*arguments, markdown([FAILED])])


def test_an_agent_that_fails_is_no_failure_of_the_build(tmp_path: Path) -> None:
    assert show_in_buildkite([NEUTRAL], {"PATH": str(tmp_path)}, strict=False) is not None
    environment = _agent(tmp_path, "echo no such job; exit 1")
    assert "no such job" in (show_in_buildkite([NEUTRAL], environment, strict=False) or "")


def test_files_for_others(tmp_path: Path) -> None:
    write_files([NEUTRAL], tmp_path / "accel-ci", strict=False)
    assert (tmp_path / "accel-ci" / "conclusion.txt").read_text() == "neutral\n"
    assert (tmp_path / "accel-ci" / "summary.md").read_text() == markdown([NEUTRAL])
    (tmp_path / "file").write_text("")
    with pytest.raises(AccelCiError, match="choose another --output"):
        write_files([NEUTRAL], tmp_path / "file", strict=False)


def test_a_summary_keeps_to_the_limit_of_the_system() -> None:
    long = "x" * 5000
    many = [BuildAnswer("b~v", "p", "failure", "t", summary="\n".join(["<pre>", *[long] * 400, "</pre>"]), passed=1)]
    text = markdown(many)
    assert len(text.encode()) < 1 << 20
    assert "more lines are not shown" in text
