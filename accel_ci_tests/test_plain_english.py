"""Docstrings and texts for users are plain English; these checks find the most frequent lapses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.checkout import ROOT

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "accel_ci.yaml", "docs/*.md", "examples/*/README.md")
TEXTS = (".py", ".j2", ".js", ".yaml")
QUESTION = re.compile(r"\s*(What|Which|How|Where|Who|Whose|Whether|Why)\b")
BANNED = re.compile(
    r"(?i)\b(gives? back|be it that|mends?|says so|put down to|speaks? (of|against)|there is use|of its own)\b"
)


def checked_files() -> list[Path]:
    return sorted(file for file in (ROOT / "accel_ci").rglob("*") if file.name.endswith(TEXTS))


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Every string that stands alone: docstrings, and descriptions of constants and fields, with their lines."""
    nodes = [node.value for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Expr)]
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in checked_files() if path.suffix == ".py"], ids=name_of)
def test_docstrings_start_with_a_verb_or_a_noun(path: Path) -> None:
    assert [(line, text.split("\n")[0]) for line, text in docstrings(path) if QUESTION.match(text)] == []


@pytest.mark.parametrize(
    "path", [*checked_files(), *(path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern)))], ids=name_of
)
def test_texts_have_no_banned_phrase(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [(number, line) for number, line in enumerate(lines, 1) if BANNED.search(line)] == []
