"""Write the relay's pages to a folder, each with its data as JSON beside it, and only those that have changed.

    index.html   index.json               the backends
    levels.html  levels.json              the level board, with what is advised
    pulls.html   pulls.json               the pull requests of the last days
    pulls/<number>.html, .json            a pull request's section
    backends/<owner>~<name>.html, .json   a backend; .svg is its badge

What was written is remembered by digests in `.written.json`. A writer that is killed writes pages again, no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from accel_ci.hud.badges import badge
from accel_ci.hud.render import Site, render_page, templates_stamp
from accel_ci.quality.levels import shown
from accel_ci.redaction import redact
from accel_ci.relay.allowlist import Allowlist, Downstream
from accel_ci.relay.levels import HISTORY_DAYS, Standing, breaks_of_upstream, judge_downstream
from accel_ci.relay.pages.failures import Baseline, baseline_of
from accel_ci.relay.pages.gather import RECENT, BackendLine, PullPage, backend_line, backend_page, pull_page
from accel_ci.relay.results_store import ResultsStore
from accel_ci.relay.rows import JobRow
from accel_ci.storage.atomic_file import write_whole_file

PAGES = {"index.html": "Backends", "pulls.html": "Pull requests", "levels.html": "Levels"}

MOST_PULLS = 200
"""The page of pull requests lists so many."""

_PACKAGE = "accel_ci.relay.pages"
_WRITTEN = ".written.json"
_DAY_S = 86400
_BASELINE_DAYS, _RECENT_DAYS = 7, 14
_MOST_COMPARED = 5000
_AT_ONCE = 50
"""Pull requests whose failed tests are read at a time."""


@dataclass(frozen=True)
class PagesSource:
    """All that the pages are made of. `web` is the address of GitHub's site."""

    store: ResultsStore
    allowlist: Allowlist
    upstream: str
    web: str = "https://github.com"
    pull_days: int = 14
    """The pages of pull requests go after so many days without a result."""


def site_of_api(api: str) -> str:
    """Return the address of GitHub's site by that of its API: `api.github.com`, or `<host>/api/v3` of an enterprise."""
    parts = urlsplit(api)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host.removeprefix('api.')}"


def backend_address(repository: str) -> str:
    """Return the address of a backend's page. The allowlist has no names that could lead out of the folder."""
    return f"backends/{repository.replace('/', '~')}.html"


def pull_address(number: int) -> str:
    """Return the address of a pull request's page."""
    return f"pulls/{number}.html"


