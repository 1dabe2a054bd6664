"""The files of a wheel after it is installed: another package or a test may have replaced them."""

from __future__ import annotations

import base64
import csv
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from accel_ci.storage.artifacts import sha256_of

_CODE = (".py", ".so", ".pyd")


def top_level_names(wheels: Iterable[Path]) -> set[str]:
    """Return the names of the packages and modules that wheels install."""
    names = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(_is_installed_as_named, archive.namelist()):
                first, *rest = PurePosixPath(name).parts
                if name.endswith(_CODE):
                    names.add(first if rest else first.partition(".")[0])
    return names


def recorded_files(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield the files that a wheel installs as they are, each with its digest as RECORD has it."""
    for name in filter(_is_installed_as_named, wheel.namelist()):
        with wheel.open(name) as content:
            yield name, _as_recorded(sha256_of(content))


def installed_differently(wheel: Path, site_packages: Path) -> list[str]:
    """Return a line for each file of a wheel that `site_packages` lacks, has with other content, or has of another package.

    Which of two packages with a file of one name is installed last is chance.
    """
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = list(filter(_is_installed_as_named, archive.namelist()))
        others = _others(site_packages, "-".join(wheel.name.split("-")[:2]), set(names))
        for name in names:
            place = site_packages / name
            with archive.open(name) as original:
                digest = sha256_of(original)
            rivals = [other for other, recorded in others.get(name, ()) if recorded != _as_recorded(digest)]
            if not place.is_file():
                found.append(f"{name} of {wheel.name} is not installed")
            elif rivals:
                found.append(f"{place} is of {wheel.name} and, with other content, of {', '.join(rivals)}")
            else:
                with place.open("rb") as there:
                    if sha256_of(there) != digest:
                        found.append(f"{place} has other content than {name} of {wheel.name}")
    return found


def _is_installed_as_named(name: str) -> bool:
    """Return whether a file of a wheel is installed below site-packages by its own name and as it is."""
    return not name.endswith("/") and not PurePosixPath(name).parts[0].endswith((".data", ".dist-info"))


def _as_recorded(digest: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode("ascii")


def _others(site_packages: Path, own: str, names: Collection[str]) -> Mapping[str, list[tuple[str, str]]]:
    """Return the other distributions whose RECORD has a file of one of these names, with its digest there."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for record in sorted(site_packages.glob("*.dist-info/RECORD")):
        distribution = record.parent.name.removesuffix(".dist-info")
        if distribution == own:
            continue
        with record.open(encoding="utf-8", newline="") as lines:
            for row in csv.reader(lines):
                if len(row) > 1 and row[0] in names:
                    found[row[0]].append((distribution, row[1]))
    return found
