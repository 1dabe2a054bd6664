"""Warning codes: each has a meaning, is emitted somewhere, and is in the glossary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import accel_ci.reports
from accel_ci.reports.warning_codes import EMPTY, MEANINGS, NOTED, REJECTED, SALVAGED, WarningCode, meaning
from accel_ci_tests.fixtures.checkout import ROOT

PACKAGE = Path(accel_ci.reports.__file__).parent
GLOSSARY = ROOT / "docs" / "report_warnings.md"


def test_every_code_has_one_meaning() -> None:
    """mypy checks that readers emit codes of `WarningCode` alone."""
    assert set(get_args(WarningCode)) == MEANINGS.keys()
    assert len(MEANINGS) == len(REJECTED) + len(EMPTY) + len(SALVAGED) + len(NOTED)
    assert meaning("x_unreadable (Permission denied)") == REJECTED["x_unreadable"]
    assert meaning("unheard_of") == ""


def test_every_code_is_emitted() -> None:
    sources = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path.name != "warning_codes.py"]
    emitted = {code for source in sources for code in re.findall(r'"([a-z0-9_]+)"', source)}
    assert MEANINGS.keys() <= emitted


def test_glossary() -> None:
    sections = re.split(r"^## ", GLOSSARY.read_text("utf-8"), flags=re.MULTILINE)[1:]
    found = {
        section.split("\n")[0]: dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)) for section in sections
    }
    assert found == {"Rejected": REJECTED, "Empty": EMPTY, "Salvaged": SALVAGED, "Noted": NOTED}