def write_pages(source: PagesSource, folder: Path, now: float) -> int:
    """Write the pages that have changed, remove those that are too old, and return the number of the written ones.

    `now` is in seconds of Unix time. Raises `AccelCiError` where the results cannot be read, `OSError` where the folder
    cannot be written.
    """
    for each in ("backends", "pulls"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    writer = _Writer(folder, source, datetime.fromtimestamp(now, timezone.utc))
    today, until = writer.site.generated_at.date(), now + _DAY_S  # clocks of servers differ
    rows = source.store.rows(now - HISTORY_DAYS * _DAY_S, until, with_details=False)
    baseline = baseline_of(
        source.store.rows(now - _BASELINE_DAYS * _DAY_S, until, events=("push", "nightly", "periodic"), most=_MOST_COMPARED)
    )
    breaks = breaks_of_upstream(rows)
    by_backend = _grouped(rows, lambda row: row.repository.lower())
    lines: list[BackendLine] = []
    since: dict[str, date | None] = {}
    for downstream in source.allowlist.downstreams:
        own = by_backend.get(downstream.repository.lower(), [])
        standing = judge_downstream(downstream, own, today, breaks)
        lines.append(line := backend_line(standing, own[0] if own else None, today))
        since[downstream.repository] = standing.since
        _write_backend(writer, downstream, standing, line, own, baseline, now)
    of_pulls = [row for row in rows if row.pull_request is not None and row.at > now - source.pull_days * _DAY_S]
    pulls = _grouped(of_pulls, lambda row: row.pull_request or 0)
    _write_pulls(writer, pulls, baseline, now)
    data = {"day": today, "upstream": source.upstream, "backends": lines}
    writer.write("index.html", "index.html", data, {"lines": lines})
    levels = [{"repository": one.repository, "level": one.level, "device": one.device, "since": since[one.repository],
               "advice": one.advice, "reasons": one.reasons} for one in lines]  # fmt: skip
    writer.write("levels.html", "levels.html", {"day": today, "levels": levels}, {"lines": lines, "since": since})
    newest = [
        pull_page(number, [row for row in own if row.head_sha == own[0].head_sha], {}) for number, own in pulls.items()
    ]
    listed = [_listed(page) for page in newest[:MOST_PULLS]]
    writer.write("pulls.html", "pulls.html", {"pulls": listed}, {"pulls": listed})
    writer.remove_others()
    return writer.written


@dataclass
class _Writer:
    """Writes pages unless they are as they were, and knows which there are."""

    folder: Path
    source: PagesSource
    moment: datetime
    written: int = 0
    _now: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.site = Site(self.source.upstream, self.moment, PAGES, _PACKAGE)
        self._stamp = f"{templates_stamp(_PACKAGE)} {self.source.upstream} {self.source.web}"
        self._known = {one.repository for one in self.source.allowlist.downstreams}
        try:
            self._before = msgspec.json.decode((self.folder / _WRITTEN).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            self._before = {}

    def is_current(self, address: str, content: object) -> bool:
        """Return whether a page was made of this content, and note that it belongs to the site."""
        digest = hashlib.sha256(repr((self._stamp, sorted(self._known), content)).encode(errors="replace")).hexdigest()[:32]
        self._now[address] = digest
        return self._before.get(address) == digest and (self.folder / address).exists()

    def write(self, address: str, template: str, data: object, values: Mapping[str, Any]) -> None:
        """Write a page and its data, if the data have changed."""
        encoded = msgspec.json.encode(data, order="sorted")
        if not self.is_current(address, encoded):
            self.put(address, template, encoded, values)

    def put(self, address: str, template: str, data: bytes, values: Mapping[str, Any]) -> None:
        """Write a page and its data."""
        page, json = self.folder / address, (self.folder / address).with_suffix(".json")
        root = "../" if "/" in address else ""
        html = render_page(
            template, self.site, json.name, root=root, web=self.source.web, known=self._known, shown=shown,
            backend_address=backend_address, pull_address=pull_address, **values,
        )  # fmt: skip
        self.put_file(json, data.decode())
        self.put_file(page, html)
        self.written += 1

    def put_file(self, path: Path, text: str) -> None:
        """Write a file without the secrets of this process."""
        write_whole_file(path, redact(text).encode(errors="backslashreplace"))

    def remove_others(self) -> None:
        """Remove the pages that are too old, or of a backend that is gone, and remember what there is."""
        for path in (path for each in ("backends", "pulls") for path in (self.folder / each).glob("*.html")):
            if path.relative_to(self.folder).as_posix() not in self._now:
                for each in (path, path.with_suffix(".json"), path.with_suffix(".svg")):
                    each.unlink(missing_ok=True)
        write_whole_file(self.folder / _WRITTEN, msgspec.json.encode(self._now))


def _write_backend(
    writer: _Writer,
    downstream: Downstream,
    standing: Standing,
    line: BackendLine,
    rows: Sequence[JobRow],
    baseline: Baseline,
    now: float,
) -> None:
    address = backend_address(downstream.repository)
    if writer.is_current(address, (line, [(row.job, row.status, row.at) for row in rows])):
        return
    recent = writer.source.store.rows(now - _RECENT_DAYS * _DAY_S, now + _DAY_S, downstream.repository, most=RECENT)
    page = backend_page(line, standing, rows, recent, baseline, writer.moment.date())
    writer.put(address, "backend.html", msgspec.json.encode(page, order="sorted"), {"page": page})
    share = line.passing.value
    color = "#5f6b7a" if share is None else "#2e7d32" if line.passing.met else "#b3261e"
    words = "no data" if share is None else f"{share:.1%} of jobs pass"
    writer.put_file((writer.folder / address).with_suffix(".svg"), badge(f"{line.repository} {line.level}", words, color))


def _write_pulls(writer: _Writer, pulls: Mapping[int, Sequence[JobRow]], baseline: Baseline, now: float) -> None:
    """Write the pages of pull requests with new rows. They are compared with what failed without the change by then."""
    changed = [
        number
        for number, rows in pulls.items()
        if not writer.is_current(pull_address(number), [(row.job, row.status, row.at) for row in rows])
    ]
    since = now - writer.source.pull_days * _DAY_S
    for first in range(0, len(changed), _AT_ONCE):
        some = writer.source.store.rows(since, now + _DAY_S, pull_request=changed[first : first + _AT_ONCE])
        for number, rows in _grouped(some, lambda row: row.pull_request or 0).items():
            page = pull_page(number, rows, baseline)
            writer.put(pull_address(number), "pull.html", msgspec.json.encode(page, order="sorted"), {"page": page})


def _listed(page: PullPage) -> dict[str, Any]:
    newest = page.commits[0]
    return {"number": page.number, "head_sha": newest.head_sha, "at": page.at, "states": dict(sorted(page.states.items()))}


def _grouped(rows: Iterable[JobRow], key: Callable[[JobRow], Any]) -> dict[Any, list[JobRow]]:
    found: dict[Any, list[JobRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
