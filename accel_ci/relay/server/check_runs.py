"""Check runs at upstream, which show the state of a job in the pull request.

The requests to GitHub for one forward, and what a check run says, belong here; tries and their pauses are in `forward`. The
fields and their limits are those of GitHub's REST API (docs.github.com/rest/checks/runs, 2022-11-28).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from typing import Any
from urllib.parse import quote

from accel_ci.github.answers import Answer, Failed, Sent
from accel_ci.github.markdown import LONGEST_TEXT, block, code, fitting, inert, one_line, web_address
from accel_ci.relay.messages import cut
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.outbox import ForwardClaim, job_key

_LONGEST_NAME = 250
_PAGE, _PAGES = 30, 10


async def put_check_run(github: GitHubClient, claim: ForwardClaim) -> tuple[Answer, str | None]:
    """Create or update the check run of a job. Return what became of it, and the number of the check run.

    Where an earlier try may have created it, it is looked for first: its worker may have died before it wrote the number.
    """
    upstream = claim.row.upstream
    number = claim.reference
    if number is None and (claim.number > 1 or claim.row.status == "completed"):
        answer, number = await _find(github, claim.row)
        if not isinstance(answer, Sent):
            return answer, None
    body = check_run(claim.row)
    if number is not None:
        del body["head_sha"]  # it cannot be changed
        answer, _ = await github.request("PATCH", upstream, f"check-runs/{number}", body, time.time())
        return answer, number
    answer, created = await github.request("POST", upstream, "check-runs", body, time.time())
    if isinstance(answer, Sent):
        number = _number(created)
        if number is None:
            return Failed("the answer has no id of a check run"), None
    return answer, number


async def _find(github: GitHubClient, row: JobRow) -> tuple[Answer, str | None]:
    """Look for the check run of a job by its name and its key."""
    key = job_key(row)
    query = f"check_name={quote(check_run_name(row), safe='')}&filter=all&per_page={_PAGE}"
    path = f"commits/{quote(row.head_sha, safe='')}/check-runs?{query}"
    for page in range(1, _PAGES + 1):
        answer, document = await github.request("GET", row.upstream, f"{path}&page={page}", None, time.time())
        if not isinstance(answer, Sent):
            return answer, None
        found = document.get("check_runs") if isinstance(document, dict) else None
        if not isinstance(found, list):
            return Failed("the answer is no list of check runs"), None
        for one in found:
            if isinstance(one, dict) and one.get("external_id") == key and (number := _number(one)) is not None:
                return answer, number
        if len(found) < _PAGE:
            break
    return Sent(), None


def _number(document: Any) -> str | None:
    value = document.get("id") if isinstance(document, dict) else None
    return str(value) if isinstance(value, int) and value > 0 else None


def check_run_name(row: JobRow) -> str:
    """Return the name of a check run, as the public relay forms it."""
    return cut(one_line(f"crcr/{row.repository}/{row.workflow}/{row.job_name}"), _LONGEST_NAME)


def check_run(row: JobRow) -> dict[str, Any]:
    """Return what GitHub is to show of a job. All texts in it are of strangers."""
    body: dict[str, Any] = {
        "name": check_run_name(row),
        "head_sha": row.head_sha,
        "external_id": job_key(row),
        "status": row.status,
        "output": {"title": title(row), "summary": summary(row)},
    }
    if (address := web_address(row.url)) is not None:
        body["details_url"] = address
    if row.started_at is not None:
        body["started_at"] = _time(row.started_at)
    if row.status == "completed":
        body["conclusion"] = _conclusion(row)
        body["completed_at"] = _time(row.completed_at if row.completed_at is not None else row.at)
    return body


def _conclusion(row: JobRow) -> str:
    """The conclusion; a failure that tells nothing of the change is neutral, and the summary has the reported one."""
    reported = row.conclusion or "neutral"
    return "neutral" if row.is_infrastructure and reported in ("failure", "timed_out") else reported


def title(row: JobRow) -> str:
    """Return one line about a job."""
    if row.status == "in_progress":
        return "In progress"
    if row.is_infrastructure:
        return "The infrastructure failed"
    counts = [(row.failed, "failed"), (row.passed, "passed"), (row.skipped, "skipped")]
    shown = ", ".join(f"{count} {name}" for count, name in counts if count is not None)
    return shown or (row.conclusion or "completed").replace("_", " ").capitalize()


def summary(row: JobRow) -> str:
    """Return a description in GitHub's Markdown, within its limit. No text of a backend is interpreted."""
    parts = [f"The backend {code(row.repository)} reports from level {inert(row.level)}."]
    links = [
        f'<a href="{escape(address)}">{text}</a>'
        for text, given in (("the job", row.url), ("its results", row.artifact_url))
        if (address := web_address(given)) is not None
    ]
    if links:
        parts.append(f"See {' and '.join(links)}.")
    if row.status == "completed":
        if _conclusion(row) != row.conclusion and row.conclusion is not None:
            reported = code(row.conclusion)
            parts.append(f"Reported as {reported}, which tells nothing of this change: the infrastructure failed.")
        if row.passed is not None:
            parts.append(
                "| passed | failed | skipped |\n| --- | --- | --- |\n"
                f"| {row.passed} | {row.failed or 0} | {row.skipped or 0} |"
            )
        parts += _verdict(_object(row.triage_verdict))
    found = "\n\n".join(parts)
    tests = _tests(row.failed_tests, LONGEST_TEXT - len(found.encode()) - 200) if row.status == "completed" else ""
    return found + tests


def _verdict(verdict: Mapping[str, Any]) -> list[str]:
    text = verdict.get("summary")
    if not isinstance(text, str):
        return []
    category, confidence = (one_line(str(verdict.get(key, "unknown"))) for key in ("category", "confidence"))
    lines = f"{category}, with confidence {confidence}\n{cut(text, 4000)}"
    return [f"The backend's verdict on the cause:\n\n<pre>\n{block(lines)}\n</pre>"]


def _tests(failed_tests: str, room: int) -> str:
    """The failed tests, a line for each, as many as there is room for."""
    names: list[str] = []
    with suppress(ValueError, RecursionError):
        document = json.loads(failed_tests)
        if isinstance(document, list):
            names = [one_line(str(one["name"])) for one in document if isinstance(one, dict) and "name" in one]
    lines, more = fitting([block(name) for name in names], room)
    if not lines:
        return ""
    end = f"\n\n{more} more failed tests are not shown." if more else ""
    return "\n\nFailed tests:\n\n<pre>\n" + "\n".join(lines) + "\n</pre>" + end


def _object(text: str) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        value = json.loads(text) if text else None
        if isinstance(value, dict):
            return value
    return {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
