"""The tests that the documents name as proof are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.checkout import ROOT

NAMED = re.compile(r"^\| .* \| `([\w/]+\.py)((?:::\w+)*)` \|$", re.MULTILINE)
DOCUMENTS = [path for path in sorted((ROOT / "docs").glob("*.md")) if "\n## Shown by\n" in path.read_text("utf-8")]


def names_in(body: list[ast.stmt], before: str = "") -> set[str]:
    """Return the node ids of the functions and classes in the body of a module or class, after its own."""
    named = [each for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    found = {f"{before}::{each.name}" for each in named}
    return found.union(*(names_in(each.body, f"{before}::{each.name}") for each in named if isinstance(each, ast.ClassDef)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_row_names_a_test(document: Path) -> None:
    _, _, section = document.read_text("utf-8").partition("\n## Shown by\n")
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    named = NAMED.findall(section)
    assert len(named) == len(rows) - 2, "each row but the two of the head names a test"
    gone = []
    for place, name in named:
        path = ROOT / "accel_ci_tests" / place
        if not path.is_file() or (name and name not in names_in(ast.parse(path.read_bytes()).body)):
            gone.append(place + name)
    assert gone == []
