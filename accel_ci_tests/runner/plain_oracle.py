"""A pytest plugin that writes what pytest's own terminal reporter counts: categories and messages, by node id, as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_CATEGORIES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "subtests failed")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the reports of each category."""
    found = []
    for category in _CATEGORIES:
        for report in terminalreporter.stats.get(category, ()):
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else report.longreprtext
            found.append([report.nodeid, category, message, getattr(report, "when", "collect")])
    Path(os.environ["PLAIN_ORACLE"]).write_text(json.dumps(found), "utf-8")
