"""The relay's `triage_verdict` of a failure: the shape that other projects read."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from accel_ci.quality.causes import Blame
from accel_ci.quality.versions import Cause

_CATEGORIES: dict[Cause, str] = {
    "infra": "infra", "flaky": "flake", "upstream": "upstream", "backend": "backend", "unknown": "unknown",
}  # fmt: skip
_MOST_EVIDENCE = 10
_MOST_CHARACTERS = 500
_LONGEST_NAME = 200
_LONGEST_REASON = 300
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")


def triage_verdict(blame: Blame, now: datetime | None = None) -> dict[str, Any]:
    """Return the verdict: category, confidence, summary, evidence, and the suspected change of upstream.

    The relay drops a verdict whole for one value of another shape, and over 16 KB: the lists and texts are cut, and a
    suspect that is no commit is left out.
    """
    confidence = "high" if blame.probability >= 0.95 else "medium" if blame.probability >= 0.8 else "low"
    evidence = [each.text.strip()[:_MOST_CHARACTERS] for each in blame.evidence]
    verdict: dict[str, Any] = {
        "schema_version": 1,
        "category": _CATEGORIES[blame.cause],
        "confidence": "low" if blame.cause == "unknown" else confidence,
        "summary": blame.sentence[:_MOST_CHARACTERS],
        "evidence": [
            {"job": blame.suite[:_LONGEST_NAME], "test": blame.test[:_LONGEST_NAME], "excerpt": text}
            for text in evidence[:_MOST_EVIDENCE]
            if text
        ],
        "reproduced_on_retry": blame.cause != "flaky" and not blame.retried,
        "analyzer": {"name": "accel-ci"},
        "analyzed_at": (now or datetime.now(timezone.utc)).isoformat(timespec="seconds"),
    }
    if blame.cause == "upstream" and blame.suspect is not None and _COMMIT.fullmatch(blame.suspect):
        verdict["suspected_upstream"] = {"commit": blame.suspect, "reason": blame.sentence[:_LONGEST_REASON]}
    return verdict
