"""The GitHub issues of incidents: one is opened when an incident begins, closed when it is over, and reopened if it returns.

What to do follows from the incidents and from the issues that there are. A hidden line in its text tells which incident an
issue is on, and in which state: so nothing is done twice, whatever was killed before. Each step is one request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from accel_ci.config.notify_settings import Issues
from accel_ci.notify.messages import plain
from accel_ci.notify.troubles import Trouble
from accel_ci.redaction import redact

KNOWN_FOR = timedelta(days=90)
"""An issue that was closed is reopened within so long; later, the incident gets a new one."""

_MARKER = re.compile(r"<!-- accel-ci:([\w.-]{1,100}):(open|over) -->")
_MOST_LISTED = 100


class Requests(Protocol):
    """The requests to GitHub's REST API that are needed here, as `accel_ci.github.client` makes them."""

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page after page."""

    def send(self, method: str, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create or change something once."""


@dataclass(frozen=True)
class Issue:
    """An issue that accel-ci has opened. `told` is the state of the incident in its text, `name` that of the trouble."""

    number: int
    name: str
    told: str
    is_open: bool
    is_unwanted: bool
    title: str
    text: str
    created_on: date


@dataclass(frozen=True)
class Step:
    """A request: to create an issue, or with a `number` to change one."""

    what: str
    document: dict[str, Any]
    number: int | None = None


def read_issues(requests: Requests, repository: str, settings: Issues, now: datetime) -> list[Issue]:
    """Read the issues that are open, and those that were closed lately. Raises `GitHubError`."""
    found: dict[int, Issue] = {}
    since = (now - KNOWN_FOR).strftime("%Y-%m-%dT%H:%M:%SZ")
    for asked in ({"state": "open"}, {"state": "closed", "since": since}):
        query = urlencode({**asked, "labels": settings.labels[0], "per_page": 100})
        for document in requests.pages(f"repos/{quote(repository)}/issues?{query}"):
            if (issue := _issue(document)) is not None:
                found[issue.number] = issue
    return [found[number] for number in sorted(found)]


def plan_steps(named: Mapping[str, Trouble], known: Sequence[Issue], settings: Issues, today: date) -> list[Step]:
    """Return the steps that bring the issues up to date with the troubles, by name. Pure.

    An issue that a person closed as not planned is left alone; one that a person closed otherwise is reopened only if its
    incident ends and returns.
    """
    issues: dict[str, Issue] = {}
    for issue in known:  # of two on one incident, the first counts
        issues.setdefault(issue.name, issue)
    steps, too_many = list[Step](), list[Trouble]()
    opened = sum(issue.created_on == today and not issue.name.startswith("more-") for issue in issues.values())
    for name, trouble in named.items():
        own = issues.get(name)
        if own is not None:
            steps += _update(own, name, trouble)
        elif trouble.is_open and trouble.cause in settings.causes and trouble.tests >= settings.least_tests:
            if opened < settings.a_day:
                opened += 1
                document = {"title": _title(trouble), "body": _text(name, trouble), "labels": list(settings.labels)}
                steps.append(Step(f"open an issue on {name}", document))
            else:
                too_many.append(trouble)
    return [*steps, *_list_others(too_many, issues, settings, today)]


def take_steps(requests: Requests, repository: str, steps: Sequence[Step]) -> None:
    """Take the steps. Raises `GitHubError` at the first that fails; the next time, the rest is planned again."""
    for step in steps:
        path = f"repos/{quote(repository)}/issues"
        if step.number is None:
            requests.send("POST", path, step.document)
        else:
            requests.send("PATCH", f"{path}/{step.number}", step.document)


def _issue(document: Mapping[str, Any]) -> Issue | None:
    """An issue of accel-ci; None for a pull request, and for an issue without the hidden line."""
    text, number = document.get("body"), document.get("number")
    if not isinstance(text, str) or not isinstance(number, int) or "pull_request" in document:
        return None
    if (marker := _MARKER.match(text)) is None:
        return None
    try:
        created = datetime.fromisoformat(str(document.get("created_at")).replace("Z", "+00:00")).date()
    except ValueError:
        return None
    unwanted = document.get("state_reason") == "not_planned"
    text = text.replace("\r\n", "\n")
    title = str(document.get("title"))
    return Issue(number, marker[1], marker[2], document.get("state") == "open", unwanted, title, text, created)


def _update(issue: Issue, name: str, trouble: Trouble) -> Iterator[Step]:
    if issue.is_unwanted and not issue.is_open:
        return
    text, title = _text(name, trouble), _title(trouble)
    document: dict[str, Any] = {"title": title, "body": text}
    if issue.is_open:
        if not trouble.is_open:
            yield Step(
                f"close the issue on {name}", {**document, "state": "closed", "state_reason": "completed"}, issue.number
            )
        elif (text, title) != (issue.text, issue.title):
            yield Step(f"update the issue on {name}", document, issue.number)
    elif trouble.is_open and issue.told == "over":
        yield Step(f"reopen the issue on {name}", {**document, "state": "open"}, issue.number)
    elif not trouble.is_open and issue.told == "open":  # a person closed it
        yield Step(f"note in the issue on {name} that it is over", document, issue.number)


def _list_others(troubles: Sequence[Trouble], issues: Mapping[str, Issue], settings: Issues, today: date) -> Iterator[Step]:
    """Keep the list of the incidents over the budget of the day, and close those of earlier days."""
    name = f"more-{today}"
    own = issues.get(name)
    for each in issues.values():
        if each.name.startswith("more-") and each.is_open and (each.name != name or not troubles):
            body = each.text.replace(":open -->", ":over -->", 1)
            yield Step(f"close the list {each.name}", {"body": body, "state": "closed"}, each.number)
    if not troubles or (own is not None and own.is_unwanted):
        return
    head = [f"<!-- accel-ci:{name}:open -->", f"Over the {settings.a_day} issues a day that may be opened:", ""]
    lines = [f"- `{plain(each.title, 120)}` ({each.cause}, {each.tests} tests)" for each in troubles[:_MOST_LISTED]]
    text = redact("\n".join([*head, *lines]))
    title = f"{len(troubles)} more incidents on {today}"
    if own is None:
        yield Step(f"open the list {name}", {"title": title, "body": text, "labels": list(settings.labels)})
    elif (own.text, own.title) != (text, title):
        yield Step(f"update the list {name}", {"title": title, "body": text}, own.number)


def _title(trouble: Trouble) -> str:
    return redact(f"[{trouble.cause}] {plain(trouble.title, 120)}")


def _text(name: str, trouble: Trouble) -> str:
    """The text of an issue. What comes from tests is in code, where nothing is a link, a mention or a reference."""
    state = "open" if trouble.is_open else "over"
    rows = [("State", state)]
    rows += [("First seen", f"`{plain(trouble.since)}`")] if trouble.since else []
    rows += [("Last seen", f"`{plain(trouble.last)}`")] if trouble.last else []
    rows += [("Tests", f"{trouble.tests}")] if trouble.tests else []
    rows += [("Owner", f"`{plain(trouble.owner)}`")] if trouble.owner else []
    rows += [("Page", trouble.link)] if trouble.link else []
    lines = [f"<!-- accel-ci:{name}:{state} -->", f"`{plain(trouble.sentence)}`", "", "| | |", "| --- | --- |"]
    lines += [f"| {label} | {value.replace('|', '¦')} |" for label, value in rows]
    if trouble.command:
        lines += ["", "```sh", trouble.command, "```"]
    lines += ["", "This issue is kept up to date, closed when the incident is over, and reopened if it returns."]
    return redact("\n".join(lines))
