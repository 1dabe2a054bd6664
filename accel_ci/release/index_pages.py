"""The pages of a static package index (PEP 503 and PEP 691), from the records of its files. Pure.

A project's `index.json` is also the record of its files: keys that begin with `_` are for the index itself (PEP 691). What
is written where, and in which order, is in `channel.py`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from packaging.version import Version
from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError

_API_VERSION = "1.1"


@dataclass(frozen=True)
class IndexedFile:
    """A wheel of an index, its `METADATA` beside it, and the build that it is of. `made_at` is the time of the revision."""

    filename: str
    sha256: str
    size: int
    version: str
    metadata_sha256: str
    requires_python: str | None
    build: str
    made_at: datetime
    uploaded_at: datetime

    @property
    def order(self) -> tuple[datetime, str]:
        """The place of the file's build among the builds of its variant: the newest revision is the last one."""
        return self.made_at, self.build


@dataclass(frozen=True)
class ProjectIndex:
    """A project of an index. `removed` has the digests of files that were removed: their names never get other content."""

    name: str
    files: tuple[IndexedFile, ...] = ()
    removed: Mapping[str, str] = field(default_factory=dict)

    def digest_of(self, filename: str) -> str | None:
        """The digest that a file name has, or has had; None for a new name."""
        known = {each.filename: each.sha256 for each in self.files}
        return known.get(filename) or self.removed.get(filename)

    def with_file(self, file: IndexedFile) -> ProjectIndex:
        """Add a file, which may be there. Raises `AccelCiError` if its name has other content."""
        known = self.digest_of(file.filename)
        if known is not None and known != file.sha256:
            raise AccelCiError(
                f"{file.filename} is in the index with the digest {known[:12]}…, and this one has {file.sha256[:12]}…: a "
                "name never gets other content. Give the new build another version"
            )
        if any(each.filename == file.filename for each in self.files):
            return self
        removed = {name: digest for name, digest in self.removed.items() if name != file.filename}
        return replace(self, files=tuple(sorted((*self.files, file), key=lambda each: each.order)), removed=removed)

    def without(self, filenames: Iterable[str]) -> ProjectIndex:
        """Remove files, and remember their digests."""
        gone = set(filenames)
        removed = {**self.removed, **{each.filename: each.sha256 for each in self.files if each.filename in gone}}
        return replace(self, files=tuple(each for each in self.files if each.filename not in gone), removed=removed)

    @property
    def superseded(self) -> dict[str, str]:
        """The reasons why installers leave files alone that nobody pins (PEP 592), by file name.

        Of versions that differ in their local part only, such as `1.0+g0123`, pip would take the one that sorts last, which
        means nothing for the digits of commits. So only the newest one counts.
        """
        newest: dict[str, IndexedFile] = {}
        for each in self.files:  # in order, so that the last one is the newest
            newest[Version(each.version).public] = each
        found = {}
        for each in self.files:
            last = newest[Version(each.version).public]
            if last.version != each.version:
                found[each.filename] = f"{last.version} is newer"
        return found


def project_json(project: ProjectIndex) -> bytes:
    """Return the page of a project as PEP 691 has it."""
    superseded, files = project.superseded, []
    for each in project.files:
        metadata = {"sha256": each.metadata_sha256}
        files.append({
            "filename": each.filename,
            "url": quote(each.filename),
            "hashes": {"sha256": each.sha256},
            "size": each.size,
            "requires-python": each.requires_python,
            "upload-time": each.uploaded_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "core-metadata": metadata,
            "data-dist-info-metadata": metadata,
            "yanked": superseded.get(each.filename, False),
            "_record": TypeAdapter(IndexedFile).dump_python(each, mode="json"),
        })  # fmt: skip
    versions = list(dict.fromkeys(each.version for each in project.files))
    return _json(name=project.name, versions=versions, files=files, _removed=project.removed)


def read_project(content: bytes, place: str) -> ProjectIndex:
    """Read the page of a project that `project_json` wrote. Raises `AccelCiError` if it is damaged."""
    try:
        page = json.loads(content)
        files = TypeAdapter(tuple[IndexedFile, ...]).validate_python([each["_record"] for each in page["files"]])
        removed = TypeAdapter(dict[str, str]).validate_python(page["_removed"])
        return ProjectIndex(str(page["name"]), files, removed)
    except (ValueError, LookupError, TypeError) as error:
        raise AccelCiError(
            f"{place} cannot be read ({type(error).__name__}); restore it, or delete it and publish again"
        ) from None


def project_html(project: ProjectIndex) -> bytes:
    """Return the page of a project as PEP 503 has it, with the digest of each file and of its metadata (PEP 658, 714)."""
    superseded, lines = project.superseded, []
    for each in project.files:
        metadata = f"sha256={each.metadata_sha256}"
        attributes = {
            "href": f"{quote(each.filename)}#sha256={each.sha256}",
            "data-requires-python": each.requires_python,
            "data-core-metadata": metadata,
            "data-dist-info-metadata": metadata,
            "data-yanked": superseded.get(each.filename),
        }
        lines.append(_link(each.filename, attributes))
    return _page(f"Links for {project.name}", lines)


def root_json(names: Sequence[str]) -> bytes:
    """Return the list of projects as PEP 691 has it."""
    return _json(projects=[{"name": name} for name in names])


def root_html(names: Sequence[str]) -> bytes:
    """Return the list of projects as PEP 503 has it."""
    return _page("Simple index", [_link(name, {"href": f"{quote(name)}/"}) for name in names])


def _json(**content: Any) -> bytes:
    return json.dumps({"meta": {"api-version": _API_VERSION}, **content}, indent=1).encode()


def _link(text: str, attributes: Mapping[str, str | None]) -> str:
    given = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items() if value is not None)
    return f"<a {given}>{html.escape(text)}</a><br>"


def _page(title: str, lines: Iterable[str]) -> bytes:
    version = f'<meta name="pypi:repository-version" content="{_API_VERSION}">'
    head = f'<meta charset="utf-8">{version}<title>{html.escape(title)}</title>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *lines])
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}\n</body></html>\n".encode()
