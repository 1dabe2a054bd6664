"""Every case of the shared corpus, where it is present."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from accel_ci.reports.parse import parse_path
from accel_ci.reports.report import to_json
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.reports.comparison import differences

CORPUS = Path(os.environ.get("ACCEL_CI_REPORT_CASES") or ROOT.parent / "shared" / "cases" / "reports")
EXPECTED = sorted([*CORPUS.glob("*.expected.json"), *CORPUS.glob("*/expected.json")])


def source(expected: Path) -> Path:
    """The input of an expectation."""
    if expected.name == "expected.json":
        return expected.parent
    name = expected.name.removesuffix(".expected.json")
    return next(path for path in CORPUS.glob(f"{name}.*") if not path.name.endswith(".expected.json"))


@pytest.mark.skipif(not EXPECTED, reason=f"the corpus is not at {CORPUS}")
@pytest.mark.parametrize("expected", EXPECTED, ids=lambda path: source(path).name)
def test_case(expected: Path, tmp_path: Path) -> None:
    path = source(expected)
    if path.is_dir():  # without the expectation, which is not a report
        path = shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns(expected.name))
    document: dict[str, Any] = json.loads(json.dumps(to_json(parse_path(path))))
    assert differences(json.loads(expected.read_text("utf-8")), document) == []
