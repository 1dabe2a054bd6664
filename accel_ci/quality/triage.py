"""The relay's `triage_verdict` of a failure: the shape that other projects read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from accel_ci.quality.causes import Blame
from accel_ci.quality.versions import Cause

_CATEGORIES: dict[Cause, str] = {
    "infra": "infra", "flaky": "flake", "upstream": "upstream", "backend": "backend", "unknown": "unknown",
}  # fmt: skip
_MOST_EVIDENCE = 20
_MOST_CHARACTERS = 500


def triage_verdict(blame: Blame, now: datetime | None = None) -> dict[str, Any]:
    """Return the verdict: category, confidence, summary, evidence, and the suspected change of upstream.

    The relay drops verdicts over 16 KB whole, so the lists and texts are cut.
    """
    confidence = "high" if blame.probability >= 0.95 else "medium" if blame.probability >= 0.8 else "low"
    verdict: dict[str, Any] = {
        "category": _CATEGORIES[blame.cause],
        "confidence": "low" if blame.cause == "unknown" else confidence,
        "summary": blame.sentence[:_MOST_CHARACTERS],
        "evidence": [each.text[:_MOST_CHARACTERS] for each in blame.evidence[:_MOST_EVIDENCE]],
        "reproduced_on_retry": blame.cause != "flaky" and not blame.retried,
        "analyzer": "accel-ci",
        "analyzed_at": (now or datetime.now(timezone.utc)).isoformat(timespec="seconds"),
    }
    if blame.cause == "upstream" and blame.suspect is not None:
        verdict["suspected_upstream"] = {"commit": blame.suspect, "reason": blame.sentence[:_MOST_CHARACTERS]}
    return verdict
